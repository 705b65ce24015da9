"""A server whose event loop runs in a thread of the test process, and a client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("prometheus_client", reason="the extra 'serve' is not installed")

from multihead import Translator
from multihead.cli.process import collect_and_freeze
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.serving.connections import Connections
from multihead.serving.scheduler import Scheduler
from multihead.serving.server import Server, bind
from multihead.serving.settings import ServeSettings

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def texts(self) -> list[str]:
        return [one["text"] for one in self.json["translations"]]

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Names and contents of the events of a stream."""
        blocks = [block.split("\n") for block in self.body.decode().split("\n\n") if block]
        assert all(len(block) == 2 for block in blocks)
        return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in blocks]


class Client:
    """A client of the server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def raw(self, sent: bytes) -> Reply:
        """Send exactly these bytes, and read until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(sent)
            head, _, body = b"".join(iter(lambda: line.recv(4096), b"")).partition(b"\r\n\r\n")
        status, *headers = head.decode().split("\r\n")
        named = (header.split(": ", 1) for header in headers)
        return Reply(int(status.split()[1]), {name.lower(): value for name, value in named}, body)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str = "/translate", **fields: Any) -> Reply:
        return self.ask("POST", path, json.dumps(fields).encode(), JSON)

    def begin(self, path: str = "/translate", **fields: Any) -> http.client.HTTPConnection:
        """Send a request without reading the response; closing the connection disconnects the client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", path, json.dumps(fields).encode(), JSON)
        return connection

    @contextlib.contextmanager
    def in_flight(self, path: str = "/translate", **fields: Any) -> Iterator[None]:
        """A request in flight, whose client disconnects at the end of the block."""
        connection = self.begin(path, **fields)
        try:
            yield
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The value of a metric."""
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise KeyError(name)

    def until(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        for _ in range(2000):
            if self.metric(name) == value:
                return
            threading.Event().wait(0.005)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")


@dataclass
class Serving:
    """A running server."""

    scheduler: Scheduler
    client: Client
    log: list[str]
    loop: asyncio.AbstractEventLoop
    connections: Connections


class Servers:
    """Starts servers and stops all of them.

    They do not collect garbage when they load a model, which takes up to half a second in a process of tests, unless a
    test wants it.
    """

    def __init__(self) -> None:
        self._ends: list[Callable[[], None]] = []

    def start(
        self,
        load: Callable[[], Translator],
        threads: int = 2,
        token: str | None = None,
        sources: Any = None,
        collect: Callable[[], object] = lambda: None,
        **settings: Any,
    ) -> Serving:
        listening, ready, log = bind("127.0.0.1", 0), threading.Event(), []
        shared: dict[str, Any] = {}

        def main() -> None:
            asyncio.run(live())

        async def live() -> None:
            scheduler = Scheduler(ServeSettings(**settings), sources or load, threads, log.append, collect)
            server = Server(scheduler, token)
            shared.update(scheduler=scheduler, server=server, loop=asyncio.get_running_loop())
            await scheduler.start_loading()
            ready.set()
            await server.serve([listening])
            await scheduler.close()

        thread = threading.Thread(target=main, name="server")
        thread.start()
        assert ready.wait(60)

        def end() -> None:
            shared["loop"].call_soon_threadsafe(shared["scheduler"].abort_all)
            shared["server"].should_exit = True
            thread.join(30)
            assert not thread.is_alive()

        self._ends.append(end)
        return Serving(
            shared["scheduler"],
            Client(listening.getsockname()[1]),
            log,
            shared["loop"],
            shared["server"].open_connections,
        )

    def end(self) -> None:
        for end in self._ends:
            end()


@pytest.fixture(scope="session")
def translator(trained: Path) -> Translator:
    """A translator of number words, with the compiled search if there is a compiler."""
    made = Translator.load(trained).searching()
    collect_and_freeze()  # as the command does
    return made


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Servers with settings of a single test."""
    made = Servers()
    yield made
    made.end()


@pytest.fixture(scope="session")
def serving(translator: Translator) -> Iterator[Serving]:
    """A shared server, for tests that do not change its state."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = Servers()
    yield made.start(lambda: translator, max_body=20_000, max_characters=2_000, max_texts=50, max_sentences=100)
    made.end()
    torch.set_num_threads(threads)


@pytest.fixture
def client(serving: Serving) -> Client:
    return serving.client


@pytest.fixture(scope="session")
def endless(translator: Translator) -> Callable[[], Translator]:
    """A model whose translations take thousands of steps, so that they are still running when a test checks."""
    return lambda: translator.searching(min_length=16_000)


@pytest.fixture(scope="session")
def damaged(translator: Translator) -> Translator:
    """A model with random weights, and a source word whose large embedding makes its sentences NaN."""
    bundle = translator.bundle
    size = len(bundle.source_tokenizer)
    torch.manual_seed(3)
    config = TransformerConfig(
        source_vocab=size, target_vocab=size, width=32, heads=2, inner=64, encoder_layers=1, decoder_layers=1,
        tie_embeddings=False, tie_output=False,
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        model.source_embedding.table.weight[bundle.source_tokenizer.encode("acht")[0]] = 3e38
    return Translator(replace(bundle, model=model)).searching(min_length=30)
