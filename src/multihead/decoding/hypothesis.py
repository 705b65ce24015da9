"""What a search hands back, and the lengths it is held to. How it is scored is in `length_penalty.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multihead.decoding.search import LengthPenalty, power
from multihead.errors import MultiheadError


@dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence y.

    Args:
        tokens: its symbols, without begin and end.
        log_probability: log p(y | x), the end symbol's included where it is there.
        score: log p(y | x) / penalty(|y|), where |y| counts the end symbol; with a coverage penalty (`coverage.py`)
            that is added.
        finished: whether it ends with the end symbol. If not, the length limit cut it, and the caller should
        say so.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def make_hypothesis(
    symbols: Sequence[int], log_probability: float, *, end: int, alpha: float, penalty: LengthPenalty = power
) -> Hypothesis:
    """The hypothesis of these symbols (without begin, with end where it was reached).

    Raises:
        MultiheadError: the log-probability is not a number, or nothing permitted was possible.
    """
    refuse_nan(log_probability)
    if log_probability == -math.inf:
        raise MultiheadError(
            "the model gives every permitted symbol the probability 0: check its log-probabilities, the forbidden "
            "symbols and the restrictions of the search"
        )
    finished = symbols[-1] == end
    tokens = tuple(symbols[:-1] if finished else symbols)
    return Hypothesis(tokens, log_probability, log_probability / penalty(len(symbols), alpha), finished)


def refuse_nan(log_probability: float) -> None:
    """Raise MultiheadError where a log-probability is not a number."""
    if math.isnan(log_probability):
        raise MultiheadError(
            "the model gave a log-probability that is not a number (NaN): its weights are damaged or its "
            "training diverged; load an earlier checkpoint"
        )


def by_row(steps: Sequence[tuple[Tensor, Tensor]], batch: int) -> list[Tensor]:
    """Sort what was noted step by step, as (rows, one value each), into one tensor a row, on the host.

    Rows leave on the way, so the steps are unequally long; one transfer from the device serves them all.
    """
    rows = torch.cat([rows for rows, _ in steps])
    values = torch.cat([values for _, values in steps])
    counts = rows.bincount(minlength=batch).tolist()
    return list(torch.split(values[rows.argsort(stable=True)].cpu(), counts))
