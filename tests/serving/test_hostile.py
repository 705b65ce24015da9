"""Well-behaved clients beside hostile ones: each gets its own correct response, and the server keeps its budgets.

`hostile.py` attacks a real server process that may open few files. The short form takes seconds; `make test-hostile`
(`MULTIHEAD_HOSTILE_SECONDS`, 600 by default, with 2,000 hostile connections) also holds times, memory and log to their
limits, and prints the figures.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes
import pytest

from multihead import Translator
from multihead.serving.http_protocol import FRESH_TIME

TEXTS = ["eins zwei drei", "vier", "fünf sechs sieben acht neun zehn", "null null", "neun acht", "sieben eins"]

PATIENCE = 120.0
"""Seconds after which a well-behaved client gives up."""

LIMITED = """
import resource, runpy, sys

files = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
runpy.run_module("multihead", run_name="__main__", alter_sys=True)
"""
"""Runs `multihead` in a process that may open as many files as its first argument says."""


class Server:
    """`multihead serve` in a process that may open so many files."""

    def __init__(self, model: Path, log: Path, files: int, *words: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", LIMITED, str(files), "serve", str(model)]
        command += ["--port", "0", "--threads", "2", *words]
        with log.open("wb") as stream:
            self.process = processes.WarmPopen(command, stderr=stream, env=environment)
        self._log = log
        self.port = int(self.until("listening at").rstrip("/").rpartition(":")[2])
        self.until("serving model 1")

    def until(self, words: str) -> str:
        for _ in range(2_400):
            for line in self._log.read_text(encoding="utf-8").splitlines():
                if line.startswith(words):
                    return line
            assert self.process.poll() is None, self._log.read_text(encoding="utf-8")
            time.sleep(0.05)
        raise AssertionError(f"no line {words!r}")

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def metrics(self) -> dict[str, float]:
        status, _, body = ask(self.port, "GET", "/metrics")
        assert status == 200
        lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


class LateError(Exception):
    """The connection was closed, but the client had not sent its request in time: its thread was not running."""


def ask(port: int, method: str, path: str, content: object = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = None if content is None else json.dumps(content).encode()  # sent at once with the head
    began, sent = time.perf_counter(), None
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        sent = time.perf_counter()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    except ConnectionError as error:
        if (sent or time.perf_counter()) - began < FRESH_TIME:
            raise
        raise LateError from error
    finally:
        connection.close()


@dataclass
class Seen:
    """The measurements of the well-behaved clients."""

    done: Counter[str] = field(default_factory=Counter)
    """Numbers of correct responses, of requests to retry, of timeouts of the client, and of streams that were cut off
    after their time (which also count as correct responses)."""
    wrong: list[str] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    """Seconds that each answer of ``/health`` took, on a connection of its own."""


class Clients:
    """Threads that translate, stream and look after the server's health.

    Args:
        port: of the server.
        wanted: the translation of each text.
    """

    def __init__(self, port: int, wanted: dict[str, str]) -> None:
        self._port, self._wanted, self.seen, self._over = port, wanted, Seen(), threading.Event()
        kinds = [self._translate, self._translate, self._stream, self._align, self._check]
        self._threads = [threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def end(self) -> Seen:
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.seen

    def _repeat(self, client: Callable[[random.Random], None]) -> None:
        draw = random.Random(client.__name__)
        while not self._over.is_set():
            try:
                client(draw)
            except LateError:
                self.seen.done["too late"] += 1
            except Exception as error:  # any error means a lost response
                self.seen.wrong.append(f"{client.__name__}: {error!r}")
            self._over.wait(0.05)

    def _ask(self, path: str, content: dict[str, Any]) -> bytes:
        """Send a request until the server accepts it: 429 and 503 say when to retry."""
        for _ in range(int(PATIENCE)):
            status, headers, body = ask(self._port, "POST", path, content)
            if status == 200:
                self.seen.done[path] += 1
                return body
            assert status in (429, 503), body
            self.seen.done[f"{path} {status}"] += 1
            time.sleep(min(float(headers["retry-after"]), 1.0))
        raise AssertionError("never taken")

    def _translate(self, draw: random.Random) -> None:
        texts = draw.sample(TEXTS, 3)
        answered = json.loads(self._ask("/translate", {"text": texts}))
        assert [one["text"] for one in answered["translations"]] == [self._wanted[text] for text in texts]

    def _align(self, draw: random.Random) -> None:
        text = draw.choice(TEXTS)
        (answered,) = json.loads(self._ask("/translate", {"text": text, "alignment": True}))["translations"]
        assert answered["text"] == self._wanted[text]
        assert answered["alignment"]["source_words"] == text.split()

    def _stream(self, draw: random.Random) -> None:
        text = draw.choice(TEXTS)
        *_, last = self._ask("/translate/stream", {"text": text}).decode().strip().split("\n\n")
        event, data = last.split("\n")
        if event == "event: error" and '"time_exceeded"' in data:
            self.seen.done["/translate/stream late"] += 1
        else:
            assert (event, json.loads(data.removeprefix("data: "))["text"]) == ("event: done", self._wanted[text])

    def _check(self, draw: random.Random) -> None:
        began = time.perf_counter()
        status, _, _ = ask(self._port, "GET", "/health")
        assert status == 200
        self.seen.health.append(time.perf_counter() - began)


@pytest.fixture
def start(tmp_path: Path, trained: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def begin(files: int, *words: str) -> Server:
        made.append(Server(trained / "best", tmp_path / "log", files, *words))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="module")
def wanted(trained: Path) -> dict[str, str]:
    return dict(zip(TEXTS, Translator.load(trained).translate(TEXTS), strict=True))


def attack(server: Server, seconds: float, connections: int) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("hostile.py")
    words = [sys.executable, str(program), str(server.port), str(seconds), str(connections)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def settle(server: Server) -> dict[str, float]:
    """The metrics once the attack is over."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        metrics = server.metrics()
        # The connection of this request counts, and holds its head.
        if metrics["multihead_requests_in_hand"] == 0 and metrics["multihead_connections"] <= 1:
            break
        time.sleep(0.2)
    assert metrics["multihead_connections"] == 1
    assert metrics["multihead_requests_in_hand"] == metrics["multihead_batch_rows"] == 0
    assert metrics["multihead_held_bytes"] < 1_000
    return metrics


def assert_all_were_served(seen: Seen) -> None:
    """Each kind of client gets correct responses, and no wrong one."""
    assert seen.wrong == []
    assert min(seen.done["/translate"], len(seen.health)) > 0
    assert seen.done["/translate/stream"] > seen.done["/translate/stream late"]


def assert_no_fault(server: Server, metrics: dict[str, float]) -> None:
    """The log reports no fault of the server (one line each, see `log_libraries`), and no request met one."""
    assert [words for words in ("internal error", "a translation failed", "Traceback") if words in server.log] == []
    assert [name for name in metrics if 'status="500"' in name] == []


def test_hostile_clients_take_nothing_from_others(start: Callable[..., Server], wanted: dict[str, str]) -> None:
    server = start(300, "--send-time", "1", "--take-time", "1", "--max-answer", "2000000", "--drain", "5")
    clients = Clients(server.port, wanted)
    attackers = attack(server, 2, 300)
    attackers.communicate(timeout=PATIENCE)
    seen = clients.end()
    assert attackers.returncode == 0  # a hostile client that gets what it must not get ends with an error
    assert_all_were_served(seen)
    metrics = settle(server)
    reasons = ("head_too_slow", "too_many")  # on a busy machine, attackers connect too slowly to exceed the budgets
    assert sum(metrics[f'multihead_connections_closed_total{{reason="{reason}"}}'] for reason in reasons) > 0
    assert metrics['multihead_refused_total{error="body_too_slow"}'] > 0
    assert server.end() == 0
    assert len(server.log) < 20_000
    assert_no_fault(server, metrics)
    assert "connections, not 1000: this process may open 300 files" in server.log


@pytest.mark.hostile
def test_ten_minutes_of_hostile_clients(start: Callable[..., Server], wanted: dict[str, str]) -> None:
    seconds = float(os.environ.get("MULTIHEAD_HOSTILE_SECONDS", "600"))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = start(min(most, 4_096))
    clients, levels = Clients(server.port, wanted), []
    attackers = attack(server, seconds, 2_000)
    began = time.monotonic()
    while attackers.poll() is None:
        levels.append((time.monotonic() - began, server.metrics()["process_resident_memory_bytes"] / 2**20))
        time.sleep(2)
    assert attackers.stdout is not None
    attacks = attackers.stdout.read()
    attackers.stdout.close()
    assert attackers.returncode == 0
    seen, metrics = clients.end(), settle(server)
    assert server.end() == 0
    times = sorted(seen.health)
    p99 = times[int(0.99 * len(times))]
    level = max(memory for at, memory in levels if at < seconds / 4)
    highest = max(memory for _, memory in levels)
    minutes = (time.monotonic() - began) / 60
    print(f"\nattacks: {attacks}\nanswered: {dict(seen.done)}\nwrong: {seen.wrong[:5]}")
    print({name: value for name, value in metrics.items() if "closed" in name or "status" in name or "refused" in name})
    print(f"health: {len(times)} answers, p50 {times[len(times) // 2]:.3f}, p99 {p99:.3f}, longest {times[-1]:.3f} s")
    print(f"memory: {level:.0f} MiB in the first quarter, {highest:.0f} at most, {levels[-1][1]:.0f} at the end")
    print(f"log: {len(server.log) / minutes:.0f} bytes a minute")
    assert_all_were_served(seen)
    assert p99 <= 0.25
    assert highest <= 1.2 * level
    assert len(server.log) / minutes < 1_000_000
    assert_no_fault(server, metrics)
