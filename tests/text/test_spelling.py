"""Lines of pieces: the text can be restored exactly without the tokenizer, and lines are split only at spaces."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import FIRST_CHARACTER, MARK, Parts, read_spelled

TEXT = [
    "A man in an orange hat,  starring at something in 2016.",
    f"<0x41> <0x41><0xE2> </s> {MARK}{MARK} a{MARK}b",
    "tab\ttab no\u00a0break line\u2028separator next\x85line \x0b\x0c",
    "中文 می‌خواهم 👩‍👩‍👧‍👦",
] * 5
CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from(f"   {MARK}\t\r\n\u00a0\u2028<0xE2>aem")
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXT, 420, coverage=0.995)


@settings(max_examples=200)
@given(text=st.one_of(st.text(CHARACTERS), st.sampled_from(TEXT)))
@example(text="")
@example(text=" ")
@example(text=f"{MARK} ")
@example(text="\r")
@example(text="<0x0A>")
def test_reading_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    line = tokenizer.spell(ids)
    assert read_spelled(line) == text
    assert not {"\n", "\r"} & set(line), "the line would be cut"
    assert len(line.split(" ")) == max(len(ids), 1)


def test_pieces_are_the_entries(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a man")
    assert tokenizer.spell(ids).split(" ") == [tokenizer.parts.vocabulary[i] for i in ids]
    assert tokenizer.spell(tokenizer.encode(MARK)) == f"{MARK} <0xE2> <0x96> <0x81>"


def test_an_entry_that_would_end_a_line_is_spelt_in_bytes(tokenizer: Tokenizer) -> None:
    parts = tokenizer.parts
    added = ("\r", f"{MARK}\r")
    foreign = BytePairTokenizer(Parts((*parts.vocabulary, *added), (*parts.merges, (MARK, "\r")), parts.pattern))
    ids = foreign.encode("a \r")
    assert ids[-1] == len(foreign) - 1 >= FIRST_CHARACTER
    line = foreign.spell(ids)
    assert "\r" not in line
    assert read_spelled(line) == "a \r"


def test_what_is_no_piece_is_text() -> None:
    for line, text in (("no pieces", "nopieces"), ("  ", ""), (f"{MARK}a  {MARK}b", "a b"), ("<0xE2> x", "\ufffdx")):
        assert read_spelled(line) == text
