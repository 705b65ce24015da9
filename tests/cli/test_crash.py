"""A run that is killed again and again ends with the same bytes: weights, average, optimiser, log (contracts 8 and 9).

Everything random is on: dropout, BPE-dropout, weighted corpora, bfloat16, gradient accumulation. Five kills in
`make test`, two hundred in `make test-crash`. Each attempt is a process of its own, forked from one that has imported
the package: it begins within milliseconds instead of seconds, so that most kills meet the run and not its imports.
"""

import multiprocessing
import random
import signal
import time

import pytest

from multihead.cli.main import main

PATIENCE = 300.0
"""Seconds after which something is wrong, however busy the machine is."""

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
def start(numbers, tmp_path_factory):
    """Starts ``multihead train`` into a folder; gives the process."""
    folder = tmp_path_factory.mktemp("corpora")
    words = numbers.flags({**numbers.settings, **SETTINGS})
    for name, count, weight in (("many", 60, 0.5), ("few", 20, 2.0)):
        files = numbers.write(folder, name, numbers.pairs(count, count))
        words += ["--corpus", f"{files['source']} {files['target']} weight={weight}"]
    context = multiprocessing.get_context("forkserver")
    # What PyTorch's optimiser imports when the first one is made is a third of all.
    context.set_forkserver_preload(["multihead.cli.main", "multihead.runs.translator.train", "torch._dynamo"])
    first = context.Process(target=abs, args=(1,))
    first.start()
    first.join(PATIENCE)

    def go(output):
        process = context.Process(target=main, args=(["train", "--output", str(output), *words],))
        process.start()
        return process

    return go


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    """A run that nobody killed, and how long it took."""
    output, started = tmp_path_factory.mktemp("uninterrupted") / "run", time.monotonic()
    process = start(output)
    process.join(PATIENCE)
    assert process.exitcode == 0
    return output, time.monotonic() - started


def end_of(numbers, folder):
    """All files but timings, what was printed, and what is left of older checkpoints; nothing else may be there."""
    contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
    newest = max(path.name for path in (folder / "checkpoints").iterdir())
    return {name: found for name, found in contents.items() if not name.startswith("checkpoints/") or newest in name}


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.proof)])
def test_killed_at_random_moments(numbers, start, uninterrupted, tmp_path, kills):
    """Any moment of a run's life, its preparation too; as many runs as it takes, and each ends as the one above."""
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
            if finished:  # the machine may have less to do than it had: most attempts are to be killed
                life = (life + min(life, time.monotonic() - began)) / 2
            assert process.exitcode in (0, -signal.SIGKILL), (output / "log.txt").read_text()
        assert end_of(numbers, output) == expected, f"run {runs}, after {killed} kills"
    print(f"\n{killed} kills in {attempts} attempts at {runs} runs, of {life:.2f} s each")
