"""The commands ``prepare``, ``train --data``, ``--from-model`` and ``average``: used together, killed, and misused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import processes
import pytest

from multihead import Translator

if TYPE_CHECKING:
    from tests.conftest import Numbers


PATIENCE = 120.0


@pytest.fixture(scope="module")
def short(numbers: Numbers) -> list[str]:
    settings = {name: value for name, value in numbers.settings.items() if name != "vocab_size"}
    return numbers.flags({**settings, "updates": 4, "validate_every": 2, "keep_checkpoints": 3})


@pytest.fixture(scope="module")
def words(numbers: Numbers) -> list[str]:
    return [*numbers.flags(numbers.train), "--vocab-size", "320", "--held-out", "20"]


# ------------------------------------------------------------------------------------------ the whole way


def test_prepare_train_average_fine_tune(call, numbers, words, short, tmp_path):
    """One prepared text, two runs on it, their average, and a run that starts from it."""
    ended = call("prepare", *words, "--output", tmp_path / "ready")
    assert (ended.status, ended.text) == (0, "")
    assert ended.err.splitlines()[-1] == (
        f"580 training pairs are prepared: multihead train --data {tmp_path / 'ready'} --output RUN"
    )
    for seed in (1, 2):
        run = ("--data", tmp_path / "ready", "--output", tmp_path / f"run{seed}", "--seed", seed, *short)
        assert call("train", *run).status == 0
    ended = call("average", tmp_path / "run1", tmp_path / "run2", "--output", tmp_path / "mean")
    assert ended.status == 0
    assert ended.err == f"{tmp_path / 'mean'}: the mean of {tmp_path / 'run1'}; {tmp_path / 'run2'}\n"
    assert (
        call("average", tmp_path / "run1", "--last", 2, "--weights", "average", "--output", tmp_path / "last").status
        == 0
    )
    for model in ("mean", "last"):
        assert call("translate", tmp_path / model, given=b"eins\n\nzwei\n").out.count(b"\n") == 3
    tune = ("--from-model", tmp_path / "mean", "--output", tmp_path / "tuned", "--updates", 2, "--threads", 1)
    ended = call("train", *tune, *numbers.flags(numbers.test))
    assert ended.status == 0
    assert "validation at 0" in ended.err
    assert Translator.load(tmp_path / "tuned").translate(["eins"])


def test_corpora_are_repeated_flags(call, numbers, short, tmp_path):
    corpora = []
    for name, options in (("my words", "weight=0.5"), ("more", "")):
        files = numbers.write(tmp_path, name, numbers.pairs(40, len(name)))
        corpora += ["--corpus", " ".join([*(f"'{path}'" for path in files.values()), options])]
    ended = call("train", *corpora, *short, "--vocab-size", 300, "--output", tmp_path / "run")
    assert ended.status == 0
    assert f"{tmp_path / 'my words.de'} + {tmp_path / 'my words.en'}: 40 pairs, each 0.5 times an epoch" in ended.err
    config = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert [corpus["weight"] for corpus in config["data"]["corpora"]] == [0.5, 1.0]


def test_both_commands_take_the_same_file(call, numbers, short, tmp_path):
    toml = [f'{side} = "{path}"\n' for side, path in numbers.train.items()]
    settings = {"vocab_size": 320, "held_out": 20, "width": 16, "heads": 2, "inner": 16, "updates": 2, "threads": 1}
    settings |= {"encoder_layers": 1, "decoder_layers": 1}
    (tmp_path / "a.toml").write_text("".join([*toml, *(f"{k} = {v}\n" for k, v in settings.items())]), encoding="utf-8")
    assert call("prepare", "--config", tmp_path / "a.toml", "--output", tmp_path / "ready").status == 0
    words = ("--config", tmp_path / "a.toml", "--data", tmp_path / "ready", "--output", tmp_path / "run")
    assert call("train", *words).status == 0
    assert not (tmp_path / "run" / "data").exists()


# ------------------------------------------------------------------------------------------ really killed


def test_killed_while_preparing_the_same_command_makes_it_anew(call, numbers, words, tmp_path):
    output = tmp_path / "ready"
    command = [sys.executable, "-m", "multihead", "prepare", *words, "--output", str(output)]
    process, deadline = processes.WarmPopen(command, stderr=subprocess.PIPE), time.monotonic() + PATIENCE
    while not (output / "data" / "source.tokenizer.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.kill()
    assert b"Traceback" not in process.communicate(timeout=PATIENCE)[1]
    assert call("prepare", *words, "--output", output).status == 0
    assert call("prepare", *words, "--output", tmp_path / "other").status == 0
    assert numbers.contents(output) == numbers.contents(tmp_path / "other")


# ------------------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare"], ["output missing", "--output FOLDER"]),
        (["prepare", "--output", "new"], ["source and target missing"]),
        (["prepare", "--width", "3"], ["--width"]),
        (["prepare", "--corpus", "a b c", "--output", "new"], ["corpus.0", "FILE [FILE] [weight=NUMBER]"]),
        (["prepare", "--corpus", "a b weight=x", "--output", "new"], ["corpus.0.weight", "valid number"]),
        (["prepare", "--corpus", "a b", "--source", "a", "--output", "new"], ["corpus and source exclude each other"]),
        (["prepare", "--symbols", "<a> <b>", "--output", "new"], ["symbols"]),
        (["train", "--data", "nowhere", "--output", "new"], ["nowhere", "no such folder", "multihead prepare"]),
        (["train", "--from-model", "nowhere", "--output", "new"], ["nowhere", "no such folder"]),
        (["average", "--output", "new"], ["FOLDER"]),
        (["average", "nowhere"], ["--output"]),
        (["average", "nowhere", "--output", "new"], ["nowhere", "no such folder"]),
        (["average", "a", "b", "--weights", "best", "--output", "new"], ["--weights", "trained"]),
    ],
)
def test_a_wrong_command_line(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    ended = call(*words)
    assert ended.status == 2
    (line,) = ended.err.splitlines()
    assert line.startswith("multihead: ")
    for word in said:
        assert word in line
    assert list(tmp_path.iterdir()) == []


def test_folders_of_the_wrong_kind(call, numbers, words, trained, tmp_path):
    before = numbers.contents(trained)
    ended = call("prepare", *words, "--output", trained)
    assert ended.status == 2
    assert "holds a run, not what `multihead prepare` wrote" in ended.err
    ended = call("train", "--data", trained, "--output", tmp_path / "run")
    assert ended.status == 2
    assert "nothing was prepared here to the end" in ended.err
    ended = call("average", trained, "--last", 9, "--output", tmp_path / "mean")
    assert ended.status == 2
    assert "9 checkpoints asked for, but those of updates 250, 125 are there" in ended.err
    assert numbers.contents(trained) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["prepare", "average"])
def test_help(call, command):
    ended = call(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert ended.text.startswith(f"Usage: multihead {command}")
