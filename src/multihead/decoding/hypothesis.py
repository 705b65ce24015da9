"""What a search returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multihead.decoding.search import LengthPenalty, divisor, power
from multihead.errors import MultiheadError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence y.

    Args:
        tokens: its symbols, without begin and end.
        log_probability: log p(y | x), including the end symbol if it is finished.
        score: log p(y | x) / penalty(|y|), where |y| counts the end symbol (`search.py`), plus the coverage penalty
            (`ranking.py`).
        finished: whether it ends with the end symbol. If not, the length limit cut it.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def make_hypothesis(
    symbols: Sequence[int], log_probability: float, *, end: int, alpha: float, penalty: LengthPenalty = power
) -> Hypothesis:
    """The hypothesis of these symbols, without begin and, if it is finished, with end.

    Raises:
        ConfigurationError: alpha is too large for this length.
        MultiheadError: the log-probability is NaN, or -inf because no permitted symbol was possible.
    """
    refuse_nan(log_probability)
    if log_probability == -math.inf:
        raise MultiheadError(
            "the model gives every permitted symbol the probability 0: check its log-probabilities, the forbidden "
            "symbols and the restrictions of the search"
        )
    finished = symbols[-1] == end
    tokens = tuple(symbols[:-1] if finished else symbols)
    return Hypothesis(tokens, log_probability, log_probability / divisor(penalty, len(symbols), alpha), finished)


def refuse_nan(log_probability: float) -> None:
    """Raise MultiheadError if a log-probability is NaN."""
    if math.isnan(log_probability):
        raise MultiheadError(
            "the model gave a log-probability that is not a number (NaN): its weights are damaged or its "
            "training diverged; load an earlier checkpoint"
        )


def by_row(steps: Sequence[tuple[Tensor, Tensor]], batch: int) -> list[Tensor]:
    """Collect values that were recorded step by step, as (rows, one value each), into one tensor per row on the CPU.

    Rows leave during a search, so the steps have different lengths. One transfer from the device serves all of them.
    """
    import torch

    rows = torch.cat([rows for rows, _ in steps])
    values = torch.cat([values for _, values in steps])
    counts = rows.bincount(minlength=batch).tolist()
    return list(torch.split(values[rows.argsort(stable=True)].cpu(), counts))
