"""Extensions of hypotheses by one symbol: what a beam search chooses from.

A *party* is what competes for places: the hypotheses of a sentence, or of one of its groups (`beams.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.decoding.ranking import best


@dataclass(frozen=True)
class Candidates:
    """Extensions of the hypotheses by one symbol; those of total -inf are dead."""

    totals: Float[Tensor, "parties candidates"]
    parents: Int[Tensor, "parties candidates"]
    """Which hypothesis of the party is extended."""
    tokens: Int[Tensor, "parties candidates"]
    marks: Int[Tensor, "parties candidates"] | None = None

    def take(self, order: Int[Tensor, "parties taken"]) -> Candidates:
        """Those at these places."""
        return Candidates(
            self.totals.gather(1, order),
            self.parents.gather(1, order),
            self.tokens.gather(1, order),
            None if self.marks is None else self.marks.gather(1, order),
        )

    def only(self, alive: Bool[Tensor, "parties candidates"]) -> Candidates:
        """The others dead."""
        return replace(self, totals=self.totals.masked_fill(~alive, -torch.inf))


def add(
    totals: Float[Tensor, "parties beam"], gains: Float[Tensor, "parties beam symbols"]
) -> Float[Tensor, "parties candidates"]:
    """totals + gains, all of a party in a row; nothing comes of a dead hypothesis, whatever the model says of it."""
    dead = (totals == -torch.inf)[:, :, None]
    return (totals[:, :, None] + gains).masked_fill(dead, -torch.inf).flatten(1)


def extend(
    totals: Float[Tensor, "parties beam"], gains: Float[Tensor, "rows vocab"], count: int, end: int
) -> Candidates:
    """The ``count`` best extensions of each party by totals + gains, in order; where there are fewer, dead ones.

    The best of a party are among the best of each of its rows, so that the sums are made for few.
    """
    parties, width = totals.shape
    gains, tokens = best(gains, count)
    each = tokens.shape[1]
    sums, order = best(add(totals, gains.view(parties, width, each)), count)
    tokens = tokens.view(parties, width * each).gather(1, order)
    spare = (0, count - order.shape[1])
    return Candidates(
        totals=torch.nn.functional.pad(sums, spare, value=-torch.inf),
        parents=torch.nn.functional.pad(order // each, spare),
        tokens=torch.nn.functional.pad(tokens, spare, value=end),
    )


def part(candidates: Candidates, beam: int, end: int) -> tuple[Candidates, Candidates]:
    """Of 2K candidates in order: those that end, among the first K; and the best K that do not."""
    ends = candidates.tokens == end
    first = torch.arange(ends.shape[1], device=ends.device) < beam
    order = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
    return candidates.only(ends & first), candidates.only(~ends).take(order)
