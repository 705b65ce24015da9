"""The tables of docs/defaults.md and docs/other-toolkits.md agree with the rules and with the flags of the commands."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from multihead.cli.main import multihead
from multihead.configuration import Machine
from multihead.planning.choices import CorpusSize, choose_preset, choose_vocabulary
from multihead.planning.settings import Choices, TrainSettings

DOCS = Path(__file__).resolve().parents[2] / "docs"
OTHERS = (DOCS / "other-toolkits.md").read_text(encoding="utf-8")


def table(page: str, first: str, column: str) -> list[list[str]]:
    """The rows of the table of a page whose header begins with these two columns."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (rows,) = re.findall(rf"^\| {first} \| {column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]


def limits(words: str) -> list[int]:
    """Numbers of pairs that the first cell of a row stands for: the largest of them, or one above all limits."""
    found = re.fullmatch(r"below ([\d,]+)", words)
    return [int(found[1].replace(",", "")) - 1] if found else [10**8]


def test_sizes_of_vocabularies_are_those_of_the_page() -> None:
    rows = table("defaults.md", "training pairs", "vocabulary")
    settings = Choices(TrainSettings(output=Path("run"), source="a", target="b"))
    written = [int(size.replace(",", "")) for _, size in rows]
    assert [choose_vocabulary(settings, pairs) for words, _ in rows for pairs in limits(words)] == written
    below = [limits(words)[0] + 1 for words, _ in rows[:-1]]
    assert [choose_vocabulary(settings, pairs) for pairs in below] == written[1:]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_presets_are_those_of_the_page(device: str) -> None:
    machine = Machine(2, device, False, "a machine")
    for words, name in table("defaults.md", "training pairs", "preset"):
        applies = "GPU" not in words or ("without a GPU" in words) == (device == "cpu")
        many = "more" in words
        corpus = CorpusSize(200_000 if many else limits(words)[0], 1_000_000, 8_000, 8_000, 0)
        chosen = choose_preset("transformer", corpus, machine)[0]
        assert not applies or chosen == re.findall(r"`(\w+)`", name)[0]


def flags(*names: str) -> set[str]:
    """All flags of some commands."""
    context = click.Context(multihead)
    commands = [multihead.get_command(context, name) for name in names]
    return {flag for one in commands if one for given in one.params for flag in (*given.opts, *given.secondary_opts)}


@pytest.mark.parametrize(
    ("heading", "command"),
    [("Settings of training", "train"), ("Settings of the network", "train"), ("Settings of search", "translate")],
)
def test_the_flags_for_those_of_other_toolkits_exist(heading: str, command: str) -> None:
    section = OTHERS.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [row for row in re.findall(r"^\| .*\|$", section, re.MULTILINE) if "multihead |" not in row]
    ours = [flag for row in rows for flag in re.findall(r"--[a-z][\w-]*", row.strip("|").split(" | ")[-1])]
    assert len(ours) >= len(rows)
    assert set(ours) <= flags(command)


def test_the_commands_for_those_of_other_toolkits_exist() -> None:
    section = OTHERS.split("## Commands\n")[1].split("\n## ")[0]
    cells = [row.strip("|").split(" | ")[-1] for row in re.findall(r"^\| .*\|$", section, re.MULTILINE)[1:]]
    named = {words.split()[0] for cell in cells for words in re.findall(r"`([a-z][\w -]*)`", cell)}
    assert {"train", "translate", "evaluate"} <= named
    assert named <= set(multihead.list_commands(click.Context(multihead)))
