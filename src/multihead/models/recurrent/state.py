"""Where a recurrent decoder stands, as a value: the source as it is asked, and what each layer remembers.

`models.recurrent.network` makes and reads it; a search only hands it on, selects rows of it and joins two.
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
    """The source as the decoder asks it, one row a sentence."""

    keys: Float[Tensor, "sentences source score_width"]
    """What the score made of the values, once (`multihead.attention.Score.keys`)."""
    values: Float[Tensor, "sentences source width"]
    """The encoder's states."""
    lengths: Int[Tensor, " sentences"]

    @property
    def mask(self) -> Padding:
        """Where the source goes on."""
        return Padding(self.lengths)

    def select(self, sentences: Int[Tensor, " sentences"]) -> Memory:
        """The named sentences, in that order."""
        return Memory(self.keys[sentences], self.values[sentences], self.lengths[sentences])

    def join(self, other: Memory) -> Memory:
        """Both over one another, the narrower one padded on the right."""
        source = max(self.values.shape[1], other.values.shape[1])
        mine, theirs = (
            [F.pad(x, (0, 0, 0, source - x.shape[1])) for x in (memory.keys, memory.values)] for memory in (self, other)
        )
        keys, values = (torch.cat(pair) for pair in zip(mine, theirs, strict=True))
        return Memory(keys, values, torch.cat((self.lengths, other.lengths)))


@dataclass(frozen=True)
class RecurrentState:
    """Where decoding stands: a value, never changed; `RecurrentTranslator.step` returns the next one.

    Rows are hypotheses. Those of one sentence stand together and are equally many, so that ``memory`` holds a
    sentence once: row r asks sentence ``r // (rows // sentences)``. What is remembered has the same size at every
    step, so rows that began at different steps need nothing to stand side by side.
    """

    memory: Memory
    layers: tuple[CellState, ...]
    """What each layer remembers, first layer first."""
    fed: Float[Tensor, "rows width"] | None = None
    """The last joined state, where it is fed to the next step; zeros before the first."""

    @property
    def rows(self) -> int:
        """Hypotheses."""
        return self.layers[0][0].shape[0]

    @property
    def group(self) -> int:
        """Hypotheses a sentence; 1 in a state without rows."""
        return group_size(self.rows, self.memory)

    def select(self, rows: Int[Tensor, " rows"]) -> RecurrentState:
        """The named rows, in that order, with repetition; none at all make a state without rows."""
        memory = select_sentences(self.memory, rows, self.group)
        layers = tuple(tuple(part[rows] for part in held) for held in self.layers)
        return RecurrentState(memory, layers, None if self.fed is None else self.fed[rows])

    def join(self, other: RecurrentState) -> RecurrentState:
        """The rows of both; they may have begun at different steps, from sources of different widths."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        layers = tuple(
            tuple(torch.cat(parts) for parts in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.layers, other.layers, strict=True)
        )
        fed = None if self.fed is None or other.fed is None else torch.cat((self.fed, other.fed))
        memory = repeat_per_row(self.memory, self.rows).join(repeat_per_row(other.memory, other.rows))
        return RecurrentState(memory, layers, fed)
