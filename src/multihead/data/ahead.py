"""Batches taken ahead of the training loop, by a thread.

Cutting sentences anew (BPE-dropout) and padding take time on the host, in which a GPU would wait, and so would the
other processes. The thread takes the same batches in the same order, so a run does not depend on it. `Ahead.position`
is that of the batches handed out, not of those taken ahead. Which rows a process gets is decided in `data.order`.
"""

from __future__ import annotations

import queue
import threading
from typing import Protocol, runtime_checkable

from multihead.data.batching import Batch, Portion

DEPTH = 2
"""Number of batches taken ahead."""


@runtime_checkable
class Stream(Protocol):
    """What batches are taken from, such as `BatchStream`."""

    @property
    def position(self) -> tuple[int, int]:
        """Epoch of the next batch and its index in the epoch."""

    def take(self) -> Batch:
        """The next batch."""

    def take_portion(self, rank: int, size: int) -> Portion:
        """What one of several processes needs of the next batch."""


class Ahead:
    """The batches of a stream, of which up to `DEPTH` are made before they are asked for.

    Args:
        stream: only this object takes from it.
        rank: number of this process.
        size: number of processes; with several, `take` returns portions.
        pin: copy the batches to pinned memory, for a GPU.
    """

    def __init__(self, stream: Stream, rank: int = 0, size: int = 1, *, pin: bool = False) -> None:
        self._stream, self._rank, self._size, self._pin = stream, rank, size, pin
        self._position = stream.position
        self._made: queue.Queue[tuple[Batch | Portion, tuple[int, int]] | BaseException] = queue.Queue()
        self._room = threading.Semaphore(DEPTH)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    @property
    def position(self) -> tuple[int, int]:
        """Epoch of the next batch and its index in the epoch."""
        return self._position

    def take(self) -> Batch | Portion:
        """The next batch, or what this process needs of it; raises what the stream raised."""
        made = self._made.get()
        if isinstance(made, BaseException):
            self._made.put(made)
            raise made
        self._room.release()
        batch, self._position = made
        return batch

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._room.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed:
                    return
                several = self._size > 1
                batch = self._stream.take_portion(self._rank, self._size) if several else self._stream.take()
                self._made.put((batch.pinned() if self._pin else batch, self._stream.position))
        except BaseException as error:  # re-raised where the batch is asked for
            self._made.put(error)
