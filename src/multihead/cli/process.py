"""What a command sets for its whole process: signals, threads, the allocator. A library call sets none of it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType


class ReaderHasGone(Exception):  # noqa: N818 - as with other filters, not an error worth a word
    """Whoever read our standard output has closed it."""


class StopSignal:
    """Notes the first SIGINT or SIGTERM, for work that wants to save before it ends; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def __call__(self) -> int | None:
        """The signal's number, once there was one."""
        return self.number

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
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


def own_the_process() -> None:
    """Called once by a command before it works, and before PyTorch is imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        # A product of every new shape is compiled and kept: with the default of 1,024 they grow to gigabytes.
        os.environ.setdefault(name, "256")
    if "OMP_WAIT_POLICY" not in os.environ:
        # How long a thread waits awake for the others. libgomp's default of 300,000 rounds makes training 15 times
        # slower while any other process wants the processor; with 100,000 it is 1.4 times, and alone as fast.
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    keep_large_allocations()
