"""Lists of pieces: ids are places in the list, texts come back, spans are the characters of the text."""

from __future__ import annotations

import io
import random

import pytest
from subword_nmt.apply_bpe import BPE

from multihead.errors import DataError, FormatError
from multihead.text.foreign import SpecialIds
from multihead.text.subword_nmt.codes import Codes
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import read_spelled
from multihead.text.word_pieces import WordPieceTokenizer

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
IDS = SpecialIds(pad=1, unk=3, bos=2, eos=2)
CODES = "#version: 0.2\nl o\nlo w\ne r</w>\nlow er</w>\nn e\nne w\nne w</w>\ns t</w>\n"
PIECES = ["low@@", "low", "er", "lower", "new@@", "est", "st", "e@@", "n@@", "new", "w@@", "lo@@", "w", "r"]


def words(**options: object) -> WordPieceTokenizer:
    return WordPieceTokenizer([*SPECIALS, *PIECES], IDS, control=[0], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("restricted", [False, True])
def test_ids_are_those_of_subword_nmts_pieces(restricted: bool) -> None:
    theirs = BPE(io.StringIO(CODES), vocab=set(PIECES) if restricted else None)
    ours = words(codes=Codes.read(CODES.split("\n")), restricted=restricted)
    draw = random.Random(1)
    for _ in range(200):
        line = " ".join(draw.choice(["low", "lower", "newest", "new", "lowest", "er", "wow", "x"]) for _ in range(4))
        pieces = theirs.process_line(line).split()
        assert ours.encode(line) == [4 + PIECES.index(piece) if piece in PIECES else 3 for piece in pieces]


def test_texts_come_back() -> None:
    tokenizer = words(codes=Codes.read(CODES.split("\n")))
    for text in ("lower low", "low newest er", "", "new"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode([2, *tokenizer.encode(text), 2]) == text
        assert read_spelled(tokenizer.spell(tokenizer.encode(text))) == text
        added = b"".join(tokenizer.entries[i] for i in tokenizer.encode(text))
        assert added == (f"{text} ".encode() if text else b"")


def test_characters_come_back() -> None:
    tokenizer = WordPieceTokenizer([*SPECIALS, "a", "b", "▁"], IDS, unit="characters")
    assert tokenizer.pieces(tokenizer.encode("ab  a")) == ["a", "b", "▁", "a"]
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"
    assert tokenizer.spans("ab  a") == [(0, 1), (1, 2), (2, 3), (4, 5)]
    assert tokenizer.encode("ac") == [4, 3]
    with pytest.raises(FormatError, match="this vocabulary is one of characters"):
        WordPieceTokenizer(SPECIALS, IDS, unit="characters", codes=Codes(()))


def test_spans_are_the_characters_of_the_text() -> None:
    tokenizer = words(codes=Codes.read(CODES.split("\n")), prefix=[0])
    text = "  lower\u00a0new lowest "
    assert tokenizer.pieces(tokenizer.encode(text)) == ["<s>", "lower", "new", "low@@", "e@@", "st"]
    assert [text[start:stop] for start, stop in tokenizer.spans(text)] == ["", "lower", "new", "low", "e", "st"]


def test_no_text_is_a_control_symbol() -> None:
    tokenizer = words(prefix=[0])
    assert tokenizer.encode("</s> <s> low <pad>") == [0, 3, 3, 5, 3]
    assert tokenizer.encode("") == []
    assert set(tokenizer.forbidden_in_output) == {0, 1, 3}
    with pytest.raises(DataError, match="text 2 of 2"):
        tokenizer.encode_batch(["low", "\ud800"])


@pytest.mark.parametrize("codes", [None, Codes.read(CODES.split("\n"))])
def test_the_file_gives_the_tokenizer_back(codes: Codes | None) -> None:
    tokenizer = words(codes=codes, prefix=[0], separator="￭", restricted=True)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert isinstance(again, WordPieceTokenizer)
    assert again.to_json() == tokenizer.to_json()
    assert again.digest == tokenizer.digest
    assert again.encode("lower x") == tokenizer.encode("lower x")
    for damage in (('"unit": "words"', '"unit": "lines"'), ('"separator": "￭"', '"separator": ""'), ('"lower"', "1")):
        with pytest.raises(FormatError, match="this words tokenizer is damaged"):
            Tokenizer.from_json(tokenizer.to_json().replace(*damage))
