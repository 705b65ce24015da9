"""When an update is refused, and when so many were that the run stops: functions of the run's state alone.

An update explodes where the norm of its gradient is more than ``skip_above`` times the median of the last 64 that were
made, once the warm-up is over. Its batches are skipped, and so are those of one whose loss or gradient is no finite
number: weights, Adam's means and the average stay what they were, the update counts (the schedule and the end of the
run stay where they are), and the log names the lines of the corpora. The run stops once more than ``skip_limit`` of
the last 100 updates were skipped, or as soon as weights are no finite numbers themselves: no other batch would help.

All of that is kept in the `RunState`, so that a run that goes on refuses what it would have refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import torch
from torch import Tensor

from multihead.training.checkpoint import RunState
from multihead.training.config import TrainingConfig

_NORMS = 64
"""Updates whose norms the median is of: a middle that some odd ones do not move."""
_RECENT = 100
"""Updates among which skipped ones are counted."""


def largest_norm(config: TrainingConfig, state: RunState) -> float:
    """The largest norm of a gradient with which the next update is made."""
    if not config.skip_above or len(state.norms) < _NORMS or state.step < config.warmup:
        return math.inf
    return config.skip_above * statistics.median(state.norms) or math.inf


def with_norm(norms: tuple[float, ...], norm: float) -> tuple[float, ...]:
    """The norms to remember after an update."""
    return (*norms[1 - _NORMS :], norm)


def with_skipped(skipped: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The skipped updates to remember after another one."""
    return (*(other for other in skipped if other > step - _RECENT), step)


def too_many(config: TrainingConfig, state: RunState) -> bool:
    """Whether so many updates were skipped that the fault cannot be a batch's."""
    return len(state.skipped) > config.skip_limit


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in some tensors is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
