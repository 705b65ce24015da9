"""What states of every network have in common: what belongs to the source is kept once a sentence, not once a row.

Rows are hypotheses. Those of one sentence stand together and are equally many, so row r belongs to sentence
``r // (rows // sentences)``. Which tensors a network keeps of a sentence is said where its state is.

Where decoding stands, as a value: the source as the decoder sees it, and the cache of what it has written.

`models.transformer` makes and reads it; a search only hands it on, selects rows of it and joins two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.attention import KeyValue, Mask, Padding

Own = TypeVar("Own")  # typing.Self, which the shape checker does not take


@runtime_checkable
class PerSentence(Protocol):
    """What a state keeps of its sentences."""

    @property
    def lengths(self) -> Int[Tensor, " sentences"]:
        """Of each sentence."""

    def select(self: Own, sentences: Int[Tensor, " sentences"]) -> Own:
        """The named sentences, in that order."""


PerSentenceT = TypeVar("PerSentenceT", bound=PerSentence)


def group_size(rows: int, kept: PerSentence) -> int:
    """Hypotheses a sentence; 1 in a state without rows."""
    return max(rows, 1) // max(len(kept.lengths), 1)


def select_sentences(kept: PerSentenceT, rows: Int[Tensor, " rows"], group: int) -> PerSentenceT:
    """What stays of the sentences where these rows stay: one each, or one a row where groups become unequal."""
    sentences = rows // group
    stay, counts = torch.unique_consecutive(sentences, return_counts=True)
    if not bool((counts == counts[:1]).all()):
        stay = sentences
    return kept if torch.equal(stay, torch.arange(len(kept.lengths), device=stay.device)) else kept.select(stay)


def repeat_per_row(kept: PerSentenceT, rows: int) -> PerSentenceT:
    """The sentences, repeated until there is one a row, as joining needs it."""
    if rows == len(kept.lengths):
        return kept
    return kept.select(torch.arange(rows, device=kept.lengths.device) // group_size(rows, kept))


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
        return group_size(self.rows, self.memory)

    @property
    def time(self) -> int:
        """Positions in the cache: the longest row's."""
        return 0 if self.cache is None else self.cache[0].length

    def select(self, rows: Int[Tensor, " rows"]) -> TransformerState:
        """The named rows, in that order, with repetition; none at all make a state without rows."""
        memory = select_sentences(self.memory, rows, self.group)
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
        mine, theirs = repeat_per_row(self.memory, self.rows), repeat_per_row(other.memory, other.rows)
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
