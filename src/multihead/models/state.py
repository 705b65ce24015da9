"""Where decoding stands, as a value: the source as the decoder sees it, and the cache of what it has written.

`models.transformer` makes and reads it; a search only hands it on, selects rows of it and joins two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.attention import KeyValue, Mask, Padding
from multihead.models.sentences import group_of, one_a_row, sentences_of_rows


@dataclass(frozen=True)
class Memory:
    """The source as the decoder sees it, one row a sentence."""

    layers: tuple[KeyValue, ...]
    lengths: Int[Tensor, " sentences"]

    @property
    def mask(self) -> Mask:
        """Where the source goes on."""
        return Padding(self.lengths)

    def select(self, sentences: Int[Tensor, " sentences"]) -> Memory:
        """The named sentences, in that order."""
        return Memory(tuple(layer.select(sentences) for layer in self.layers), self.lengths[sentences])


@dataclass(frozen=True)
class TransformerState:
    """Where decoding stands: a value, never changed; `Transformer.step` returns the next one.

    Rows are hypotheses. Those of one sentence stand together and are equally many, so that ``memory`` holds a
    sentence once: row r attends to sentence ``r // (rows // sentences)``. Caches are aligned at the right:
    a row that began later is padded on the left, by ``padding[row]`` positions (``None`` where no row is).
    """

    memory: Memory
    cache: tuple[KeyValue, ...] | None
    positions: Int[Tensor, " rows"]
    """How many target positions each row has behind it."""
    padding: Int[Tensor, " rows"] | None = None

    @property
    def rows(self) -> int:
        """Hypotheses."""
        return self.positions.size(0)

    @property
    def group(self) -> int:
        """Hypotheses a sentence; 1 in a state without rows."""
        return group_of(self.rows, self.memory)

    @property
    def time(self) -> int:
        """Positions in the cache: the longest row's."""
        return 0 if self.cache is None else self.cache[0].length

    def select(self, rows: Int[Tensor, " rows"]) -> TransformerState:
        """The named rows, in that order, with repetition; none at all make a state without rows."""
        memory = sentences_of_rows(self.memory, rows, self.group)
        return TransformerState(
            memory,
            None if self.cache is None else tuple(layer.select(rows) for layer in self.cache),
            self.positions[rows],
            None if self.padding is None else self.padding[rows],
        )

    def join(self, other: TransformerState) -> TransformerState:
        """The rows of both; they may have begun at different steps, from sources of different widths."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        mine, theirs = one_a_row(self.memory, self.rows), one_a_row(other.memory, other.rows)
        time = max(self.time, other.time)
        cache = None
        if time:
            layers = self.cache or other.cache or ()
            pairs = zip(self._caches(layers), other._caches(layers), strict=True)
            cache = tuple(KeyValue.join(a, b) for a, b in pairs)
        memories = tuple(_join_right(a, b) for a, b in zip(mine.layers, theirs.layers, strict=True))
        memory = Memory(memories, torch.cat((mine.lengths, theirs.lengths)))
        positions = torch.cat((self.positions, other.positions))
        padding = torch.cat((self._padding(time), other._padding(time)))
        ragged = self.time != other.time or self.padding is not None or other.padding is not None
        return TransformerState(memory, cache, positions, padding if ragged else None)

    def _caches(self, like: tuple[KeyValue, ...]) -> tuple[KeyValue, ...]:
        """The cache, or one of no positions with the heads and widths of ``like``."""
        if self.cache is not None:
            return self.cache
        return tuple(
            KeyValue(*(x.new_zeros(self.rows, x.size(1), 0, x.size(3)) for x in (kv.key, kv.value))) for kv in like
        )

    def _padding(self, time: int) -> Tensor:
        own = torch.zeros_like(self.positions) if self.padding is None else self.padding
        return own + (time - self.time)


def _join_right(a: KeyValue, b: KeyValue) -> KeyValue:
    """Two memories over one another, the narrower one padded on the right."""
    width = max(a.length, b.length)

    def fill(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 0, width - x.size(2)))

    return KeyValue(torch.cat((fill(a.key), fill(b.key))), torch.cat((fill(a.value), fill(b.value))))
