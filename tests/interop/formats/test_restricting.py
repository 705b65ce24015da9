"""Restricted SentencePiece models produce only the pieces of a vocabulary and single characters."""

from __future__ import annotations

from typing import Any

import pytest
import sentencepiece

from multihead.errors import FormatError
from multihead.interop.formats.restricting import restrict


def opened(model: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("name", ["joint", "both", "bytes_too"])
def test_only_pieces_of_the_vocabulary_come_out(foreign: Any, name: str) -> None:
    model = getattr(foreign.pieces, name)
    whole, lines = opened(model), foreign.sentences(30)
    used = {piece for line in lines for piece in whole.encode(line, out_type=str)}
    kept = sorted(used)[::2]
    restricted = opened(restrict(model, kept))
    for line in lines:
        pieces = restricted.encode(line, out_type=str)
        assert all(piece in kept or len(piece) == 1 for piece in pieces)
        assert restricted.decode(pieces) == whole.decode(whole.encode(line, out_type=str))
    assert any(restricted.encode(line) != whole.encode(line) for line in lines)


def test_the_whole_vocabulary_changes_nothing(foreign: Any) -> None:
    model = foreign.pieces.both
    whole = opened(model)
    assert restrict(model, {whole.id_to_piece(i) for i in range(whole.get_piece_size())}) == model


def test_damage_is_named(foreign: Any) -> None:
    for damaged in (b"\x0a", foreign.pieces.both[:-1], b"\xff\xff", b"\x0f\x00"):
        with pytest.raises(FormatError, match="not a SentencePiece model, or damaged"):
            restrict(damaged, ())
