"""Codes are learned as the subword-nmt package learns them, to the last tie."""

from __future__ import annotations

import contextlib
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from subword_nmt import learn_bpe

from multihead.errors import ConfigurationError, InputError
from multihead.text.subword_nmt import learning
from multihead.text.subword_nmt.learning import learn

MULTI30K = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "multi30k"


def package(lines: list[str], merges: int, min_frequency: int = 2) -> str:
    written = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe([f"{line}\n" for line in lines], written, merges, min_frequency)
    return written.getvalue()


LETTERS = st.sampled_from(["ab ", "a ", "abc  ", "abcdefgh  ", "ab\u00a0 ", "ab\t\u3000  ", "a</w>  ", "a\\.*^ "])


@settings(max_examples=150)
@given(
    lines=LETTERS.flatmap(lambda letters: st.lists(st.text(st.sampled_from(letters), max_size=40), max_size=30)),
    merges=st.sampled_from([3, 30, 250]),
    min_frequency=st.integers(1, 3),
    long=st.sampled_from([1, 10, 200]),
)
@example(lines=["baa\u00a0ba\u00a0ba"], merges=30, min_frequency=1, long=1)
@example(lines=["aaaaaaa aaa aa", "abcabcabc bcabc"], merges=50, min_frequency=1, long=200)
@example(lines=["aaaaaaa aaa aa", "abcabcabc bcabc"], merges=50, min_frequency=1, long=1)
def test_codes_are_the_package_s(lines: list[str], merges: int, min_frequency: int, long: int) -> None:
    """For any limit from which words count as long."""
    assume(any(len(word) > 1 for line in lines for word in line.split(" ")))  # without a pair the package fails
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "_LONG", long)
        assert learn(lines, merges, min_frequency).text() == package(lines, merges, min_frequency)


def test_a_merge_in_a_long_word_takes_time_for_what_it_joins() -> None:
    """Two words of equal pairs, one much longer: the same number of symbols of both is read."""
    touched = []
    for length in (2_000, 20_000):
        word = learning._LongWord((*"ab" * 10, *"c" * length))
        counted = Counting(word._symbols)
        word._symbols = counted
        assert set(word.join(("a", "b"))[1]) == {("ab", "ab"), ("ab", "c")}
        touched.append(counted.reads)
    assert touched[0] == touched[1] < 200


class Counting(list[Any]):
    """A list that counts how often its items are read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not beside the repository (../shared/data/multi30k)")
@pytest.mark.parametrize("language", ["de", "en"])
def test_multi30k(language: str) -> None:
    """Enough merges that rare pairs are set aside and restored, and that none is left at the end."""
    lines = gzip.decompress((MULTI30K / f"val.{language}.gz").read_bytes()).decode().split("\n")[:120]
    codes = learn(lines, 3000)
    assert codes.text() == package(lines, 3000)
    assert 400 < len(codes.merges) < 3000


def test_line_breaks_part_words_as_no_file_could_hold_them() -> None:
    assert learn(["ab\rab", "ab\nab\r"]) == learn(["ab ab", "ab ab"])


def test_words_of_one_character_teach_nothing() -> None:
    assert learn(["a b c a b c"]).merges == ()


@pytest.mark.parametrize("lines", [[], ["", "  "], ["\r\n"]])
def test_nothing_to_learn_from(lines: list[str]) -> None:
    with pytest.raises(InputError, match="nothing to learn"):
        learn(lines)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="merges is 0"):
        learn(["ab"], 0)
    with pytest.raises(ConfigurationError, match="min_frequency is 0"):
        learn(["ab"], 5, 0)
