"""Learning a vocabulary: sizes, coverage, repeatability, and merges that must not be learned."""

from __future__ import annotations

import re

import pytest

from multihead.errors import ConfigurationError, InputError
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import FIRST_BYTE, FIRST_CHARACTER, MARK, Specials

PLAIN = [
    "A man in an orange hat, starring at something.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Two young, white males are outside near many bushes in 2016 and 2017.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche, um 12:30 Uhr.",
    "我们在北京吃饭。 我们在上海吃饭。",
    "می‌خواهم به خانه بروم",
] * 3


def test_learning_repeats_itself_and_takes_any_iterable() -> None:
    once = Tokenizer.learn(PLAIN, 450)
    again = Tokenizer.learn((line for line in PLAIN), 450)
    assert once.to_json() == again.to_json()
    assert once.digest == again.digest
    assert once.digest != Tokenizer.learn(PLAIN, 449).digest


def test_vocabulary_size_counts_everything() -> None:
    for size in (330, 400, 450):
        assert len(Tokenizer.learn(PLAIN, size)) == size
    assert len(Tokenizer.learn(PLAIN, 100_000)) < 1000, "a small corpus gives fewer entries than asked"


def test_a_smaller_vocabulary_is_the_beginning_of_a_larger_one() -> None:
    small, large = Tokenizer.learn(PLAIN, 350), Tokenizer.learn(PLAIN, 450)
    assert large.pieces(range(350)) == small.pieces(range(350))


def test_the_smallest_vocabulary_has_no_merges_and_one_less_is_refused() -> None:
    characters = len({*"".join(PLAIN)} - {" "} | {MARK})
    assert len(Tokenizer.learn(PLAIN, FIRST_CHARACTER + characters, coverage=1.0)) == FIRST_CHARACTER + characters
    with pytest.raises(ConfigurationError, match=rf"need {FIRST_CHARACTER + characters}: raise vocab_size"):
        Tokenizer.learn(PLAIN, FIRST_CHARACTER + characters - 1, coverage=1.0)


def test_the_coverage_that_is_advised_is_enough() -> None:
    for size in range(FIRST_CHARACTER + 2, FIRST_CHARACTER + 60, 3):
        with pytest.raises(ConfigurationError, match="or lower coverage from 1 to ") as refused:
            Tokenizer.learn(PLAIN, size, coverage=1.0)
        advised = float(re.search(r"to (0\.\d+), so that", str(refused.value))[1])
        assert len(Tokenizer.learn(PLAIN, size, coverage=advised)) <= size


def test_no_coverage_is_advised_where_none_helps() -> None:
    with pytest.raises(ConfigurationError, match=r"need \d+: raise vocab_size$"):
        Tokenizer.learn(PLAIN, FIRST_CHARACTER + 1)


def test_rare_characters_are_left_to_bytes() -> None:
    corpus = ["a" * 98, "bc"]
    every = Tokenizer.learn(corpus, 300, coverage=1.0)
    most = Tokenizer.learn(corpus, 300, coverage=0.99)
    assert {"a", "b", "c"} <= set(every.pieces(range(FIRST_CHARACTER, len(every))))
    kept = set(most.pieces(range(FIRST_CHARACTER, len(most))))
    assert {"a", "b", MARK} <= kept
    assert not any("c" in entry for entry in kept)
    assert most.encode("c")[-1] == FIRST_BYTE + ord("c")
    text = "abc cba"
    assert most.decode(most.encode(text)) == text


def test_nothing_is_merged_across_a_rare_character() -> None:
    corpus = ["xaéby"] + ["x", "a", "b", "y"] * 100
    tokenizer = Tokenizer.learn(corpus, 400, coverage=0.997, min_frequency=1)
    entries = tokenizer.pieces(range(FIRST_CHARACTER, len(tokenizer)))
    assert "é" not in entries
    assert f"{MARK}xa" in entries, "pairs that do occur are learned"
    assert not any("ab" in entry for entry in entries)


def test_literal_marks_teach_nothing() -> None:
    with_marks = Tokenizer.learn([f"the{MARK}end"] * 5, 300)
    assert f"{MARK}end" not in with_marks.pieces(range(len(with_marks)))
    text = f"the{MARK}end end"
    assert with_marks.decode(with_marks.encode(text)) == text


@pytest.mark.parametrize("corpus", [[], [""], ["", " ", "   "], ["\n", "\r\n"], [MARK]])
def test_a_corpus_without_text_is_refused(corpus: list[str]) -> None:
    with pytest.raises(InputError, match="nothing to learn"):
        Tokenizer.learn(corpus, 300)


def test_one_line_is_enough() -> None:
    tokenizer = Tokenizer.learn(["a"], 300)
    assert len(tokenizer) == FIRST_CHARACTER + 2
    text = "anything, even 中文"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coverage": 0.0}, "coverage is 0.0"),
        ({"coverage": 1.1}, "coverage is 1.1"),
        ({"min_frequency": 0}, "min_frequency is 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Tokenizer.learn(PLAIN, 500, **settings)


@pytest.mark.parametrize(
    "strings",
    [
        ("x", "<unk>", "<s>", "</s>"),
        ("<0x41>", "<unk>", "<s>", "</s>"),
        ("<s>", "<unk>", "<s>", "</s>"),
        ("",) * 4,
    ],
)
def test_special_symbols_that_text_could_match_are_refused(strings: tuple[str, str, str, str]) -> None:
    with pytest.raises(ConfigurationError, match="special symbol"):
        Specials(*strings)


def test_pairs_rarer_than_the_minimum_are_not_merged() -> None:
    tokenizer = Tokenizer.learn(["ab"] * 3 + ["cd"] * 2, 300, min_frequency=3)
    entries = tokenizer.pieces(range(FIRST_CHARACTER, len(tokenizer)))
    assert f"{MARK}ab" in entries
    assert not any("cd" in entry for entry in entries)


def test_merges_that_spell_a_special_symbol_are_dropped_with_what_needs_them() -> None:
    corpus = ["PAD PADDING"] * 30
    free = Tokenizer.learn(corpus, 400)
    entries = free.pieces(range(len(free)))
    assert f"{MARK}PADDING" in entries, "the corpus must teach the word, or the test shows nothing"
    part = next(entry for entry in entries[FIRST_CHARACTER:] if len(entry) == 3)
    tied = Tokenizer.learn(corpus, 400, specials=Specials(pad=part))
    assert tied.pieces(range(len(tied))).count(part) == 1
    assert all(left + right != part and part not in (left, right) for left, right in tied._parts.merges)
    text = f"{part} {part}{part} PADDING"
    assert tied.decode(tied.encode(text)) == text


def test_repetitions_do_not_become_long_entries() -> None:
    tokenizer = Tokenizer.learn(["-" * 200, "=" * 200, "我们在北京吃饭" * 20] * 3, 5000)
    assert max(map(len, tokenizer.pieces(range(len(tokenizer))))) <= 24


def test_joiners_inside_a_word_belong_to_it_and_marks_after_a_symbol_do_not() -> None:
    tokenizer = Tokenizer.learn(["می‌خواهم", "❤️love love"] * 10, 400)
    assert len(tokenizer.encode("می‌خواهم")) == 1
    assert tokenizer.pieces(tokenizer.encode("❤️love"))[-1] == "love"
