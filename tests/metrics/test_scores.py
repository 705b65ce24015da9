"""Scores are sacreBLEU's own, with signatures that fit the language."""

from __future__ import annotations

import logging

import pytest
import sacrebleu

from multihead.errors import InputError
from multihead.metrics.scores import score

ENGLISH = ["A man rides a horse.", "Two dogs play in the snow, happily.", "The woman reads a book."]
GUESSES = ["A man rides a horse.", "Two dogs are playing in the snow.", "the woman reads book"]
CHINESE = ["一个男人骑着一匹马。", "两只狗在雪地里玩耍。", "那个女人在读一本书。"]
GUESSED_CHINESE = ["一个男人骑一匹马。", "两只狗在雪里玩耍。", "女人读一本书。"]


@pytest.mark.parametrize(
    ("text", "language"),
    [(ENGLISH, None), (ENGLISH, "en"), (ENGLISH, "zh"), (CHINESE, "zh"), (CHINESE, "ja"), (CHINESE, "th")],
)
def test_identical_text_scores_100(text: list[str], language: str | None) -> None:
    result = score(text, text, language)
    assert result.bleu == pytest.approx(100)
    assert result.chrf == pytest.approx(100)


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        (None, "13a"),
        ("de", "13a"),
        ("zh", "zh"),
        ("zh-TW", "zh"),
        ("ZH_cn", "zh"),
        ("ja", "char"),
        ("ko", "char"),
    ],
)
def test_scores_and_signatures_are_sacrebleus(language: str | None, tokenizer: str) -> None:
    hypotheses, references = GUESSES + GUESSED_CHINESE, ENGLISH + CHINESE
    result = score(hypotheses, references, language)
    bleu, chrf = sacrebleu.BLEU(tokenize=tokenizer), sacrebleu.CHRF()
    assert result.bleu == bleu.corpus_score(hypotheses, [references]).score
    assert result.chrf == chrf.corpus_score(hypotheses, [references]).score
    assert result.bleu_signature == str(bleu.get_signature())
    assert result.chrf_signature == str(chrf.get_signature())
    assert f"|tok:{tokenizer}|" in result.bleu_signature
    assert "case:mixed" in result.bleu_signature


def test_chinese_is_not_scored_by_whole_sentences() -> None:
    assert score(GUESSED_CHINESE, CHINESE).bleu < 5 < 30 < score(GUESSED_CHINESE, CHINESE, "zh").bleu


def test_case_counts() -> None:
    assert score([line.lower() for line in ENGLISH], ENGLISH).bleu < 95


def test_an_empty_translation_scores_less_and_is_no_error() -> None:
    assert 0 < score([*ENGLISH[:2], ""], ENGLISH).bleu < 95
    assert score(["", "", ""], ENGLISH).bleu == 0


def test_text_that_looks_tokenised_makes_no_noise(logged: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["It ends here ."] * 150
    logging.getLogger().setLevel(logging.DEBUG)
    score(lines, lines, "ja")
    assert not logged
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (ENGLISH, ENGLISH[:2], "3 translations but 2 references"),
        ([], [], "no translations to score"),
        ("one", "one", "got one string"),
    ],
)
def test_what_cannot_be_scored(hypotheses: list[str], references: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(hypotheses, references)


def test_both_forms_hold_scores_and_signatures() -> None:
    result = score(GUESSES, ENGLISH)
    assert result.as_dict() == vars(result)
    bleu, chrf = str(result).split("\n")
    assert bleu.split() == ["BLEU", f"{result.bleu:.2f}", result.bleu_signature]
    assert chrf.split() == ["chrF", f"{result.chrf:.2f}", result.chrf_signature]
