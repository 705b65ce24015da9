"""A thread for parts of large requests, the least left to do first.

Requests that take turns would all end late, and under load all of them after the time limit. In this order some of
them are answered, a small one never waits for a large one, and the results of few requests are in memory at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Request:
    parts: Sequence[Callable[[], None]]
    left: Sequence[float]
    number: int
    deliver: Callable[..., None]
    done: int = 0

    @property
    def turn(self) -> tuple[float, int]:
        return self.left[self.done], self.number


class WorkThread(threading.Thread):
    """Calls the parts of requests one after the other.

    Args:
        name: of the thread, which does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._changed, self._numbers, self._closed = threading.Condition(), itertools.count(), False
        self._waiting: set[_Request] = set()

    async def call_all(self, parts: Sequence[Callable[[], None]], left: Sequence[float]) -> None:
        """Call functions in order. Between two of them, a request with less left to do can come first.

        If the coroutine is cancelled, at most the running function is finished.

        Args:
            parts: the functions; an exception ends the request.
            left: what is left to do before each of them, in the unit of all requests.
        """
        if not parts:
            return
        future, deliver = _future()
        request = _Request(parts, left, next(self._numbers), deliver)
        with self._changed:
            self._waiting.add(request)
            self._changed.notify()
        try:
            await future
        finally:
            with self._changed:
                self._waiting.discard(request)

    def run(self) -> None:
        """Call until closed; what waits then is not called."""
        while (request := self._next()) is not None:
            raised: BaseException | None = None
            try:
                request.parts[request.done]()
            except BaseException as error:
                raised = error
            request.done += 1
            if raised is not None or request.done == len(request.parts):
                self._finish(request, raised)
            del request, raised

    def _next(self) -> _Request | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return None if self._closed else min(self._waiting, key=lambda one: one.turn)

    def _finish(self, request: _Request, error: BaseException | None) -> None:
        with self._changed:
            self._waiting.discard(request)
        request.parts = ()  # the thread keeps nothing of what is answered, such as a model that is being replaced
        request.deliver(error=error)

    def close(self) -> None:
        """End after the function that is running; called when nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()


async def call_in_daemon(function: Callable[[], T]) -> T:
    """The result of a function called in a thread of its own, which does not keep the process from ending."""
    future, deliver = _future()
    threading.Thread(target=_call, args=(function, deliver), name="loading", daemon=True).start()
    del function
    result: T = await future
    return result


async def finish_all(tasks: Collection[asyncio.Task[None]], seconds: float) -> bool:
    """Wait for tasks, and cancel those that are not done in time; returns whether all were."""
    if not tasks:
        return True
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    return not late


def _future() -> tuple[asyncio.Future[Any], Callable[..., None]]:
    """A future of the running event loop, and a function that resolves it from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def deliver(result: Any = None, error: BaseException | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(partial(resolve, result, error))

    return future, deliver


def _call(function: Callable[[], Any], deliver: Callable[..., None]) -> None:
    try:
        result = function()
    except BaseException as error:
        deliver(error=error)
    else:
        deliver(result)
