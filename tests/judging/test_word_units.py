"""The units of token sequences, in every script."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from multihead import Translator
from multihead.judging.align import WordUnits, split_units
from multihead.text.foreign import SpecialIds
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import ends_word, starts_with_space
from multihead.text.word_pieces import WordPieceTokenizer

TEXTS = ["eins zwei", "  drei\u3000vier\tfünf ", "Ωmega \u2581x ß!", "", " ", "🎉 null", "sechs,sieben"]


@pytest.fixture(scope="module")
def tokenizer(trained: Path) -> Tokenizer:
    return Translator.load(trained).bundle.target_tokenizer


def check(units: WordUnits, tokens: int) -> None:
    """Every unit consists of contiguous tokens, and no token has bytes of two units."""
    assert units.matrix.shape == (tokens, len(units.texts))
    assert bool((units.matrix.sum(1) <= 1).all())
    spans = [[*units.span(unit)] for unit in range(len(units.texts))]
    assert [token for span in spans for token in span] == sorted({token for span in spans for token in span})
    assert [units.matrix[:, unit].nonzero().flatten().tolist() for unit in range(len(spans))] == spans


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_words_are_what_white_space_separates(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    units = split_units(tokenizer.entries, ids)
    check(units, len(ids))
    assert units.texts == text.split()
    assert units.spaced == [True] * len(units.texts)


@pytest.mark.parametrize("text", ["你好，世界。", "東京は good です", "BMW汽车 fährt", "สวัสดี"])
def test_without_white_space_a_unit_is_a_token(tokenizer: Tokenizer, text: str) -> None:
    """Each unit is a whole character, although this vocabulary spells each in bytes."""
    ids = tokenizer.encode(text)
    units = split_units(tokenizer.entries, ids)
    check(units, len(ids))
    assert "".join(units.texts) == "".join(text.split())
    assert "\ufffd" not in "".join(units.texts)
    assert all(len(one) == 1 for one, spaced in zip(units.texts, units.spaced, strict=True) if not spaced and one > "z")
    assert [one for one, spaced in zip(units.texts, units.spaced, strict=True) if spaced] == [
        word for word in text.split() if word.isascii() or "ä" in word
    ]


def test_a_search_may_spell_anything(tokenizer: Tokenizer) -> None:
    """Without the initial mark, with cut characters, with spaces only: units are the words of the decoded text."""
    draw, never = random.Random(3), set(tokenizer.forbidden_in_output) | {tokenizer.eos_id}
    allowed = [index for index in range(len(tokenizer)) if index not in never]
    for length in range(40):
        ids = [draw.choice(allowed) for _ in range(length)]
        units = split_units(tokenizer.entries, ids)
        check(units, length)
        text = tokenizer.decode(ids)
        if all(units.spaced):
            assert units.texts == text.split()


def test_a_token_with_the_space_after_a_word_belongs_to_that_word() -> None:
    """As in a list of pieces without leading spaces; the last piece here does not mark the end of its word."""
    pieces = ["<blank>", "<unk>", "<s>", "</s>", "low@@", "er", "new", "你@@", "好"]
    tokenizer = WordPieceTokenizer(pieces, SpecialIds(pad=0, unk=1, bos=2, eos=3))
    ids = tokenizer.encode("new low@@ er 你@@ 好 low@@")
    units = split_units(tokenizer.entries, ids)
    check(units, len(ids))
    assert units.texts == ["new", "lower", "你", "好", "low"]
    assert [[*units.span(unit)] for unit in range(5)] == [[0], [1, 2], [3], [4], [5]]
    assert units.spaced == [True, True, False, False, True]
    assert units.ended == [True, True, False, True, False]


def test_what_begins_and_ends_a_word() -> None:
    entries = [b" a", b"a", b"a b", b"", b"\t", "\u3000x".encode(), "\u00e4".encode()]
    assert [*starts_with_space(entries)] == [True, False, False, False, True, True, False]
    ends = [b"a ", ".\u3000".encode(), b" a\t", b" a", b"", b" ", "\u3000".encode(), b"\x80", "\u3000".encode()[1:]]
    assert [ends_word(entry) for entry in ends] == [True, True, True, *[False] * 6]
