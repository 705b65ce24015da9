"""The process: a socket, signals, and uvicorn in between.

SIGTERM and SIGINT drain: nobody new is let in, what is in hand is finished within a limit, and the process ends with
status 0; a second one ends it at once. SIGHUP loads the model folder anew and swaps, without dropping a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from multihead.errors import SurroundingsError
from multihead.serving.app import make_app
from multihead.serving.protocol import Protocol
from multihead.serving.scheduler import Desk
from multihead.serving.settings import ServeSettings

_LEAVE = 2.0
"""Seconds for answers to leave, once they are made."""


class Server(uvicorn.Server):
    """uvicorn, whose signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them to `serve`."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        SurroundingsError: the address is taken, or not this machine's, or no address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio sends small answers at once: otherwise each waits 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise SurroundingsError(f"{host}:{port}: cannot listen there: {error.strerror or error}; try --port") from None
    except TypeError:  # a name that cannot be written as a host's: a label of it is too long
        listening.close()
        raise SurroundingsError(f"{host}: cannot listen there: this is no host's name; try --host 127.0.0.1") from None
    return listening


async def serve(make: Callable[[], Desk], listening: socket.socket, token: str | None) -> Desk:
    """Serves until a signal says to stop; gives the desk, which says whether there ever was a model.

    Args:
        make: the desk; called in the event loop.
        listening: as `bind` has it.
        token: that clients must show, if any.
    """
    desk = make()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what there is to say is said by the desk
    server = Server(_config(make_app(desk, token), desk.settings))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if desk.draining:
            os._exit(1)
        desk.draining = True
        desk.say(f"stopping: {desk.in_hand} in hand")
        loop.call_later(desk.settings.drain, desk.give_up)
        server.should_exit = True

    def loaded(_task: asyncio.Task[None]) -> None:
        if desk.failed is not None:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, desk.begin)
    desk.begin().add_done_callback(loaded)
    await server.serve([listening])
    await desk.close()
    return desk


def _config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    protocol: Any = partial(Protocol, patience=settings.send_time)
    return uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", http=protocol, server_header=False,
        date_header=True, proxy_headers=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=max(int(settings.drain + _LEAVE), 1),
    )  # fmt: skip
