"""Decoder state of a pointer network: choices, LSTM state, visited inputs.

`models.pointer.network` makes and reads it; a search passes it on, selects rows of it and joins two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.models.recurrent.cells import CellState
from multihead.models.state import group_size, repeat_per_row, select_sentences


@dataclass(frozen=True)
class Choices:
    """The choices of each sentence: index 0 is the end, index 1 + n is input n."""

    keys: Float[Tensor, "sentences choices width"]
    """W e: keys of the pointer attention."""
    decoder_inputs: Float[Tensor, "sentences choices width"]
    """Decoder input after each choice; at index 0 the decoder input of the first step."""
    lengths: Int[Tensor, " sentences"]
    """Number of choices of each row: its inputs and the end."""

    def select(self, sentences: Int[Tensor, " sentences"]) -> Choices:
        """These sentences, in this order."""
        return Choices(self.keys[sentences], self.decoder_inputs[sentences], self.lengths[sentences])

    def join(self, other: Choices) -> Choices:
        """Concatenate along the batch, the narrower one padded on the right."""
        width = max(self.keys.size(1), other.keys.size(1))
        pairs = ((self.keys, other.keys), (self.decoder_inputs, other.decoder_inputs))
        keys, inputs = (torch.cat([F.pad(x, (0, 0, 0, width - x.size(1))) for x in pair]) for pair in pairs)
        return Choices(keys, inputs, torch.cat((self.lengths, other.lengths)))


@dataclass(frozen=True)
class PointerState:
    """State of the decoder; immutable: `PointerNetwork.step` returns the next one.

    Row r chooses among the choices of sentence ``r // (rows // sentences)`` (`models.state`).
    """

    choices: Choices
    cell_state: CellState
    """(h, c) of the decoder's LSTM, each [rows, width]."""
    visited: Bool[Tensor, "rows choices"]
    """Choices that each row has made already; never the end."""

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.visited.size(0)

    @property
    def group(self) -> int:
        """Number of hypotheses per sentence; 1 in a state without rows."""
        return group_size(self.rows, self.choices)

    def select(self, rows: Int[Tensor, " rows"]) -> PointerState:
        """These rows, in this order; repetitions and an empty selection are allowed."""
        choices = select_sentences(self.choices, rows, self.group)
        return PointerState(choices, tuple(part[rows] for part in self.cell_state), self.visited[rows])

    def join(self, other: PointerState) -> PointerState:
        """The rows of both states, which may have started at different steps, with different numbers of inputs."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        choices = repeat_per_row(self.choices, self.rows).join(repeat_per_row(other.choices, other.rows))
        width = choices.keys.size(1)
        visited = torch.cat([F.pad(x, (0, width - x.size(1))) for x in (self.visited, other.visited)])
        cell_state = tuple(torch.cat(pair) for pair in zip(self.cell_state, other.cell_state, strict=True))
        return PointerState(choices, cell_state, visited)
