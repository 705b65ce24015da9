"""SentencePiece models: the ids of our tokenizers, except where entries fit across a boundary of the pattern."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece

from multihead.interop.formats import sentencepiece as format_
from multihead.interop.formats.parts import TranslatorParts
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

MakeParts = Callable[..., TranslatorParts]

MULTI30K = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "multi30k"


def load(content: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=content)


def test_entries_and_symbols(tokenizer: BytePairTokenizer) -> None:
    theirs = load(format_.model_of(tokenizer))
    assert [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())] == list(tokenizer.vocabulary)
    assert [theirs.pad_id(), theirs.unk_id(), theirs.bos_id(), theirs.eos_id()] == [0, 1, 2, 3]
    assert theirs.is_control(0)
    assert theirs.is_byte(4)


def test_ordinary_text_is_cut_alike(tokenizer: BytePairTokenizer) -> None:
    texts = ["Ein Hund rennt.", "rennt Ein Mädchen, 12 Bälle!", "日本 🙂 </s> <0x41>", "", "a\tb", "Zwei  "]
    assert format_.differing(tokenizer, texts) == []
    assert load(format_.model_of(tokenizer)).encode(texts) == tokenizer.encode_batch(texts)


def test_every_piece_is_cut_alike(tokenizer: BytePairTokenizer, hard_texts: list[str]) -> None:
    """Only joining across the pattern's boundaries can differ: within its pieces nothing does."""
    theirs = load(format_.build_model(tokenizer.parts, dummy_prefix=False))
    texts = [text.replace("▁", "") for text in hard_texts]
    for text, (ids, numbers) in zip(texts, tokenizer.encode_pieces(texts), strict=True):
        pieces = [[i for i, number in zip(ids, numbers, strict=True) if number == n] for n in sorted(set(numbers))]
        assert [theirs.encode(theirs.decode(piece)) for piece in pieces] == pieces, text


def test_all_ids_are_decoded_alike(tokenizer: BytePairTokenizer, hard_texts: list[str]) -> None:
    theirs = load(format_.model_of(tokenizer))
    for ids in tokenizer.encode_batch(hard_texts):
        assert theirs.decode(ids) == tokenizer.decode(ids)


def test_where_spaces_are_joined(tokenizer: BytePairTokenizer) -> None:
    """An entry of two spaces takes the space that belongs to the next word."""
    several = Tokenizer.learn(["a  ", "b   ", "c     "] * 3, 270)
    assert "▁▁" in several.vocabulary
    assert format_.differing(several, ["a b", "a  b", "a▁b"]) == [1, 2]
    assert format_.differing(tokenizer, ["a b", "a  b", "a▁b"]) == [2]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not beside the repository (../shared/data/multi30k)")
def test_multi30k() -> None:
    lines = [
        line
        for side in ("de", "en")
        for line in gzip.decompress((MULTI30K / f"val.{side}.gz").read_bytes()).decode().split("\n")[:-1]
    ]
    assert format_.differing(Tokenizer.learn(lines, 2000), lines) == []


def test_one_file_or_two(tmp_path: Path, make_parts: MakeParts, other_tokenizer: BytePairTokenizer) -> None:
    parts = make_parts()
    format_.write(parts, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sentencepiece.model"]
    (tmp_path / "sentencepiece.model").unlink()
    format_.write(replace(parts, target_tokenizer=other_tokenizer), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.spm", "target.spm"]
    assert load((tmp_path / "target.spm").read_bytes()).get_piece_size() == len(other_tokenizer)
