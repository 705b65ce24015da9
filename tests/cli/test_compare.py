"""``multihead compare`` prints the result of the call; bad input fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator, compare

pytestmark = pytest.mark.usefixtures("one_thread")

FEW: dict[str, Any] = {"resamples": 60, "trials": 200}


@pytest.fixture
def upper(numbers: Any, tmp_path: Path) -> Path:
    """The references as translations of two systems: capitalized, and tokenized."""
    path: Path = tmp_path / "upper.en"
    lines = numbers.test["target"].read_text(encoding="utf-8").split("\n")[:-1]
    path.write_text("".join(line.capitalize() + " .\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def called(call: Any, numbers: Any) -> Callable[..., Any]:
    usual = ("--source", numbers.test["source"], "--target", numbers.test["target"], "--resamples", 60, "--threads", 1)
    return lambda *words: call("compare", *usual, *(() if "bootstrap" in words else ("--trials", 200)), *words)


def test_what_is_printed_is_what_the_call_gives(called: Any, numbers: Any, upper: Path, trained: Path) -> None:
    wanted = compare(
        trained,
        upper,
        **numbers.test,
        show=2,
        load=lambda folder: Translator.load(folder).searching(beam=1, no_repeat=1),
        **FEW,
    )
    flags = (trained, upper, "--beam", 1, "--no-repeat", 1, "--show", 2)
    ended = called(*flags)
    assert (ended.status, ended.text) == (0, str(wanted) + "\n")
    assert "the references look lower-cased: 20 of 20" in ended.err
    assert f"{upper}: the translations look tokenized: 20 of 20" in ended.err
    assert json.loads(called(*flags, "--json").text) == json.loads(json.dumps(wanted.as_dict()))


def test_flags_of_the_scores_reach_them(called: Any, numbers: Any, upper: Path) -> None:
    files = (upper, numbers.test["target"])
    for flags, wishes in (
        (("--test", "bootstrap", "--language", "zh"), {"test": "bootstrap", "language": "zh"}),
        (("--tokenize", "char", "--show", 0), {"tokenize": "char", "show": 0}),
    ):
        ended = called(*files, *flags)
        assert ended.text == str(compare(*files, **numbers.test, **FEW, **wishes)) + "\n"


def test_what_a_length_limit_cuts_is_named(called: Any, numbers: Any, upper: Path, trained: Path) -> None:
    ended = called(upper, trained, "--beam", 1, "--max-length", 2, "--show", 0)
    translator = Translator.load(trained).searching(beam=1, max_length=2)
    cut = compare(upper, translator, **numbers.test, **FEW).systems[1].cut
    named = ", ".join(map(str, cut))
    assert cut
    assert ended.err.splitlines()[-1] == f"{trained}: the length limit was reached in lines {named}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "two or more systems to compare, got 1"),
        (("{upper}", "--trials", 3), "trials: expected at least 40"),
        (("{upper}", "--resamples", 10**9), "resamples: expected at most"),
        (("{upper}", "--test", "guess"), "'guess' is not one of"),
        (("{upper}", "--test", "bootstrap", "--trials", 200), "--trials does nothing with --test bootstrap"),
        (("{upper}", "--show", -1), "show: expected 0 sentences or more"),
        (("{upper}", "--batch-tokens", 0), "--batch-tokens: expected at least 1"),
        (("no.en",), "no.en: there is no such file"),
        (("{upper}", "--beam", 4, "--groups", 3), "groups must divide the beam"),
        (("{upper}", "--beam", 4), "--beam is for models, and all SYSTEMS are files"),
        (("{upper}", "--target-language", "en"), "--target-language is for models, and all SYSTEMS are files"),
        (("no.en", "--beam", 4), "no.en: there is no such file"),
    ],
)
def test_what_cannot_be_compared(called: Any, upper: Path, words: tuple[Any, ...], said: str) -> None:
    ended = called(upper, *(upper if word == "{upper}" else word for word in words))
    assert ended.status != 0
    assert (ended.out, ended.err.count("\n")) == (b"", 1)
    assert said in ended.err
