"""SentencePiece models as ``tokenizer.json``.

    SentencePiece                        tokenizers
    table of characters (NFKC, ...)      Precompiled
    remove_extra_whitespaces             Strip and Replace
    add_dummy_prefix, word marks         Prepend and Replace
    unigram                              Unigram, pieces in the order of our ids
    BPE                                  BPE, a merge for every pair of pieces that makes a piece
    byte fallback                        byte_fallback

A vocabulary may have entries that the model lacks: the pieces of the other language, and control symbols. They get
scores below all others, so no text is cut into them as long as the model knows its characters; an unknown character is
looked up in the vocabulary, as Marian does. A typed control symbol, or the name of a byte, is cut behind its first
character, so that no text becomes one. Characters that the model does not know are then one unknown symbol more.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.vocabulary import MARK

_BELOW = 100.0
"""How far the scores of entries that the model lacks are below the lowest one."""

_BYTE = r"<(?=0x[0-9A-F]{2}>)"
"""The first character of the name of a byte."""


def content_of(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """The content of ``tokenizer.json``, without template.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """
    from multihead.interop.formats.sentencepiece import parse_model

    model = parse_model(tokenizer.model)
    unigram = model.trainer_spec.model_type == type(model.trainer_spec).UNIGRAM
    fallback = bool(model.trainer_spec.byte_fallback)
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}]
    decoders += [{"type": "ByteFallback"}] if fallback else []
    decoders += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]
    return {
        "version": "1.0",
        "added_tokens": [_added(tokenizer, i) for i in sorted(tokenizer.control)],
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(model.normalizer_spec))},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "|".join(_first_characters(tokenizer))},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": (_unigram if unigram else _pairs)(model, tokenizer, fallback),
    }


def _added(tokenizer: SentencePieceTokenizer, index: int) -> dict[str, Any]:
    flags: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": tokenizer.vocabulary[index], **flags, "special": True}


def _first_characters(tokenizer: SentencePieceTokenizer) -> Iterator[str]:
    """Patterns of the first characters of control symbols and bytes."""
    names = sorted(tokenizer.vocabulary[i] for i in tokenizer.control)
    yield from (f"{_escape(name[0])}(?={_escape(name[1:])})" for name in names if len(name) > 1)
    yield _BYTE


def _escape(text: str) -> str:
    """The pattern of a text; unlike `re.escape`, it is valid in JavaScript, too."""
    return re.sub(r"[.^$*+?()\[\]{}|\\]", r"\\\g<0>", text)


def _normalizers(settings: Any) -> Iterator[dict[str, Any]]:
    """The steps of the normalizer."""
    if settings.precompiled_charsmap:
        table = base64.b64encode(settings.precompiled_charsmap).decode("ascii")
        yield {"type": "Precompiled", "precompiled_charsmap": table}
    if settings.remove_extra_whitespaces:
        yield {"type": "Replace", "pattern": {"Regex": f"[ {MARK}]+"}, "content": " "}
        yield {"type": "Strip", "strip_left": True, "strip_right": True}
    if settings.add_dummy_prefix:
        yield {"type": "Prepend", "prepend": MARK}
    yield {"type": "Replace", "pattern": {"String": " "}, "content": MARK}


def _unigram(model: Any, tokenizer: SentencePieceTokenizer, fallback: bool) -> dict[str, Any]:
    kinds = type(model.pieces[0])
    known = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    scores = {one.piece: float(one.score) for one in model.pieces if one.type in known}
    lowest = min(scores.values(), default=0.0)
    entries = [
        [piece, lowest - _BELOW if i in tokenizer.control else scores.get(piece, lowest - _BELOW)]
        for i, piece in enumerate(tokenizer.vocabulary)
    ]
    return {"type": "Unigram", "unk_id": tokenizer.unk_id, "vocab": entries, "byte_fallback": fallback}


def _pairs(model: Any, tokenizer: SentencePieceTokenizer, fallback: bool) -> dict[str, Any]:
    names = tokenizer.vocabulary
    kinds, known = type(model.pieces[0]), set(names)
    pieces = {one.piece: one.score for one in model.pieces if one.type == kinds.NORMAL and one.piece in known}
    merges = [
        (-score, place, [piece[:cut], piece[cut:]])
        for place, (piece, score) in enumerate(pieces.items())
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    return {
        "type": "BPE",
        "unk_token": names[tokenizer.unk_id],
        "fuse_unk": True,
        "byte_fallback": fallback,
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [pair for *_, pair in sorted(merges)],
    }
