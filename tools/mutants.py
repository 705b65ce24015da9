"""Break the package on purpose, and see whether the tests that `docs/coverage.md` names notice it.

`tests/mutants.toml` has at least one fault, a mutant, for each row of the table: a piece of a file, and what replaces
it. The tests that the row names run on a copy of the package with the fault. If one fails, the mutant is killed.
A mutant that survives shows a row whose tests do not test it.

    python tools/mutants.py                        all of them; minutes
    python tools/mutants.py A3 B12                 those of some rows
    python tools/mutants.py --jobs 1 --tests       with the tests that each row names
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
LIST = ROOT / "tests" / "mutants.toml"
COVERAGE = ROOT / "docs" / "coverage.md"
LIMIT = 300.0
"""Seconds for the tests of a mutant; a mutant that runs longer is killed, too."""
FAILED = 1
"""Pytest's status if a test failed; any other but 0 says that the tests did not run."""


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old``, which the file has once, becomes ``new``."""

    row: str
    """Of `docs/coverage.md`."""
    name: str
    file: str
    """Relative to the package."""
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text of the file with the fault.

        Raises:
            ValueError: the text does not have ``old`` exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.row}, {self.name}: {self.file} has {self.old!r} {text.count(self.old)} times, not once"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """What the tests of a mutant said."""

    mutant: Mutant
    killed: bool
    seconds: float
    said: str
    """The first test that failed, or the end of the output if the tests did not run or all passed."""


def mutants(rows: Sequence[str] = ()) -> list[Mutant]:
    """Those of the list; of some rows only, if any are given."""
    found = [Mutant(**fields) for fields in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]
    return [one for one in found if not rows or one.row in rows]


def named_tests() -> dict[str, list[str]]:
    """For each row of the table the tests that it names, relative to ``tests``."""
    lines = [
        line.split("|")[1:-1] for line in COVERAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    return {
        line[0].strip(): re.findall(r"`([^`]+)`", line[3]) for line in lines if re.fullmatch(r" [A-C]\d+ ", line[0])
    }


def run(mutant: Mutant, tests: Sequence[str], source: Path) -> Outcome:
    """Run tests on a copy of ``src``, which has the fault meanwhile."""
    path, started = source / "multihead" / mutant.file, time.monotonic()
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutant.apply(whole), encoding="utf-8")
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
        return Outcome(mutant, True, time.monotonic() - started, f"no end after {LIMIT:.0f} s")
    finally:
        path.write_text(whole, encoding="utf-8")
    failed = re.search(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    said = failed[1] if failed else (ended.stdout + ended.stderr).strip()[-400:]
    return Outcome(mutant, ended.returncode == FAILED, time.monotonic() - started, said)


def run_all(chosen: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """The outcome of each mutant, as they come."""
    tests = named_tests()
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            source = Path(folder) / str(number)
            shutil.copytree(PACKAGE, source / "multihead", ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(source)

        def one(mutant: Mutant) -> Outcome:
            source = copies.get()
            try:
                return run(mutant, tests[mutant.row], source)
            finally:
                copies.put(source)

        yield from pool.map(one, chosen)


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each mutant; the status is the number of those that live."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("rows", nargs="*", help="rows of docs/coverage.md (all)")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (a processor each)")
    made.add_argument("--tests", action="store_true", help="also print the tests of each row")
    arguments = made.parse_args(words)
    chosen, tests, living, started = mutants(arguments.rows), named_tests(), 0, time.monotonic()
    if not chosen:
        made.error(f"{LIST} has no mutant of {', '.join(arguments.rows)}")
    for number, outcome in enumerate(run_all(chosen, arguments.jobs), start=1):
        living += not outcome.killed
        mutant, state = outcome.mutant, "killed  " if outcome.killed else "SURVIVES"
        place, took = f"{number:3}/{len(chosen)}", f"{outcome.seconds:.0f} s"
        print(f"{place}  {state}  {mutant.row:<4}{mutant.name}  ({took}: {outcome.said})", flush=True)
        if arguments.tests:
            print("".join(f"                       {name}\n" for name in tests[mutant.row]), end="")
    print(f"{len(chosen) - living} of {len(chosen)} mutants are killed, {time.monotonic() - started:.0f} s")
    return min(living, 99)


if __name__ == "__main__":
    sys.exit(main())
