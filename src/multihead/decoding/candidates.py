"""The best of many candidates, with ties broken the same way every time: the lowest index wins.

``torch.topk`` leaves open which of two equal values it takes and how it orders them, so that the answer could
change with the processor and with the shape of the batch. Half-precision log-probabilities tie often.

Extensions of hypotheses by one symbol: what a beam search chooses from.

A *party* is what competes for places: the hypotheses of a sentence, or of one of its groups (`beams.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def best(
    values: Float[Tensor, "rows candidates"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """The ``count`` largest values of each row (all, if there are fewer), descending, and their indices.

    Equal values stand, and are taken, in the order of their indices. Which of several -inf are taken is left
    open: they stand for nothing that could be chosen.
    """
    if count >= values.shape[1]:
        ordered = values.sort(dim=1, descending=True, stable=True)
        return ordered.values, ordered.indices
    top, indices = values.topk(count + 1, dim=1)  # one more, to see whether the cut goes through a tie
    tied = (top[:, -2] == top[:, -1]) & (top[:, -1] > -torch.inf)
    indices = indices[:, :count]
    if tied.any():
        indices[tied] = _lowest_indices(values[tied], top[tied, -1:], count)
    indices = indices.sort(dim=1).values
    ordered = values.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return ordered.values, indices.gather(1, ordered.indices)


def _lowest_indices(
    values: Float[Tensor, "rows candidates"], cut: Float[Tensor, "rows 1"], count: int
) -> Int[Tensor, "rows count"]:
    """Indices of everything above the cut, filled up to ``count`` with the first that lie on it."""
    above, on = ~(values <= cut), values == cut  # NaN is above, as in topk
    missing = count - above.sum(dim=1, keepdim=True)
    chosen = above | (on & (on.cumsum(dim=1) <= missing))
    return chosen.nonzero()[:, 1].view(-1, count)


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
