"""The rule for the ends of sentences, run by MiniSBD as Argos Translate runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from multihead.interop.formats.sentence_ends import sentence_model

pytest.importorskip("onnx")
minisbd = pytest.importorskip("minisbd")

TEXTS = [
    ["Ein Hund rennt.", "Zwei Katzen schlafen!", "Was?", "Ja."],
    ["Am 3. Mai kam z. B. Herr J. Smith.", "Er ging."],
    ["Er sagte „Geh!“", "Dann ging er."],
    ["“Go.”", "“Why?”", "(She left.)"],
    ["Only one sentence without an end"],
    ["siehe www.example.de. und 2.5 mal"],
    ["a"],
]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    file = tmp_path_factory.mktemp("minisbd") / "de.onnx"
    file.write_bytes(sentence_model("de"))
    found: Callable[[str], list[str]] = minisbd.SBDetect(str(file), use_gpu=False).sentences
    return found


@pytest.mark.parametrize("sentences", TEXTS)
def test_texts_are_cut_into_their_sentences(split: Callable[[str], list[str]], sentences: list[str]) -> None:
    assert split(" ".join(sentences)) == sentences


def test_wide_marks_end_sentences_without_a_space(split: Callable[[str], list[str]]) -> None:
    assert split("你好。再见！是吗？好") == ["你好。", "再见！", "是吗？", "好"]


def test_a_long_text_is_cut_like_its_parts(split: Callable[[str], list[str]]) -> None:
    sentences = [sentence for text in TEXTS[:3] for sentence in text] * 40
    assert split(" ".join(sentences)) == sentences


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    assert sentence_model("de") == sentence_model("de") != sentence_model("en")
