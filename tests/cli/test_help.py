"""``--help``: short lines for the list of commands, and examples that are valid commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from multihead.cleaning.settings import CleanSettings
from multihead.cli.help import ExampleCommand, ExampleGroup
from multihead.cli.main import COMMANDS
from multihead.cli.main import multihead as program
from multihead.cli.options import parse_search_flags
from multihead.configuration import Settings, build
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.planning.settings import PrepareSettings, TrainSettings
from multihead.runs.bert.settings import PretrainSettings
from multihead.runs.classifier.settings import ClassifySettings
from multihead.runs.pointer.settings import PointerSettings

SETTINGS: dict[str, type[Settings]] = {
    "train": TrainSettings,
    "doctor": TrainSettings,
    "prepare": PrepareSettings,
    "clean": CleanSettings,
    "pretrain": PretrainSettings,
    "classify train": ClassifySettings,
    "pointer train": PointerSettings,
}

HELP = ["-h", "--help"]
"""The help options of the command; click caches those that a command is first parsed with."""


def every_command(group: click.Command = program, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand with its name, the program itself first."""
    yield " ".join(words), group
    for name, inner in group.commands.items() if isinstance(group, click.Group) else ():
        yield from every_command(inner, (*words, name))


EVERY = dict(every_command())


def check(line: str) -> str:
    """Parse an example as a shell and the command would; returns the name of the command."""
    words = shlex.split(re.split(" [<>] ", line)[0], comments=True)
    assert words.pop(0) == "multihead", line
    found: click.Command = program
    names: list[str] = []
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        names.append(words.pop(0))
        found = found.commands[names[-1]]
    name = " ".join(names)
    if words == ["--help"]:
        return name
    params = found.make_context(line, words, help_option_names=HELP).params
    given = {key: value for key, value in params.items() if value not in (None, ())}
    if (cls := SETTINGS.get(name)) is not None:
        build(cls, {key: value for key, value in given.items() if key in cls.model_fields}, line)
    parse_search_flags({key: value for key, value in given.items() if key in Search.model_fields})
    return name


@pytest.mark.parametrize("name", EVERY, ids=lambda name: name or "multihead")
def test_the_examples_of_a_command_are_valid_and_fit_a_terminal(name: str, call: Callable[..., Any]) -> None:
    found = EVERY[name]
    assert isinstance(found, (ExampleCommand, ExampleGroup))
    named = [check(line) for line in found.examples]
    assert named, "a command has examples"
    assert named[0] == name or isinstance(found, click.Group)
    assert all(len(line) <= 76 for line in found.examples)
    shown = call(*name.split(), "--help").text.splitlines()
    at = shown.index("Examples:") + 1
    assert shown[at : at + len(found.examples)] == [f"  {line}" for line in found.examples]


@pytest.mark.parametrize("name", EVERY, ids=lambda name: name or "multihead")
def test_every_flag_is_explained(name: str, call: Callable[..., Any]) -> None:
    flags = [flag for flag in EVERY[name].params if isinstance(flag, click.Option)]
    assert [flag.name for flag in flags if not flag.help] == []
    shown = call(*name.split(), "--help").text
    assert "RANGE" not in shown, "give the flag a metavar"
    assert "``" not in shown


@pytest.mark.parametrize(
    "line",
    [
        "multihead trian --output run",
        "multihead train --sorce train.de",
        "multihead train --budget soon --output run",
        "multihead translate",
        "multihead translate run --beam 0",
        "multihead bpe lern",
        "multi train",
    ],
)
def test_an_example_that_is_wrong_is_seen(line: str) -> None:
    with pytest.raises((click.UsageError, KeyError, AssertionError, ConfigurationError)):
        check(line)


def test_the_list_of_commands_is_whole(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal of 80 columns each command takes one line, which says what it does to the end."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("--help").text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage")]
    summaries = {name: text for heading in COMMANDS.values() for name, text in heading.items()}
    for name, text in summaries.items():
        assert [line for line in lines if line.split() == [name, *text.split()]], name
    assert [f"{heading}:" in lines for heading in COMMANDS] == [True] * len(COMMANDS)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if isinstance(one, click.Group)])
def test_no_command_is_cut(name: str, columns: int, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = " ".join(call(*name.split(), "--help").text.split())
    group = EVERY[name]
    assert isinstance(group, click.Group)
    texts = {inner: one.short_help for inner, one in group.commands.items()}
    if not name:
        texts = {inner: text for heading in COMMANDS.values() for inner, text in heading.items()}
    assert [inner for inner, text in texts.items() if not text or f"{inner} {text}" not in shown] == []
    assert shown.count("...") == shown.count("[ARGS]...")


def test_a_misspelt_command_is_answered_with_the_nearest(call: Callable[..., Any]) -> None:
    ended = call("trian")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "'train'" in ended.err


@pytest.mark.parametrize("spelling", ["neighbors", "neighbours"])
def test_a_datastore_has_neighbors_in_both_spellings(spelling: str) -> None:
    words = ["run", "--output", "store", f"--{spelling}", "3"]
    context = EVERY["datastore"].make_context("datastore", words, help_option_names=HELP)
    assert context.params["neighbours"] == 3


def test_help_imports_no_command() -> None:
    """So it is as quick with a hundred commands; what it would have to wait for is pydantic, with the settings."""
    words = [sys.executable, "-X", "importtime", "-m", "multihead", "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = {line.rsplit("|", 1)[-1].strip() for line in ended.stderr.splitlines()}
    own = {name for name in modules if name.partition(".")[0] == "multihead"}
    below = ("multihead.errors", "multihead.platforms", "multihead.urls")
    assert own == {"multihead", "multihead.cli", "multihead.cli.main", "multihead.cli.help", *below}
    assert not modules & {"pydantic", "torch", "numpy", "rich", "asyncio"}
