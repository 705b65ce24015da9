"""Vocabularies as the JavaScript of the web export reads them.

Two kinds have an implementation in ``site/``: our byte-pair encoding (tokenizer.js) and SentencePiece's unigram models
(sentencepiece.js), which OPUS-MT has. Either may have symbols of languages (languages.js). Others are refused.
"""

from __future__ import annotations

import base64
import re
import sys
from functools import cache
from typing import Any

import numpy as np
import tokenizers

from multihead.interop.formats.sentencepiece import parse_model
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.user_symbols import SymbolTokenizer
from multihead.text.vocabulary import PATTERN

_UNIGRAM = 1
"""`TrainerSpec.UNIGRAM`."""


def refusal(tokenizer: Tokenizer) -> str | None:
    """Why a browser cannot apply a vocabulary, in words; None if it can.

    Raises:
        MissingDependencyError: it is of SentencePiece, and sentencepiece or protobuf is not installed.
    """
    if tokenizer.backwards:
        return "is from right to left, which only multihead writes"
    if tokenizer.copied:
        return "has placeholders, which only multihead copies"
    if tokenizer.factors > 1:
        return "has case as a source factor, which only multihead reads"
    if tokenizer.context:
        return "is of sources with context, the lines before, which only multihead reads"
    if isinstance(tokenizer, (LanguageTokenizer, SymbolTokenizer)):
        return refusal(tokenizer.inner)
    if isinstance(tokenizer, BytePairTokenizer):
        return None if tokenizer.parts.pattern == PATTERN else "cuts text by another pattern than ours"
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return f"no script for browsers reads ({type(tokenizer).__name__})"
    trainer = parse_model(tokenizer.model).trainer_spec
    if trainer.model_type != _UNIGRAM:
        return "is of SentencePiece, but not a unigram model"
    return "marks the ends of words" if trainer.treat_whitespace_as_suffix else None


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """A vocabulary without `refusal`, for model.json."""
    if isinstance(tokenizer, LanguageTokenizer):
        symbols = {code: tokenizer.id_of(code) for code in tokenizer.languages}
        return describe(tokenizer.inner) | {"languages": symbols, "before": list(tokenizer.prefix)}
    if isinstance(tokenizer, SymbolTokenizer):
        return _byte_pairs(tokenizer.pairs) | {"symbols": list(tokenizer.symbols)}
    return _unigram(tokenizer) if isinstance(tokenizer, SentencePieceTokenizer) else _byte_pairs(tokenizer)


def _byte_pairs(tokenizer: Tokenizer) -> dict[str, Any]:
    assert isinstance(tokenizer, BytePairTokenizer)
    parts = tokenizer.parts
    ids = {entry: number for number, entry in enumerate(parts.vocabulary)}
    return {
        "kind": "byte-pair",
        "entries": list(parts.vocabulary),
        "merges": [ids[side] for pair in parts.merges for side in pair],
        "pattern": parts.pattern,
        "classes": {one: character_class(one) for one in sorted(set(re.findall(r"\\p\{(\w+)\}", parts.pattern)))},
    }


def _unigram(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    model = parse_model(tokenizer.model)
    rules = model.normalizer_spec
    names = {piece: i for i, piece in enumerate(tokenizer.vocabulary) if i not in tokenizer.control}
    return {
        "kind": "unigram",
        # The shortest number that is the same float32.
        "pieces": [[one.piece, float(str(np.float32(one.score))), one.type] for one in model.pieces],
        "ids": [
            tokenizer.unk_id if one.type in (2, 3) else names.get(one.piece, tokenizer.unk_id) for one in model.pieces
        ],
        "names": [[piece, i] for piece, i in names.items()],
        "entries": [raw[0] if len(raw) == 1 and raw[0] > 127 else raw.decode() for raw in tokenizer.entries],
        "unknown": tokenizer.unk_id,
        "prefix": list(tokenizer.prefix),
        "charsmap": base64.b64encode(rules.precompiled_charsmap).decode(),
        "normalizer": {
            name: getattr(rules, name)
            for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces")
        },
    }


@cache
def character_class(name: str) -> str:
    r"""The characters of a Unicode class such as ``L`` as the ranges of a regular expression: ``A-Za-z\u{aa}``.

    They are those of the ``tokenizers`` library, which cuts texts here. Browsers know newer or older versions of
    Unicode.
    """
    everything = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    others = tokenizers.normalizers.Replace(tokenizers.Regex(rf"[^\p{{{name}}}]+"), "\n")
    runs: list[str] = others.normalize_str(everything).split("\n")
    ranges: list[list[int]] = []
    for code in (ord(character) for run in runs for character in run):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\u{{{low:x}}}" + (f"-\\u{{{high:x}}}" if high > low else "") for low, high in ranges)
