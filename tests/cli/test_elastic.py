"""A run whose processes are killed restarts itself, with the same or fewer processes, and loses nothing.

PyTorch's elastic agent, which is what torchrun starts, forks the processes here from one that has imported the package,
so that a restart takes a second. `make test` kills two processes, `make test-elastic` fifty, and agents with them.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import elastic
import processes
import pytest
from ports import reserved_port

from multihead.training.checkpoint import load_newest
from multihead.training.parallel import can_shard

if TYPE_CHECKING:
    from tests.conftest import Numbers

PATIENCE = 300.0
SHORT = {"updates": 16, "validate_every": 4, "log_every": 1, "held_out": 8, "batch_tokens": 256, "keep_checkpoints": 1}
SHARDED = pytest.param(
    "sharded", marks=pytest.mark.skipif(not can_shard(), reason="this PyTorch cannot divide parameters as we need it")
)
RANDOM = {"dropout": 0.2, "bpe_dropout": 0.1, "accumulate": 2, "seed": 9}


class Job:
    """A run under one or two agents."""

    def __init__(self, words: list[str], folder: Path, context: Any, nodes: tuple[int, int], each: int) -> None:
        self.run, self.pids, self.errors = folder / "run", folder / "pids", folder / "stderr.txt"
        self.pids.mkdir(parents=True)
        self._context, self._words = context, ["train", "--output", str(self.run), *words]
        self._nodes, self._each = nodes, each
        self._reserved = ExitStack()
        self._port = self._reserved.enter_context(reserved_port())
        self.agents: list[BaseProcess] = []

    def start(self) -> None:
        """Start one more agent."""
        arguments = self._words, self.pids, self._port, self._nodes, self._each, self.errors
        process = self._context.Process(target=elastic.agent, args=arguments)
        process.start()
        self.agents.append(process)

    def alive(self) -> list[int]:
        """The process ids of the running workers, by rank."""
        found = [path.name.split(".") for path in self.pids.glob("*")]  # none if the test removed its folder
        running = [(int(rank), int(pid)) for pid, rank in found if is_running(int(pid))]
        return [pid for _, pid in sorted(running)]

    def step(self) -> int:
        """The last update in the log."""
        try:
            lines = (self.run / "log.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return 0
        return int(json.loads(lines[-1])["step"]) if lines else 0

    @property
    def ended(self) -> bool:
        return not self.agents[0].is_alive()

    def stop(self) -> None:
        self._reserved.close()
        for process in self.agents:
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def launch(numbers: Numbers) -> Iterator[Callable[..., Job]]:
    """A function that starts a run in a folder, with a number of agents and of processes per agent."""
    processes.starter()  # preloads what the agents fork
    context, jobs = multiprocessing.get_context("forkserver"), []
    words = numbers.flags({**numbers.train, **numbers.settings, **RANDOM, **SHORT})

    def go(folder: Path, agents: int = 1, each: int = 2, flags: tuple[str, ...] = ()) -> Job:
        job = Job([*words, *flags], folder, context, (1, agents), each)
        jobs.append(job)
        for _ in range(agents):
            job.start()
        return job

    yield go
    for job in jobs:
        job.stop()


def finish(job: Job) -> None:
    job.agents[0].join(PATIENCE)
    assert job.agents[0].exitcode == 0, job.errors.read_text(errors="replace")[-3000:]


def kill_after(job: Job, draw: random.Random, updates: list[int]) -> int:
    """Kill a process when the log reaches each of these numbers of updates; returns the kills."""
    for killed, step in enumerate(updates):
        while not (alive := job.alive()) or not step <= job.step() < SHORT["updates"] - 1:
            if job.ended:
                return killed
            time.sleep(0.002)
        os.kill(draw.choice(alive), signal.SIGKILL)
    return len(updates)


def kill_at_random(job: Job, draw: random.Random, kills: int, *, agents: bool = False) -> int:
    """Kill processes, or an agent with its processes, at random moments; returns how many were killed."""
    killed, deadline = 0, time.monotonic() + 60 * PATIENCE
    if agents:
        wait_for_updates(job, set())
    while killed < kills and not job.ended:
        assert time.monotonic() < deadline
        pause = draw.uniform(0.0, 3.0)
        time.sleep(pause)
        alive = job.alive()
        if not alive or job.step() >= SHORT["updates"] - 1:
            continue
        old = {int(path.name.split(".")[0]) for path in job.pids.iterdir()}
        if agents and len(job.agents) > 1 and draw.random() < 0.3:
            lost = job.agents.pop()  # the first one keeps the meeting point
            os.killpg(lost.pid, signal.SIGKILL)
            lost.join()
            killed += 1
        else:
            os.kill(draw.choice(alive), signal.SIGKILL)
            killed += 1
            if agents and len(job.agents) == 1:
                job.start()
        if agents:
            wait_for_updates(job, old)
    return killed


def wait_for_updates(job: Job, old: set[int]) -> None:
    """Wait until new processes train: if an agent dies during the rendezvous, torchrun ends the others too."""
    while not job.ended and not (set(job.alive()) and set(job.alive()).isdisjoint(old)):
        time.sleep(0.05)
    step = job.step()
    while not job.ended and job.step() == step:
        time.sleep(0.05)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def assert_nothing_lost_or_seen_twice(run: Path, alone: Path) -> None:
    """The log has the tokens and, up to rounding, the losses of a single process that is never killed."""
    for got, want in zip(records(run), records(alone), strict=True):
        for name in ("kind", "step", "epoch", "target_tokens"):
            assert got.get(name) == want.get(name)
        assert got["loss"] == pytest.approx(want["loss"], abs=1e-4)


def newest(run: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint, and its state."""
    found = load_newest(run / "checkpoints", pytest.fail)
    assert found is not None
    parts = {"model": found.model, "average": found.average, "optimizer": found.optimizer}
    tensors = {f"{part}/{name}": tensor for part, own in parts.items() for name, tensor in own.items()}
    contents = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return {**contents, "state": found.state.model_dump_json().encode()}


def assert_same_run(run: Path, calm: Path) -> None:
    """Log and last checkpoint are equal, bit for bit."""
    assert records(run) == records(calm)
    assert newest(run) == newest(calm)


@pytest.fixture(scope="module")
def alone(launch: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process that nobody kills."""
    job = launch(tmp_path_factory.mktemp("alone"), each=1)
    finish(job)
    return job.run


@pytest.fixture(scope="module")
def calm(launch: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the run of two processes that nobody kills, which combine gradients in some way."""

    @functools.cache
    def run(parallel: str) -> Path:
        job = launch(tmp_path_factory.mktemp("calm"), flags=("--parallel", parallel))
        finish(job)
        return job.run

    return run


@pytest.mark.parametrize("parallel", [SHARDED, pytest.param("sum", marks=pytest.mark.elastic)])
def test_killed_processes_are_replaced(launch, calm, tmp_path, parallel):
    """Kill either of two processes: before the first checkpoint, and after it, when the run resumes from it.

    Its log and its last tensors are, bit for bit, those of two processes that nobody kills.
    """
    draw, updates, runs = random.Random(2), [1, 9], 0
    while updates:
        job = launch(tmp_path / f"killed{runs}", flags=("--parallel", parallel))
        updates = updates[kill_after(job, draw, updates) :]
        finish(job)
        assert_same_run(job.run, calm(parallel))
        runs += 1
    starts = re.findall("going on after update ([0-9]+)", (job.run / "log.txt").read_text(encoding="utf-8"))
    assert int(starts[-1]) >= SHORT["validate_every"]


@pytest.mark.elastic
@pytest.mark.parametrize("parallel", ["sum", SHARDED])
def test_processes_killed_at_random_are_replaced(launch, calm, tmp_path, parallel):
    draw, killed, runs = random.Random(20), 0, 0
    while killed < 20:
        job = launch(tmp_path / f"killed{runs}", flags=("--parallel", parallel))
        killed += kill_at_random(job, draw, 20 - killed)
        finish(job)
        assert_same_run(job.run, calm(parallel))
        runs += 1
    print(f"\n{killed} kills in {runs} runs")


@pytest.mark.elastic
@pytest.mark.parametrize("parallel", ["sum", SHARDED])
def test_machines_leave_and_join(launch, alone, tmp_path, parallel):
    """Two agents of one process each; the second one is killed with its process, and another one joins later."""
    draw, killed, runs = random.Random(7), 0, 0
    while killed < 6:
        job = launch(tmp_path / f"run{runs}", agents=2, each=1, flags=("--parallel", parallel))
        killed += kill_at_random(job, draw, 6 - killed, agents=True)
        finish(job)
        assert_nothing_lost_or_seen_twice(job.run, alone)
        runs += 1
    print(f"\n{killed} kills in {runs} runs")
