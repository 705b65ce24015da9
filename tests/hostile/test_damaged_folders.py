"""Damage to any file is named in one line with status 2, or the result is that of the undamaged folder, byte for byte.

Bits are flipped, files cut off, swapped, edited, deleted, and replaced by pipes: in a finished run, in a stopped one,
in prepared text and in folders of models. Logs are left out. `make test` tries a few cases of each, `make test-hostile`
2,000.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from folders import GOOD
from multihead.bundle import load_bundle
from multihead.errors import Interrupted
from multihead.preparing.prepare import prepare

if TYPE_CHECKING:
    from tests.conftest import CommandResult, Numbers

LOGS = {"log.txt", "log.jsonl", "timing.jsonl"}
SHORT = {"updates": 4, "validate_every": 2, "log_every": 2, "dropout": 0.2, "width": 8, "heads": 2, "inner": 8}
LINES = "eins zwei drei\nvier\n" + "fünf sechs sieben acht neun " * 12 + "\n"
"""The last one is longer than any training line, so it is cut according to the lengths in the run's data."""

Call = Callable[..., "CommandResult"]


@dataclass(frozen=True)
class Subject:
    """A folder to be damaged.

    Args:
        folder: an intact one.
        commands: returns, for a copy, the arguments of the commands to run on it, in order.
        results: the files that the commands write, to be compared.
    """

    folder: Path
    commands: Callable[[Path], list[list[object]]]
    results: Callable[[Path], list[Path]] = lambda _: []


def files_of(folder: Path) -> list[Path]:
    """The files of a folder, without logs."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in LOGS)


def outcome_files(run: Path) -> list[Path]:
    """The final state of a run."""
    newest = max((run / "checkpoints").iterdir(), key=lambda path: path.name)
    return [*files_of(run / "best"), *files_of(newest), run / "log.jsonl"]


OTHERS: dict[str, Callable[[Path], list[list[object]]]] = {
    "shortlist": lambda model: [["translate", model, "--threads", 1, "--shortlist", "--max-length", 5]],
    "pointer": lambda model: [["pointer", "sort", "--model", model, 3, 1, 2]],
    "classifier": lambda model: [["classify", "predict", model]],
    "BERT": lambda model: [["fill-mask", model, "A cat [MASK] on 12."]],
    "language model": lambda model: [["generate", model, "A cat", "--max-length", 5]],
}
"""The command that reads each other kind of model."""


def made(kind: str, place: Path) -> Path:
    """A good folder."""
    GOOD[kind][0](place / kind)
    return place / kind


@pytest.fixture(scope="module")
def subjects(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    place = tmp_path_factory.mktemp("subjects")
    text = {**numbers.train, "held_out": 3, "vocab_size": 300}
    model = {**{name: value for name, value in numbers.settings.items() if name != "vocab_size"}, **SHORT}
    prepare(output=place / "prepared", say=lambda _: None, **text)
    numbers.learn(place / "finished", **text, **model)
    polls = iter([None] * 4)
    with pytest.raises(Interrupted):
        numbers.learn(place / "stopped", stop_signal=lambda: next(polls, signal.SIGTERM), **text, **model)
    assert len(list((place / "stopped" / "checkpoints").iterdir())) > 1
    flags = numbers.flags(model)

    def train(run: Path) -> list[object]:
        return ["train", "--output", run]

    def translate(model: Path) -> list[object]:
        return ["translate", model, "--threads", 1]

    return {
        "finished run": Subject(place / "finished", lambda run: [train(run), translate(run)], outcome_files),
        "stopped run": Subject(place / "stopped", lambda run: [train(run), translate(run)], outcome_files),
        "prepared text": Subject(
            place / "prepared",
            lambda data: [[*train(data.parent / "run"), "--data", data, *flags]],
            lambda data: outcome_files(data.parent / "run"),
        ),
        "model": Subject(place / "finished" / "best", lambda model: [translate(model)]),
        **{kind: Subject(made(kind, place), commands) for kind, commands in OTHERS.items()},
    }


# --------------------------------------------------------------------------- damage


def damage(folder: Path, draw: random.Random) -> tuple[str, list[Path]]:
    """Damage a folder; returns what was done, and to which files."""
    path, other = draw.sample(files_of(folder), 2)
    content = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "flip", "flip", "cut", "swap", "edit", "delete", "pipe"])
    if kind == "swap":
        path.rename(path.with_name("kept"))
        other.rename(path)
        path.with_name("kept").rename(other)
        return f"{kind} {path.relative_to(folder)} {other.relative_to(folder)}", [path, other]
    if kind in ("delete", "pipe"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        return f"{kind} {path.relative_to(folder)}", [path]
    place = draw.randrange(max(len(content), 1))
    digits = [found.start() for found in re.finditer(rb"[0-9]", content)]
    if kind == "flip" and content:
        content[place] ^= 1 << draw.randrange(8)
    elif kind == "edit" and digits:
        place = draw.choice(digits)
        content[place] = 48 + (content[place] - 48 + draw.randint(1, 9)) % 10
    else:
        content = content[:place]
    path.write_bytes(content)
    return f"{kind} {path.relative_to(folder)} at {place} of {len(content)}", [path]


@dataclass
class Trial:
    """Damages copies of a folder, and compares the results with those of an intact one."""

    subject: Subject
    call: Call
    place: Path

    def __post_init__(self) -> None:
        self.expected = self.run(self.copy())
        assert all(isinstance(found, bytes) for found in self.expected), self.expected

    def copy(self) -> Path:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        return Path(shutil.copytree(self.subject.folder, self.place / self.subject.folder.name))

    def run(self, copy: Path) -> list[bytes | str]:
        """The results of each command and the files: bytes, or the error."""
        found: list[bytes | str] = []
        for words in self.subject.commands(copy):
            result = self.call(*words, given=LINES.encode())
            if result.status != 0:
                assert result.status == 2, (result.status, result.err)
                assert "Traceback" not in result.err
                return [*found, result.err.rstrip("\n").split("\n")[-1]]
            found.append(b"" if words[0] == "train" else result.out)
        return [*found, *(path.read_bytes() for path in self.subject.results(copy))]

    def damaged(self, seed: int) -> str:
        """Try one damage; returns the outcome."""
        copy, draw = self.copy(), random.Random(seed)
        what, paths = damage(copy, draw)
        try:
            found = self.run(copy)
        except Exception as error:
            raise AssertionError(f"{what} (seed {seed}): {error!r}") from error
        if isinstance(found[-1], str):
            message = found[-1]
            assert message.startswith("multihead: "), (what, seed, message)
            assert any(path.name in message for path in (*paths, Path("manifest.json"))), (what, seed, message)
            return "named"
        assert found == self.expected, (what, seed)
        return "harmless"


KINDS = ["finished run", "stopped run", "prepared text", "model", *OTHERS]


@pytest.fixture
def trial(subjects: dict[str, Subject], call: Call, tmp_path: Path) -> Callable[[str], Trial]:
    return lambda kind: Trial(subjects[kind], call, tmp_path / "trial")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", KINDS)
def test_some_damages(trial: Callable[[str], Trial], kind: str) -> None:
    tried = trial(kind)
    ended = Counter(tried.damaged(seed) for seed in range(8 if kind in ("model", "pointer") else 4))
    assert ended["named"]


@pytest.mark.hostile
@pytest.mark.parametrize("kind", KINDS)
def test_2000_damages(trial: Callable[[str], Trial], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """250 of each."""
    tried = trial(kind)
    ended = Counter(tried.damaged(seed) for seed in range(1000, 1250))
    with capsys.disabled():
        print(f"\n{kind}: {dict(ended)}")
    assert ended["named"]


def test_an_edit_of_the_settings_says_what_to_do(subjects: dict[str, Subject], call: Call, tmp_path: Path) -> None:
    run = Path(shutil.copytree(subjects["stopped run"].folder, tmp_path / "run"))
    text = (run / "run.json").read_text(encoding="utf-8")
    (run / "run.json").write_text(text.replace('"learning_rate": 0.01', '"learning_rate": 0.02'), encoding="utf-8")
    before = {path: path.read_bytes() for path in files_of(run)}
    result = call("train", "--output", run)
    assert result.status == 2
    (line,) = result.err.splitlines()
    for words in ("run.json: damaged, or changed", "restore the file", "begin anew in another folder", "--from-model"):
        assert words in line
    assert {path: path.read_bytes() for path in files_of(run)} == before


# --------------------------------------------------------------------------- a reader beside a writer

WRITER = """
import shutil, sys
from pathlib import Path
from multihead.files import atomic_folder

folder, *models = map(Path, sys.argv[1:])
while True:
    for model in models:
        with atomic_folder(folder) as draft:
            shutil.copytree(model, draft, dirs_exist_ok=True)
        print(flush=True)
"""


@pytest.fixture
def replaced(numbers: Numbers, subjects: dict[str, Subject], tmp_path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """A model folder that another process keeps replacing by one of two models; and the two models."""
    run = subjects["finished run"].folder
    text = {"data": subjects["prepared text"].folder}
    sizes = {**{n: v for n, v in numbers.settings.items() if n != "vocab_size"}, **SHORT, "updates": 1, "inner": 24}
    numbers.learn(tmp_path / "other", **text, **sizes)
    models = [run / "best", tmp_path / "other" / "best"]
    folder = tmp_path / "both" / "best"
    folder.parent.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, folder, *models], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        yield folder.parent, [described(model) for model in models]
    finally:
        writer.kill()
        writer.communicate()


def described(model: Path) -> Any:
    """Everything that differs between the two models."""
    found = load_bundle(model)
    weights = [float(parameter.detach().double().sum()) for parameter in found.model.parameters()]
    return found.model.config, weights, found.generation, found.source_tokenizer.digest


def load_beside_a_writer(replaced: tuple[Path, list[Any]], loads: int) -> None:
    run, models = replaced
    seen: Counter[int] = Counter()
    while sum(seen.values()) < loads or len(seen) < len(models):
        seen[models.index(described(run))] += 1  # raises for a mixture


def test_loads_beside_a_writer_are_one_of_its_models(replaced: tuple[Path, list[Any]]) -> None:
    load_beside_a_writer(replaced, 20)


@pytest.mark.hostile
def test_10000_loads_beside_a_writer(replaced: tuple[Path, list[Any]]) -> None:
    load_beside_a_writer(replaced, 10_000)
