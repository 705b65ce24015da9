"""Process-wide state: signals, threads, allocator, garbage collection.

Only commands set it, never the library. Of several processes started by ``torchrun``, the first one reports; only
commands that say so work in several processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.help import RESULT, tell
from multihead.configuration import get_launch
from multihead.errors import ConfigurationError, MultiheadError
from multihead.platforms import HAS_GLIBC, STOP_SIGNALS

if TYPE_CHECKING:
    from multihead.training.splitting import Processes


_SAME_SIGNAL = 5.0
"""Seconds in which SIGTERM is passed on by several programs."""

QUIET = "multihead.quiet"
"""Key of click's ``Context.meta``: set by ``--quiet``."""


def is_quiet() -> bool:
    """Whether ``--quiet`` was given to the command that runs."""
    context = click.get_current_context(silent=True)
    return context is not None and QUIET in context.meta


def remark(line: str) -> None:
    """Write a line about the work to standard error, unless ``--quiet`` was given."""
    if not is_quiet():
        tell(line)


def speaker() -> Callable[[str], None]:
    """A function that writes the lines of a workflow, of which the last one is its result, to standard error.

    With ``--quiet`` the last line alone is written, after the command has ended without an error.
    """
    if not is_quiet():
        return tell
    meta = click.get_current_context().meta

    def hold(line: str) -> None:
        meta[RESULT] = line

    return hold


class StopSignal:
    """Record the first SIGINT or SIGTERM, so that work can be saved; a second one ends the process at once.

    A SIGTERM within seconds of the first is the same one: Slurm sends it to all processes of a job, and srun and
    torchrun pass on what they receive.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        _set_handlers(dict.fromkeys(STOP_SIGNALS, self._record))

    def __call__(self) -> int | None:
        """Number of the received signal, if any."""
        return self.number

    def _record(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None:
            if number == signal.SIGTERM and now - self._since < _SAME_SIGNAL:
                return
            os._exit(128 + number)
        self.number, self._since = number, now
        if get_launch().rank == 0:
            with contextlib.suppress(OSError):  # its reader may have ended
                os.write(2, b"\nstopping: the work so far is being saved (press Ctrl-C again to stop at once)\n")


def configure_malloc() -> None:
    """Make glibc keep freed memory: every training step allocates the same hundreds of megabytes.

    By default each large tensor is mapped and unmapped by the kernel, which zeroes its pages every time
    (8% of a training step; docs/lab-notes.md). Does nothing on other systems than Linux with glibc.
    """
    if not HAS_GLIBC:
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 64 << 20)


@contextlib.contextmanager
def process_group() -> Iterator[Processes]:
    """The processes that train together. An error that all of them raise is reported by the first one only."""
    from multihead.training.splitting import SINGLE_PROCESS

    if get_launch().size == 1:
        yield SINGLE_PROCESS
        return
    from multihead.training.parallel import ProcessGroup

    processes = ProcessGroup(get_launch())
    try:
        with contextlib.ExitStack() as stack:
            with _default_handlers_while_waiting():
                stack.enter_context(processes)
            yield processes
    except BaseException as error:
        # torchrun sends a signal to the other processes when one has failed.
        _set_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN))
        if isinstance(error, MultiheadError) and processes.announced and not processes.is_first:
            raise click.exceptions.Exit(error.exit_status) from None
        raise


@contextlib.contextmanager
def _default_handlers_while_waiting() -> Iterator[None]:
    """Let signals end a process that waits for the others to start: there is nothing to save yet."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    _set_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_DFL))
    yield
    _set_handlers(before)


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def configure_process(*, distributed: bool = False, what: str = "this command") -> None:
    """Set environment variables and the allocator; called once by a command, before PyTorch is imported.

    Args:
        distributed: whether the command works in several processes.
        what: what works in one, for the message.

    Raises:
        ConfigurationError: it does not, and torchrun started several.
    """
    size = get_launch().size
    if size > 1 and not distributed:
        raise ConfigurationError(
            f"torchrun started {size} processes, and {what} works in one: start it without torchrun (several processes "
            "train one translator: `multihead train` without --best and --model decoder)"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # what a Mac's GPU lacks is computed on the processor
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        # oneDNN caches a compiled product for every shape: the default of 1,024 entries grows to gigabytes.
        os.environ.setdefault(name, "256")
    if "OMP_WAIT_POLICY" not in os.environ:
        # How long a thread spins for the others. With libgomp's default of 300,000 rounds training is 15 times slower
        # while any other process uses the processor; with 100,000 it is 1.4 times slower, and as fast without one.
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    configure_malloc()


def start_run(**options: Any) -> dict[str, Any]:
    """Configure the process for a run; returns what every run receives from its command.

    Args:
        **options: of `configure_process`.
    """
    configure_process(**options)
    stop_signal = StopSignal()
    import torch

    return {
        "say": speaker(),
        "stop_signal": stop_signal,
        "use_threads": torch.set_num_threads,
    }


def collect_and_freeze() -> None:
    """Collect garbage once and exclude all remaining objects from later collections.

    A full collection stops all threads, for a tenth of a second in a process with PyTorch, every few thousand requests.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
