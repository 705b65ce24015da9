"""``multihead doctor``: text output, JSON output, and exit status."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from multihead.diagnosis.doctor import doctor
from multihead.diagnosis.findings import EXIT_STATUS, FINDING_KINDS, Diagnosis, make_finding


def test_a_run_is_looked_at_where_it_stands(call: Any, trained: Path, numbers: Any) -> None:
    """The command prints the findings of the call, on the files, tokenizers and model of the run."""
    before = numbers.contents(trained)
    ended = call("doctor", trained, "--quick", "--json")
    content = json.loads(ended.text)
    expected = doctor(trained, quick=True)
    assert content["findings"] == json.loads(json.dumps([asdict(one) for one in expected.ordered]))
    assert content["looked"] == expected.looked
    assert ended.status == content["status"] == expected.status
    assert any(str(numbers.train["source"]) in line for line in content["looked"])
    assert content["figures"]["trained_loss"] < 1 < content["figures"]["first_loss"]
    assert {one["code"] for one in content["findings"]} <= {"duplicates", "many-targets", *LEAKS}
    assert numbers.contents(trained) == before
    text = call("doctor", trained, "--quick")
    assert (text.status, text.text) == (ended.status, f"{expected}\n")


def test_the_json_is_as_documented() -> None:
    """Programs rely on these names; the most severe finding comes first; infinite numbers become null."""
    findings = [
        make_finding("many-targets", "x", 1, 9, "a", [4]),
        make_finding("nul", "y", 8, 9, "b"),
        make_finding("nul", "z", 1, 9, "c"),
    ]
    content = Diagnosis(findings, ["text: x"], {"learned_loss": math.inf, "first_loss": 2.5}).as_dict()
    content = json.loads(json.dumps(content, allow_nan=False))
    assert list(content) == ["worst", "status", "findings", "looked", "figures", "commands"]
    assert (content["worst"], content["status"], content["looked"]) == ("error", 4, ["text: x"])
    assert content["commands"] == []
    assert content["figures"] == {"learned_loss": None, "first_loss": 2.5}
    assert [one["what"] for one in content["findings"]] == ["b", "c", "a"]
    assert content["findings"][2] == {
        "severity": "note",
        "code": "many-targets",
        "where": "x",
        "count": 1,
        "total": 9,
        "what": "a",
        "remedy": FINDING_KINDS["many-targets"].remedy,
        "lines": [4],
    }


def test_every_code_is_explained_on_the_page() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    explained = text.split("## The checks")[1].split("## JSON output")[0]
    assert [code for code in FINDING_KINDS if f"`{code}`" not in explained] == []


LEAKS = ("leaked-pairs", "leaked-variants", "leaked-sources")


@pytest.mark.parametrize(
    ("severity", "status"),
    [(None, 0), ("note", 0), ("warning", 3), ("error", 4)],
    ids=["clean", "note", "warning", "error"],
)
def test_the_exit_status_is_that_of_the_worst(severity: Any, status: int) -> None:
    shares = {"note": 0, "warning": 0.01, "error": 0.5}
    worst = list(shares).index(severity) + 1 if severity else 0
    findings = [
        make_finding("equal-sides", "x", round(1000 * share), 1000, "") for share in list(shares.values())[:worst]
    ]
    diagnosis = Diagnosis(findings)
    assert (diagnosis.worst, diagnosis.status, EXIT_STATUS[severity]) == (severity, status, status)


def test_faults_of_the_caller_are_exit_status_2(call: Any, tmp_path: Path, numbers: Any) -> None:
    source = numbers.train["source"]
    for words in (
        (),
        ("--source", source),
        (tmp_path / "none",),
        ("--source", source, "--target", tmp_path / "none"),
        ("--source", source, "--target", numbers.train["target"], "--preset", "huge"),
        ("--source", source, "--target", numbers.train["target"], "--threads", 0),
    ):
        ended = call("doctor", *words)
        assert (ended.status, ended.out) == (2, b"")
        assert ended.err.startswith("multihead: ")


def test_the_text_is_searched_for_a_test_set(call: Any, tmp_path: Path, numbers: Any) -> None:
    numbers.write(tmp_path, "test", [("eine Zeile des Tests mit vielen Wörtern", "a line of the test with many words")])
    numbers.write(tmp_path, "train", [*numbers.pairs(40, 2), ("eine Zeile des Tests mit vielen Wörtern", "a line")])
    words = ("doctor", "--source", tmp_path / "train.de", "--target", tmp_path / "train.en", "--vocab-size", 300)
    test = ("--test-source", tmp_path / "test.de", "--test-target", tmp_path / "test.en")
    for more, leaks in ((test, {"leaked-sources"}), ((), set())):
        content = json.loads(call(*words, "--preset", "tiny", "--quick", "--json", *more).text)
        assert {one["code"] for one in content["findings"]} & {*LEAKS} == leaks


def test_a_warning_is_exit_status_3(call: Any, tmp_path: Path, numbers: Any) -> None:
    source, target = (path.read_bytes().split(b"\n")[:-1] for path in numbers.train.values())
    source[6], target[6] = b"\xff", target[6]
    files = numbers.write(tmp_path, "some", [])
    files["source"].write_bytes(b"\n".join(source) + b"\n")
    files["target"].write_bytes(b"\n".join(target) + b"\n")
    flags = numbers.flags({**files, "preset": "tiny", "vocab_size": 320})
    ended = call("doctor", *flags, "--quick")
    assert ended.status == 3
    assert f"{files['source']}\n" in ended.text
    assert "not-utf8: 1 of 600 lines: not valid UTF-8, first byte 0xff at column 1 (line 7)" in ended.text
    assert "iconv" in ended.text
