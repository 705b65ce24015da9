"""``--quiet``: errors and the result remain, and nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from multihead.cli.main import multihead as program
from multihead.cli.options import quiet_flag
from multihead.cli.process import remark, speaker
from multihead.cli.streams import counter

Call = Callable[..., Any]

QUIET = {
    *("train", "translate", "evaluate", "doctor", "clean", "prepare", "backtranslate", "distill", "compare", "score"),
    *("align", "tune", "heads", "report", "import", "export", "pretrain", "selftest batch"),
    *("classify train", "classify evaluate", "pointer train", "pointer evaluate"),
}
"""The commands that work for minutes or hours."""


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, inner in group.commands.items():
        yield " ".join((*words, name)), inner
        if isinstance(inner, click.Group):
            yield from commands(inner, (*words, name))


def test_the_long_commands_have_the_flag() -> None:
    assert {name for name, one in commands(program) if any("--quiet" in flag.opts for flag in one.params)} == QUIET


def test_progress_and_remarks_are_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal, where there would be a bar."""

    @click.command()
    @quiet_flag
    def work() -> None:
        say = speaker()
        say("begun")
        with counter("read", "lines", 2) as count:
            count.begin(0)
            count(2)
        remark("line 2: may be cut")
        say("done")

    work.main([], standalone_mode=False)
    assert capsys.readouterr().err.splitlines() == ["begun", "line 2: may be cut", "done"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    work.main(["--quiet"], standalone_mode=False)
    assert capsys.readouterr() == ("", "")  # the last line is written by `main`, after the command


def test_a_training_says_where_its_model_is(call: Call, numbers: Any, tmp_path: Path) -> None:
    settings = {**numbers.train, **numbers.valid, **numbers.settings, "updates": 2, "vocab_size": 290}
    words = ("train", *numbers.flags(settings), "--output", tmp_path / "run")
    ended = call(*words, "--quiet")
    assert (ended.status, ended.out) == (0, b"")
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8").splitlines()
    assert ended.err == f"{log[-1]}\n"
    assert str(tmp_path / "run" / "best") in ended.err
    finished = call(*words)
    assert finished.err == call(*words, "-q").err
    wrong = call(*words, "--quiet", "--width", 64)
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)
    assert wrong.err.startswith("multihead: ")


def test_prepared_text_and_clean_text(call: Call, numbers: Any, tmp_path: Path) -> None:
    files = numbers.flags(numbers.train)
    loud = call("prepare", *files, "--output", tmp_path / "loud", "--vocab-size", 290)
    quiet = call("prepare", *files, "--output", tmp_path / "quiet", "--vocab-size", 290, "--quiet")
    assert loud.err.count("\n") > 1
    assert quiet.err.replace("quiet", "loud") == f"{loud.err.splitlines()[-1]}\n"
    loud = call("clean", *files, "--output", tmp_path / "a.tsv")
    quiet = call("clean", *files, "--output", tmp_path / "b.tsv", "--quiet")
    assert loud.err.count("\n") > 1
    assert quiet.err == f"{loud.err.splitlines()[-1]}\n"


def test_translations_remain_and_remarks_do_not(call: Call, trained: Path, numbers: Any, tmp_path: Path) -> None:
    model = Path(shutil.copytree(trained / "best", tmp_path / "model"))
    generation = json.loads((model / "generation.json").read_text(encoding="utf-8"))
    generation |= {"length_factor": 1e-9, "length_margin": 1}
    (model / "generation.json").write_text(json.dumps(generation), encoding="utf-8")
    numbers.seal_again(model)
    loud = call("translate", model, given=b"eins zwei\n")
    quiet = call("translate", model, "--quiet", given=b"eins zwei\n")
    assert "may be cut" in loud.err
    assert (quiet.status, quiet.out, quiet.err) == (0, loud.out, "")
    bad = call("translate", model, "--quiet", given=b"eins\n\xff\n")
    assert (bad.status, bad.err.count("\n")) == (2, 1)
