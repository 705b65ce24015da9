"""`docs/coverage.md` has a row for everything the documents describe, and everything it names exists.

The documents are outside the project, so the list of rows is here. `test_names` checks links.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from multihead.cli.main import multihead as command

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
ROWS = [
    f"{group}{row}"
    for group, first, last in (("A", 1, 20), ("B", 0, 12), ("C", 1, 7))
    for row in range(first, last + 1)
]


class Row(NamedTuple):
    """A row of a table."""

    row: str
    what: str
    files: list[str]
    tests: list[str]
    met: list[str]
    """Names, commands and programs."""


def rows() -> list[Row]:
    lines = [line.split("|")[1:-1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    read = [
        (row, what, *(re.findall(r"`([^`]+)`", cell) for cell in rest)) for row, what, *rest in cells if row != "row"
    ]
    return [Row(*row) for row in read]


@cache
def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row.row for row in rows()] == ROWS


def test_every_row_has_a_file_a_test_and_a_place_to_meet_it() -> None:
    lacking = [row.row for row in rows() if not (row.what and row.files and row.tests and row.met)]
    assert lacking == []


@pytest.mark.parametrize("name", ROWS)
def test_what_a_row_names_exists(name: str) -> None:
    (row,) = [row for row in rows() if row.row == name]
    assert [name for name in row.files if not (ROOT / "src" / "multihead" / name).is_file()] == []
    assert [name for name in row.tests if not is_run(name)] == []
    assert [name for name in row.met if not can_be_met(name)] == []


def is_run(name: str) -> bool:
    """Whether ``file::function`` is a test that `make test` runs."""
    path, _, function = name.partition("::")
    found = functions(path).get(function) if (ROOT / "tests" / path).is_file() else None
    if found is None or not function.startswith("test_"):
        return False
    return not any("proof" in ast.unparse(decorator) for decorator in found.decorator_list)


def can_be_met(name: str) -> bool:
    """Whether the name is importable, a command with these flags, or a file."""
    if name.startswith("multihead "):
        return can_be_typed(name)
    if re.fullmatch(r"multihead(\.\w+)+", name):
        module, _, attribute = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            return False
    return (ROOT / name).is_file()


def can_be_typed(line: str) -> bool:
    """Whether the command exists and has the flags; its files need not exist."""
    found: click.Command = command
    words = shlex.split(line)[1:]
    while words and isinstance(found, click.Group):
        if words[0] not in found.commands:
            return False
        found = found.commands[words.pop(0)]
    flags = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return all(word in flags for word in words if re.match(r"--?[a-z]", word))


@pytest.mark.parametrize(
    "name",
    [
        "multihead trian",
        "multihead train --sorce a",
        "multihead bpe lern",
        "multihead.attention.Casual",
        "multihead.atention.Causal",
        "examples/none.py",
    ],
)
def test_what_cannot_be_met_is_seen(name: str) -> None:
    assert not can_be_met(name)


@pytest.mark.parametrize(
    "name",
    [
        "test_coverage.py::test_that_is_none",
        "test_none.py::test_what_cannot_be_met_is_seen",
        "test_coverage.py::can_be_met",
        "cli/test_crash.py::test_killed_at_random_moments",
    ],
)
def test_a_test_that_is_not_run_is_seen(name: str) -> None:
    assert not is_run(name)
    assert is_run("test_coverage.py::test_a_test_that_is_not_run_is_seen")
