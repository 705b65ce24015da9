"""``torchrun -m multihead train``: several processes train the same run as one, also after signals and kills.

In `make test` the agent that torchrun starts forks them from a process that has imported the package.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import elastic
import processes
import pytest
from ports import reserved_port

from multihead.cli.help import tell
from multihead.cli.main import main
from multihead.cli.process import StopSignal
from multihead.training.progress import RunLog

if TYPE_CHECKING:
    from tests.conftest import Numbers


PATIENCE = 150.0
"""Seconds after which a test fails; far more than a busy machine needs."""


class Launched:
    """A run started by torchrun: the same command with any number of processes."""

    def __init__(self, numbers, folder, settings):
        self.run, self.errors, self.flags = folder / "run", folder / "stderr.txt", numbers.flags(settings)

    def start(self, size):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command += ["-m", "multihead", "train", "--output", str(self.run), *self.flags]
        with self.errors.open("wb") as stream:
            own = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.agent = subprocess.Popen(command, stderr=stream, env=own, start_new_session=True)

    def said(self):
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def ours(self):
        """The error messages of multihead."""
        return [line for line in self.said().splitlines() if line.startswith("multihead: ")]

    def wait_for(self, text):
        """Wait until a text was printed or the run has ended; returns whether it was printed."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said() and not self.ended():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.002)
        return text in self.said()

    def workers(self):
        """Process ids, in the order of the ranks."""
        found = subprocess.run(["pgrep", "-P", str(self.agent.pid)], capture_output=True, text=True, check=True)
        return sorted(map(int, found.stdout.split()))

    def ended(self):
        return self.agent.poll() is not None

    def end(self):
        return self.agent.wait(PATIENCE)


class Forked(Launched):
    """The same without torchrun's own start, and with processes that have imported the package."""

    def __init__(self, numbers, folder, settings, port):
        super().__init__(numbers, folder, settings)
        self.port = port

    def start(self, size):
        processes.starter()
        self.errors.touch()
        self.pids = self.errors.parent / "pids"
        self.pids.mkdir()
        words = ["train", "--output", str(self.run), *self.flags]
        self.agent = multiprocessing.get_context("forkserver").Process(
            target=elastic.agent, args=(words, self.pids, self.port, (1, 1), size, self.errors, 0)
        )
        self.agent.start()

    def workers(self):
        found = [path.name.split(".") for path in self.pids.iterdir()]
        return [int(pid) for pid, _ in sorted(found, key=lambda one: int(one[1]))]

    def ended(self):
        return not self.agent.is_alive()

    def end(self):
        self.agent.join(PATIENCE)
        return self.agent.exitcode


@pytest.fixture
def launched(numbers: Numbers, settings: dict[str, Any], tmp_path: Path) -> Iterator[Launched]:
    """A run that is killed at the end of the test."""
    job = Launched(numbers, tmp_path, settings)
    yield job
    if not job.ended():
        os.killpg(job.agent.pid, signal.SIGKILL)


@pytest.fixture
def forked(numbers: Numbers, settings: dict[str, Any], tmp_path: Path) -> Iterator[Forked]:
    """As ``launched``."""
    with reserved_port() as port:
        job = Forked(numbers, tmp_path, settings, port)
        yield job
    if not job.ended():
        os.killpg(job.agent.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def settings(numbers: Numbers) -> dict[str, Any]:
    """Everything random is enabled."""
    random_ones = {"dropout": 0.2, "bpe_dropout": 0.1, "accumulate": 2, "seed": 9}
    short = {"updates": 40, "validate_every": 10, "log_every": 2, "held_out": 10, "batch_tokens": 256}
    return {**numbers.train, **numbers.settings, **random_ones, **short}


@pytest.fixture(scope="module")
def alone(
    numbers: Numbers, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, without_checks: Any
) -> Path:
    """The same run, trained by one process."""
    output = tmp_path_factory.mktemp("alone") / "run"
    with without_checks():
        numbers.learn(output, **settings)
    return output


def records(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def assert_same_run(numbers, one, other):
    """Compare files and logs: equal numbers of tokens, losses within 1e-4."""
    checkpoints = {name for name in numbers.contents(one) if name.startswith("checkpoints")}
    assert numbers.contents(one).keys() == numbers.contents(other).keys()
    assert checkpoints
    for want, got in zip(records(one), records(other), strict=True):
        for name in ("kind", "step", "epoch", "target_tokens", "sentences"):
            assert got.get(name) == want.get(name)
        assert got["loss"] == pytest.approx(want["loss"], abs=1e-4)
        assert got["accuracy"] == pytest.approx(want["accuracy"], abs=2e-3)
    assert math.isfinite(records(one)[-1]["loss"])


def test_two_processes_are_stopped_by_a_signal_to_one_and_one_goes_on(numbers, settings, alone, forked, without_checks):
    """They train the same run as one process; any number of processes can resume it."""
    forked.start(2)
    assert forked.wait_for("24/40  epoch"), forked.said()
    os.kill(forked.workers()[1], signal.SIGTERM)
    assert forked.end() != 0
    (line,) = forked.ours()
    assert line.startswith("multihead: stopped after update ")
    assert line.endswith("; run the same command again to continue (SIGTERM)")
    step = int(line.split()[4].rstrip(";"))
    assert step >= 24
    assert f"{step:08d}" in {path.name for path in (forked.run / "checkpoints").iterdir()}
    assert "2 processes with 1 processor thread" in forked.said()
    assert forked.said().count("20/40  epoch") == 1
    said = []
    with without_checks():
        numbers.learn(forked.run, **settings, say=said.append)
    assert said[0] == f"going on after update {step} of 40"
    assert not any(line.startswith("  other ") for line in said)  # it computes both shares: see the next test
    assert_same_run(numbers, alone, forked.run)


@pytest.mark.proof
def test_a_run_of_two_that_one_finishes_ends_with_the_same_weights(numbers, settings, launched, tmp_path):
    """Bit for bit; a run that one process starts and two finish reports that it is not."""
    launched.start(2)
    assert launched.end() == 0, launched.said()
    other = Launched(numbers, tmp_path / "other", settings)
    (tmp_path / "other").mkdir()
    other.start(2)
    assert other.wait_for("14/40  epoch")
    os.kill(other.workers()[0], signal.SIGTERM)
    assert other.end() != 0
    numbers.learn(other.run, **settings)
    for name in ("model", "optimizer"):
        one, two = (job.run / "checkpoints" / "00000040" / f"{name}.safetensors" for job in (launched, other))
        assert one.read_bytes() == two.read_bytes()
    third = Launched(numbers, tmp_path / "third", settings)
    (tmp_path / "third").mkdir()
    third.start(1)
    assert third.wait_for("14/40  epoch")
    os.kill(third.agent.pid, signal.SIGTERM)
    third.end()
    third.start(2)
    assert third.end() == 0
    (line,) = (line for line in third.said().splitlines() if line.startswith("  other "))
    assert line == (
        "  other processes: 1, now 2: the weights may differ in their last digits from those of an uninterrupted run"
    )


@pytest.mark.proof
@pytest.mark.parametrize("rank", [0, 1])
def test_processes_are_killed_and_other_numbers_of_them_go_on(numbers, alone, launched, rank):
    """SIGKILL of one ends the others within seconds; one, three and two processes resume the run."""
    draw = random.Random(rank)
    for size, line in ((2, draw.choice([2, 4])), (1, draw.choice([14, 16, 18])), (3, draw.choice([24, 26, 28]))):
        launched.start(size)
        assert launched.wait_for(f"{line:>6}/40  epoch"), launched.said()
        os.kill(launched.workers()[min(rank, size - 1)], signal.SIGKILL)
        began = time.monotonic()
        assert launched.end() != 0
        assert time.monotonic() - began < 20
        assert (0 if size == 1 else 1) <= len(launched.ours()) < size
        assert all("has ended without a message" in said for said in launched.ours())
        assert any("(saved after update " in said for said in launched.ours()) == (size > 1 and rank > 0)
    launched.start(2)
    assert launched.end() == 0, launched.said()
    assert_same_run(numbers, alone, launched.run)
    launched.start(2)
    assert launched.end() == 0
    assert launched.said().count("this run is finished") == 1


@pytest.mark.proof
def test_a_fault_of_one_is_said_once_and_all_end(launched, tmp_path):
    """Before training begins, and while the first process writes a checkpoint."""
    launched.flags += ["--heads", "5"]
    launched.start(2)
    assert launched.end() != 0
    (line,) = launched.ours()
    assert "heads" in line
    assert not launched.run.exists()
    launched.flags = launched.flags[:-2]
    launched.start(2)
    assert launched.wait_for("6/40  epoch")
    (launched.run / "checkpoints").write_text("a file where the checkpoints go")
    assert launched.end() != 0
    (line,) = launched.ours()
    assert "checkpoints" in line


@pytest.mark.proof
def test_the_pace_that_the_updates_are_chosen_by_is_that_of_all(launched):
    """With --budget instead of --updates, every process takes part in the measurement."""
    place = launched.flags.index("--updates")
    launched.flags[place : place + 2] = ["--budget", "40"]
    launched.start(2)
    assert launched.end() == 0, launched.said()
    assert "what fits into 40 s at" in launched.said()
    lines = [json.loads(line) for line in (launched.run / "plan.jsonl").read_text(encoding="utf-8").splitlines()]
    assert any("updates" in line for line in lines)  # the first process decides, and the other follows
    assert f"{lines[-1]['step']:08d}" == max(path.name for path in (launched.run / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["pointer", "train", "sort"], "this command"),
        (["translate", "model"], "this command"),
        (["demo"], "this command"),
        (["train", "--best", "--output", "run"], "a run of --best"),
        (["train", "--model", "decoder", "--output", "run"], "the training of a language model"),
    ],
)
def test_other_commands_refuse_to_be_several(call, monkeypatch, tmp_path, command, what):
    monkeypatch.chdir(tmp_path)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "0" if name == "LOCAL_RANK" else "4")
    ended = call(*command)
    assert ended.status == 2
    assert ended.err.startswith(f"multihead: torchrun started 4 processes, and {what} works in one: ")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_ended_ends_no_work(monkeypatch, tmp_path):
    """As after Ctrl-C with ``2>&1 | tee log``."""

    def closed(*_, **__):
        raise BrokenPipeError

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stop = StopSignal()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", closed)
            signal.raise_signal(signal.SIGINT)
        assert stop() == signal.SIGINT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with monkeypatch.context() as patch:
        patch.setattr(click, "echo", closed)
        patch.setattr(sys, "stderr", io.StringIO())
        tell("a line")
        assert main([]) == 2  # the help, to a standard output that is closed
    log = RunLog(tmp_path, closed)
    with pytest.raises(BrokenPipeError):
        log.say("a line")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "a line\n"


def test_a_signal_is_answered_by_the_first_process_alone(monkeypatch, capfd):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    own = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    try:
        for rank in ("1", "0"):
            monkeypatch.setenv("RANK", rank)
            stop = StopSignal()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop() == signal.SIGTERM
            assert ("stopping" in capfd.readouterr().err) == (rank == "0")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
