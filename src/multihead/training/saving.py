"""Checkpoints written while training goes on: copied in memory; a thread writes, hashes and forces them to the disk.

What a run waits for is the copy alone, a small part of what hashing, writing and the disk take (docs/lab-notes.md);
its memory, of the size of a checkpoint, is kept for the next one: pages that are there already are filled ten times
faster than new ones. One checkpoint is under way at a time; the next one waits for it, and so does the end of the run,
whatever ends it. What is written is the state of the moment of the copy, so nothing a run computes depends on when
the disk is done. A fault of the disk is raised in the loop, at the next update or wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from multihead.training.checkpoint import Checkpoint, save


class Saver:
    """Writes checkpoints into ``folder``; a context manager, on whose end nothing is under way any more.

    Args:
        folder: where `checkpoint.load_newest` reads.
        keep: how many stay, newest first.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies: tuple[dict[str, Tensor], ...] = ({}, {}, {})

    def save(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        """Begins to write; the tensors may be changed as soon as this returns.

        Args:
            checkpoint: what is copied and written.
            before: is called with the copy, beside training as well, and has to be done when the checkpoint is there.

        Raises:
            SurroundingsError: the one before could not be written.
        """
        self.wait()
        for copies, tensors in zip(self._copies, checkpoint[1:], strict=True):
            _copy(tensors, copies)
        copied = Checkpoint(checkpoint.state, *self._copies)
        self._thread = threading.Thread(target=self._write, args=(copied, before), name="checkpoint")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None]) -> None:
        try:
            before(checkpoint)
            save(self._folder, checkpoint, self._keep)
        except BaseException as error:  # whatever it is, it is raised where somebody can see it
            self._error = error

    def check(self) -> None:
        """Raises what went wrong, if anything has; does not wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Until nothing is under way.

        Raises:
            SurroundingsError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif self._thread is not None:  # the error on its way is the one to report
            self._thread.join()


def _copy(tensors: dict[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Makes ``copies`` equal to ``tensors``, on the host, in the memory that it has."""
    for name in copies.keys() - tensors.keys():
        del copies[name]
    for name, tensor in tensors.items():
        old = copies.get(name)
        if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.is_cpu and tensor.is_contiguous():  # by one thread: threads cost more to wake than they save
            np.copyto(_bytes(copies[name]), _bytes(tensor))
        else:
            copies[name].copy_(tensor.detach())


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
