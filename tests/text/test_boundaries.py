"""Where sentences end: hard cases of 50 languages, any text rebuilt, linear time."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.text.abbreviations import ANYWHERE, NUMBERED, primary_code
from multihead.text.boundaries import sentence_starts
from multihead.text.sentences import split_at_marks, split_sentences

LINES = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
CASES = [tuple(line.split("\t")) for line in LINES if not line.startswith("#")]
LANGUAGES = st.sampled_from([None, "en", "de", "zh", "ja", "hi", "my", "hy", "el", "ar", "fr", "it", "und", "xx", ""])


def stripped(sentences: list[str]) -> list[str]:
    return [sentence.strip() for sentence in sentences]


@pytest.mark.parametrize(("language", "marked"), [case for case in CASES if not case[0].endswith("?")])
def test_hard_cases(language: str, marked: str) -> None:
    assert stripped(split_sentences(marked.replace("|", ""), language)) == stripped(marked.split("|"))


def test_the_cases_are_many_and_few_are_missed() -> None:
    right = {language for language, _ in CASES if not language.endswith("?")}
    assert len(right) >= 50
    assert sum(language.endswith("?") for language, _ in CASES) <= len(CASES) // 40
    # Without a language's rules, more boundaries are missed, but fewer than with marks alone.
    unknown, marks = (
        sum(stripped(list(split(marked.replace("|", "")))) == stripped(marked.split("|")) for _, marked in CASES)
        for split in (split_sentences, split_at_marks)
    )
    assert marks < unknown < len(CASES)


SOME = "ab ZÉé.,!?;。，我 \t\u2028\u3000\0'”“\"«»()[]{}1239\u0301\u200d👩-\n\r\x0b\x0c\x1c\x85\xa0…:•*#॥।؟።「」¿¡\ud800"
TEXT = st.one_of(st.text(alphabet=st.sampled_from(SOME), max_size=40), st.text(st.characters(), max_size=60))


@settings(max_examples=600)
@given(text=TEXT, language=LANGUAGES)
def test_sentences_rebuild_the_text_and_none_is_empty(text: str, language: str | None) -> None:
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    assert all(sentence.strip() for sentence in sentences) or sentences == [text] * bool(text)
    starts = sentence_starts(text, language)
    assert all(one < other for one, other in pairwise([0, *starts, len(text)])) or not starts
    assert all(not text[start].isspace() and text[:start].strip() for start in starts)


@settings(max_examples=200)
@given(text=st.text(alphabet=st.sampled_from("我他。！？，、你"), max_size=30), language=LANGUAGES)
def test_chinese_ends_at_its_marks_in_any_language(text: str, language: str | None) -> None:
    assert split_sentences(text, language) == [sentence for sentence in split_at_marks(text) if sentence]


UNITS = ["(“", "。」", "(A.", ".", "…a", "A.\u3000", "x. ((((", "• ", "cat. dog. ", "The cat sat. "]


@pytest.mark.parametrize("unit", UNITS)
def test_a_hundred_thousand_characters_take_linear_time(unit: str) -> None:
    """sentencex alone takes 12 s for some of these, and a minute for twice as many."""
    text = (unit * 100_000)[:100_000]
    start = time.process_time()
    assert "".join(split_sentences(text, "en")) == text
    assert time.process_time() - start < 5


def test_windows_do_not_show() -> None:
    """A long text is split like the paragraphs it is made of; a sentence longer than a window stays whole."""
    paragraph = [
        "Dr. Smith met Mr. Jones on Jan. 5. ",
        "“Why?” he asked. ",
        "They left (it was late.) at 3.5 p.m. or so. ",
    ]
    assert split_sentences("".join(paragraph), "en") == paragraph
    assert split_sentences("".join(paragraph * 300), "en") == paragraph * 300
    long = "One, " * 2_000 + "Dr. Who. "
    assert split_sentences(f"Short. {long}Short. {long * 2}End.", "en") == [
        "Short. ",
        long,
        "Short. ",
        long,
        long,
        "End.",
    ]


class PanicException(BaseException):
    """The error as the Rust binding raises it."""


def test_a_text_that_sentencex_fails_on_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(language: str, text: str) -> list[str]:
        raise PanicException

    monkeypatch.setattr(sentencex, "segment", panic)
    assert split_sentences("One. Two.", "en") == ["One. Two."]
    monkeypatch.setattr(sentencex, "segment", lambda language, text: ["One."])
    assert split_sentences("One. Two.", "en") == ["One. Two."]

    def interrupt(language: str, text: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sentencex, "segment", interrupt)
    with pytest.raises(KeyboardInterrupt):
        split_sentences("One. Two.", "en")


def test_no_sentence_begins_with_a_lower_case_letter() -> None:
    """Whatever precedes the first letter; Georgian has no upper case."""
    for text in ("Er kam usw. und ging.", "Er kam … – und ging.", "“No!” (he said) “no.”", "Où ? « ici »"):
        assert split_sentences(text, "de") == [text]
    assert len(split_sentences("სად ხარ? აქ ვარ!", "ka")) == 2


@pytest.mark.parametrize("code", ["de-AT", "DE", "de_DE", "deu_Latn", "deu", " de"])
def test_codes_of_all_kinds_name_a_language(code: str) -> None:
    text = "Das 19. Jahrhundert war lang. Es endete 1914."
    assert primary_code(code) == "de"
    assert sentence_starts(text, code) == sentence_starts(text, "de") == [30]


def test_no_language_has_no_code() -> None:
    assert [primary_code(code) for code in (None, "", "und", "mul")] == [""] * 4
    assert all(primary_code(code) == code for code in (*ANYWHERE, *NUMBERED))


def test_the_library_is_not_imported_before_a_text_is_split() -> None:
    code = "import sys, multihead.text.sentences; assert 'sentencex' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
