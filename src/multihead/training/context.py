"""What a run shares with its caller, and what the training loop gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from multihead.data.order import Array
from multihead.errors import Interrupted
from multihead.training.config import Combination
from multihead.training.progress import ModelFlops
from multihead.training.splitting import SINGLE_PROCESS, Examples, Given, Model, Processes

T = TypeVar("T")


@dataclass(frozen=True)
class RunContext:
    """How a run reports, how it is stopped, and on what it computes.

    Commands set the threads of their process; a library call leaves them alone, and results computed with another
    number than the run began with differ in the last bits.
    """

    say: Callable[[str], None] = print
    """Called with each line of output."""
    stop_signal: Callable[[], int | None] = lambda: None
    """Called now and then; returns the number of a signal that asks the run to stop."""
    use_threads: Callable[[int], None] = lambda _: None
    """Called with the number of threads that the run is frozen to."""
    processes: Processes = SINGLE_PROCESS
    """The processes that train this run together: ``training.parallel.join_processes()``."""
    parallel: Combination | None = None
    """How they combine their gradients; None = by rule."""
    soft_targets_of: Path | None = None
    """Another run of the same text and teachers: its stored soft targets are copied rather than computed again."""
    started: float = field(default_factory=time.monotonic)
    """When the command or call began, by `time.monotonic`: its budget counts from there."""

    def until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        """The items of a text that is being stored.

        Raises:
            Interrupted: ``stop_signal`` returned a signal.
        """
        for item in items:
            if (number := self.stop_signal()) is not None:
                raise Interrupted(number, "stopped while the text was stored; run the same command again to start over")
            yield item


@dataclass(frozen=True)
class Validation:
    """Scores of a model on the validation set."""

    score: float
    """Higher is better."""
    loss: float
    """Lower is better; decides between equal scores."""
    values: dict[str, Any]
    """Values for the log: loss, BLEU, chrF and their signatures."""
    summary: str
    """The values in a line for people."""


def _by_index(pairs: Array) -> dict[str, list[int]]:
    """Name pairs by their index in the store, counted from 0."""
    return {"the store": sorted(pairs.tolist())}


@dataclass(frozen=True)
class TrainerInputs(Generic[Model]):
    """Data and functions that the loop is given besides the model and its settings."""

    next_batch: Callable[[], Given]
    """Returns the next batch, or what this process needs of it."""
    position: Callable[[], tuple[int, int]]
    """Returns the epoch of the next batch, and its number there."""
    evaluate: Callable[[Model], Validation]
    """Scores a model on the validation set."""
    save_best: Callable[[Model, dict[str, Any]], None]
    """Writes the best model so far with its scores; called in a thread, with a copy of the model."""
    stop_signal: Callable[[], int | None]
    """Returns the number of a signal that asked to stop, or None."""
    source_lines: Callable[[Array], Mapping[str, list[int]]] = _by_index
    """Maps pairs of the store to lines of the corpus, by file."""
    largest_batches: Callable[[], Sequence[Examples]] = tuple
    """Returns the batches that need most memory; they are tried before the first update."""
    evaluate_part: Callable[[Model, int], Validation] | None = None
    """Scores a model on one in so many sentences; None = it cannot be done."""
    flops: ModelFlops | None = None
    """Operations per token and the machine's peak, for the log; None = not reported."""
    rehearse: Callable[[Model], float] = lambda _: 0.0
    """Estimates the seconds of a validation by doing a small part of it; 0 = unknown."""
