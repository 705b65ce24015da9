"""A real server process: loads, serves, reloads without dropping a request, rejects a broken model, drains."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest

from multihead import Translator
from multihead.errors import SurroundingsError
from multihead.serving.server import bind

if TYPE_CHECKING:
    from tests.conftest import Numbers

Clients = Callable[[int], Any]

TEXTS = ["eins zwei drei", "vier", "fünf sechs sieben acht neun zehn", "null null"]


class Process:
    """`multihead serve` with these arguments."""

    def __init__(self, *words: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = processes.WarmPopen(
            [sys.executable, "-m", "multihead", "serve", *words], stderr=subprocess.PIPE, text=True, env=environment
        )
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.said.append(line)
                self._news.notify_all()

    def until(self, words: str) -> str:
        """Wait for a line of standard error that begins with a text."""
        with self._news:
            assert self._news.wait_for(lambda: any(line.startswith(words) for line in self.said), 120), self.said
            return next(line for line in self.said if line.startswith(words))

    def end(self) -> int:
        status = self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def begin(*words: object) -> Process:
        made.append(Process(*map(str, words)))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.end()


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of the model folder, which the test may change."""
    return Path(shutil.copytree(trained / "best", tmp_path / "model"))


def test_it_reloads_while_serving_and_drains(
    start: Callable[..., Process], model: Path, client: Any, tmp_path: Path, numbers: Numbers
) -> None:
    serving = start(model, "--port", 0, "--drain", 30, "--threads", 2)
    port = int(serving.until("listening at").rstrip("/\n").rpartition(":")[2])
    here = type(client)(port)
    assert here.get("/health").status == 200
    serving.until("serving model 1")
    assert here.get("/ready").status == 200
    wanted = {beam: Translator.load(model).translate(TEXTS, beam=beam) for beam in (5, 2)}

    found: list[tuple[int, list[str]]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            reply = here.post(text=TEXTS)
            found.append((reply.status, reply.texts if reply.status == 200 else []))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    search = model / "generation.json"
    search.write_text(json.dumps({**json.loads(search.read_text()), "beam": 2}))
    numbers.seal_again(model)
    serving.process.send_signal(signal.SIGHUP)
    serving.until("serving model 2")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-8])
    serving.process.send_signal(signal.SIGHUP)
    serving.until("the model cannot be loaded")
    over.set()
    for asker in askers:
        asker.join()
    assert {status for status, _ in found} == {200}
    assert all(texts in wanted.values() for _, texts in found)
    info = here.get("/info").json
    assert (info["generation"], info["beam"], info["source_language"]) == (2, 2, "de")
    assert here.post(text=TEXTS).texts == wanted[2]
    assert here.metric('multihead_reloads_total{result="refused"}') == 1

    long = [" ".join(TEXTS * 8)] * 100
    held = here.begin(text=long, beam=16)
    here.until("multihead_requests_in_hand", 1)
    serving.process.send_signal(signal.SIGTERM)
    serving.until("stopping; requests in progress: 1")
    answer = held.getresponse()
    assert answer.status == 200
    assert len(json.loads(answer.read())["translations"]) == 100
    held.close()
    assert serving.end() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert not any("Traceback" in line for line in serving.said)


def test_several_models_serve_libretranslates_client(
    start: Callable[..., Process],
    model: Path,
    client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: Numbers,
) -> None:
    libretranslatepy = pytest.importorskip("libretranslatepy", reason="LibreTranslate's client is not installed")
    other = Path(shutil.copytree(model, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "source_language": "en", "target_language": "fr"}))
    numbers.seal_again(other)
    monkeypatch.setenv("MULTIHEAD_SERVE_MODELS", f"de-en={model} en-fr={other}")
    monkeypatch.setenv("MULTIHEAD_SERVE_PIVOT", "en")
    monkeypatch.setenv("MULTIHEAD_TOKEN", "abc")
    serving = start("--port", 0, "--threads", 1, "--memory-limit", "5GB")
    port = int(serving.until("listening at").rstrip("/\n").rpartition(":")[2])
    here = type(client)(port)
    assert here.get("/ready").status == 200
    api = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{port}", "abc")
    assert {one["code"]: one["targets"] for one in api.languages()} == {"de": ["en", "fr"], "en": ["fr"], "fr": []}
    (first,) = Translator.load(model).translate(["eins zwei"])
    assert api.translate("eins zwei", "de", "en") == first
    assert api.translate("eins zwei", "de", "fr") == Translator.load(model).translate([first])[0]
    serving.until("serving de-en, model 1")
    serving.process.send_signal(signal.SIGHUP)
    for name in ("de-en", "en-fr"):
        serving.until(f"serving {name}, model 2")
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end() == 0
    assert not any("Traceback" in line for line in serving.said)


def test_without_a_model_it_does_not_serve(start: Callable[..., Process], model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"no weights")
    serving = start(model, "--port", 0)
    assert serving.end() == 2
    assert serving.said[-1].startswith(f"multihead: {model}")
    assert not any("Traceback" in line for line in serving.said)


def test_a_beam_that_no_request_may_have_is_not_the_servers_own(start: Callable[..., Process], model: Path) -> None:
    serving = start(model, "--port", 0, "--beam", 9, "--max-beam", 8)
    assert serving.end() == 2
    assert serving.said == ["multihead: --beam 9 is above --max-beam 8: change one of them\n"]


def test_a_taken_address_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SurroundingsError, match=rf"127\.0\.0\.1:{port}: cannot listen there: .*try --port"):
            bind("127.0.0.1", port)


def test_a_system_without_ipv6_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(
        SurroundingsError, match=r"^::1: cannot listen there: Address family .*; try --host 127\.0\.0\.1$"
    ):
        bind("::1", 0)


@pytest.mark.parametrize("host", ["ä" * 70, "a" * 70, ".."])
def test_what_is_no_host_is_named(host: str) -> None:
    with pytest.raises(SurroundingsError, match=re.escape(host) + ".*cannot listen there"):
        bind(host, 0)


def test_it_stops_though_nobody_reads_what_it_says(model: Path) -> None:
    command = [sys.executable, "-m", "multihead", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any(line.startswith("serving model 1") for line in server.stderr)
        server.stderr.close()
        server.terminate()
        assert server.wait(60) == 0
