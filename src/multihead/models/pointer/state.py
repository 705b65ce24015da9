"""Where the decoding of a pointer network stands, as a value: the inputs as it sees them, and what it has chosen.

`models.pointer.network` makes and reads it; a search only hands it on, selects rows of it and joins two.
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
    """What can be chosen, one row a sentence: place 0 is the end, place 1 + n is input n."""

    keys: Float[Tensor, "sentences choices width"]
    """W e: what is pointed at."""
    read: Float[Tensor, "sentences choices width"]
    """What the decoder reads after a choice; at place 0 what it reads before the first."""
    lengths: Int[Tensor, " sentences"]
    """Real choices of each row: its inputs, and the end."""

    def select(self, sentences: Int[Tensor, " sentences"]) -> Choices:
        """The named sentences, in that order."""
        return Choices(self.keys[sentences], self.read[sentences], self.lengths[sentences])

    def join(self, other: Choices) -> Choices:
        """Those of both; the narrower one is padded."""
        width = max(self.keys.size(1), other.keys.size(1))
        pairs = ((self.keys, other.keys), (self.read, other.read))
        keys, read = (torch.cat([F.pad(x, (0, 0, 0, width - x.size(1))) for x in pair]) for pair in pairs)
        return Choices(keys, read, torch.cat((self.lengths, other.lengths)))


@dataclass(frozen=True)
class PointerState:
    """Where decoding stands: a value, never changed; `PointerNetwork.step` returns the next one.

    Rows are hypotheses. Those of one sentence stand together and are equally many, so that ``choices`` holds a
    sentence once: row r chooses among those of sentence ``r // (rows // sentences)``.
    """

    choices: Choices
    held: CellState
    """(h, c) of the decoder's LSTM, each [rows, width]."""
    visited: Bool[Tensor, "rows choices"]
    """What each row has chosen already; never the end."""

    @property
    def rows(self) -> int:
        """Hypotheses."""
        return self.visited.size(0)

    @property
    def group(self) -> int:
        """Hypotheses a sentence; 1 in a state without rows."""
        return group_size(self.rows, self.choices)

    def select(self, rows: Int[Tensor, " rows"]) -> PointerState:
        """The named rows, in that order, with repetition; none at all make a state without rows."""
        choices = select_sentences(self.choices, rows, self.group)
        return PointerState(choices, tuple(part[rows] for part in self.held), self.visited[rows])

    def join(self, other: PointerState) -> PointerState:
        """The rows of both; they may have begun at different steps, with different numbers of inputs."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        choices = repeat_per_row(self.choices, self.rows).join(repeat_per_row(other.choices, other.rows))
        width = choices.keys.size(1)
        visited = torch.cat([F.pad(x, (0, width - x.size(1))) for x in (self.visited, other.visited)])
        held = tuple(torch.cat(pair) for pair in zip(self.held, other.held, strict=True))
        return PointerState(choices, held, visited)
