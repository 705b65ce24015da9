"""Case as a source factor: the same tokens in every case, and one factor for each."""

from __future__ import annotations

import json
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, FormatError
from multihead.text.case_factors import FACTORS, MIXED, NONE, TITLE, UPPER, CaseTokenizer, case_of, lowered
from multihead.text.context import BREAK, in_context, learn_with_context
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import learn_with_symbols

LINES = ["die dna der maus", "eine große straße, 12 häuser", "der hund rennt"] * 6
INNER = Tokenizer.learn(LINES, 330)
CASED = CaseTokenizer(INNER)
SIZE = len(INNER)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        *((" hund", NONE), ("12,", NONE), ("", NONE), ("鼠", NONE), ("ß", NONE)),
        *((" Hund", TITLE), ("H", TITLE), ("4Ever", TITLE), ("ǅ", TITLE), ("É", TITLE)),
        *((" DNA", UPPER), ("B-2B", UPPER), ("ΑΣ", UPPER)),
        *((" DnA", MIXED), ("iPod", MIXED), ("WEIß", MIXED)),
    ],
)
def test_the_case_of_some_characters(text: str, factor: int) -> None:
    assert case_of(text) == factor


def test_every_character_is_one_in_lower_case() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    assert len(lowered("".join(characters))) == len(characters)


@settings(max_examples=80)
@given(st.text(st.sampled_from("abdhru ä1.,ß▁鼠"), max_size=12), st.randoms(use_true_random=False))
def test_a_text_has_the_same_tokens_in_every_case(text: str, draw: random.Random) -> None:
    other = "".join(one.upper() if draw.random() < 0.5 and len(one.upper()) == 1 else one for one in text)
    plain, ids = INNER.encode(text), CASED.encode(other)
    assert CASED.encode(text) == plain  # factor 0 throughout
    assert [i % SIZE for i in ids] == plain
    assert CASED.encode_batch([text, other]) == [plain, ids]
    assert CASED.spans(other) == INNER.spans(text)
    assert lowered(CASED.decode(ids)) == text
    if MIXED not in {i // SIZE for i in ids} and "▁" not in text:
        assert CASED.decode(ids) == other


def test_factors_of_a_sentence() -> None:
    ids = CASED.encode("Die DNA der hund")
    assert INNER.spell([i % SIZE for i in ids]) == INNER.spell(INNER.encode("die dna der hund"))
    assert [i // SIZE for i in ids if INNER.vocabulary[i % SIZE] != "▁"][:1] == [TITLE]
    assert CASED.decode(CASED.encode("Die DNA der Maus, ÉÄ")) == "Die DNA der Maus, éÄ"  # É is spelled in bytes
    assert len(CASED) == len(CASED.entries) == FACTORS * SIZE
    assert CASED.vocabulary[:SIZE] == INNER.vocabulary
    assert (CASED.pad_id, CASED.eos_id, CASED.factors, INNER.factors) == (INNER.pad_id, INNER.eos_id, FACTORS, 1)
    assert CASED.encode("") == []


def test_with_symbols_and_context() -> None:
    lines = ["Der Hund", "DIE <b>Maus"]
    for longest, whole in ((40, True), (5, False)):
        reads = CaseTokenizer(learn_with_context(LINES, 331, 2, longest, symbols=["<b>"]))
        first, second = reads.encode_batch(lines)
        between = reads.vocabulary.index(BREAK)
        assert reads.encode(in_context(reads, lines)[1]) == ([*first, between, *second] if whole else second)
        assert TITLE in {i // len(reads.inner) for i in second}
        assert reads.encode(lines[1]) == second
    with pytest.raises(ConfigurationError, match="the text is in lower case, where '<B>' does not occur"):
        CaseTokenizer(learn_with_symbols(LINES, 330, ["<B>"]))
    with pytest.raises(ConfigurationError, match=r"expected byte-pair merges .*, got a LanguageTokenizer"):
        CaseTokenizer(LanguageTokenizer(INNER, ["de"], "de"))


def test_the_file_and_dropout() -> None:
    again = Tokenizer.from_json(CASED.to_json())
    assert isinstance(again, CaseTokenizer)
    assert again.digest == CASED.digest != INNER.digest
    assert again.encode("Der HUND") == CASED.encode("Der HUND")
    nested = {"multihead_tokenizer": "case", "inner": json.loads(CASED.to_json())}
    for damaged in ({"multihead_tokenizer": "case"}, nested):
        with pytest.raises(FormatError, match="tokenizer with case factors is damaged"):
            Tokenizer.from_json(json.dumps(damaged))
    with pytest.raises(ConfigurationError, match="bpe_dropout would cut the pieces of source factors anew"):
        Segmenter(CASED, 0.1, 1)
