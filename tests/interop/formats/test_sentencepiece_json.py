"""SentencePiece models as tokenizer.json: the ids and texts of the library sentencepiece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from multihead.interop.formats import tokenizer_json
from multihead.text.foreign import SpecialIds
from multihead.text.sentencepiece import SentencePieceTokenizer, own_pieces


def make_tokenizer(foreign: Any, name: str) -> SentencePieceTokenizer:
    """A model with the symbols and pieces of another language around its own."""
    model = getattr(foreign.pieces, name)
    own = [piece for piece in own_pieces(model) if piece not in ("<s>", "</s>", "<unk>")]
    others = [piece for piece in own_pieces(foreign.pieces.target) if piece not in {*own, "<s>", "</s>", "<unk>"}]
    names = ["</s>", "<unk>", "__de__", *own, *others, "<pad>"]
    specials = SpecialIds(len(names) - 1, 1, len(names) - 1, 0)
    return SentencePieceTokenizer(model, names, specials, {2}, (2,))


@pytest.mark.parametrize("name", ["source", "joint", "bytes_too"])
def test_equal_ids_and_texts(foreign: Any, tmp_path: Path, name: str) -> None:
    ours = make_tokenizer(foreign, name)
    tokenizer_json.write_tokenizer(ours, tmp_path, 100)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = [
        *foreign.sentences(50),
        "漢字 und 日本語",
        "ﬁnden Ｈａｕｓ",
        "  zwei  Leerzeichen ",
        "▁ ▁Haus▁",
        "🐕 rennt",
    ]
    for text, row in zip(texts, ours.encode_batch(texts), strict=True):
        assert theirs(text)["input_ids"] == [*row, ours.eos_id], text
    for row in ours.encode_batch(foreign.sentences(50, english=True)):
        assert theirs.decode([*row, ours.eos_id, ours.pad_id], skip_special_tokens=True) == ours.decode(row)
    for text in foreign.hostile:
        begin, *found, end = theirs(text)["input_ids"]
        assert (begin, end) == (2, ours.eos_id)
        assert not (ours.control - {ours.unk_id}).intersection(found), text
