"""The coverage penalty, and the rules by which a beam search stops early.

The coverage penalty lowers the score of a translation for each part of its source that it hardly attended to:

    cp(x, y) = sum_i log min(sum_j p_ij, 1)        p_ij: how much symbol j of y attended to symbol i of x

    score(y) = log p(y | x) / penalty(|y|) + beta cp(x, y)

(Wu et al. 2016, "Google's neural machine translation system", equation 14.) The end symbols count on both sides. Which
hypotheses survive a step is decided by log-probability alone; coverage only ranks finished ones. As cp is never above
0, it can only lower a score, which is all that `Exact` needs.

Wu et al. use beta = 0.2 beside their own length penalty with an alpha of 0.2, which divides by little more than 1.
Where the log-probability is divided by the length (`search.power`, alpha 1), beta must be smaller by a factor of the
length, about 0.015: a much larger one rewards hypotheses that translate the source again and again.

`Exact` stops as soon as the result can no longer change: it finds what a search to the length limit finds. `Ahead` and
`Patience` stop earlier, and their results can differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.decoding.search import Search, patience_count
from multihead.errors import ConfigurationError, ShapeError
from multihead.platforms import widest_float

LEAST = 1e-6
"""Smaller sums of attention count as this: log 0 would make a score of minus infinity, which compares with nothing."""


@dataclass(frozen=True)
class Coverage:
    """How much attention each source symbol has received from each hypothesis of each party."""

    beta: float
    real: Bool[Tensor, "parties source"]
    """True where the source has a symbol, False at padding."""
    sums: Float[Tensor, "parties beam source"]
    """sum_j p_ij"""

    @classmethod
    def begin(cls, beta: float, lengths: Int[Tensor, " sentences"], width: int, parties: int) -> Coverage:
        """The coverage before the first step: all zero.

        Args:
            beta: weight of the penalty.
            lengths: number of symbols of each source.
            width: padded length of the sources.
            parties: parties per sentence.
        """
        real = (torch.arange(width, device=lengths.device) < lengths[:, None]).repeat_interleave(parties, dim=0)
        kind = widest_float(lengths.device)
        return cls(beta, real, torch.zeros(len(real), 1, width, dtype=kind, device=lengths.device))

    @property
    def score(self) -> Float[Tensor, "parties beam"]:
        """beta cp, which is added to the score of a hypothesis; at most 0."""
        logs = self.sums.clamp(LEAST, 1.0).log().masked_fill(~self.real[:, None], 0.0)
        return self.beta * logs.sum(dim=2)

    def grow(self, attention: Float[Tensor, "rows source"]) -> Coverage:
        """The coverage after one more step; rows are hypotheses, party by party.

        Raises:
            ShapeError: the attention does not fit the hypotheses and sources.
        """
        if attention.shape != (self.sums.shape[0] * self.sums.shape[1], self.sums.shape[2]):
            raise ShapeError(
                f"got attention of shape {tuple(attention.shape)} for {tuple(self.sums.shape)} parties, hypotheses and "
                "source symbols: step_attending returns a row for each hypothesis and a column for each "
                "source symbol"
            )
        return Coverage(self.beta, self.real, self.sums + attention.to(self.sums.dtype).view_as(self.sums))

    def select(self, staying: Int[Tensor, " staying"], parents: Int[Tensor, "staying beam"]) -> Coverage:
        """The coverage of the staying parties, reordered to the hypotheses that survived."""
        return Coverage(self.beta, self.real[staying], self.sums[staying[:, None], parents])


@dataclass(frozen=True)
class Progress:
    """How far the search of each party is after a step."""

    beam: int
    """K."""
    length: int
    """Number of symbols of the live hypotheses."""
    limits: Int[Tensor, " parties"]
    """Maximum number of symbols, including the end symbol."""
    finished: Int[Tensor, " parties"]
    """Number of finished hypotheses."""
    settled: Float[Tensor, " parties"]
    """Score of the worst of the n best finished hypotheses; -inf if fewer than n have finished."""
    leading: Float[Tensor, " parties"]
    """log p of the best live hypothesis; -inf if there is none."""
    now: Float[Tensor, " parties"]
    """The highest score that a live hypothesis would have if it ended here; -inf if there is none."""
    divisors: Float[Tensor, " lengths"]
    """The length penalty of each length."""


@runtime_checkable
class Stop(Protocol):
    """A rule for stopping early. Every search also stops at its length limit, and when no hypothesis is live."""

    def done(self, progress: Progress) -> Bool[Tensor, " parties"]:
        """True for each party whose search may stop."""


@dataclass(frozen=True)
class Exact:
    """Stop when no live hypothesis can still be among the n best: the result is that of a search to the limit.

    A hypothesis of log-probability s can only lose probability, s' <= s <= 0, and penalty(n') <= penalty(limit) for all
    lengths n' that it may reach. So its score will be s' / penalty(n') <= s / penalty(limit), and of equal scores the
    one that finished first counts. This holds in floating point, too: additions and divisions round monotonically. A
    coverage penalty adds at most 0 to the final score, so the bound remains valid. (Huang, Zhao and Ma 2017, "When to
    finish? Optimal beam search for neural text generation", section 3, has it for alpha 0.)

    It stops later for a larger alpha and a more distant limit; with alpha 0 it stops at the first opportunity.
    """

    def done(self, progress: Progress) -> Bool[Tensor, " parties"]:
        """True where the n best finished hypotheses score at least what a live one may still reach."""
        return progress.settled >= progress.leading / progress.divisors[progress.limits]


@dataclass(frozen=True)
class Ahead:
    """Stop when K have finished and the n best score at least what the best live hypothesis would if it ended here.

    It does not wait for what a hypothesis may gain by its length; with alpha 0 nothing can be gained, and the result is
    exact. (``early_stopping=False`` of the transformers library is this rule.)
    """

    def done(self, progress: Progress) -> Bool[Tensor, " parties"]:
        """True where K have finished and are ahead."""
        return (progress.settled >= progress.now) & (progress.finished >= progress.beam)


@dataclass(frozen=True)
class Patience:
    """Stop when factor * K hypotheses have finished, whatever their scores (Kasai et al. 2022, "A call for clarity in
    beam search: how it works and when it stops", algorithm 1).

    With 1, the usual rule of the field, the result is chosen among the first K; a larger factor waits for more.

    Args:
        factor: p of the paper, above 0.

    Raises:
        ConfigurationError: the factor is not above 0.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise ConfigurationError(f"patience must be a number above 0, got {self.factor}")

    def done(self, progress: Progress) -> Bool[Tensor, " parties"]:
        """True where this many have finished, and at least the n that are asked for."""
        return (progress.finished >= patience_count(self.factor, progress.beam)) & (progress.settled > -float("inf"))


def stopping_rule(search: Search) -> Stop:
    """The rule that a search names. "exact" with a beam of 1 stops at the first end, so that it is greedy search."""
    if search.stopping == "exact":
        return Patience(1.0) if search.beam == 1 else Exact()
    return Ahead() if search.stopping == "ahead" else Patience(search.patience)
