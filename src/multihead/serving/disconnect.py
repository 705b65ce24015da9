"""Whether a client is still there while its answer is being made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.types import Receive



class ClientGone(Exception):  # noqa: N818 - not an error
    """Nobody waits for the answer."""


@contextlib.asynccontextmanager
async def leaving(receive: Receive, tell: Callable[[], None]) -> AsyncIterator[None]:
    """Tells when the client goes before the block has ended.

    Args:
        receive: of a request whose body was read: all that can come is that the client goes.
        tell: called then.
    """
    task = asyncio.create_task(_until_gone(receive))
    task.add_done_callback(lambda ended: None if ended.cancelled() else tell())
    try:
        yield
    finally:
        task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
