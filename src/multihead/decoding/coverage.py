"""The coverage penalty: a translation loses for each part of its source at which it hardly looked.

    cp(x, y) = sum_i log min(sum_j p_ij, 1)        p_ij: how much symbol j of y attended to symbol i of x

    score(y) = log p(y | x) / penalty(|y|) + beta cp(x, y)

(Wu et al. 2016, "Google's neural machine translation system", equation 14.) The end symbols count on both sides. Which
hypotheses go on is decided by log-probability, as without it: coverage ranks what is finished. As cp is never above 0,
the score of a hypothesis stays below what it would be without, which is all that `stopping.Exact` needs.

They find 0.2 for beta, beside their own penalty with an alpha of 0.2, which divides by little more than 1. Where the
log-probability is divided by the length (`power`, alpha 1), beta has to be smaller by the length, too, some 0.015: much
more rewards hypotheses that go over the source again and again.

A symbol at which nobody looked would make a score of minus infinity, which compares with nothing: sums below `LEAST`
count as that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.errors import ConfigurationError, ShapeError

LEAST = 1e-6


@dataclass(frozen=True)
class Coverage:
    """How much attention each symbol of the source has had from each hypothesis of each party."""

    beta: float
    real: Bool[Tensor, "parties source"]
    """Where the source has symbols."""
    sums: Float[Tensor, "parties beam source"]
    """sum_j p_ij"""

    @property
    def score(self) -> Float[Tensor, "parties beam"]:
        """What it adds to the score of a hypothesis: beta cp, at most 0."""
        logs = self.sums.clamp(LEAST, 1.0).log().masked_fill(~self.real[:, None], 0.0)
        return self.beta * logs.sum(dim=2)

    def grow(self, attention: Float[Tensor, "rows source"]) -> Coverage:
        """After one more symbol, of which each hypothesis's next one is made: party by party.

        Raises:
            ShapeError: not the attention of so many hypotheses to such sources.
        """
        if attention.shape != (self.sums.shape[0] * self.sums.shape[1], self.sums.shape[2]):
            raise ShapeError(
                f"got attention of shape {tuple(attention.shape)} for {tuple(self.sums.shape)} parties, hypotheses and "
                "source symbols: a model's step_attending gives a row a hypothesis and a column a source symbol"
            )
        return Coverage(self.beta, self.real, self.sums + attention.double().view_as(self.sums))

    def follow(self, staying: Int[Tensor, " staying"], parents: Int[Tensor, "staying beam"]) -> Coverage:
        """Of the parties that stay, with the hypotheses that go on."""
        return Coverage(self.beta, self.real[staying], self.sums[staying[:, None], parents])


def begin(beta: float, lengths: Int[Tensor, " sentences"], width: int, parties: int) -> Coverage:
    """Of sources that nobody has looked at yet, ``parties`` a sentence.

    Raises:
        ConfigurationError: beta is negative or no number.
    """
    check(beta)
    real = (torch.arange(width, device=lengths.device) < lengths[:, None]).repeat_interleave(parties, dim=0)
    return Coverage(beta, real, torch.zeros(len(real), 1, width, dtype=torch.float64, device=lengths.device))


def check(beta: float) -> None:
    """Refuse what no coverage penalty can have."""
    if not 0 <= beta < float("inf"):
        raise ConfigurationError(f"coverage must be a number that is not negative, got {beta}")
