"""The workflows are valid, and the programs and tests that they run exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
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
    """Names in a command that the repository does not have."""
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
    # A wrong command fails the check.
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


def test_every_workflow_that_installs_pytorch_can_use_an_index_of_smaller_builds() -> None:
    assert {name for name, workflow in WORKFLOWS.items() if "PIP_EXTRA_INDEX_URL" not in workflow["env"]} == set()


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A folder with all programs of a machine: a Python without ensurepip, and an apt-get that installs make.

    The last two record their calls in a file ``calls``.
    """
    programs, link = tmp_path / "bin", shutil.which("ln")
    programs.mkdir()
    for name in ("bash", "dirname", "env", "id"):
        (programs / name).symlink_to(shutil.which(name) or name)
    note = f'echo "${{0##*/}} $*" >> "{tmp_path}/calls"'
    for path, line in {
        programs / "python3": "exit 1",
        programs / "sudo": 'exec "$@"',
        programs / "apt-get": f'{note}\n[ "$1" = update ] || {link} -s "{tmp_path}/make" "{programs}/make"',
        tmp_path / "make": note,
    }.items():
        path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8", newline="\n")
        path.chmod(0o755)
    return programs


def ci(programs: Path, *goals: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with only these programs on the path."""
    command = [str(ROOT / ".ci" / "run"), *goals]
    return subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("goals", "packages", "made"),
    [
        (["site"], "make python3-venv", ["site"]),
        (["wheel"], "make python3-venv g++", ["wheel"]),
        ([], "make python3-venv g++ chromium chromium-driver", ["test", "test-lowest-short"]),
    ],
)
def test_what_a_machine_lacks_is_installed_first(
    goals: list[str], packages: str, made: list[str], bare_machine: Path, tmp_path: Path
) -> None:
    ended = ci(bare_machine, *goals)
    assert ended.returncode == 0, ended.stderr
    update, install, *rest = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert update.startswith("apt-get update")
    assert install.endswith(f" --no-install-recommends {packages}")
    assert rest == [f"make {goal}" for goal in made]


def test_what_cannot_be_installed_is_named(bare_machine: Path) -> None:
    (bare_machine / "apt-get").unlink()
    ended = ci(bare_machine, "site")
    assert ended.returncode == 1
    assert "make python3-venv" in ended.stderr
    assert ended.stderr.count("\n") == 1
