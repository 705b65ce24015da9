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
from uvicorn.protocols.http.h11_impl import H11Protocol

from multihead.errors import SurroundingsError
from multihead.serving.app import make_app
from multihead.serving.desk import Desk
from multihead.serving.refusals import Refusal
from multihead.serving.settings import ServeSettings
from multihead.serving.waiting import no_type_check

_LEAVE = 2.0
"""Seconds for answers to leave, once they are made."""


class Server(uvicorn.Server):
    """uvicorn, whose signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them to `serve`."""
        yield


class Protocol(H11Protocol):
    """HTTP, whose complaint about what is none is in the form of all others, and who does not wait for ever.

    Args:
        words: uvicorn's.
        patience: seconds in which a request's head must have come, before the connection is closed.
        named: uvicorn's.
    """

    def __init__(self, *words: Any, patience: float = 10.0, **named: Any) -> None:
        super().__init__(*words, **named)
        self._patience = patience
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and has said nothing."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some of a request, or all of it."""
        super().data_received(data)
        if not self._between and self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def on_response_complete(self) -> None:
        """Another request may follow; with nothing of it `timeout_keep_alive` closes, with half of it we do."""
        super().on_response_complete()
        if self._between and not self.transport.is_closing():
            self._await_head(float(self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        if self._closing is not None:
            self._closing.cancel()

    @property
    def _between(self) -> bool:
        """Whether there is no request whose answer is being made."""
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self, idle: float = 0.0) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._closing = self.loop.call_later(idle + self._patience, self.transport.close)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it is always the same
        """Answers, and closes: what follows cannot be read either."""
        body = Refusal(400, "malformed_http", "what came is not HTTP/1.1").fault.model_dump_json().encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


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


@no_type_check
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
        date_header=True, timeout_keep_alive=30, timeout_graceful_shutdown=max(int(settings.drain + _LEAVE), 1),
    )  # fmt: skip
