"""SentencePiece: our byte-pair tokenizers as its ``.model`` files.

A model of type BPE with byte fallback and the identity normalizer has the same entries with the same ids. SentencePiece
(Kudo and Richardson 2018) joins the adjacent pair whose concatenation is the entry of the highest score. The score of
an entry is -rank of the merge that makes it, so that this is the pair that our merges join first, and both cut a piece
of text alike.

SentencePiece has no pattern that cuts a text into pieces beforehand, so it may join what our pattern keeps apart. That
takes an entry that fits across a boundary of the pattern, which happens in these places only:

* runs of spaces, of which the last belongs to what follows, if the vocabulary has an entry of several spaces;
* combining marks, and zero-width (non-)joiners, that do not stand between or after letters as in ordinary words;
* a literal U+2581, which is a space for SentencePiece and three bytes for us.

User-defined symbols (`multihead.text.user_symbols`) are pieces of that type, at which both cut first, at each place at
the longest. `differing` finds the texts that are cut otherwise. Both decode all ids alike. A tokenizer that came from
SentencePiece is written as it came; `multihead.text.sentencepiece` applies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from multihead.errors import InputError, require_package
from multihead.interop.formats.parts import TranslatorParts, refused_tokenizers
from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.user_symbols import SymbolTokenizer
from multihead.text.vocabulary import FIRST_BYTE, FIRST_CHARACTER, Parts

SHARED, SEPARATE = ("sentencepiece.model",), ("source.spm", "target.spm")


def refusals(parts: TranslatorParts) -> list[str]:
    """Why the tokenizers cannot be written as SentencePiece models; empty if they can."""
    return refused_tokenizers(parts, _is_convertible)


def inexact(parts: TranslatorParts) -> str | None:
    """How the models differ from our tokenizers; None if they are SentencePiece's own."""
    if not any(
        isinstance(one, (BytePairTokenizer, SymbolTokenizer))
        for one in (parts.source_tokenizer, parts.target_tokenizer)
    ):
        return None
    return (
        "SentencePiece has no pattern: it may join runs of spaces, combining marks and zero-width joiners otherwise, "
        "and takes a literal U+2581 for a space"
    )


def write(parts: TranslatorParts, folder: Path, _quantization: str = "") -> None:
    """Write ``sentencepiece.model``, or ``source.spm`` and ``target.spm`` if the two tokenizers differ.

    Args:
        parts: a translator without `refusals`.
        folder: an existing folder.

    Raises:
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    pair = (parts.source_tokenizer, parts.target_tokenizer)
    shared = pair[0].digest == pair[1].digest
    for name, tokenizer in zip(SHARED if shared else SEPARATE, pair, strict=False):
        (folder / name).write_bytes(model_of(tokenizer))


def model_of(tokenizer: Tokenizer) -> bytes:
    """The content of the ``.model`` file of a tokenizer.

    Raises:
        InputError: it is of a kind that SentencePiece does not know.
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    if isinstance(tokenizer, SymbolTokenizer):
        return build_model(tokenizer.pairs.parts, symbols=tokenizer.symbols)
    if not isinstance(tokenizer, BytePairTokenizer):
        raise InputError(f"a {type(tokenizer).__name__} cannot be written as a SentencePiece model")
    return build_model(tokenizer.parts)


def build_model(parts: Parts, *, dummy_prefix: bool = True, symbols: Sequence[str] = ()) -> bytes:
    """A SentencePiece model with the entries and merges of a byte-pair tokenizer.

    Args:
        parts: vocabulary and merges; the pattern cannot be stated.
        dummy_prefix: put a word mark in front of every text, as our tokenizers do.
        symbols: user-defined ones, which have the ids behind them.

    Raises:
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    messages = _messages()
    model, kinds = messages.ModelProto(), messages.ModelProto.SentencePiece
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(parts.merges):
        ranks.setdefault("".join(pair), rank)
    for index, token in enumerate(parts.vocabulary):
        kind = kinds.NORMAL if index >= FIRST_CHARACTER else kinds.BYTE if index >= FIRST_BYTE else kinds.CONTROL
        score = -float(ranks.get(token, len(parts.merges))) if index >= FIRST_CHARACTER else 0.0
        model.pieces.add(piece=token, score=score, type=kinds.UNKNOWN if index == BytePairTokenizer.unk_id else kind)
    for symbol in symbols:
        model.pieces.add(piece=symbol, score=0.0, type=kinds.USER_DEFINED)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size = messages.TrainerSpec.BPE, len(model.pieces)
    trainer.user_defined_symbols.extend(symbols)
    trainer.byte_fallback = trainer.split_digits = True
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(FIRST_BYTE)
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = parts.vocabulary[:FIRST_BYTE]
    normalizer.name, normalizer.add_dummy_prefix = "identity", dummy_prefix
    normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces = False, True
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def parse_model(content: bytes) -> Any:
    """The parts of a ``.model`` file.

    Raises:
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    model = _messages().ModelProto()
    model.ParseFromString(content)
    return model


def differing(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The numbers, from 0, of the texts that SentencePiece cuts otherwise than the tokenizer.

    Raises:
        InputError: as `model_of`.
        MissingDependencyError: sentencepiece or protobuf is not installed.
    """
    content = model_of(tokenizer)
    require_package("sentencepiece", "interop", "comparing SentencePiece's pieces")
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_proto=content).encode(list(texts))
    pairs: Iterable[tuple[list[int], list[int]]] = zip(theirs, tokenizer.encode_batch(texts), strict=True)
    return [number for number, (one, other) in enumerate(pairs) if one != other]


def _is_convertible(tokenizer: Tokenizer) -> bool:
    kinds = (BytePairTokenizer, SentencePieceTokenizer, SymbolTokenizer)
    return isinstance(tokenizer, kinds) and not tokenizer.copied and not tokenizer.context


def _messages() -> Any:
    """The module with the classes of the file's messages, which comes with sentencepiece and needs protobuf."""
    require_package("sentencepiece.sentencepiece_model_pb2", "interop", "writing a SentencePiece model")
    from sentencepiece import sentencepiece_model_pb2 as messages

    return messages
