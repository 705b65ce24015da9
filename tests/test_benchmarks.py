"""Every benchmark runs, in tiny sizes, and writes its figures."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

TINY = {
    "attention.py": ["--tiny", "--rounds", "1"],
    "decoding.py": ["--size", "toy", "--rounds", "1", "--sentences", "4", "--single", "1", "--only", "threads"],
    "doctor.py": ["--pairs", "2000"],
    "guard.py": ["--tiny"],
    "interop.py": ["--size", "toy", "--rounds", "1", "--sentences", "4", "--beams", "2", "--only", "transformers"],
    "kernels.py": ["--tiny", "--rounds", "1"],
    "marginals.py": ["--batch", "2", "--length", "5", "--rounds", "1"],
    "quality.py": ["--toy"],
    "recurrent.py": ["--tiny", "--rounds", "1"],
    "serving.py": ["--quick"],
    "training.py": ["--size", "toy", "--rounds", "1", "--updates", "1"],
    "web.py": ["--rounds", "1", "--count", "4", "--beams", "1"],
}
"""The arguments of each benchmark."""


def test_every_benchmark_is_run_here() -> None:
    parts = {"common.py", "training_contender.py", "decoding_contender.py", "serving_load.py"}
    scripts = {path.name for path in BENCHMARKS.glob("*.py")} - parts
    assert scripts == set(TINY)


@pytest.fixture
def in_benchmarks(monkeypatch: pytest.MonkeyPatch, one_thread: None, without_checks: Any) -> Iterator[None]:
    """The working directory and import path of a benchmark; what it imports and starts does not outlive the test."""
    started: list[subprocess.Popen[Any]] = []

    class Recorded(subprocess.Popen[Any]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.chdir(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, value in (("OMP_NUM_THREADS", "1"), ("PYTHONDONTWRITEBYTECODE", "1")):
        monkeypatch.setenv(name, value)
    with without_checks():
        yield
    for process in started:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.usefixtures("in_benchmarks")
@pytest.mark.parametrize("script", TINY)
def test_it_runs_and_writes_its_figures(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, as importing PyTorch again takes longer than the measurement; contenders are processes."""
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [script, *TINY[script], "--threads", "1", "--json", str(file)])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    printed = capsys.readouterr().out
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["threads"] == 1
    assert figures["rows"]
    assert all(row["case"] in printed for row in figures["rows"])
