"""Trainings killed at chosen moments: the same command ends with the same bytes (contracts 8 and 9).

`test_crash` kills at random moments.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest

from multihead.cli.process import StopSignal

if TYPE_CHECKING:
    from tests.conftest import Numbers


PATIENCE = 120.0
"""Seconds after which a test fails; far more than a busy machine needs."""


class Job:
    """``multihead train`` in a process of its own, always the same command."""

    def __init__(self, numbers, start, folder, settings):
        self.run, self.errors, self._start = folder / "run", folder / "stderr.txt", start
        self.words = ["train", "--output", str(self.run)]
        self.flags = numbers.flags(settings)

    def start(self):
        self.errors.unlink(missing_ok=True)
        self.process = self._start([*self.words, *self.flags], self.errors)

    def said(self):
        try:
            return self.errors.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def wait_for(self, condition):
        """Wait until ``condition()`` is true or the process has ended; returns whether it is true."""
        deadline = time.monotonic() + PATIENCE
        while self.process.exitcode is None:
            if condition():
                return True
            if time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"waited for too long; it said: {self.said()}")
            time.sleep(0.0005)
        return False

    def end(self, number=None):
        """Send a signal, if any, and wait; returns the exit status."""
        if number is not None:
            os.kill(self.process.pid, number)
        self.process.join(PATIENCE)
        return self.process.exitcode

    def names(self, place=""):
        """Names in a folder of the run, at this moment."""
        try:
            return [path.name for path in (self.run / place).iterdir()]
        except FileNotFoundError:
            return []

    def is_saving(self, least):
        """Whether a checkpoint is being written, and one of update ``least`` or later exists."""
        names = self.names("checkpoints")
        draft = any("unfinished" in name for name in names)
        return draft and any(name.isdecimal() and int(name) >= least for name in names)


@pytest.fixture(scope="module")
def start() -> Callable[[list[str], Path], BaseProcess]:
    return processes.starter()


@pytest.fixture(scope="module")
def settings(numbers: Numbers) -> dict[str, Any]:
    short = {"updates": 40, "validate_every": 4, "log_every": 3, "dropout": 0.2, "seed": 9, "held_out": 10}
    return {**numbers.train, **numbers.settings, **short}


@pytest.fixture(scope="module")
def uninterrupted(
    numbers: Numbers, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, without_checks: Any
) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    with without_checks():
        numbers.learn(output, **settings)
    return output


def assert_same_end(numbers, one, other):
    """Compare all files except timings, the printed log and older checkpoints."""
    ends = []
    for folder in (one, other):
        contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
        newest = max(path.name for path in (folder / "checkpoints").iterdir())
        ends.append({k: v for k, v in contents.items() if not k.startswith("checkpoints/") or newest in k})
    assert ends[0] == ends[1]


def test_killed_while_preparing_keeping_and_saving(numbers, settings, uninterrupted, start, call, tmp_path):
    """The best model is saved after the validation and before the checkpoint; a seed chooses the checkpoint."""
    job, least = Job(numbers, start, tmp_path, settings), 4 * random.Random(4).randint(1, 6)
    moments = [
        lambda: "data" in job.names(),
        lambda: any(name.startswith(".best.unfinished") for name in job.names()),
        lambda: job.is_saving(least),
    ]
    for moment in moments:
        job.start()
        assert job.wait_for(moment), job.said()
        assert job.end(signal.SIGKILL) == -signal.SIGKILL
    ended = call(*job.words, *job.flags)
    assert ended.status == 0, ended.err
    assert "going on after update" in ended.err
    assert_same_end(numbers, job.run, uninterrupted)


def test_a_signal_saves_first_and_the_same_command_goes_on(numbers, settings, uninterrupted, start, call, tmp_path):
    job, begins = Job(numbers, start, tmp_path, settings), ""
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        job.start()
        assert job.wait_for(lambda: "/40  epoch" in job.said()), job.said()
        assert job.end(number) == status
        assert job.said().startswith(begins)
        line = job.said().splitlines()[-1]
        assert line.startswith("multihead: stopped after update ")
        assert line.endswith(f"run the same command again to continue ({number.name})")
        assert "Traceback" not in job.said()
        step = int(line.split()[4].rstrip(";"))
        assert (job.run / "checkpoints" / f"{step:08d}").is_dir()
        begins = f"going on after update {step} of 40"
    ended = call(*job.words)  # --output is enough
    assert ended.status == 0, ended.err
    assert ended.err.startswith(begins)
    assert_same_end(numbers, job.run, uninterrupted)


def test_the_second_signal_ends_at_once(monkeypatch, capfd):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    try:
        stop = StopSignal()
        assert stop() is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # from srun or torchrun, which pass it on
        assert stop() == signal.SIGTERM
        assert ended == []
        os.kill(os.getpid(), signal.SIGINT)
        assert ended == [130]
        monkeypatch.setattr("multihead.cli.process._SAME_SIGNAL", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [130, 143]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "again to stop at once" in capfd.readouterr().err
