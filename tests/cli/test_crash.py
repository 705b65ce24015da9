"""A run killed at random moments ends with the same bytes: weights, average, optimizer, log (contracts 8 and 9).

Everything random is enabled: dropout, BPE-dropout, weighted corpora, bfloat16, gradient accumulation. `make test` kills
three times, `make test-crash` two hundred times. Each attempt is a process forked from one that has imported the
package: it starts within milliseconds instead of seconds, so that most kills hit the run and not its imports.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest

if TYPE_CHECKING:
    from tests.conftest import Numbers


PATIENCE = 300.0
"""Seconds after which a test fails; far more than a busy machine needs."""

SETTINGS = {
    "updates": 24,
    "validate_every": 4,
    "log_every": 3,
    "dropout": 0.2,
    "attention_dropout": 0.1,
    "bpe_dropout": 0.2,
    "precision": "bfloat16",
    "accumulate": 2,
    "batch_tokens": 256,
    "held_out": 4,
    "seed": 9,
    "keep_checkpoints": 1,
}


@pytest.fixture(scope="module")
def start(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], BaseProcess]:
    """A function that starts ``multihead train`` for an output folder and returns the process."""
    folder = tmp_path_factory.mktemp("corpora")
    words = numbers.flags({**numbers.settings, **SETTINGS})
    for name, count, weight in (("many", 60, 0.5), ("few", 20, 2.0)):
        files = numbers.write(folder, name, numbers.pairs(count, count))
        words += ["--corpus", f"{files['source']} {files['target']} weight={weight}"]
    begin = processes.starter()

    def go(output):
        return begin(["train", "--output", str(output), *words], folder / "stderr.txt")

    return go


@pytest.fixture(scope="module")
def uninterrupted(start: Callable[[Path], BaseProcess], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that was not killed, and its duration."""
    output, started = tmp_path_factory.mktemp("uninterrupted") / "run", time.monotonic()
    process = start(output)
    process.join(PATIENCE)
    assert process.exitcode == 0
    return output, time.monotonic() - started


def end_of(numbers, folder):
    """Contents of all files except timings, the printed log and older checkpoints."""
    contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
    newest = max(path.name for path in (folder / "checkpoints").iterdir())
    return {name: found for name, found in contents.items() if not name.startswith("checkpoints/") or newest in name}


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.proof)])
def test_killed_at_random_moments(numbers, start, uninterrupted, tmp_path, kills):
    """At any moment, also while preparing; as many runs as needed, and each ends like the uninterrupted one."""
    expected, life = end_of(numbers, uninterrupted[0]), uninterrupted[1]
    draw, killed, runs, attempts = random.Random(kills), 0, 0, 0
    while killed < kills:
        output = tmp_path / f"run{runs}"
        runs += 1
        finished = False
        while not finished:
            process, attempts, began = start(output), attempts + 1, time.monotonic()
            process.join(draw.uniform(0.0, life) if killed < kills else PATIENCE)
            if process.exitcode is None:
                process.kill()
                process.join(PATIENCE)
            finished = process.exitcode == 0
            killed += not finished
            if finished:  # adapt to the speed of the machine, so that most attempts are killed
                life = (life + min(life, time.monotonic() - began)) / 2
            assert process.exitcode in (0, -signal.SIGKILL), (output / "log.txt").read_text()
        assert end_of(numbers, output) == expected, f"run {runs}, after {killed} kills"
    print(f"\n{killed} kills in {attempts} attempts at {runs} runs, of {life:.2f} s each")
