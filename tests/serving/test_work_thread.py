"""The thread for parts of large requests: the request with the least left goes first, and shutdown does not wait."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from multihead.serving.work_thread import WorkThread, call_in_daemon, finish_all


def test_of_equal_requests_the_first_is_done_first() -> None:
    """If they took turns, all would finish at the end."""
    order: list[str] = []

    def request(thread: WorkThread, name: str, parts: int) -> asyncio.Task[None]:
        left = [float(parts - part) for part in range(parts)]
        return asyncio.create_task(thread.call_all([partial(order.append, name)] * parts, left))

    async def live() -> None:
        thread = WorkThread("work")
        requests = [request(thread, name, 4) for name in "abc"] + [request(thread, "short", 1)]
        await asyncio.sleep(0)
        thread.start()
        await asyncio.gather(*requests)
        thread.close()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()

    asyncio.run(live())
    assert order == ["short", *"aaaabbbbcccc"]


def test_a_smaller_request_goes_between_the_parts_of_a_larger_one() -> None:
    order: list[str] = []

    async def live() -> None:
        thread, begun, begin = WorkThread("work"), threading.Event(), threading.Event()

        def first() -> None:
            begun.set()
            begin.wait(30)

        large = asyncio.create_task(thread.call_all([first, partial(order.append, "large")], [9.0, 8.0]))
        thread.start()
        await asyncio.to_thread(begun.wait, 30)
        small = asyncio.create_task(thread.call_all([partial(order.append, "small")], [1.0]))
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(large, small)
        thread.close()

    asyncio.run(live())
    assert order == ["small", "large"]


def test_errors_are_raised_and_the_cancelled_is_not_called() -> None:
    called: list[int] = []

    async def live() -> None:
        thread = WorkThread("work")
        late = asyncio.create_task(thread.call_all([partial(called.append, 1)], [1.0]))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        thread.start()
        with pytest.raises(ZeroDivisionError):
            await thread.call_all([lambda: 1 / 0, partial(called.append, 2)], [2.0, 1.0])  # type: ignore[list-item]
        await thread.call_all([partial(called.append, 3)], [1.0])
        thread.close()

    asyncio.run(live())
    assert called == [3]


def test_what_does_not_end_is_given_up() -> None:
    over = threading.Event()

    async def live() -> tuple[bool, bool]:
        quick = asyncio.create_task(call_in_daemon(lambda: None))
        endless = asyncio.create_task(call_in_daemon(over.wait))
        return await finish_all([quick], 30), await finish_all([endless], 0.05)

    try:
        assert asyncio.run(live()) == (True, False)
    finally:
        over.set()
