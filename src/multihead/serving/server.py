"""The server process: its socket and its signals.

SIGTERM and SIGINT drain: no new connection is accepted, requests in flight are finished within a time limit, and the
process ends with status 0; a second signal ends it at once. SIGHUP, where the system has it, reloads the model folder
without dropping a request.

HTTP is uvicorn's; `http_protocol` and `connections` add limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn

from multihead.errors import SurroundingsError
from multihead.platforms import RELOAD_SIGNAL, STOP_SIGNALS, handle_signals, own_address
from multihead.serving.app import make_app
from multihead.serving.connections import Connections, connection_limits
from multihead.serving.http_protocol import HttpProtocol, Surroundings
from multihead.serving.log import log_libraries
from multihead.serving.scheduler import Scheduler

_SEND_SECONDS = 2.0
"""Time to send the last responses after the drain time."""

_SEND_BUFFER = 262_144
"""Bytes of an answer that the kernel holds for each connection; by itself it takes megabytes."""

_BACKLOG = 4096
"""Connections that wait to be accepted. A client that finds no room tries again after one, three and seven seconds."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SurroundingsError: the address is taken, is not one of this machine, or is not an address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # asyncio sets TCP_NODELAY only if the protocol is named: otherwise each small response waits 40 ms for an ACK.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:  # a system without IPv6
        raise SurroundingsError(
            f"{host}: cannot listen there: {error.strerror or error}; try --host 127.0.0.1"
        ) from None
    try:
        own_address(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SurroundingsError(f"{host}:{port}: cannot listen there: {error.strerror or error}; try --port") from None
    except TypeError:  # a label of the host name is too long to be encoded
        listening.close()
        raise SurroundingsError(f"{host}: cannot listen there: this is no host's name; try --host 127.0.0.1") from None
    return listening


async def serve(make_scheduler: Callable[[], Scheduler], listening: socket.socket, token: str | None) -> Scheduler:
    """Serve until a signal arrives or the first model cannot be loaded (`Scheduler.load_error`).

    Args:
        make_scheduler: called in the event loop.
        listening: from `bind`.
        token: required of clients; None admits every client.
    """
    scheduler = make_scheduler()
    loop = asyncio.get_running_loop()
    log_libraries(scheduler.say, loop)
    server = Server(scheduler, token)

    def stop() -> None:
        if scheduler.draining:
            os._exit(1)
        scheduler.drain()
        scheduler.say(f"stopping; requests in progress: {scheduler.in_flight}")
        server.should_exit = True

    def stop_without_model(_task: asyncio.Task[None]) -> None:
        if scheduler.load_error is not None:
            server.should_exit = True

    handlers: dict[signal.Signals, Callable[[], object]] = dict.fromkeys(STOP_SIGNALS, stop)
    if RELOAD_SIGNAL is not None:
        handlers[RELOAD_SIGNAL] = scheduler.start_loading
    with handle_signals(loop, handlers):
        scheduler.start_loading().add_done_callback(stop_without_model)
        await server.serve([listening])
        await scheduler.close()
    return scheduler


class Server(uvicorn.Server):
    """uvicorn's server with our connections, and without its signal handlers; `serve` has its own.

    Args:
        scheduler: translates.
        token: required of clients; None admits every client.
    """

    def __init__(self, scheduler: Scheduler, token: str | None) -> None:
        settings = scheduler.settings
        limits = connection_limits(settings.connections, scheduler.say)
        self.open_connections = Connections(limits.most, settings.held_bytes)
        surroundings = Surroundings(settings, self.open_connections, scheduler.metrics)
        scheduler.metrics.add_gauge("multihead_connections", "Open connections.", self.open_connections.__len__)
        scheduler.metrics.add_gauge(
            "multihead_held_bytes", "Unfinished requests and unread answers.", lambda: self.open_connections.held
        )
        protocol: Any = partial(HttpProtocol, surroundings=surroundings)
        config = uvicorn.Config(
            make_app(scheduler, token), log_config=None, access_log=False, lifespan="off", ws="none", http=protocol,
            server_header=False, date_header=True, proxy_headers=False, timeout_keep_alive=30,
            backlog=limits.accepted_at_once, timeout_graceful_shutdown=max(int(settings.drain + _SEND_SECONDS), 1),
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; asyncio has one number for connections accepted at once and for those that wait to be."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
