"""Extensions of hypotheses by one symbol, and the best of them.

Ties are always broken in the same way: the lowest index wins. ``torch.topk`` does not specify which of two equal values
it takes or how it orders them, so its result may depend on the processor and the shape of the batch. Half-precision
log-probabilities tie often.

A *party* is what competes for places: the hypotheses of a sentence, or of one of its groups (`beam.py`).
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

    Equal values are taken and returned in the order of their indices. Which of several -inf are taken is undefined:
    they mark what cannot be chosen.
    """
    if count >= values.shape[1]:
        ordered = values.sort(dim=1, descending=True, stable=True)
        return ordered.values, ordered.indices
    top, indices = values.topk(count + 1, dim=1)  # one more, to detect a tie at the cut
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
    """Indices of all values above the cut, filled up to ``count`` with the first that equal it."""
    above, on = ~(values <= cut), values == cut  # NaN counts as above, as in topk
    missing = count - above.sum(dim=1, keepdim=True)
    chosen = above | (on & (on.cumsum(dim=1) <= missing))
    return chosen.nonzero()[:, 1].view(-1, count)


@dataclass(frozen=True)
class Candidates:
    """Extensions of hypotheses by one symbol; those with the total -inf are dead."""

    totals: Float[Tensor, "parties candidates"]
    parents: Int[Tensor, "parties candidates"]
    """The hypothesis of the party that is extended."""
    tokens: Int[Tensor, "parties candidates"]
    marks: Int[Tensor, "parties candidates"] | None = None

    def take(self, order: Int[Tensor, "parties taken"]) -> Candidates:
        """The candidates at these places."""
        return Candidates(
            self.totals.gather(1, order),
            self.parents.gather(1, order),
            self.tokens.gather(1, order),
            None if self.marks is None else self.marks.gather(1, order),
        )

    def only(self, alive: Bool[Tensor, "parties candidates"]) -> Candidates:
        """The same candidates, all others dead."""
        return replace(self, totals=self.totals.masked_fill(~alive, -torch.inf))


def add(
    totals: Float[Tensor, "parties beam"], gains: Float[Tensor, "parties beam symbols"]
) -> Float[Tensor, "parties candidates"]:
    """totals + gains, all of a party in one row; -inf for dead hypotheses, whatever their gains."""
    dead = (totals == -torch.inf)[:, :, None]
    return (totals[:, :, None] + gains).masked_fill(dead, -torch.inf).flatten(1)


def extend(
    totals: Float[Tensor, "parties beam"], gains: Float[Tensor, "rows vocab"], count: int, end: int
) -> Candidates:
    """The ``count`` best extensions of each party by totals + gains, in order, padded with dead ones.

    The best of a party are among the ``count`` best of each of its rows, so only those are summed.
    """
    parties, width = totals.shape
    gains, tokens = best(gains, count)  # [rows, each]
    each = tokens.shape[1]
    # Place in a row of [width * each]: order // each is the hypothesis.
    sums, order = best(add(totals, gains.view(parties, width, each)), count)
    tokens = tokens.view(parties, width * each).gather(1, order)
    missing = (0, count - order.shape[1])
    return Candidates(
        totals=torch.nn.functional.pad(sums, missing, value=-torch.inf),
        parents=torch.nn.functional.pad(order // each, missing),
        tokens=torch.nn.functional.pad(tokens, missing, value=end),
    )


def part(candidates: Candidates, beam: int, end: int) -> tuple[Candidates, Candidates]:
    """Split 2K candidates in order: those among the first K that end, and the best K that do not."""
    ends = candidates.tokens == end
    first = torch.arange(ends.shape[1], device=ends.device) < beam
    order = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
    return candidates.only(ends & first), candidates.only(~ends).take(order)
