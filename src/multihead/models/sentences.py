"""What states of every network have in common: what belongs to the source is kept once a sentence, not once a row.

Rows are hypotheses. Those of one sentence stand together and are equally many, so row r belongs to sentence
``r // (rows // sentences)``. Which tensors a network keeps of a sentence is said where its state is.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

Own = TypeVar("Own")  # typing.Self, which the shape checker does not take


@runtime_checkable
class OfSentences(Protocol):
    """What a state keeps of its sentences."""

    @property
    def lengths(self) -> Int[Tensor, " sentences"]:
        """Of each sentence."""

    def select(self: Own, sentences: Int[Tensor, " sentences"]) -> Own:
        """The named sentences, in that order."""


Kept = TypeVar("Kept", bound=OfSentences)


def group_of(rows: int, kept: OfSentences) -> int:
    """Hypotheses a sentence; 1 in a state without rows."""
    return max(rows, 1) // max(len(kept.lengths), 1)


def sentences_of_rows(kept: Kept, rows: Int[Tensor, " rows"], group: int) -> Kept:
    """What stays of the sentences where these rows stay: one each, or one a row where groups become unequal."""
    sentences = rows // group
    stay, counts = torch.unique_consecutive(sentences, return_counts=True)
    if not bool((counts == counts[:1]).all()):
        stay = sentences
    return kept if torch.equal(stay, torch.arange(len(kept.lengths), device=stay.device)) else kept.select(stay)


def one_a_row(kept: Kept, rows: int) -> Kept:
    """The sentences, repeated until there is one a row, as joining needs it."""
    if rows == len(kept.lengths):
        return kept
    return kept.select(torch.arange(rows, device=kept.lengths.device) // group_of(rows, kept))
