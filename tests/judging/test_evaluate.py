"""Evaluations have the numbers of the scores, for every search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator, evaluate
from multihead.errors import ConfigurationError, DataError, SurroundingsError
from multihead.judging import evaluate as evaluation
from multihead.metrics.scores import score
from multihead.metrics.significance import score_systems

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def few(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Six pairs only, as searches that are not compiled are slow."""
    return numbers.write(tmp_path_factory.mktemp("few"), "few", numbers.pairs(6, 3))


@pytest.fixture(scope="module")
def references(numbers: Any) -> list[str]:
    return numbers.test["target"].read_text(encoding="utf-8").split("\n")[:-1]


def test_numbers_are_those_of_the_scores(trained: Path, numbers: Any, references: list[str]) -> None:
    result = evaluate(trained, **numbers.test, beam=2, resamples=60)
    assert result.hypotheses == Translator.load(trained).translate(
        numbers.test["source"].read_text(encoding="utf-8").split("\n")[:-1], beam=2
    )
    assert result.scores == score(result.hypotheses, references, "en")
    assert result.measured == score_systems([result.hypotheses], references, "en", resamples=60)
    assert (result.language, result.search.beam, result.sentences) == ("en", 2, 20)
    assert [remark.kind for remark in result.remarks] == ["lower-cased"]  # "one two three"
    content = json.loads(json.dumps(result.as_dict()))
    assert content["search"] == result.search.model_dump(mode="json")
    assert [one["score"] for one in content["measures"]] == [one.score for one in result.measured.systems[0]]
    assert [line.split()[0] for line in str(result).split("\n")] == ["BLEU", "chrF2", "TER", "95%"]


def test_translations_are_handed_over_before_they_are_scored(
    trained: Path, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a failure in scoring would lose them, and translating takes longer."""

    def fails(*_: Any, **__: Any) -> Any:
        raise SurroundingsError("no memory")

    got: list[str] = []
    monkeypatch.setattr(evaluation, "score_systems", fails)
    with pytest.raises(SurroundingsError):
        evaluate(trained, **numbers.test, translated=got.extend)
    assert len(got) == 20


@pytest.mark.usefixtures("fewer_trials")
def test_a_second_system_is_tested_in_pairs(trained: Path, numbers: Any, references: list[str], tmp_path: Path) -> None:
    """A model and the file of its translations give the same result; the model's scores do not change."""
    alone = evaluate(trained, **numbers.test, beam=2, resamples=60)
    worse = [" ".join(reversed(line.split())) for line in alone.hypotheses]
    (path := tmp_path / "worse.en").write_text("".join(line + "\n" for line in worse), encoding="utf-8")
    found = evaluate(trained, **numbers.test, beam=2, resamples=60, against=path)
    paired = score_systems([worse, alone.hypotheses], references, "en", resamples=60)
    assert found.against is not None
    assert (found.against.measures, found.measured.systems[0]) == paired.systems
    assert [replace(one, p=None) for one in found.measured.systems[0]] == list(alone.measured.systems[0])
    assert (found.hypotheses, found.against.hypotheses) == (alone.hypotheses, worse)
    content = json.loads(json.dumps(found.as_dict()))
    assert [one["p"] for one in content["measures"]] == [one.p for one in paired.systems[1]]
    assert content["against"]["name"] == str(path)
    assert (content["against"]["test"], content["against"]["trials"]) == ("randomization", 1_000)
    assert "against" not in alone.as_dict()
    rows = [line.split() for line in str(found).split("\n")]
    both = str(path), str(trained)
    assert [row[0] for row in rows] == ["BLEU", *both, "chrF2", *both, "TER", *both, "95%"]
    itself = evaluate(trained, **numbers.test, beam=2, resamples=60, against=Translator.load(trained))
    assert [one.p for one in itself.measured.systems[0]] == [1.0] * 3


def test_a_second_system_with_other_lines_is_refused_before_anything_is_translated(
    numbers: Any, tmp_path: Path
) -> None:
    (path := tmp_path / "short.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(DataError, match="1 line"):
        evaluate(tmp_path / "no model at all", **numbers.test, against=path)


def test_a_second_system_that_is_not_text_is_refused_before_anything_is_translated(
    numbers: Any, tmp_path: Path
) -> None:
    sides = numbers.write(tmp_path, "test", numbers.pairs(200, 93))
    theirs = tmp_path / "theirs.en"
    theirs.write_bytes(b"one\n" * 149 + b"f\xfcnf\n" + b"one\n" * 50)
    with pytest.raises(DataError, match=r"theirs\.en:150: not valid UTF-8"):
        evaluate(tmp_path / "no model at all", **sides, against=theirs)


def test_a_language_or_tokenizer_that_is_named_decides(trained: Path, numbers: Any) -> None:
    translator = Translator.load(trained)
    zh = evaluate(translator, **numbers.test, language="zh", resamples=40).measured.systems[0]
    assert "|tok:zh|" in zh[0].signature
    assert "|asian:yes|" in zh[2].signature
    other = evaluate(translator, **numbers.test, tokenize="char", resamples=40)
    assert "|tok:char|" in other.scores.bleu_signature


def test_what_cannot_be_measured_is_refused_before_anything_is_translated(numbers: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="resamples: expected at least 40, got 3"):
        evaluate(tmp_path / "no model at all", **numbers.test, resamples=3)


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ((), {}),
        (("--beam", 1, "--max-length", 4), {"beam": 1, "max_length": 4}),
        (("--alpha", 0.2, "--length-penalty", "wu", "--min-length", 7), {"alpha": 0.2, "length_penalty": "wu"}),
        (("--without", "one", "--without", "two"), {"without": ["one", "two"]}),
        (("--no-repeat", 1), {"no_repeat": 1}),
        (("--length-factor", 0.1, "--length-margin", 2), {"length_factor": 0.1, "length_margin": 2}),
        (("--beam", 4, "--groups", 2, "--diversity", 9), {"beam": 4, "groups": 2, "diversity": 9.0}),
        (("--stopping", "patience", "--patience", 0.3), {"stopping": "patience", "patience": 0.3}),
    ],
)
def test_a_flag_is_the_setting_of_that_name(
    call: Any, trained: Path, few: dict[str, Path], tmp_path: Path, flags: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    settings |= {"min_length": 7} if "--min-length" in flags else {}
    files = ("--source", few["source"], "--target", few["target"], "--save", tmp_path / "saved")
    ended = call("evaluate", trained, *files, "--resamples", 40, "--json", "--threads", 1, *flags)
    assert ended.status == 0
    wanted = evaluate(Translator.load(trained).searching(**settings), **few, resamples=40)
    assert (tmp_path / "saved").read_text(encoding="utf-8").split("\n")[:-1] == wanted.hypotheses
    content = json.loads(ended.text)
    assert content.pop("model") == str(trained)
    assert {**content, "seconds": wanted.seconds} == json.loads(json.dumps(wanted.as_dict()))
    assert ("the length limit was reached in lines" in ended.err) == bool(wanted.cut)
    assert "the references look lower-cased: 6 of 6 lines" in ended.err


def test_the_command_for_people(call: Any, trained: Path, numbers: Any) -> None:
    files = ("--source", numbers.test["source"], "--target", numbers.test["target"])
    ended = call("evaluate", trained, *files, "--resamples", 50)
    wanted = evaluate(trained, **numbers.test, resamples=50)
    assert ended.text.startswith(str(wanted) + "\n20 sentences in ")
    assert "50 bootstrap resamples; seed 12345" in ended.text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--resamples", 2), "resamples: expected at least 40, got 2"),
        (("--tokenize", "words"), "'words' is not one of"),
        (("--batch-tokens", 0), "--batch-tokens: expected at least 1"),
        (("--beam", 4, "--groups", 3), "groups must divide the beam"),
        (("--patience", 0), "patience"),
    ],
)
def test_what_the_command_cannot_be_asked(
    call: Any, trained: Path, numbers: Any, flags: tuple[Any, ...], said: str
) -> None:
    ended = call("evaluate", trained, "--source", numbers.test["source"], "--target", numbers.test["target"], *flags)
    assert (ended.status, ended.out) == (2, b"")
    assert said in ended.err
