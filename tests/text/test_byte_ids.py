"""Bytes as ids: exact in both directions, and damaged files are refused."""

from __future__ import annotations

import json

import pytest

from multihead.errors import DataError, FormatError
from multihead.text.byte_ids import ByteTokenizer
from multihead.text.foreign import SpecialIds
from multihead.text.tokenizer import Tokenizer

SPECIALS = SpecialIds(pad=0, unk=2, bos=0, eos=1)


def test_every_text_comes_back() -> None:
    tokenizer = ByteTokenizer(384, SPECIALS)
    for text in ("", " a  b ", "</s><extra_id_0>", "漢字 🐕", "\x00\n\r"):
        ids = tokenizer.encode(text)
        assert ids == [3 + byte for byte in text.encode()]
        assert tokenizer.decode([0, *ids, 1, 300]) == text
        assert len(tokenizer.spans(text)) == len(ids)
    assert tokenizer.decode([3 + 0xE6]) == "\ufffd"
    assert len(tokenizer) == len(set(tokenizer.vocabulary)) == 384
    assert set(tokenizer.forbidden_in_output) == {0, 2, 13, 16, *range(259, 384)}
    with pytest.raises(DataError, match="surrogate"):
        tokenizer.encode("\ud800")


def test_a_damaged_file_is_refused() -> None:
    text = ByteTokenizer(259, SPECIALS).to_json()
    assert Tokenizer.from_json(text).to_json() == text
    for change in ({"size": 258}, {"size": "259"}, {"size": 10**9}, {"specials": {}}):
        with pytest.raises(FormatError, match="this bytes tokenizer is damaged"):
            Tokenizer.from_json(json.dumps({**json.loads(text), **change}))
    with pytest.raises(FormatError, match="a special symbol has the id 400"):
        ByteTokenizer(384, SPECIALS._replace(eos=400))
