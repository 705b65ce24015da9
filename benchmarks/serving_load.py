"""The clients of `serving.py`, in a process of their own: lines of JSON in, a line of JSON back for each.

    {"do": "closed", "clients": 32, "seconds": 5}     clients that ask again as soon as they are answered
    {"do": "open", "rate": 80, "seconds": 10}         arrivals of a Poisson process, whether answers come or not
    {"do": "fuzz", "requests": 10000, "clients": 16}  requests that are anything, and good ones between them
    {"do": "kill", "clients": 50, "rounds": 20}       clients that go away in the middle, and good ones between them

A latency counts from when a request was due, not from when there was time to send it. What good requests must be
answered is asked first, one by one.
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
class Found:
    """What came back."""

    latencies: list[float] = field(default_factory=list)
    """Of those that were translated."""
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Good requests whose translation was another one than alone."""
    after: list[int] = field(default_factory=list)
    """Seconds after which those that were refused are to come again."""

    def summary(self, seconds: float) -> dict[str, Any]:
        """As JSON has it; milliseconds."""
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
    """HTTP/1.1, as little as it takes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, body: bytes, path: str = "/translate", kind: str = "application/json") -> None:
        """A request."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._streams[1].write(head.encode() + body)
        await self._streams[1].drain()

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Its answer; one without a length is taken to its end."""
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
        """The client is gone, at once."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Load:
    """Clients of one server.

    Args:
        port: where it is.
        texts: what good requests ask for.
    """

    def __init__(self, port: int, texts: list[str]) -> None:
        self._port, self._texts = port, texts
        self._alone: list[str] = []
        self._free: list[Connection] = []

    async def learn(self) -> None:
        """What each text is translated as when nobody else asks."""
        one = Connection(self._port)
        for text in self._texts:
            await one.send(_asking(text))
            status, _, body = await one.receive()
            if status != 200:
                raise SystemExit(f"got {status} for a single text: {body[:300]!r}")
            self._alone.append(json.loads(body)["translations"][0]["text"])
        one.close()

    async def good(self, number: int, due: float, found: Found) -> None:
        """A good request, on a connection that is free."""
        connection = self._free.pop() if self._free else Connection(self._port)
        place = number % len(self._texts)
        try:
            await connection.send(_asking(self._texts[place]))
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
        """So many clients, each with one request at a time."""
        found, began = Found(), time.perf_counter()

        async def client(first: int) -> None:
            number = first
            while time.perf_counter() - began < seconds:
                await self.good(number, time.perf_counter(), found)
                number += clients

        await asyncio.gather(*(client(first) for first in range(clients)))
        return found.summary(time.perf_counter() - began)

    async def open(self, rate: float, seconds: float, seed: int = 1) -> dict[str, Any]:
        """Arrivals, so many a second on average."""
        draw, found, began, due, tasks = random.Random(seed), Found(), time.perf_counter(), 0.0, []
        while (due := due + draw.expovariate(rate)) < seconds:
            await asyncio.sleep(max(began + due - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(self.good(len(tasks), began + due, found)))
        await asyncio.gather(*tasks)
        return {**found.summary(time.perf_counter() - began), "asked": len(tasks)}

    async def everything(self) -> None:
        """Each part of the server works once, all at a time: what it keeps is there before memory is looked at."""
        text = self._texts[:32]
        guarded = {"text": text, "alignment": True, "alternatives": 20, "guard": "retry"}
        wishes = [guarded, {**guarded, "beam": 16}, *({"text": one, "prefix": "a"} for one in text)]

        async def one(wish: dict[str, Any]) -> None:
            connection = Connection(self._port)
            await connection.send(json.dumps(wish).encode())
            await connection.receive()
            connection.close()

        await asyncio.gather(*(one(wish) for wish in wishes))

    async def fuzz(self, requests: int, clients: int, seed: int = 1) -> dict[str, Any]:
        """Bad requests, and beside every fourth a good one."""
        await self.everything()
        found, bad, began = Found(), Found(), time.perf_counter()
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
                    bad.wrong += not _formed(status, headers, content)
                except (OSError, EOFError):
                    bad.statuses["broken"] += 1
                    connection.close()
            connection.close()

        await asyncio.gather(*(client(own) for own in range(clients)))
        summary = found.summary(time.perf_counter() - began)
        return {**summary, "bad": dict(bad.statuses), "malformed": bad.wrong}

    async def kill(self, clients: int, rounds: int, seed: int = 1) -> dict[str, Any]:
        """Clients that ask for much and go, each at a time of its own; four others stay and ask."""
        draw, found, began, killed, over = random.Random(seed), Found(), time.perf_counter(), 0, False

        async def victim(patience: float, path: str) -> None:
            nonlocal killed
            connection = Connection(self._port)
            text = "\n".join(draw.choices(self._texts, k=4))
            await connection.send(_asking(text), path)
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


def _asking(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def _formed(status: int, headers: dict[str, str], body: bytes) -> bool:
    """Whether an answer is in the form that it should have; a status of 500 never is."""
    if status == 200:
        return headers["content-type"].startswith(("application/json", "text/event-stream"))
    content = json.loads(body)
    told = set(content) == {"error", "message"} and b"Traceback" not in body and b".py" not in body
    return told and status in (400, 404, 405, 413, 415, 422, 429)


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
    """Path, content type and body of a request that is anything."""
    content: Any = {draw.choice(_WORDS): draw.choice(_VALUES) for _ in range(draw.randrange(4))}
    if draw.random() < 0.5:
        content["text"] = draw.choice(["eins zwei", "", ["drei", "vier"], "fünf\nsechs"])
    body = json.dumps(content if draw.random() < 0.9 else draw.choice(_VALUES), allow_nan=True).encode()
    kind = "application/json"
    match draw.randrange(10):
        case 0:  # cut
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
    """``serving_load.py PORT FILE``: FILE has the texts, as a list in JSON."""
    load = Load(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    await load.learn()
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        wish = json.loads(line)
        found = await getattr(load, wish.pop("do"))(**wish)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
