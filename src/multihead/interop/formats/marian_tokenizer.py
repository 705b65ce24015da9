"""Tokenizer files of MarianMT: SentencePiece models and vocabularies.

They are written for tokenizers that came as such files (`multihead.interop.formats.marian` reads them), so that an
imported model goes back to where it came from. Marian's tokenizer cannot put a token before every text: where a model
has several target languages, the user types it (``>>deu<< Hello``).
"""

from __future__ import annotations

from pathlib import Path

from multihead.files import write_errors
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.tokenizer_json import write_json
from multihead.text.sentencepiece import SentencePieceTokenizer


def has_such(parts: TranslatorParts) -> bool:
    """Whether the tokenizers of both sides are SentencePiece models with vocabularies."""
    return isinstance(parts.source_tokenizer, SentencePieceTokenizer) and isinstance(
        parts.target_tokenizer, SentencePieceTokenizer
    )


def write_tokenizers(parts: TranslatorParts, folder: Path, longest: int) -> None:
    """Write source.spm, target.spm, vocab.json, tokenizer_config.json, and target_vocab.json for separate embeddings.

    Args:
        parts: with tokenizers of this kind.
        folder: an existing folder.
        longest: number of tokens that the model can read.
    """
    source, target = parts.source_tokenizer, parts.target_tokenizer
    assert isinstance(source, SentencePieceTokenizer)
    assert isinstance(target, SentencePieceTokenizer)
    separate = not parts.config.tie_embeddings
    names = source.vocabulary
    with write_errors(folder):
        (folder / "source.spm").write_bytes(source.model)
        (folder / "target.spm").write_bytes(target.model)
        write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(names)})
        if separate:
            write_json(folder / "target_vocab.json", {piece: i for i, piece in enumerate(target.vocabulary)})
        settings = {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": parts.source_language,
            "target_lang": parts.target_language,
            "separate_vocabs": separate,
            "split_special_tokens": True,
            "unk_token": names[source.unk_id],
            "eos_token": names[source.eos_id],
            "pad_token": names[source.pad_id],
            "model_max_length": longest,
        }
        write_json(folder / "tokenizer_config.json", settings)


def typed_prefix(parts: TranslatorParts) -> str:
    """What the user types before a text."""
    tokenizer = parts.source_tokenizer
    return "".join(f"{tokenizer.vocabulary[i]} " for i in tokenizer.prefix) if has_such(parts) else ""
