"""Every output that a command cannot make: one line, status 2, and nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from multihead.cli.main import multihead

if TYPE_CHECKING:
    from tests.conftest import Numbers

FILES: dict[str, list[str]] = {
    "translate --output": ["RUN", "--input", "SOURCE"],
    "backtranslate --output": ["RUN", "--monolingual", "SOURCE"],
    "distill --output": ["RUN", "--source", "SOURCE"],
    "clean --output": ["--source", "SOURCE", "--target", "TARGET"],
    "evaluate --save": ["RUN", "--source", "SOURCE", "--target", "TARGET"],
    "attention --output": ["RUN", "eins"],
    "plot --output": ["RUN"],
    "bpe learn --output": ["SOURCE", "--vocab-size", "300"],
    "explain --output": ["RUN", "eins"],
    "explain --png": ["RUN", "eins"],
    "classify predict --html": ["RUN"],
}
"""The words of each command that writes a new file, without the file."""

FOLDERS: dict[str, list[str]] = {
    "train --output": ["--source", "SOURCE", "--target", "TARGET", "--updates", "1"],
    "prepare --output": ["--source", "SOURCE", "--target", "TARGET"],
    "average --output": ["RUN", "RUN"],
    "report --output": ["RUN"],
    "demo --output": [],
    "adapt --output": ["RUN", "RUN"],
    "shrink --output": ["RUN"],
    "quantise --output": ["RUN"],
    "datastore --output": ["RUN"],
    "import --output": ["RUN"],
    "export --output": ["RUN", "--format", "ctranslate2"],
    "pretrain --output": ["--text", "SOURCE", "--updates", "1"],
    "classify train --output": ["--data", "SOURCE"],
    "pointer train --output": ["sort", "--updates", "1"],
}
"""The same for new folders."""

NO_OUTPUT = {"doctor --output": "it checks the settings of a training, and writes nothing"}

NAMES = {"--output", "--save", "--png", "--html"}

OUTPUTS = ["", ".", "..", "/", "full", "source", "source/below"]


def found_outputs(group: click.Group, before: str = "") -> set[str]:
    """The options of all commands that name an output."""
    found: set[str] = set()
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= found_outputs(command, f"{before}{name} ")
            continue
        found |= {f"{before}{name} {option}" for one in command.params for option in NAMES.intersection(one.opts)}
    return found


def test_every_output_is_listed_here() -> None:
    assert found_outputs(multihead) == FILES.keys() | FOLDERS.keys() | NO_OUTPUT.keys()


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_the_words_are_refused_for_their_output_alone(name: str) -> None:
    *names, option = name.split()
    command: Any = multihead
    for word in names:
        command = command.commands[word]
    command.make_context(name, [*(FILES | FOLDERS)[name], option, "new"])


@pytest.fixture
def place(tmp_path: Path, numbers: Numbers, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a run, a text, and a folder that is not empty."""
    folder = tmp_path / "place"
    (folder / "full").mkdir(parents=True)
    (folder / "full" / "note").write_text("mine")
    shutil.copytree(trained, folder / "run")
    for side, path in numbers.test.items():
        shutil.copy(path, folder / side)
    monkeypatch.chdir(folder)
    return folder


def refused(call: Any, place: Path, numbers: Numbers, command: str, words: list[str], output: str) -> None:
    before, root = numbers.contents(place.parent), sorted(Path("/").iterdir())
    *name, option = command.split()
    filled = [{"RUN": "run", "SOURCE": "source", "TARGET": "target"}.get(word, word) for word in words]
    ended = call(*name, *filled, option, output)
    assert ended.status == 2, ended.err
    assert ended.err.startswith("multihead: ")
    assert ended.err.count("\n") == 1, ended.err
    assert ended.out == b""
    assert (numbers.contents(place.parent), sorted(Path("/").iterdir())) == (before, root)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("command", FILES)
def test_a_file_that_cannot_be_written(call, place, numbers, command, output) -> None:
    refused(call, place, numbers, command, FILES[command], output)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_that_cannot_be_made(call, place, numbers, command, output) -> None:
    refused(call, place, numbers, command, FOLDERS[command], output)


@pytest.mark.parametrize("command", ["adapt", "average", "shrink", "quantise", "import", "export"])
def test_the_current_folder_is_not_replaced(call, place, numbers, monkeypatch, command) -> None:
    """A shell would otherwise stay in the folder that was replaced."""
    (place / "new").mkdir()
    monkeypatch.chdir(place / "new")
    words = ["../run" if word == "RUN" else word for word in FOLDERS[f"{command} --output"]]
    before = numbers.contents(place)
    ended = call(command, *words, "--output", ".")
    assert (ended.status, numbers.contents(place)) == (2, before)
    assert "current folder" in ended.err


def test_a_run_in_the_current_folder(call, place, numbers, monkeypatch) -> None:
    (place / "new").mkdir()
    monkeypatch.chdir(place / "new")
    text = {side: f"../{side}" for side in numbers.test}
    settings = {**numbers.settings, **text, "updates": 1, "vocab_size": 290}
    assert call("train", *numbers.flags(settings), "--output", ".").status == 0
    assert (place / "new" / "run.json").is_file()
