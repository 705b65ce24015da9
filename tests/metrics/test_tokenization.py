"""BLEU and TER use the tokenization of the language, and their signatures name it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import get_args

import click
import pytest
from sacrebleu.metrics.ter import TER

from multihead.cli.compare import compare
from multihead.cli.evaluate import evaluate
from multihead.errors import ConfigurationError
from multihead.metrics.scores import Tokenizer, all_metrics, bleu_metric, default_tokenizer, ter_metric

CHINESE = ("两只狗在雪地里玩耍。", "两只猫在雪地里玩耍。")
JAPANESE = ("犬が二匹雪の中で遊ぶ", "犬が三匹雪の中で遊ぶ")


@pytest.mark.parametrize(
    ("language", "pair", "words", "signature"),
    [
        ("zh", CHINESE, 10, "|norm:yes|punct:yes|asian:yes|"),
        ("ja", JAPANESE, 10, "|tok:char|"),
        ("ko-KR", ("말을 타다", "말을 탄다"), 4, "|tok:char|"),
        ("en", ("Two dogs run.", "Two cats run."), 3, "|tok:tercom|"),
        (None, ("Two dogs run.", "Two cats run."), 3, "|tok:tercom|"),
    ],
)
def test_one_edit_is_one_word_of_the_language(
    language: str | None, pair: tuple[str, str], words: int, signature: str
) -> None:
    metric = ter_metric(language)
    assert metric.corpus_score([pair[1]], [[pair[0]]]).score == pytest.approx(100 / words)
    assert signature in str(metric.get_signature())


def test_ter_by_character_is_that_of_spaced_text() -> None:
    spaced = [" ".join(text) for text in JAPANESE]
    found = ter_metric("ja").corpus_score([JAPANESE[1]], [[JAPANESE[0]]])
    assert found.score == TER(case_sensitive=True).corpus_score([spaced[1]], [[spaced[0]]]).score


def test_a_tokenizer_that_is_named_takes_the_place_of_the_languages() -> None:
    for name in ("13a", "intl", "zh", "char", "none"):
        metric = bleu_metric("ja", name)
        metric.corpus_score(["a"], [["a"]])
        assert f"|tok:{name}|" in str(metric.get_signature())
    assert list(all_metrics("zh")) == ["BLEU", "chrF", "TER"]
    assert default_tokenizer("zh_TW") == "zh"


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r'pip install "sacrebleu\[ja\]"'):
        bleu_metric("ja", "ja-mecab")


def test_the_commands_know_every_tokenizer() -> None:
    for command in (evaluate, compare):
        (flag,) = [one for one in command.params if one.name == "tokenize"]
        assert isinstance(flag.type, click.Choice)
        assert tuple(flag.type.choices) == get_args(Tokenizer)
