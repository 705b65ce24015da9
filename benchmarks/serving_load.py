"""The clients of `serving.py`, in a separate process: a line of JSON out for each line of JSON in.

    {"do": "closed", "clients": 32, "seconds": 5}     clients that send the next request at once
    {"do": "open", "rate": 80, "seconds": 10}         arrivals of a Poisson process
    {"do": "fuzz", "requests": 10000, "clients": 16}  random requests, with good ones in between
    {"do": "kill", "clients": 50, "rounds": 20}       clients that disconnect, with good ones beside them

A latency is measured from the time a request was due, not from the time it was sent. The expected translations of good
requests are requested one by one before any load.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Responses:
    """Collected responses."""

    latencies: list[float] = field(default_factory=list)
    """Seconds of successful requests."""
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Number of good requests whose translation differs from that of the text alone."""
    after: list[int] = field(default_factory=list)
    """Values of Retry-After."""

    def summary(self, seconds: float) -> dict[str, Any]:
        """A JSON object; latencies in milliseconds."""
        ordered = sorted(self.latencies)
        points = {
            name: 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
            for name, share in (("p50", 0.5), ("p99", 0.99))
        }
        return {
            "seconds": seconds, "done": len(ordered), "statuses": dict(self.statuses), "wrong": self.wrong, **points,
            "retry_after": [min(self.after), max(self.after)] if self.after else None,
        }  # fmt: skip


class Connection:
    """A minimal HTTP/1.1 client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, body: bytes, path: str = "/translate", kind: str = "application/json") -> None:
        """Send a request."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._streams[1].write(head.encode() + body)
        await self._streams[1].drain()

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Receive the response: status, headers, body."""
        assert self._streams is not None
        reader = self._streams[0]
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await self._chunks(reader)
        if headers.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), headers, body

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        """Disconnect at once."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Load:
    """Clients of one server.

    Args:
        port: the port of the server.
        texts: the texts of good requests.
    """

    def __init__(self, port: int, texts: list[str]) -> None:
        self._port, self._texts = port, texts
        self._alone: list[str] = []
        self._free: list[Connection] = []

    async def learn(self) -> None:
        """Request the translation of each text alone."""
        one = Connection(self._port)
        for text in self._texts:
            await one.send(_body(text))
            status, _, body = await one.receive()
            if status != 200:
                raise SystemExit(f"got {status} for a single text: {body[:300]!r}")
            self._alone.append(json.loads(body)["translations"][0]["text"])
        one.close()

    async def good(self, number: int, due: float, found: Responses) -> None:
        """Send a good request on a free connection."""
        connection = self._free.pop() if self._free else Connection(self._port)
        place = number % len(self._texts)
        try:
            await connection.send(_body(self._texts[place]))
            status, headers, body = await connection.receive()
        except (OSError, EOFError):
            found.statuses["broken"] += 1
            connection.close()
            return
        self._free.append(connection)
        found.statuses[str(status)] += 1
        if status == 200:
            found.latencies.append(time.perf_counter() - due)
            found.wrong += json.loads(body)["translations"][0]["text"] != self._alone[place]
        elif "retry-after" in headers:
            found.after.append(int(headers["retry-after"]))

    async def closed(self, clients: int, seconds: float) -> dict[str, Any]:
        """Clients with one request at a time each."""
        found, began = Responses(), time.perf_counter()

        async def client(first: int) -> None:
            number = first
            while time.perf_counter() - began < seconds:
                await self.good(number, time.perf_counter(), found)
                number += clients

        await asyncio.gather(*(client(first) for first in range(clients)))
        return found.summary(time.perf_counter() - began)

    async def open(self, rate: float, seconds: float, seed: int = 1) -> dict[str, Any]:
        """Arrivals at random times, ``rate`` per second on average."""
        draw, found, began, due, tasks = random.Random(seed), Responses(), time.perf_counter(), 0.0, []
        while (due := due + draw.expovariate(rate)) < seconds:
            await asyncio.sleep(max(began + due - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(self.good(len(tasks), began + due, found)))
        await asyncio.gather(*tasks)
        return {**found.summary(time.perf_counter() - began), "asked": len(tasks)}

    async def everything(self) -> None:
        """Use every part of the server at full width, so that its caches are filled before memory is measured."""
        text = self._texts[:32]
        guarded = {"text": text, "alignment": True, "alternatives": 20, "guard": "retry"}
        requests = [guarded, {**guarded, "beam": 16}, *({"text": one, "prefix": "a"} for one in text)]

        async def one(request: dict[str, Any]) -> None:
            connection = Connection(self._port)
            await connection.send(json.dumps(request).encode())
            await connection.receive()
            connection.close()

        await asyncio.gather(*(one(request) for request in requests))

    async def fuzz(self, requests: int, clients: int, seed: int = 1) -> dict[str, Any]:
        """Random requests; every fourth one is good."""
        await self.everything()
        found, bad, began = Responses(), Responses(), time.perf_counter()
        numbers = iter(range(requests))

        async def client(own: int) -> None:
            draw, connection = random.Random(1000 * seed + own), Connection(self._port)
            for number in numbers:
                if number % 4 == 0:
                    await self.good(number, time.perf_counter(), found)
                    continue
                path, kind, body = fuzzed(draw)
                try:
                    await connection.send(body, path, kind)
                    status, headers, content = await connection.receive()
                    bad.statuses[str(status)] += 1
                    bad.wrong += not _is_documented(kind, status, headers, content)
                except (OSError, EOFError):
                    bad.statuses["broken"] += 1
                    connection.close()
            connection.close()

        await asyncio.gather(*(client(own) for own in range(clients)))
        summary = found.summary(time.perf_counter() - began)
        return {**summary, "bad": dict(bad.statuses), "malformed": bad.wrong}

    async def kill(self, clients: int, rounds: int, seed: int = 1) -> dict[str, Any]:
        """Clients that send large requests and disconnect at random times, beside four that stay."""
        draw, found, began, killed, over = random.Random(seed), Responses(), time.perf_counter(), 0, False

        async def victim(patience: float, path: str) -> None:
            nonlocal killed
            connection = Connection(self._port)
            text = "\n".join(draw.choices(self._texts, k=4))
            await connection.send(_body(text), path)
            with suppress(TimeoutError, OSError, EOFError):
                await asyncio.wait_for(connection.receive(), patience)
            connection.close()
            killed += 1

        async def bystander(number: int) -> None:
            while not over:
                await self.good(number, time.perf_counter(), found)
                number += 4

        staying = [asyncio.create_task(bystander(number)) for number in range(4)]
        for _ in range(rounds):
            paths = [draw.choice(["/translate", "/translate/stream"]) for _ in range(clients)]
            await asyncio.gather(*(victim(draw.uniform(0.0, 0.05), path) for path in paths))
        over = True
        await asyncio.gather(*staying)
        return {**found.summary(time.perf_counter() - began), "killed": killed}


def _body(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def _is_documented(kind: str, status: int, headers: dict[str, str], body: bytes) -> bool:
    """Whether a response has the documented form; status 500 is never accepted.

    A form goes to the routes of LibreTranslate, whose errors consist of a message only.
    """
    if status == 200:
        return headers["content-type"].startswith(("application/json", "text/event-stream"))
    content = json.loads(body)
    fields = [{"error", "message"}, {"error"}] if kind.startswith("multipart/") else [{"error", "message"}]
    formed = set(content) in fields and b"Traceback" not in body and b".py" not in body
    return formed and status in (400, 404, 405, 413, 415, 422, 429)


_WORDS = ["text", "beam", "alpha", "n_best", "prefix", "alignment", "alternatives", "guard", "txt", ""]
_VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1,
        5,
        17,
        10**30,
        1.5,
        -0.0,
        1e300,
        "",
        "eins",
        "\0",
        "\ud800",
        "\u2028\r\n",
        "𝔸" * 50,
        [],
        {},
    ),
    *([[]], ["eins", 2], {"text": "eins"}, "x " * 400, ["a"] * 200),
]


def fuzzed(draw: random.Random) -> tuple[str, str, bytes]:
    """Path, content type and body of a random request."""
    content: Any = {draw.choice(_WORDS): draw.choice(_VALUES) for _ in range(draw.randrange(4))}
    if draw.random() < 0.5:
        content["text"] = draw.choice(["eins zwei", "", ["drei", "vier"], "fünf\nsechs"])
    body = json.dumps(content if draw.random() < 0.9 else draw.choice(_VALUES), allow_nan=True).encode()
    kind = "application/json"
    match draw.randrange(10):
        case 0:  # truncated
            body = body[: draw.randrange(len(body) + 1)]
        case 1:  # bytes changed
            body = bytes(byte if draw.random() < 0.9 else draw.randrange(256) for byte in body)
        case 2:
            body = draw.randbytes(draw.randrange(200))
        case 3:
            body = draw.choice([b"[", b'{"text":', b'"']) * draw.choice([10, 1000, 100_000])
        case 4:
            kind = draw.choice(["text/plain", "", "application/json; charset=utf-16", "multipart/form-data"])
    return draw.choice(["/translate", "/translate", "/translate/stream", "/", "/nowhere", "/health"]), kind, body


async def main() -> None:
    """``serving_load.py PORT FILE``; FILE has the texts, as a JSON list."""
    load = Load(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    await load.learn()
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        found = await getattr(load, request.pop("do"))(**request)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
