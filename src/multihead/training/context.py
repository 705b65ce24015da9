"""What every stage of a run shares with its caller: `RunContext`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multihead.training.splitting import SINGLE_PROCESS, Processes


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
