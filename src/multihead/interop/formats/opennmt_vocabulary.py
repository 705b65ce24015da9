"""Vocabularies and transforms of OpenNMT-py and Eole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multihead.errors import FormatError
from multihead.interop.formats.pieces import find, read_codes, with_sentencepiece
from multihead.text.foreign import SpecialIds
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import MARK
from multihead.text.word_pieces import WordPieceTokenizer

_SPECIALS = {"pad": "<blank>", "unk": "<unk>", "eos": "</s>"}

_HARMLESS = ("filtertoolong", "filterfeats", "prefix_none", "clean", "tokendrop", "tokenmask", "switchout")
"""Transforms that change training texts only."""


def read_tokenizers(
    folder: Path, vocabularies: Mapping[str, Any], transforms: Sequence[str], settings: Mapping[str, Any]
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target.

    Args:
        folder: has the files that the settings name.
        vocabularies: lists under ``src`` and ``tgt``, and ``decoder_start_token``; Eole's ``specials``.
        transforms: the names of the transforms.
        settings: of the transform that cuts texts.

    Raises:
        FormatError: a list lacks a special symbol, a file is missing, or a transform is not known.
        MissingDependencyError: ``sentencepiece`` is needed and not installed.
    """
    unknown = sorted(set(transforms) - {"sentencepiece", "bpe", *_HARMLESS})
    if unknown:
        raise FormatError(
            f"{folder}: texts are prepared by '{unknown[0]}'; multihead knows the transforms sentencepiece and bpe"
        )
    sides = []
    for side in ("src", "tgt"):
        pieces = vocabularies.get(side)
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise FormatError(f"{folder}: the vocabulary '{side}' is not a list of pieces; copy the model again")
        specials = _specials(folder, pieces, vocabularies, side)
        sides.append(_tokenizer(folder, side, pieces, specials, transforms, settings))
    return sides[0], sides[1]


def _specials(folder: Path, pieces: list[str], vocabularies: Mapping[str, Any], side: str) -> SpecialIds:
    named = vocabularies.get("specials") or {}
    tokens = {name: str(named.get(f"{name}_token") or token) for name, token in _SPECIALS.items()}
    tokens["bos"] = str(vocabularies.get("decoder_start_token") or named.get("bos_token") or "<s>")
    missing = [token for token in tokens.values() if token not in pieces]
    if missing:
        raise FormatError(f"{folder}: the vocabulary '{side}' has no {missing[0]}; copy the model again")
    return SpecialIds(**{name: pieces.index(token) for name, token in tokens.items()})


def _tokenizer(
    folder: Path,
    side: str,
    pieces: list[str],
    specials: SpecialIds,
    transforms: Sequence[str],
    settings: Mapping[str, Any],
) -> Tokenizer:
    control = [i for i, piece in enumerate(pieces) if piece in ("<s>", "</s>", "<blank>", "<unk>")]
    named = settings.get(f"{side}_subword_model") or settings.get("src_subword_model")
    names = [Path(str(named)).name] if named else []
    cut = next((kind for kind in ("sentencepiece", "bpe") if kind in transforms), None)
    if cut is not None and int(settings.get(f"{side}_vocab_threshold") or 0) > 0:
        raise FormatError(f"{folder}: {side}_vocab_threshold restricts the pieces, which multihead does not do here")
    if cut == "bpe":
        codes = read_codes(find(folder, names or ["*.codes"], "the file of codes"))
        return WordPieceTokenizer(pieces, specials, control, codes=codes)
    marked = sum(piece.startswith(MARK) for piece in pieces) > len(pieces) // 10
    if cut == "sentencepiece" or marked:
        model = find(folder, names or [f"{side}.model", f"{side}.spm", "*.model", "*.spm"], "the SentencePiece model")
        return with_sentencepiece(model, pieces, specials, control)
    return WordPieceTokenizer(pieces, specials, control)
