"""The workflows for forks are valid, and what they run exists."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS: dict[str, dict[Any, Any]] = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
WORKFLOW = WORKFLOWS["ci"]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = SETTINGS["project"]
TOOLS: dict[str, Any] = SETTINGS["tool"]
MATRIX = WORKFLOW["jobs"]["systems"]["strategy"]["matrix"]


def commands() -> list[str]:
    """The lines of all steps; those with a target of the matrix, once for each of them."""
    found = []
    for job in (job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()):
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
        found += [line.replace("${{ matrix.target }}", target) for line in lines for target in targets]
    return found


def unknown(words: list[str], targets: set[str]) -> list[str]:
    """What a command names and the repository does not have."""
    match words:
        case ["make", *names]:
            return [name for name in names if name not in targets]
        case [".ci/run", first, *rest]:
            return [name for name in (first, *rest) if name not in targets]
        case ["python", "-m", "build"] | ["python", "-m", "twine", "check", *_]:
            return []
        case ["python", "-m", "pytest", *rest]:
            return [word for word in rest if word.startswith("tests") and not (ROOT / word).exists()]
        case ["python", "-m", "pip", "install", *rest]:
            extras = [extra for word in rest if word.startswith(".[") for extra in word[2:-1].split(",")]
            files = [rest[place + 1] for place, word in enumerate(rest) if word == "-c"]
            return [extra for extra in extras if extra not in PROJECT["optional-dependencies"]] + [
                file for file in files if not (ROOT / file).is_file()
            ]
        case ["multihead", "--version" | "--help"]:
            return [] if "multihead" in PROJECT["scripts"] else words
        case [program] if (ROOT / program).is_file() and os.access(ROOT / program, os.X_OK):
            return []
    return words


def test_what_it_runs_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = [shlex.split(command) for command in commands()]
    assert len(named) >= 6
    assert [unknown(words, targets) for words in named if unknown(words, targets)] == []
    # The check can fail.
    assert unknown(["make", "tests"], targets) == ["tests"]
    assert unknown(["python", "-m", "pytest", "tests/nowhere"], targets) == ["tests/nowhere"]
    assert unknown(["python", "-m", "pip", "install", "-c", "x.txt", "-e", ".[none]"], targets) == ["none", "x.txt"]
    assert unknown([".ci/run", "nothing"], targets) == ["nothing"]
    assert unknown(["tox"], targets) == ["tox"]


def test_what_is_too_long_for_every_change_runs_by_itself() -> None:
    """Each marker that `make test` leaves out belongs to a target that a workflow runs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([\w-]+):(.*(?:\n\t.*)*)", makefile, re.M))
    run = {words[1] for words in map(shlex.split, commands()) if words[0] == ".ci/run" and len(words) > 1}
    pytest_options = TOOLS["pytest"]["ini_options"]
    left_out = re.findall(r"not (\w+)", pytest_options["addopts"][-1])
    assert left_out == [marker for marker in left_out if any(f"-m {marker}" in rules[target] for target in run)]
    assert len(left_out) == len(pytest_options["markers"])
    assert WORKFLOWS["proofs"][True]["schedule"], "YAML reads the key `on` as true"


def test_it_runs_on_every_system_and_python_that_the_package_names() -> None:
    systems = {"Linux": "ubuntu-latest", "MacOS": "macos-latest", "Windows": "windows-latest"}
    named = {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if text.startswith("Operating System")}
    assert {systems[name] for name in named} == set(MATRIX["os"])
    assert MATRIX["python"] == [
        text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if " :: Python :: 3." in text
    ]
    assert f">={MATRIX['python'][0]}" == PROJECT["requires-python"]
    lowest = [place for place in MATRIX["include"] if place["versions"] == "lowest"]
    assert [place["os"] for place in lowest] == MATRIX["os"]
    assert {place["python"] for place in lowest} == {MATRIX["python"][0]}
