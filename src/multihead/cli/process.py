"""What a command sets for its whole process: signals, threads, allocator, garbage. A library call sets none of it.

Of several processes that ``torchrun`` started the first one speaks; only commands that say so work in several.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from multihead.errors import ConfigurationError, MultiheadError
from multihead.machine import get_launch

if TYPE_CHECKING:
    from multihead.training.parallel import Processes


_STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask to stop."""


class ReaderHasGone(Exception):  # noqa: N818 - as with other filters, not an error worth a word
    """Whoever read our standard output has closed it."""


class StopSignal:
    """Notes the first SIGINT or SIGTERM, for work that wants to save before it ends; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        _handle_by(dict.fromkeys(_STOPPING, self._note))

    def __call__(self) -> int | None:
        """The signal's number, once there was one."""
        return self.number

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        if get_launch().rank == 0:
            os.write(2, b"\nstopping: the work so far is being saved (once more to stop at once)\n")


def keep_large_allocations() -> None:
    """Tells glibc to keep freed memory: a training step allocates the same hundreds of megabytes again and again.

    Without it every large tensor is mapped and unmapped by the kernel, which zeroes its pages each time
    (8% of a training step; docs/lab-notes.md). Elsewhere than on Linux with glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
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
def several() -> Iterator[Processes]:
    """The processes that train together; an error that the first of them knows of is said by that one alone."""
    from multihead.training.parallel import ProcessGroup, join_processes

    processes = join_processes()
    try:
        with contextlib.ExitStack() as stack:
            with _dying_at_once():
                there = stack.enter_context(processes)
            yield there
    except BaseException as error:
        if isinstance(processes, ProcessGroup):
            _handle_by(dict.fromkeys(_STOPPING, signal.SIG_IGN))  # torchrun's, to all others when one has failed
            if isinstance(error, MultiheadError) and processes.announced and not processes.is_first:
                raise click.exceptions.Exit(error.exit_status) from None
        raise


@contextlib.contextmanager
def _dying_at_once() -> Iterator[None]:
    """Where one of several waits for the others, which may never come, there is nothing to save yet."""
    before = {number: signal.getsignal(number) for number in _STOPPING}
    if get_launch().size > 1:
        _handle_by(dict.fromkeys(_STOPPING, signal.SIG_DFL))
    yield
    _handle_by(before)


def _handle_by(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def own_the_process(*, in_several: bool = False) -> None:
    """Called once by a command before it works, and before PyTorch is imported.

    Args:
        in_several: whether the command knows how to work in several processes.

    Raises:
        ConfigurationError: it does not, and there are several.
    """
    size = get_launch().size
    if size > 1 and not in_several:
        raise ConfigurationError(
            f"torchrun started {size} processes, and this command works in one: start it without torchrun "
            "(several processes are for `multihead train`)"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        # A product of every new shape is compiled and kept: with the default of 1,024 they grow to gigabytes.
        os.environ.setdefault(name, "256")
    if "OMP_WAIT_POLICY" not in os.environ:
        # How long a thread waits awake for the others. libgomp's default of 300,000 rounds makes training 15 times
        # slower while any other process wants the processor; with 100,000 it is 1.4 times, and alone as fast.
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    keep_large_allocations()


def leave_alone_what_stays() -> None:
    """Everything there is will stay, as far as it is not garbage: it is not looked through for garbage again.

    Python stops all threads to do so, of a process with PyTorch for a tenth of a second, every few thousand requests.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
