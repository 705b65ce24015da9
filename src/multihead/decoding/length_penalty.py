"""By what a hypothesis's log-probability is divided, so that long ones can be compared with short ones.

    score(y) = log p(y | x) / penalty(|y|),    |y| counts the end symbol

`power` is the plain power of the length, `wu` the form of Wu et al. 2016 ("Google's neural machine translation
system", equation 14). An alpha found for one form is not the best for the other. With alpha 0 both are 1: hypotheses
are compared by probability, which favours short ones.

A penalty of one's own is a function like these two: positive, and never smaller for a longer hypothesis, on which
`stopping.Exact` relies. The coverage penalty of the same equation stands in `coverage.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ConfigurationError

LengthPenalty = Callable[[int, float], float]
"""(length, alpha) -> what to divide by."""


def power(length: int, alpha: float) -> float:
    """|y| ** alpha. Alpha 1: the score is the mean log-probability of a symbol."""
    return float(length**alpha)


def wu(length: int, alpha: float) -> float:
    """((5 + |y|) / 6) ** alpha: Wu et al. 2016, equation 14. It changes less than `power` among short hypotheses."""
    return float(((5 + length) / 6) ** alpha)


def divisors(penalty: LengthPenalty, alpha: float, longest: int, device: torch.device) -> Float[Tensor, " lengths"]:
    """penalty(n, alpha) for n = 0 ... longest, in double precision, as `Hypothesis.score` has it; that of 0 is 1.

    Raises:
        ConfigurationError: an alpha that is negative, no number, or too large for such lengths.
    """
    if not 0 <= alpha < float("inf"):
        raise ConfigurationError(f"alpha must be a number that is not negative, got {alpha}")
    try:
        row = [1.0, *(penalty(length, alpha) for length in range(1, longest + 1))]
    except OverflowError:
        raise ConfigurationError(
            f"an alpha of {alpha} is too large for hypotheses of {longest} symbols: give a smaller one; 0 to 2 is usual"
        ) from None
    return torch.tensor(row, dtype=torch.float64, device=device)
