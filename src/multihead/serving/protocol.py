"""HTTP on a connection: uvicorn's on llhttp, with limits of its own, and one piece for each answer.

What is complained of is in the form of all other refusals. Reading and writing HTTP in Python (h11) costs a quarter of
a millisecond a request more, half of what a small model needs for a sentence (docs/lab-notes.md).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from multihead.serving.error_responses import Refusal

HEAD = 65_536
"""Bytes of a request's head, or of whatever else comes that is not its body, at most; the parser has no limit."""


class Protocol(HttpToolsProtocol):
    """One client's connection, on which nobody waits for ever for a request to come.

    Args:
        words: uvicorn's.
        patience: seconds in which a request's head must have come, before the connection is closed.
        named: uvicorn's.
    """

    def __init__(self, *words: Any, patience: float = 10.0, **named: Any) -> None:
        super().__init__(*words, **named)
        self._patience = patience
        self._closing: asyncio.TimerHandle | None = None
        self._head = 0
        """Bytes since the last that were a body's, or the end of something."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and has said nothing."""
        super().connection_made(transport)
        self.transport = Gathering(transport, self.loop)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some of a request, or all of it."""
        self._unset_keepalive_if_required()
        self._head += len(data)
        self._parse(data)
        if self._head > HEAD and not self.transport.is_closing():
            self._refuse(
                Refusal(431, "head_too_large", f"at most {HEAD:,} bytes are taken before a request's body: send fewer")
            )
        if not self._between and self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._stay(data[stopped.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _should_upgrade(self) -> bool:
        """Whether to leave a request that wishes for another protocol to `_stay`: llhttp would leave out its body."""
        return True

    def _stay(self, rest: bytes) -> None:
        """Takes a request that wishes for another protocol (Java's client, of HTTP/2) as if it did not."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # for which there is no address here
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
        """A request's head is whole."""
        self._head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its body; how much of that is taken, `requests` says."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is there."""
        self._head = 0
        super().on_message_complete()

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
        self._refuse(Refusal(400, "malformed_http", "what came is not HTTP/1.1, or has a method that is none of its"))

    def _refuse(self, refusal: Refusal) -> None:
        body = refusal.fault.model_dump_json().encode()
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class Gathering(asyncio.Transport):
    """A connection that sends what was written in one turn of the event loop as one: an answer's head and its body.

    Args:
        transport: the connection.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Sends it soon."""
        self._parts.append(data)
        if len(self._parts) == 1:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Sends what was written, and closes."""
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)
