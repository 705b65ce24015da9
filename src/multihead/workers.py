"""A function over many items, in order: in this process or in several

`Engine` is what long work over many items asks for: results in the order of the items, computed from an iterator of
which only the next few items are read, so memory stays constant and a slow reader of results slows the work down.
`InProcess` computes them where it is called. `LocalWorkers` computes them in processes of this machine; the results are
the same, whatever their number. `preparing.shards` says what such items and functions look like for text.

Workers are started as programs of their own rather than by `multiprocessing`: that would either copy a process whose
threads hold locks (fork), or execute the script of a library's user again (spawn). A worker ends when its input does,
so none outlives the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from multihead.errors import SurroundingsError
from multihead.platforms import usable_cores, without_interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 8
"""Workers of a machine. Each takes some 60 MB and can use several threads; one process hardly feeds more."""
_ATTEMPTS = 2
"""Workers that one item is given to before the work is given up."""

_PATIENCE = 5.0
"""Seconds until a worker that has closed its output is ended."""
_WATCH = 0.5
"""Seconds between two looks of a worker at its parent."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from multihead.workers import serve; serve()"


@runtime_checkable
class Engine(Protocol):
    """Where a function is applied to items."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """The results of ``function``, in the order of the items.

        Args:
            function: depends on its argument alone, and may be called again for the same item. It is pickled once for
                each worker, every item and result once.
            items: read as results are taken: at most a few are ahead.

        Raises:
            Exception: what ``function`` or ``items`` raised; later items are not computed.
        """
        ...


class InProcess:
    """Applies a function in the calling process, one item after the other."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """As `Engine.map`."""
        return (function(item) for item in items)


class LocalWorkers:
    """Applies a function in worker processes of this machine.

    A worker that ends before its time (memory, a signal) is replaced, and its item is given to another one.

    Args:
        count: number of processes.
        threads: threads of the tokenizer and of PyTorch in each.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        self.count, self.threads = count, threads

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """As `Engine.map`; closing the iterator ends the workers.

        Raises:
            SurroundingsError: workers end again and again at the same item, or cannot be started.
        """
        team = _Team(pickle.dumps(function, pickle.HIGHEST_PROTOCOL), self.threads, self.count)
        pending: deque[Future[Any]] = deque()
        with contextlib.closing(team), ThreadPoolExecutor(self.count) as threads:
            try:
                for item in items:
                    pending.append(threads.submit(team.call, item))
                    if len(pending) > 2 * self.count:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                team.kill()  # no thread waits for a worker any more


def default_engine() -> Engine:
    """Workers on all cores that this process may use; with one core, this process."""
    cores = usable_cores()
    count = min(cores, MOST_WORKERS)
    return LocalWorkers(count, cores // count) if count > 1 else InProcess()


class _Team:
    """Worker processes, each used by one thread at a time."""

    def __init__(self, function: bytes, threads: int, count: int) -> None:
        self._function = function
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        }
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)  # started when it is needed
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._closed = threading.Lock(), False

    def call(self, item: object) -> object:
        """The result of the function for an item."""
        status: int | None = None
        for _ in range(_ATTEMPTS):
            worker = self._idle.get()
            try:
                worker = worker or self._start()
                succeeded, result = self._exchange(worker, item)
            except (EOFError, OSError, pickle.UnpicklingError):
                status, worker = self._remove(worker), None
                continue
            finally:
                self._idle.put(worker)
            if not succeeded:
                raise cast(BaseException, result)
            return result
        how = f"signal {-status}" if status and status < 0 else f"status {status}"
        raise SurroundingsError(
            f"worker processes ended early, {_ATTEMPTS} times at the same place ({how}); is there enough memory? "
            "Run the same command again to continue"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        program = _PROGRAM.format(path=sys.path)
        with self._lock:
            if self._closed:
                raise EOFError("the work is over")
            try:
                with without_interrupts() as flags:  # `serve` ignores them, but only once it runs
                    worker = subprocess.Popen(
                        [sys.executable, "-c", program],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        env=self._environment,
                        creationflags=flags,
                    )
            except OSError as error:
                raise SurroundingsError(f"a worker process cannot be started ({error.strerror})") from error
            self._running.add(worker)
        with contextlib.suppress(OSError):  # it has ended: so the first call says
            pickle.dump(self._function, _stream(worker.stdin))
        return worker

    @staticmethod
    def _exchange(worker: subprocess.Popen[bytes], item: object) -> tuple[bool, object]:
        given = _stream(worker.stdin)
        pickle.dump(item, given, pickle.HIGHEST_PROTOCOL)
        given.flush()
        answer: tuple[bool, object] = pickle.load(_stream(worker.stdout))
        return answer

    def _remove(self, worker: subprocess.Popen[bytes] | None) -> int | None:
        """End a worker; returns its exit status."""
        if worker is None:
            return None
        with self._lock:
            self._running.discard(worker)
        try:
            status = worker.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            worker.kill()
            status = worker.wait()
        _close(worker)
        return status

    def kill(self) -> None:
        """End all workers: calls that wait for one return, and no further one starts."""
        with self._lock:
            self._closed = True
            for worker in self._running:
                worker.kill()

    def close(self) -> None:
        """Wait for the end of all workers; no call is waiting for one."""
        self.kill()
        for worker in self._running:
            worker.wait()
            _close(worker)


def _close(worker: subprocess.Popen[bytes]) -> None:
    for stream in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):  # what was written last cannot be flushed
            _stream(stream).close()


def _stream(stream: Any) -> Any:
    assert stream is not None
    return stream


def serve() -> None:
    """The program of a worker: read the function, then items, and write the result of each, until the input ends.

    An interrupt from the terminal is for the process that started it, which then closes the input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    given, taken = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not get between the results
    with contextlib.suppress(EOFError, BrokenPipeError):
        function = pickle.load(given)
        while True:
            function = _answer(function, pickle.load(given), taken)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, also in the middle of an item."""
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)


def _answer(function: Any, item: object, taken: Any) -> Callable[[Any], Any]:
    """Write the result for an item; returns the function, which is given as its pickle at first."""
    try:
        function = pickle.loads(function) if isinstance(function, bytes) else function
        answer = pickle.dumps((True, function(item)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # raised again by the process that gave the item
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)
        except Exception:  # one that cannot be pickled
            answer = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    taken.write(answer)
    taken.flush()
    return cast(Callable[[Any], Any], function)
