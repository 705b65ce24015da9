"""Decoder state of a recurrent translator.

`models.recurrent.network` makes and reads it; a search passes it on, selects rows of it and joins two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention import Padding
from multihead.models.recurrent.cells import CellState
from multihead.models.state import group_size, repeat_per_row, select_sentences


@dataclass(frozen=True)
class Memory:
    """Keys and values of the source, one row per sentence."""

    keys: Float[Tensor, "sentences source score_width"]
    """The values as projected by the score, once (`multihead.attention.Score.keys`)."""
    values: Float[Tensor, "sentences source width"]
    """The encoder's states."""
    lengths: Int[Tensor, " sentences"]

    @property
    def mask(self) -> Padding:
        """The padding mask of the source."""
        return Padding(self.lengths)

    def select(self, sentences: Int[Tensor, " sentences"]) -> Memory:
        """These sentences, in this order."""
        return Memory(self.keys[sentences], self.values[sentences], self.lengths[sentences])

    def join(self, other: Memory) -> Memory:
        """Concatenate along the batch, the narrower one padded on the right."""
        source = max(self.values.shape[1], other.values.shape[1])
        own, others = (
            [F.pad(x, (0, 0, 0, source - x.shape[1])) for x in (memory.keys, memory.values)] for memory in (self, other)
        )
        keys, values = (torch.cat(pair) for pair in zip(own, others, strict=True))
        return Memory(keys, values, torch.cat((self.lengths, other.lengths)))


@dataclass(frozen=True)
class RecurrentState:
    """State of a recurrent decoder; immutable: `RecurrentTranslator.step` returns the next one.

    Row r attends to sentence ``r // (rows // sentences)`` of ``memory`` (`models.state`). The state has the same size
    at every step, so rows that started at different steps can be joined without padding.
    """

    memory: Memory
    layers: tuple[CellState, ...]
    """State of each layer, first layer first."""
    feed: Float[Tensor, "rows width"] | None = None
    """With input feeding: the last joined state, zeros before the first step."""

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.layers[0][0].shape[0]

    @property
    def group(self) -> int:
        """Number of hypotheses per sentence; 1 in a state without rows."""
        return group_size(self.rows, self.memory)

    def select(self, rows: Int[Tensor, " rows"]) -> RecurrentState:
        """These rows, in this order; repetitions and an empty selection are allowed."""
        memory = select_sentences(self.memory, rows, self.group)
        layers = tuple(tuple(part[rows] for part in layer) for layer in self.layers)
        return RecurrentState(memory, layers, None if self.feed is None else self.feed[rows])

    def join(self, other: RecurrentState) -> RecurrentState:
        """The rows of both states, which may have started at different steps, from sources of different widths."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        layers = tuple(
            tuple(torch.cat(parts) for parts in zip(own, others, strict=True))
            for own, others in zip(self.layers, other.layers, strict=True)
        )
        feed = None if self.feed is None or other.feed is None else torch.cat((self.feed, other.feed))
        memory = repeat_per_row(self.memory, self.rows).join(repeat_per_row(other.memory, other.rows))
        return RecurrentState(memory, layers, feed)
