"""What a search hands back, and the lengths it is held to. How it is scored is in `length_penalty.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

Limits = int | Sequence[int] | Int[Tensor, " batch"]
"""A length for all sentences, or one for each. The most symbols count the end symbol, the least do not."""


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


def limit_tensor(limits: Limits, batch: int, device: torch.device) -> Int[Tensor, " batch"]:
    """The length limit of each sentence.

    Raises:
        ShapeError: as many limits as sentences are needed, or a single one.
        ConfigurationError: a limit below 1.
    """
    tensor = _of_each_sentence("length limits", limits, batch, device)
    if batch and int(tensor.min()) < 1:
        raise ConfigurationError(
            f"a length limit counts the end symbol and must be at least 1, got {int(tensor.min())}"
        )
    return tensor


def minimum_tensor(minimums: Limits, limits: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The least symbols of each sentence, the end symbol not counted.

    Raises:
        ShapeError: as many as sentences are needed, or a single one.
        ConfigurationError: one is negative, or leaves no room for the end symbol within the sentence's limit.
    """
    tensor = _of_each_sentence("minimum lengths", minimums, len(limits), limits.device)
    if len(limits) and int(tensor.min()) < 0:
        raise ConfigurationError(f"a minimum length cannot be negative, got {int(tensor.min())}")
    unfit = (tensor >= limits).nonzero()[:1, 0].tolist()
    if unfit:
        least, limit = int(tensor[unfit[0]]), int(limits[unfit[0]])
        raise ConfigurationError(
            f"a minimum of {least} symbols and the end symbol do not fit into a length limit of {limit}: lower the "
            f"minimum to {limit - 1}, or raise the limit to {least + 1}"
        )
    return tensor


def _of_each_sentence(name: str, lengths: Limits, batch: int, device: torch.device) -> Int[Tensor, " batch"]:
    if isinstance(lengths, int):
        lengths = [lengths] * batch
    tensor = torch.as_tensor(lengths, dtype=torch.long, device=device)
    if tensor.shape != (batch,):
        raise ShapeError(
            f"got {name} of shape {tuple(tensor.shape)} for {batch} sentences: give one number, or one each"
        )
    return tensor


def by_row(steps: Sequence[tuple[Tensor, Tensor]], batch: int) -> list[Tensor]:
    """Sort what was noted step by step, as (rows, one value each), into one tensor a row, on the host.

    Rows leave on the way, so the steps are unequally long; one transfer from the device serves them all.
    """
    rows = torch.cat([rows for rows, _ in steps])
    values = torch.cat([values for _, values in steps])
    counts = rows.bincount(minlength=batch).tolist()
    return list(torch.split(values[rows.argsort(stable=True)].cpu(), counts))
