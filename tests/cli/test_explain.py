"""``multihead explain`` writes the results of the call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator, explain
from multihead.inspection.explanation import explanation_text

SENTENCE = "eins zwei drei"


@pytest.fixture
def called(call: Any, trained: Path) -> Callable[..., Any]:
    return lambda *words: call("explain", trained, SENTENCE, *words)


def test_page_and_picture_are_those_of_the_call(called: Any, trained: Path, tmp_path: Path) -> None:
    ended = called("-o", tmp_path / "page.html", "--png", tmp_path / "words.png", "--beam", 2, "--alternatives", 2)
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    explained = explain(Translator.load(trained).searching(beam=2), SENTENCE, alternatives=2)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explained.page()
    explained.picture(tmp_path / "expected.png")
    assert (tmp_path / "words.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


def test_numbers_and_a_table(called: Any, trained: Path) -> None:
    flags = ("--translation", "one two", "--layer", 1, "--n-best", 2)
    content = explain(trained, SENTENCE, "one two", n_best=2).content()
    assert json.loads(called("--json", *flags).text) == content
    assert called(*flags).text == explanation_text(content) + "\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-o", "no/page.html"), "no/page.html: there is no folder no"),
        (("-o", "."), ".: is a folder; give the name of a new file"),
        (("--png", "page.html"), "a picture is PNG, SVG or PDF"),
        (("-o", __file__), "exists already; nothing was overwritten"),
        (("-o", "no.svg", "--png", "./no.svg"), "no.svg: given as both page and picture"),
        (("--beam", "0"), "beam"),
        (("--layer", "9"), "layer: expected 1 to 1, got 9"),
        (("--precision", "int8"), "precision int8 cannot be explained"),
        (("--n-best", "0"), "--n-best: expected at least 1, got 0"),
        (("--patience", "2"), "--patience needs --stopping patience"),
    ],
    ids=["folder", "itself", "ending", "there", "twice", "beam", "layer", "precision", "n-best", "patience"],
)
def test_what_cannot_be_explained(called: Any, flags: tuple[str, ...], said: str) -> None:
    before = Path(__file__).read_bytes()
    ended = called(*flags)
    assert ended.status != 0
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert Path(__file__).read_bytes() == before
