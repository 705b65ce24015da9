"""Measure how fast a machine trains a network, to decide how long."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from multihead.data.order import Array
from multihead.planning.choices import Pace
from multihead.training.adam import Optimizer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Average
from multihead.training.progress import format_lines
from multihead.training.splitting import SINGLE_PROCESS, Given, Model, Processes, retry_in_pieces
from multihead.training.step import train_step

_TIMED_UPDATES, _WARMUP_UPDATES = 15, 3
"""Updates that measure the pace, and how many of them are not counted."""


@dataclass(frozen=True)
class Trial(Generic[Model]):
    """What is timed: a network that is discarded, and how it is trained."""

    network: Model
    optimizer: Optimizer
    average: Average[Model] | None
    """The moving average of the weights; None if the optimizer keeps it."""
    training: TrainingConfig
    processes: Processes = SINGLE_PROCESS
    """All of them take part."""


def time_updates(
    trial: Trial[Model],
    take: Callable[[], Given],
    source_lines: Callable[[Array], Mapping[str, list[int]]],
    limit: float = math.inf,
) -> Pace:
    """Time updates on real batches of all lengths.

    Args:
        trial: the network.
        take: returns the next batch.
        source_lines: maps indices of examples to lines of files, for messages.
        limit: seconds after which no more updates are timed; only the first process's counts.
    """
    training, processes = trial.training, trial.processes
    seconds, tokens, max_cells = [], [], None
    for step in range(1, _TIMED_UPDATES + 1):
        started = time.perf_counter()
        batches = [take().to(training.device) for _ in range(training.accumulate)]
        sums, max_cells = retry_in_pieces(
            lambda max_cells: train_step(
                *(trial.network, trial.optimizer, batches, training, step, 1e-5),  # noqa: B023
                max_cells=max_cells,
                processes=processes,
            ),
            batches,
            max_cells,
            lambda batch: format_lines(source_lines(batch.indices)),
            processes,
        )
        if trial.average is not None:
            trial.average.update(step)
        seconds.append(time.perf_counter() - started)
        tokens.append(sums.tokens)
        if processes.all_gather(sum(seconds) > limit)[0] and step > _WARMUP_UPDATES:
            break
    return Pace(statistics.median(seconds[_WARMUP_UPDATES:]), statistics.fmean(tokens))
