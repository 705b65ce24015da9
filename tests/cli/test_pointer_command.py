"""The command ``multihead pointer``: signed numbers, lines from pipes, and invalid input."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

from multihead.errors import Interrupted
from multihead.runs.pointer.evaluation import evaluate
from multihead.runs.pointer.model import Pointer
from multihead.runs.pointer.train import train

TINY = {
    "width": 32,
    "batch": 64,
    "learning_rate": 0.01,
    "warmup": 10,
    "threads": 1,
    "log_every": 50,
    "updates": 100,
    "held_out": 100,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, without_checks: Any) -> Path:
    """A folder written by a short ``multihead pointer train``."""
    folder = tmp_path_factory.mktemp("pointers")
    with without_checks():
        for problem, sizes in (("sort", {"largest": 4}), ("hull", {"smallest": 4, "largest": 5})):
            train(problem, output=folder / f"pointer-{problem}", say=lambda _: None, validate_every=50, **TINY, **sizes)
    return folder


@pytest.fixture
def here(models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(models)
    return models


@pytest.mark.parametrize(
    "words",
    [
        ["20", "5", "10"],
        ["-3", "2.5", "-.5"],
        ["--", "-3", "2.5", "-1e-3"],
        ["--beam", "2", "-7", "-8"],
        ["-7", "-8", "--no-repeats"],
    ],
)
def test_numbers_as_people_write_them(call, here, words):
    options = {"beam": 2} if "--beam" in words else {"repeats": False} if "--no-repeats" in words else {}
    values = [float(word) for word in words if re.search(r"\d", word) and word != "2"]
    ended = call("pointer", "sort", *words)
    expected = Pointer.load("pointer-sort").point([values], **options)[0]
    assert (ended.status, ended.text) == (0, " ".join(map(str, expected)) + "\n")


def test_without_repeats_the_answer_is_no_longer_than_the_list(call, here):
    places = call("pointer", "sort", "20", "5", "10", "--no-repeats").text.split()
    assert len(set(places)) == len(places) <= 3
    assert set(places) <= {"1", "2", "3"}


def test_points_as_people_write_them(call, here):
    points = [[0, 0], [-1, 0.5], [0.5, -2], [1, 1]]
    ended = call("pointer", "hull", "0,0", "-1,0.5", "0.5,-2", "1,1")
    assert ended.text == " ".join(map(str, Pointer.load("pointer-hull").point([points])[0])) + "\n"


def test_lines_in_and_lines_out(call, here):
    ended = call("pointer", "sort", "--model", "pointer-sort/best", given=b"20 5 10\n\n  3\t4  \n-1 -2.5 1e3 4")
    pointer = Pointer.load("pointer-sort")
    rows = [[20, 5, 10], [], [3, 4], [-1, -2.5, 1000, 4]]
    assert ended.text.split("\n")[:-1] == [" ".join(map(str, pointer.point([row])[0])) for row in rows]


def test_what_came_before_a_bad_line_is_written(call, here):
    ended = call("pointer", "hull", given=b"0,0 1,0 1,1 0,1\n0,0 1,0 1\n0,0 1,0 1,1 0,1\n")
    assert ended.status == 2
    assert ended.text.count("\n") == 1
    assert ended.err.splitlines()[-1] == (
        "multihead: standard input:2: '1' is not a point; write x,y without a space, and spaces between points"
    )


def test_lengths_that_were_not_learned_from_are_named(call, here):
    ended = call("pointer", "sort", *range(9))
    assert "9 inputs, but the model learned from 2 to 4" in ended.err
    assert "line 2: 1 inputs" in call("pointer", "sort", given=b"1 2\n3\n").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sort", "3", "x"], "'x' is not a number"),
        (["sort", "3,4"], "'3,4' is not a number"),
        (["sort", "inf"], "'inf' is not a finite number"),
        (["sort", "-nan", "1"], "'-nan' is not a finite number"),
        (["hull", "1,2,3"], "'1,2,3' is not a point"),
        (["hull", "1,2", "1,inf"], "'inf' is not a finite number"),
        (["sort", "1", "1e300", "2"], "differ by less than"),
        (["sort", "1", "--bem", "3"], "No such option '--bem'"),
        (["sort", "1", "--beam", "0"], "beam"),
        (["sort", "1", "--model", "nowhere"], "nowhere: there is no such folder"),
        (["sort", "1", "--model", "pointer-hull"], "for 'hull', not for 'sort'"),
        (["evaluate", "sort", "--lengths", "5-"], "expected such as 5-10,20"),
        (["evaluate", "sort", "--lengths", "9-5"], "expected such as 5-10,20"),
        (["evaluate", "sort", "--count", "0"], "at least 1"),
        (["train", "fold"], "'fold' is not one of 'sort', 'hull'"),
        (["train", "sort", "--output", "pointer-hull"], "problem was hull, now sort"),
        (["train", "hull", "--ascending", "--output", "new"], "ascending is for sorting"),
    ],
)
def test_mistakes_are_one_line(call, here, words, said):
    ended = call("pointer", *words)
    assert (ended.status, ended.text) == (2, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not (here / "new").exists()


def test_no_model_yet(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for problem in ("sort", "hull"):
        ended = call("pointer", problem, "1,2" if problem == "hull" else "1")
        assert ended.status == 2
        assert f"there is no model yet; `multihead pointer train {problem}` makes one" in ended.err


def test_evaluate_prints_the_table(call, here):
    ended = call("pointer", "evaluate", "hull", "--lengths", "5,7", "--count", "30", "--beam", "2")
    assert ended.text == f"{evaluate('hull', lengths=[5, 7], count=30, beam=2)}\n"
    assert ended.text.splitlines()[2].split() == ["length", *["exact", "area", "invalid"] * 2]
    greedy = call("pointer", "evaluate", "sort", "--count", "10", "--beam", "1")
    assert [line.split()[0] for line in greedy.text.splitlines()[3:]] == [*"234", "12*", "15*", "20*", "mean"]


def test_a_settings_file_is_as_good_as_flags(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text('width = 8\nupdates = 2\nencoder = "bidirectional"\n', encoding="utf-8")
    ended = call("pointer", "train", "sort", "--config", "tiny.toml", "--batch", "4", "--threads", "1")
    assert (ended.status, ended.text) == (0, "")
    assert re.search(r"done: 2 updates; the best model, of update \d, gets .*% of the validation set", ended.err)
    flags = ["--width", 8, "--updates", 2, "--encoder", "bidirectional", "--batch", 4, "--threads", 1]
    assert call("pointer", "train", "sort", "--output", "flags", *flags).status == 0
    for name in ("config.json", "model.safetensors"):
        one, other = (tmp_path / folder / "best" / name for folder in ("pointer-sort", "flags"))
        assert one.read_bytes() == other.read_bytes()


def test_a_signal_saves_and_the_same_settings_go_on(tmp_path, numbers):
    """A separate process, stopped by a real signal."""
    settings = {**TINY, "updates": 2000, "largest": 3, "batch": 8, "log_every": 1}
    program = [sys.executable, "-m", "multihead", "pointer", "train", "sort", *numbers.flags(settings)]
    with processes.WarmPopen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if re.match(r" +3/2000", line):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    (step,) = re.findall(r"stopped after update (\d+); run the same command again to continue \(SIGTERM\)", rest)
    said = []
    with pytest.raises(Interrupted):
        train("sort", output=tmp_path / "pointer-sort", say=said.append, stop_signal=lambda: signal.SIGINT, **settings)
    assert said == [f"going on after update {step} of 2000"]
