"""Mutation testing: do the tests that `docs/coverage.md` names detect faults planted in the package?

`tests/mutants.toml` has at least one fault, a mutant, for each row of the table: a piece of a file and its replacement.
The tests that the row names run on a copy of the package with the fault. If one fails, the mutant is killed. If all
pass, the mutant survives: the tests of its row do not test what the row says. Before that, the tests of each row run
without a fault. If they fail, the mutants of the row are skipped, and the exit status is not 0.

    python tools/mutants.py                        all mutants; takes minutes
    python tools/mutants.py A3 B12                 only those of some rows
    python tools/mutants.py --jobs 1 --tests       also prints the tests that each row names
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
LIST = ROOT / "tests" / "mutants.toml"
COVERAGE = ROOT / "docs" / "coverage.md"
LIMIT = 300.0
"""Time limit for the tests of a mutant, in seconds; a mutant that exceeds it also counts as killed."""
FAILED = 1
"""Pytest's status if a test failed; any other status except 0 means that the tests did not run."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old``, which occurs once in the file, becomes ``new``."""

    row: str
    """The row of `docs/coverage.md`."""
    name: str
    file: str
    """Path relative to the package."""
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text of the file with the fault.

        Raises:
            ValueError: ``old`` does not occur exactly once in the text.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.row}, {self.name}: {self.file} has {self.old!r} {text.count(self.old)} times, not once"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """The result of the tests of a mutant."""

    mutant: Mutant
    killed: bool
    seconds: float
    said: str
    """The first test that failed, or the end of the output if the tests did not run or all passed."""


def mutants(rows: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of the list, or only those of the given rows."""
    found = [Mutant(**fields) for fields in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]
    return [one for one in found if not rows or one.row in rows]


def named_tests() -> dict[str, list[str]]:
    """The tests that each row of the table names, relative to ``tests``."""
    lines = [
        line.split("|")[1:-1] for line in COVERAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    return {
        line[0].strip(): re.findall(r"`([^`]+)`", line[3]) for line in lines if re.fullmatch(r" [A-C]\d+ ", line[0])
    }


@dataclass(frozen=True)
class Ended:
    """The end of a test run."""

    status: int | None
    """Pytest's status; None if the tests took longer than `LIMIT`."""
    seconds: float
    said: str
    """As in `Outcome`."""


def run_tests(tests: Sequence[str], source: Path) -> Ended:
    """Run tests on the package in ``source`` until one fails."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=no",
    ]
    try:
        ended = subprocess.run(
            [*command, *(f"tests/{name}" for name in tests)], cwd=ROOT, env=environment, capture_output=True,
            text=True, encoding="utf-8", timeout=LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended(None, time.monotonic() - started, f"still running after {LIMIT:.0f} s")
    failed = re.search(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    said = failed[1] if failed else (ended.stdout + ended.stderr).strip()[-400:]
    return Ended(ended.returncode, time.monotonic() - started, said)


def run(mutant: Mutant, tests: Sequence[str], source: Path) -> Outcome:
    """Run tests on a copy of ``src`` while it contains the fault."""
    path = source / "multihead" / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutant.apply(whole), encoding="utf-8", newline="\n")
    try:
        ended = run_tests(tests, source)
    finally:
        path.write_text(whole, encoding="utf-8", newline="\n")
    return Outcome(mutant, ended.status in (FAILED, None), ended.seconds, ended.said)


@contextmanager
def copies(jobs: int) -> Iterator[Callable[[Callable[[T, Path], R], Sequence[T]], Iterator[R]]]:
    """A parallel map: calls a function on each item with a free copy of ``src``; results are in order."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            source = Path(folder) / str(number)
            shutil.copytree(PACKAGE, source / "multihead", ignore=shutil.ignore_patterns("__pycache__"))
            free.put(source)

        def on_a_copy(call: Callable[[T, Path], R], item: T) -> R:
            source = free.get()
            try:
                return call(item, source)
            finally:
                free.put(source)

        yield lambda call, items: pool.map(partial(on_a_copy, call), items)


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each mutant; the exit status is the number of mutants that survived or were skipped."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("rows", nargs="*", help="rows of docs/coverage.md (all)")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants tested in parallel (one per core)")
    made.add_argument("--tests", action="store_true", help="also print the tests of each row")
    arguments = made.parse_args(words)
    tests, living, started = named_tests(), 0, time.monotonic()
    if unknown := [row for row in arguments.rows if not mutants([row])]:
        made.error(f"{LIST} has no mutant of {', '.join(unknown)}")
    chosen = mutants(arguments.rows)
    with copies(arguments.jobs) as on_copies:
        rows = list(dict.fromkeys(one.row for one in chosen))
        failing = set()
        for row, ended in zip(rows, on_copies(lambda row, source: run_tests(tests[row], source), rows), strict=True):
            if ended.status != 0:
                failing.add(row)
                print(f"{row} is skipped: its tests fail even without a fault ({ended.said})", flush=True)
        print(f"tests of {len(rows) - len(failing)} of {len(rows)} rows pass without a fault", flush=True)
        tried = [one for one in chosen if one.row not in failing]
        outcomes = on_copies(lambda mutant, source: run(mutant, tests[mutant.row], source), tried)
        for number, outcome in enumerate(outcomes, start=1):
            living += not outcome.killed
            mutant, state = outcome.mutant, "killed  " if outcome.killed else "SURVIVES"
            place, took = f"{number:3}/{len(tried)}", f"{outcome.seconds:.0f} s"
            print(f"{place}  {state}  {mutant.row:<4}{mutant.name}  ({took}: {outcome.said})", flush=True)
            if arguments.tests:
                print("".join(f"                       {name}\n" for name in tests[mutant.row]), end="")
    print(f"{len(tried) - living} of {len(chosen)} mutants are killed, {time.monotonic() - started:.0f} s")
    return min(living + len(chosen) - len(tried), 99)


if __name__ == "__main__":
    sys.exit(main())
