"""``multihead train --budget`` in real time: on a machine that becomes slower, and with kills.

These tests take minutes and a quiet machine; `tests/training/test_budget.py` has the same on simulated ones.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Numbers

pytestmark = pytest.mark.proof

BUDGET = 40.0


@pytest.fixture
def flags(numbers: Numbers) -> list[str]:
    """A small network with everything random; the length is decided by the clock."""
    settings: dict[str, Any] = {**numbers.train, **numbers.settings, "held_out": 30, "dropout": 0.2, "seed": 9}
    settings |= {"bpe_dropout": 0.1, "width": 64, "inner": 128, "batch_tokens": 1024}
    del settings["average"]
    return numbers.flags({**settings, "budget": f"{BUDGET:g}s"})


def start(output, flags):
    command = [sys.executable, "-m", "multihead", "train", "--output", str(output), *flags]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def decisions(output):
    lines = [json.loads(line) for line in (output / "plan.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "updates" in line]


@pytest.mark.parametrize("slower", [False, True])
def test_a_budget_holds_on_a_machine_that_becomes_twice_as_slow_halfway(flags, tmp_path, slower):
    """Slow the process down by stopping it half of the time."""
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip("other work is being done on this machine")
    began = time.monotonic()
    process = start(tmp_path / "run", flags)
    while process.poll() is None:
        time.sleep(0.1)
        if slower and time.monotonic() - began > BUDGET / 2:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            process.send_signal(signal.SIGCONT)
    seconds = time.monotonic() - began
    assert process.wait() == 0
    found = [line["updates"] for line in decisions(tmp_path / "run")]
    print(f"\n{seconds:.1f} s of {BUDGET:g}; updates planned: {found}")
    assert (0.85 if slower else 0.95) * BUDGET <= seconds <= (1.15 if slower else 1.05) * BUDGET


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_random_its_decisions_are_repeated(numbers, flags, tmp_path, seed):
    """Kill a run twice; training its folder again without the checkpoints gives the same bytes."""
    draw, run = random.Random(seed), tmp_path / "run"
    for _ in range(2):
        process = start(run, flags)
        time.sleep(draw.uniform(0.2, 0.5) * BUDGET)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert start(run, flags).wait(10 * BUDGET) == 0
    again = tmp_path / "again"
    shutil.copytree(run, again, ignore=shutil.ignore_patterns("checkpoints", "best", "log*", "timing.jsonl"))
    assert start(again, flags).wait(20 * BUDGET) == 0
    ends = [numbers.contents(folder, without=("timing.jsonl", "log.txt", "plan.jsonl")) for folder in (run, again)]
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    kept = [{k: v for k, v in end.items() if not k.startswith("checkpoints/") or newest in k} for end in ends]
    assert kept[0] == kept[1]
    plans = (run / "log.txt").read_text(encoding="utf-8").count("are planned")
    print(f"\n{newest} updates, {len(decisions(run))} decisions, {plans} of them new plans")
