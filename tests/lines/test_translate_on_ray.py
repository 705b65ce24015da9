"""`multihead translate --engine ray` on three nodes: a node is killed, then the command, and the bytes are the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead.lines import windows

if TYPE_CHECKING:
    from tests.conftest import Numbers

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore")]

SHARDS = 16
PATIENCE = 300.0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, errors.read_text()
        assert time.monotonic() < deadline, errors.read_text()
        time.sleep(0.05)


def actors(kind: str = "MapWorker") -> list[int]:
    """The working processes of Ray: for shards that they read, or that are sent to them (_Applied)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if f"ray::{kind}".encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


@pytest.mark.parametrize("kills_driver", [False, True])
def test_a_node_is_killed(call: Any, numbers: Numbers, trained: Path, tmp_path: Path, kills_driver: bool) -> None:
    pytest.importorskip("ray.data", reason='ray is not installed: pip install "multihead[ray]"')
    import ray_cluster

    pairs = numbers.pairs(SHARDS * windows.WINDOW, 7)
    text, output, errors = tmp_path / "text", tmp_path / "out", tmp_path / "stderr"
    text.write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    shards = tmp_path / "out.shards"

    def finished() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in shards.glob("0*-*")}

    with ray_cluster.three_nodes(connect=False) as cluster:
        words = ["translate", trained, "--input", text, "--output", output, "--engine", "ray", "--threads", 1]
        command = [sys.executable, "-m", "multihead", *map(str, words), "--beam", "4"]
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ray_cluster.ROOT / "src")}

        def start() -> subprocess.Popen[bytes]:
            with errors.open("wb") as stream:
                return subprocess.Popen(command, env=environment, stderr=stream)

        process = start()
        wait_for(lambda: len(finished()) >= 3, process, errors)
        cluster.kill_node(actors())
        if kills_driver:
            wait_for(lambda: len(finished()) >= 6, process, errors)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(5)  # Ray ends the processes of the command
            before = finished()
            assert 6 <= len(before) < SHARDS
            process = start()
            wait_for(lambda: len(finished()) > len(before), process, errors)
            assert {name: finished()[name] for name in before} == before  # none is computed again
        assert process.wait(PATIENCE) == 0, errors.read_text()
    one = call("translate", trained, "--threads", 1, "--beam", 4, given=text.read_bytes())
    assert output.read_bytes() == one.out
    assert not shards.exists()


def test_prepared_and_cleaned_text(
    call: Any, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes segment text and judge pairs; a node is killed in the middle of each, and the folders are the same."""
    pytest.importorskip("ray.data", reason='ray is not installed: pip install "multihead[ray]"')
    import ray_cluster

    from multihead.cleaning import candidates
    from multihead.preparing import shards
    from multihead.shards.ray_engine import RayEngine

    files = [word for side, path in numbers.train.items() for word in (f"--{side}", path)]
    monkeypatch.setattr(shards, "SHARD", 25)
    monkeypatch.setattr(candidates, "CHUNK", 32)
    plain, kills = RayEngine.map, 0

    with ray_cluster.three_nodes(connect=True) as cluster:

        def killing(engine: RayEngine, function: Any, items: Any) -> Iterator[Any]:
            nonlocal kills
            for number, result in enumerate(plain(engine, function, items)):
                if number == 3:
                    cluster.kill_node(actors("_Applied"))
                    kills += 1
                yield result

        monkeypatch.setattr(RayEngine, "map", killing)
        for name, engine in (("one", []), ("three", ["--engine", "ray"])):
            folder = tmp_path / name
            ended = call("prepare", *files, "--output", folder / "prepared", "--vocab-size", 320, *engine)
            assert ended.status == 0, ended.err
            outputs = ["--output", folder / "kept.de", "--output-target", folder / "kept.en"]
            ended = call("clean", *files, *outputs, *engine)
            assert ended.status == 0, ended.err
    assert kills == 2  # the head remains
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "three")
