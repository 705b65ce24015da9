"""Hostile clients: they do not read, send slowly, incompletely or too much, or request results of enormous size.

It is a separate program, so that it does not share the test's interpreter: ``python hostile.py PORT SECONDS
CONNECTIONS``. It prints how often each attack was started, as JSON. `test_hostile` runs it beside well-behaved clients.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

WORDS = ["null", "eins", "zwei", "drei", "vier", "sechs", "sieben", "acht", "neun", "zehn"]
LINE = " ".join(WORDS * 2)
MATRIX = {"text": ["\n".join([LINE] * 30)] * 2, "alignment": True}
"""A text's alignment is a matrix of all its target words by all its source words."""

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UPGRADE = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


def post(content: object, path: str = "/translate") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return HEAD.replace(b"/translate", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Line:
    """A connection with a small receive buffer."""

    def __init__(self, port: int) -> None:
        self._port, self._loop = port, asyncio.get_running_loop()

    async def __aenter__(self) -> Line:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await self._loop.sock_connect(self.socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def receive(self, count: int = 65_536) -> bytes:
        return await self._loop.sock_recv(self.socket, count)

    async def drain(self) -> None:
        """Read until the server closes the connection."""
        while await self.receive():
            pass

    async def dribble(self, data: bytes) -> None:
        """Send a byte a second until the server closes the connection."""
        while True:
            await self.send(data)
            await asyncio.sleep(1)


# Attacks that hold connections


async def silent(line: Line) -> None:
    await line.receive()


async def half_open(line: Line) -> None:
    await line.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    await line.dribble(b"a")


async def half_open_again(line: Line) -> None:
    await line.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nX:")
    await line.dribble(b"a")


async def slow_body(line: Line) -> None:
    await line.send(HEAD + b"Content-Length: 900000\r\n\r\n" + b" " * random.choice([1, 200_000]))
    await line.dribble(b" ")


async def slow_reader(line: Line) -> None:
    await line.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)
    while await line.receive(1):
        await asyncio.sleep(1)


# Attacks that make work


async def unread(line: Line) -> None:
    await line.send(post(MATRIX))
    await asyncio.sleep(60)


async def unread_stream(line: Line) -> None:
    await line.send(post({**MATRIX, "text": MATRIX["text"][0]}, "/translate/stream"))
    await asyncio.sleep(60)


async def killed(line: Line) -> None:
    await line.send(post({"text": [LINE] * 5}))
    await asyncio.sleep(random.random() / 50)
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # the server gets a reset


async def upgrades(line: Line) -> None:
    await line.send(UPGRADE * 600)
    await line.drain()


async def pipelined(line: Line) -> None:
    await line.send(post({"text": "eins"}) * random.choice([3, 300]) + b"\0\xff\r\n\r\n")
    await line.drain()


async def large_head(line: Line) -> None:
    await line.send(
        b"GET /health HTTP/1.1\r\n" + random.choice([b"X: " + b"a" * 70_000, b"a: b\r\n" * 5_000]) + b"\r\n\r\n"
    )
    await line.drain()


async def large_body(line: Line) -> None:
    await line.send(HEAD + b"Content-Length: 2000000\r\n\r\n")
    await line.send(b"a" * 2_000_000)
    await line.drain()


async def exploding(line: Line) -> None:
    bodies: list[object] = [
        {"text": "a", **{f"k{number}": 0 for number in range(60_000)}},
        {"text": "a", "k" * 900_000: 0},
        {"text": "a", "glossary": {"a": [0] * 200_000}},
        {**MATRIX, "alternatives": 20, "n_best": 5},
        {"text": ["\n".join([LINE] * 40)] * 12, "alignment": True},
        b'{"text": ' + b"[" * 500_000,
        b'{"text": "a", "beam": ' + b"9" * 900_000 + b"}",
    ]
    await line.send(post(random.choice(bodies)))
    await line.receive()


async def rebinding(line: Line) -> None:
    await line.send(post({"text": "eins"}).replace(b"localhost", b"evil.example"))
    received = await line.receive()
    if not received:
        raise ConnectionAbortedError  # given up, because there were too many connections
    assert b" 421 " in received


HOLDERS = [silent, half_open, half_open_again, slow_body, slow_reader]
WORKERS = [unread, unread_stream, killed, upgrades, pipelined, large_head, large_body, exploding, rebinding]


async def attack(port: int, seconds: float, connections: int) -> Counter[str]:
    """Keep this many connections busy for some time."""
    counts: Counter[str] = Counter()
    ends = asyncio.get_running_loop().time() + seconds

    async def repeat(kind: Callable[[Line], Awaitable[None]], pause: float) -> None:
        await asyncio.sleep(random.random() * min(pause, seconds / 4))
        while asyncio.get_running_loop().time() < ends:
            counts[kind.__name__] += 1
            try:
                async with asyncio.timeout_at(ends), Line(port) as line:
                    await kind(line)
            except (OSError, TimeoutError) as error:
                counts[f"{kind.__name__}: {type(error).__name__}"] += 1
            await asyncio.sleep(pause * random.random())

    kinds = [(kind, 1.0) for kind in [*WORKERS * 2, *[unread, unread_stream] * 8]]
    holders = max(connections - len(kinds), len(HOLDERS))
    kinds += [(HOLDERS[place % len(HOLDERS)], 10.0) for place in range(holders)]
    await asyncio.gather(*(repeat(kind, pause) for kind, pause in kinds))
    return counts


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    where, duration, count = sys.argv[1:]
    print(json.dumps(asyncio.run(attack(int(where), float(duration), int(count)))))
