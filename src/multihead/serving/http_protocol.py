"""A client's connection: uvicorn's on httptools (llhttp), with limits.

uvicorn parses, keeps connections alive and paces what is read and written. It has no limit on the size of a head, on
the time for a head and for taking an answer, and on requests sent ahead; they are here. What all connections together
may have is in `connections`.

Parsing HTTP in Python (h11, where uvicorn limits heads) costs a quarter of a millisecond more per request, half of what
a small model needs for a sentence (docs/lab-notes.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from multihead.serving.connections import Connections, Wait
from multihead.serving.error_responses import ApiError
from multihead.serving.metrics import Metrics
from multihead.serving.settings import ServeSettings

MAX_HEAD = 65_536
"""Maximum bytes of a request outside of its body (request line, headers, trailers)."""

MAX_HEADERS = 100
"""Maximum headers and trailers of a request."""

MAX_AHEAD = 8
"""Maximum requests that a client may send on a connection before the first of them is answered."""

FRESH_TIME = 0.5
"""Seconds for which a new connection is the last to be given up: its client may be about to send."""

_READ_AHEAD = 2 * 65_536
"""Bytes of a body that uvicorn holds at most beyond those that were asked for."""


@dataclass(frozen=True)
class Surroundings:
    """What all connections of a server share."""

    settings: ServeSettings
    connections: Connections
    metrics: Metrics


class HttpProtocol(HttpToolsProtocol):
    """A connection.

    Args:
        args: passed on to uvicorn.
        surroundings: of the server.
        kwargs: passed on to uvicorn.
    """

    def __init__(self, *args: Any, surroundings: Surroundings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._surroundings, self._settings = surroundings, surroundings.settings
        self._wait_timer: asyncio.TimerHandle | None = None
        self._raw_bytes = 0
        """Bytes received since a head, a part of a body or a message last ended."""
        self._head_bytes = self._head_lines = 0
        """Size of the head, with trailers, as far as it is parsed."""
        self._body_bytes = 0
        """Bytes received of the body, as many as may be in memory."""
        self._unsent = 0
        """Bytes of answers that the client has not taken."""
        self._fresh = True
        """Whether the connection is new and nothing has come."""
        self._began = self.loop.time()
        self._used = False
        """Whether a request was answered."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called whenever something is left to send
        self.transport = BufferedTransport(transport, self.loop)
        if self._surroundings.connections.add(self):
            self._update()
        else:
            self.abort("too_many")

    def connection_lost(self, exc: Exception | None) -> None:
        self._surroundings.connections.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._fresh = False
        self._raw_bytes += len(data)
        while data and not self.transport.is_closing():
            data = self._parse(data)
        if self._raw_bytes > MAX_HEAD:
            self._refuse(_head_too_large())
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent = 0
        self._update()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._used = True
        self._update()

    def abort(self, reason: str) -> None:
        """Close the connection without sending what is left."""
        self._surroundings.metrics.closed.labels(reason).inc()
        self._surroundings.connections.remove(self)
        self._stop_timer()
        self.transport.abort()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._head_bytes = self._head_lines = self._body_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_lines += 1
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD or self._head_lines > MAX_HEADERS:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        self._raw_bytes = 0
        if len(self.pipeline) >= MAX_AHEAD:
            message = f"at most {MAX_AHEAD} requests may wait for their answers on a connection: send fewer at once"
            raise ApiError(400, "malformed_http", message)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._raw_bytes = 0
        self._body_bytes = min(self._body_bytes + len(body), self._settings.max_body + _READ_AHEAD)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._raw_bytes = 0
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        # Upgrades are handled by `_without_upgrade`: llhttp would skip the body of the request.
        return True

    def _parse(self, data: bytes) -> bytes:
        """Parse received bytes; returns what is to be parsed next, by a new parser."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            if self.parser.get_method() != b"CONNECT":  # no address accepts it
                return self._without_upgrade(data[stopped.args[0] :])
            self._refuse(_malformed())
        except httptools.HttpParserError as error:
            raised = error.__context__
            self._refuse(raised if isinstance(raised, ApiError) else _malformed())
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """A request for another protocol (Java's client asks for HTTP/2) without its upgrade headers."""
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(word for word in value.split(b",") if word.strip().lower() != b"upgrade")
            if name != b"upgrade":
                head.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*head, b"", b""]) + rest

    # Refusals and waiting

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the message is always the same
        self._refuse(_malformed())

    def _refuse(self, error: ApiError) -> None:
        """Respond, unless a request is being answered, and close: what follows cannot be parsed."""
        if self.transport.is_closing():
            return
        receiving = self.cycle is not None and self.cycle.more_body and not self.cycle.response_started
        if self._idle or (receiving and not self.pipeline):
            body = error.body.model_dump_json().encode()
            head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _wait(self) -> Wait | None:
        if self._unsent:
            return Wait.TAKING
        if not self._idle:
            return Wait.BODY if self.cycle.more_body else None
        if self._fresh:
            return Wait.FRESH
        # uvicorn closes a resting connection after `timeout_keep_alive`, unless something has arrived since.
        return Wait.NEXT if self._used and self.timeout_keep_alive_task is not None else Wait.HEAD

    def _update(self) -> None:
        """Start the timer of what the connection waits for now, and count what it holds."""
        wait = self._wait
        received = max(self._raw_bytes, self._head_bytes) + (0 if self._idle else self._body_bytes)
        if not self._surroundings.connections.update(self, wait, received + self._unsent):
            return
        self._stop_timer()
        if wait is Wait.FRESH:
            # The loop calls readers before timers, so a request that has arrived in time is seen before the timer ends.
            self._wait_timer = self.loop.call_later(FRESH_TIME, self._end_fresh)
        elif wait is Wait.HEAD:
            began = self._began if self.cycle is None else self.loop.time()
            self._wait_timer = self.loop.call_at(began + self._settings.send_time, self._close_slow_head)
        elif wait is Wait.TAKING:
            self._wait_timer = self.loop.call_later(self._settings.take_time, self.abort, "answer_not_taken")

    def _stop_timer(self) -> None:
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None

    def _end_fresh(self) -> None:
        self._fresh = False
        self._update()

    def _close_slow_head(self) -> None:
        self._surroundings.metrics.closed.labels("head_too_slow").inc()
        self.transport.close()


def _malformed() -> ApiError:
    return ApiError(400, "malformed_http", "expected an HTTP/1.1 request with a method that HTTP defines")


def _head_too_large() -> ApiError:
    message = f"at most {MAX_HEAD:,} bytes and {MAX_HEADERS} headers are allowed before a request's body: send fewer"
    return ApiError(431, "head_too_large", message)


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

    def abort(self) -> None:
        self._parts = []
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
