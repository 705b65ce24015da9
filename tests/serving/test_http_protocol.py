"""Connections: exact limits of heads, pipelined requests, upgrades, and responses that nobody reads."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from multihead import Translator
from multihead.serving import server
from multihead.serving.http_protocol import MAX_AHEAD, MAX_HEAD, MAX_HEADERS

Client = Any
Servers = Any

UPGRADE = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
PLAIN = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
MATRIX = {"text": "\n".join(["eins zwei drei vier fünf sechs sieben acht neun zehn " * 2] * 6), "alignment": True}


def head(size: int) -> bytes:
    """A head of this many bytes, as the parser counts them."""
    begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    counted = len(begun) - len(b"GET  HTTP/1.1\r\n") + len(b"\r\n")
    return begun + b"a" * (size - counted) + b"\r\n\r\n"


def test_a_head_of_the_limit_passes_and_a_byte_more_does_not(client: Client) -> None:
    assert client.raw(head(MAX_HEAD)).status == 200
    for size in (MAX_HEAD + 1, 70_000, 120_000):
        reply = client.raw(head(size))
        assert (reply.status, reply.json["error"]) == (431, "head_too_large")


def test_headers_are_counted(client: Client) -> None:
    def ask(count: int) -> Any:
        return client.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + b"a: b\r\n" * (count - 1) + b"\r\n")

    assert ask(MAX_HEADERS).status == 200
    reply = ask(MAX_HEADERS + 1)
    assert (reply.status, reply.json["error"]) == (431, "head_too_large")


def everything(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(sent)
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.parametrize("request_", [UPGRADE, PLAIN])
def test_as_many_requests_ahead_as_the_limit_are_answered(request_: bytes, client: Client) -> None:
    assert everything(client.port, request_ * MAX_AHEAD + LAST).count(b"HTTP/1.1 200 OK") == MAX_AHEAD + 1


@pytest.mark.parametrize("request_", [UPGRADE, PLAIN])
def test_one_more_request_ahead_closes_the_connection(
    request_: bytes, servers: Servers, translator: Translator, logged: list[str]
) -> None:
    """Without a response: an error would be taken for the response to the first request."""
    serving = servers.start(lambda: translator)
    before = len(serving.log)
    for sent in (request_ * (MAX_AHEAD + 1) + LAST, request_ * 600):
        assert everything(serving.client.port, sent) == b""
    assert serving.client.get("/health").status == 200
    assert serving.log[before:] == logged == []


def test_what_follows_a_request_in_hand_is_not_its_answer(client: Client, logged: list[str]) -> None:
    """The error for an unparsable request is sent after the response, or not at all."""
    body, garbage = json.dumps({"text": "eins zwei"}).encode(), b"\0\xff\r\n\r\n"
    request = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert everything(client.port, request + garbage) == b""
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as line:
        line.sendall(request)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        assert json.loads(answer.read())["translations"][0]["source"] == "eins zwei"
        line.sendall(garbage)
        assert b'"malformed_http"' in b"".join(iter(lambda: line.recv(65_536), b""))
    assert logged == []


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel buffers only a small part of a response."""
    monkeypatch.setattr(server, "_SEND_BUFFER", 4096)


@contextlib.contextmanager
def unread(port: int, path: str) -> Iterator[socket.socket]:
    """A client that sends requests and does not read."""
    body = json.dumps(MATRIX).encode()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port))
        head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        yield line


@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_an_answer_that_nobody_takes_is_given_up(
    path: str, translator: Translator, servers: Servers, small_buffers: None
) -> None:
    client = servers.start(lambda: translator, take_time=0.3).client
    assert len(client.post(path, **MATRIX).body) > 50_000
    with unread(client.port, path):
        client.until('multihead_connections_closed_total{reason="answer_not_taken"}', 1)
        client.until("multihead_requests_in_hand", 0)
        assert client.metric("multihead_held_bytes") < 1_000
        assert client.metric("multihead_connections") == 1


def test_a_slow_client_that_takes_its_answer_gets_all_of_it(
    translator: Translator, servers: Servers, small_buffers: None
) -> None:
    client = servers.start(lambda: translator, take_time=20).client
    with unread(client.port, "/translate") as line:
        answer = http.client.HTTPResponse(line)
        answer.begin()
        got = b""
        while part := answer.read(10_000):
            got += part
            time.sleep(0.02)
    assert json.loads(got)["translations"] == client.post(**MATRIX).json["translations"]


def test_unread_answers_of_all_clients_are_limited(
    translator: Translator, servers: Servers, small_buffers: None
) -> None:
    """The one that has waited longest is closed; a client that reads gets its response."""
    serving = servers.start(lambda: translator, take_time=60)
    client, whole = serving.client, serving.client.post(**MATRIX).json["translations"]
    size = serving.connections.most_bytes = 2 * len(json.dumps(whole))
    with contextlib.ExitStack() as lines:
        for _ in range(4):
            lines.enter_context(unread(client.port, "/translate"))
            assert client.post(**MATRIX).json["translations"] == whole
        client.until("multihead_requests_in_hand", 0)
        assert serving.connections.held <= size
        assert client.metric('multihead_connections_closed_total{reason="too_many_bytes"}') >= 1


def test_a_connection_that_sends_without_end_is_closed(translator: Translator, servers: Servers) -> None:
    """A body that no endpoint reads keeps the connection open no longer than the time limit of a head."""
    client = servers.start(lambda: translator, send_time=0.3).client
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        assert b"200 OK" in line.recv(65_536)
        began = time.monotonic()
        with contextlib.suppress(OSError):  # a reset, or a broken pipe
            while time.monotonic() - began < 20:
                line.sendall(b" " * 1_000)
                time.sleep(0.05)
        assert time.monotonic() - began < 20
