"""Decoder states: immutable values with selectable and joinable rows.

Rows of a state are hypotheses. The rows of a sentence are adjacent and equally many, so row r belongs to sentence
``r // (rows // sentences)``, and what depends on the source alone is stored once per sentence instead of once per row
(`PerSentence`). The functions here keep the two in step for the states of all networks; `TransformerState` is the
Transformer's. States are made and read by `models.transformer`, `models.recurrent` and `models.pointer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.attention import KeyValue, Mask, Padding

SelfT = TypeVar("SelfT")  # typing.Self, which the shape checker does not accept


@runtime_checkable
class PerSentence(Protocol):
    """The part of a state that is stored once per sentence."""

    @property
    def lengths(self) -> Int[Tensor, " sentences"]:
        """Length of each source."""

    def select(self: SelfT, sentences: Int[Tensor, " sentences"]) -> SelfT:
        """These sentences, in this order."""


PerSentenceT = TypeVar("PerSentenceT", bound=PerSentence)


def group_size(rows: int, memory: PerSentence) -> int:
    """Number of rows per sentence; 1 in a state without rows."""
    return max(rows, 1) // max(len(memory.lengths), 1)


def select_sentences(memory: PerSentenceT, rows: Int[Tensor, " rows"], group: int) -> PerSentenceT:
    """The sentences of the selected rows: one entry per sentence, or one per row if the groups become unequal."""
    sentences = rows // group
    kept, counts = torch.unique_consecutive(sentences, return_counts=True)
    if not bool((counts == counts[:1]).all()):
        kept = sentences
    unchanged = torch.equal(kept, torch.arange(len(memory.lengths), device=kept.device))
    return memory if unchanged else memory.select(kept)


def repeat_per_row(memory: PerSentenceT, rows: int) -> PerSentenceT:
    """Repeat the sentences until there is one entry per row, which joining two states requires."""
    if rows == len(memory.lengths):
        return memory
    return memory.select(torch.arange(rows, device=memory.lengths.device) // group_size(rows, memory))


@dataclass(frozen=True)
class Memory:
    """Keys and values of the source for each decoder layer, one row per sentence."""

    layers: tuple[KeyValue, ...]
    lengths: Int[Tensor, " sentences"]

    @property
    def mask(self) -> Mask:
        """The padding mask of the source."""
        return Padding(self.lengths)

    def select(self, sentences: Int[Tensor, " sentences"]) -> Memory:
        """These sentences, in this order."""
        return Memory(tuple(layer.select(sentences) for layer in self.layers), self.lengths[sentences])


@dataclass(frozen=True)
class TransformerState:
    """State of a Transformer's decoder; immutable: `Transformer.step` returns the next one.

    Row r attends to sentence ``r // (rows // sentences)`` of ``memory``. The caches of all rows end at the same
    position: a row that started later is padded on the left by ``padding[row]`` positions (None = no row is padded).
    """

    memory: Memory
    cache: tuple[KeyValue, ...] | None
    """Keys and values of the decoded positions for each layer; None before the first step."""
    positions: Int[Tensor, " rows"]
    """Number of positions decoded so far."""
    padding: Int[Tensor, " rows"] | None = None

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.positions.size(0)

    @property
    def group(self) -> int:
        """Number of hypotheses per sentence; 1 in a state without rows."""
        return group_size(self.rows, self.memory)

    @property
    def time(self) -> int:
        """Number of positions in the cache."""
        return 0 if self.cache is None else self.cache[0].length

    def select(self, rows: Int[Tensor, " rows"]) -> TransformerState:
        """These rows, in this order; repetitions and an empty selection are allowed."""
        memory = select_sentences(self.memory, rows, self.group)
        return TransformerState(
            memory,
            None if self.cache is None else tuple(layer.select(rows) for layer in self.cache),
            self.positions[rows],
            None if self.padding is None else self.padding[rows],
        )

    def join(self, other: TransformerState) -> TransformerState:
        """The rows of both states, which may have started at different steps, from sources of different widths."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        own, others = repeat_per_row(self.memory, self.rows), repeat_per_row(other.memory, other.rows)
        time = max(self.time, other.time)
        cache = None
        if time:
            layers = self.cache or other.cache or ()
            pairs = zip(self._cache_like(layers), other._cache_like(layers), strict=True)
            cache = tuple(KeyValue.join(a, b) for a, b in pairs)
        memories = tuple(_join_right(a, b) for a, b in zip(own.layers, others.layers, strict=True))
        memory = Memory(memories, torch.cat((own.lengths, others.lengths)))
        positions = torch.cat((self.positions, other.positions))
        padding = torch.cat((self._padding_to(time), other._padding_to(time)))
        ragged = self.time != other.time or self.padding is not None or other.padding is not None
        return TransformerState(memory, cache, positions, padding if ragged else None)

    def _cache_like(self, layers: tuple[KeyValue, ...]) -> tuple[KeyValue, ...]:
        """The cache; before the first step an empty one with the heads and widths of ``layers``."""
        if self.cache is not None:
            return self.cache
        return tuple(
            KeyValue(*(x.new_zeros(self.rows, x.size(1), 0, x.size(3)) for x in (kv.key, kv.value))) for kv in layers
        )

    def _padding_to(self, time: int) -> Tensor:
        """Padding of each row in a cache of ``time`` positions."""
        own = torch.zeros_like(self.positions) if self.padding is None else self.padding
        return own + (time - self.time)


def _join_right(a: KeyValue, b: KeyValue) -> KeyValue:
    """Concatenate along the batch, the narrower one padded on the right."""
    width = max(a.length, b.length)

    def pad(x: Tensor) -> Tensor:  # [batch, heads, length, head_width]
        return torch.nn.functional.pad(x, (0, 0, 0, width - x.size(2)))

    return KeyValue(torch.cat((pad(a.key), pad(b.key))), torch.cat((pad(a.value), pad(b.value))))
