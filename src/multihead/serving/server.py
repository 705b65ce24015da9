"""The server process: socket, signals, HTTP connections.

SIGTERM and SIGINT drain: no new connection is accepted, requests in flight are finished within a time limit, and the
process ends with status 0; a second signal ends it at once. SIGHUP reloads the model folder without dropping a request.

HTTP is uvicorn's on httptools (llhttp), with limits added. Parsing HTTP in Python (h11) costs a quarter of a
millisecond more per request, half of what a small model needs for a sentence (docs/lab-notes.md).
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
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from multihead.errors import SurroundingsError
from multihead.serving.app import make_app
from multihead.serving.error_responses import ApiError
from multihead.serving.scheduler import Scheduler
from multihead.serving.settings import ServeSettings

_SEND_SECONDS = 2.0
"""Time to send the last responses after the drain time."""

MAX_HEAD = 65_536
"""Maximum bytes of a request outside of its body (request line, headers, trailers); the parser has no limit."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SurroundingsError: the address is taken, is not one of this machine, or is not an address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named: otherwise each small response waits 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
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
    for name in ("uvicorn.error", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the scheduler writes the log
    server = _Server(_config(make_app(scheduler, token), scheduler.settings))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if scheduler.draining:
            os._exit(1)
        scheduler.draining = True
        scheduler.say(f"stopping: {scheduler.in_flight} in hand")
        loop.call_later(scheduler.settings.drain, scheduler.abort_all)
        server.should_exit = True

    def stop_without_model(_task: asyncio.Task[None]) -> None:
        if scheduler.load_error is not None:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, scheduler.start_loading)
    scheduler.start_loading().add_done_callback(stop_without_model)
    await server.serve([listening])
    await scheduler.close()
    return scheduler


def _config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    protocol: Any = partial(HttpProtocol, head_timeout=settings.send_time)
    return uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", http=protocol, server_header=False,
        date_header=True, proxy_headers=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=max(int(settings.drain + _SEND_SECONDS), 1),
    )  # fmt: skip


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers; `serve` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpProtocol(HttpToolsProtocol):
    """A client's connection: uvicorn's, with limits on the time and size of a request's head.

    Args:
        args: passed on to uvicorn.
        head_timeout: seconds for a request's head to arrive before the connection is closed.
        kwargs: passed on to uvicorn.
    """

    def __init__(self, *args: Any, head_timeout: float = 10.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout = head_timeout
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Bytes received since the last part of a body or the end of a head or message."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = BufferedTransport(transport, self.loop)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        self._parse(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            message = f"at most {MAX_HEAD:,} bytes are taken before a request's body: send fewer"
            self._send_error(ApiError(431, "head_too_large", message))
        if not self._idle and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._ignore_upgrade(data[stopped.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _should_upgrade(self) -> bool:
        # Upgrades are handled by `_ignore_upgrade`: llhttp would skip the body of the request.
        return True

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request for another protocol (Java's client asks for HTTP/2) again, without its upgrade headers."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # no address accepts it
            self.send_400_response("")
            return
        version = self.parser.get_http_version().encode()
        head = [method + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(word for word in value.split(b",") if word.strip().lower() != b"upgrade")
            if name != b"upgrade":
                head.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*head, b"", b""]) + rest)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0  # `requests` limits the body
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # uvicorn closes an idle connection after `timeout_keep_alive`; the timer closes one with half a head.
        super().on_response_complete()
        if self._idle and not self.transport.is_closing():
            self._start_head_timer(float(self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_head_timer(self, idle: float = 0.0) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(idle + self._head_timeout, self.transport.close)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the message is always the same
        """Respond and close: what follows cannot be parsed either."""
        message = "what came is not HTTP/1.1, or has a method that is none of its"
        self._send_error(ApiError(400, "malformed_http", message))

    def _send_error(self, error: ApiError) -> None:
        body = error.body.model_dump_json().encode()
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class BufferedTransport(asyncio.Transport):
    """A transport that sends everything written in one turn of the event loop at once: a response's head and body.

    Args:
        transport: the connection.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self._parts.append(data)
        if len(self._parts) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
