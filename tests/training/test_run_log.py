"""The three logs of a run: determinism, and no incomplete lines."""

import json

import pytest

from multihead.errors import SurroundingsError
from multihead.training.progress import RunLog, format_duration


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_is_said_is_printed_and_kept(tmp_path):
    printed = []
    log = RunLog(tmp_path, printed.append)
    log.say("eins")
    log.say("zwei ▁ü")
    assert printed == ["eins", "zwei ▁ü"]
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "eins\nzwei ▁ü\n"


def test_timings_stand_apart(tmp_path):
    RunLog(tmp_path, print).record("train", 3, {"loss": 0.1}, {"seconds": 1.5})
    assert lines(tmp_path / "log.jsonl") == [{"kind": "train", "step": 3, "loss": 0.1}]
    (timing,) = lines(tmp_path / "timing.jsonl")
    assert timing.pop("elapsed") >= 0
    assert timing == {"kind": "train", "step": 3, "seconds": 1.5}


def filled(folder):
    log = RunLog(folder, lambda _: None)
    for step in (5, 10, 10, 15):
        log.record("train", step, {"text": 'a\nb\u2028c"}'}, {})
    return log


@pytest.mark.parametrize(("step", "left"), [(0, []), (9, [5]), (10, [5, 10, 10]), (99, [5, 10, 10, 15])])
def test_rewinding_forgets_what_came_later(tmp_path, step, left):
    filled(tmp_path).rewind(step)
    for name in ("log.jsonl", "timing.jsonl"):
        kept = (tmp_path / name).read_text(encoding="utf-8").split("\n")
        assert [json.loads(line)["step"] for line in kept[:-1]] == left
        assert kept[-1] == ""


def test_rewinding_to_where_it_stands_changes_nothing(tmp_path):
    log = filled(tmp_path)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()}
    log.rewind(15)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_a_record_that_was_cut_anywhere_is_forgotten(tmp_path):
    """The disk was full in the middle of a line, after a closing brace."""
    RunLog(tmp_path, print).record("validation", 5, {"sample": {"source": "x"}}, {})
    whole = (tmp_path / "log.jsonl").read_bytes()
    second = whole.replace(b'"step": 5', b'"step": 6').replace(b"x", "ü".encode())
    for cut in range(len(second)):
        (tmp_path / "log.jsonl").write_bytes(whole + second[:cut])
        RunLog(tmp_path, print).rewind(100)
        kept = (tmp_path / "log.jsonl").read_bytes()
        assert kept == (whole if cut < len(second) - 1 else whole + second)


def test_rewinding_without_a_log_is_nothing(tmp_path):
    RunLog(tmp_path, print).rewind(3)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said(tmp_path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(SurroundingsError, match=r"log\.txt: cannot be written: no space left"):
        RunLog(tmp_path, lambda _: None).say("something")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (200, "3:20"), (3600, "1:00:00"), (3727, "1:02:07")],
)
def test_durations(seconds, text):
    assert format_duration(float(seconds)) == text
