"""Vocabularies of T5: pieces or bytes, and what stands before a source.

    tokenizer.json        the library `tokenizers`
    spiece.model          SentencePiece; sentinels (<extra_id_0>) follow its pieces
    neither               bytes, if the settings name a ByT5Tokenizer

No text is encoded into a sentinel or a language token, and no search emits one. What stands before a source says what
to do with it: MADLAD-400 has a token for each target language (``<2de>``), the original T5 has words ("translate
English to German:"), which its config.json lists by languages. Models fine-tuned for one pair may have nothing there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from multihead.errors import ConfigurationError, FormatError
from multihead.interop.formats import bart_folder
from multihead.interop.formats.languages import find_language, same_language
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.model_folder import CONFIG, COPY_AGAIN, read_json
from multihead.text.byte_ids import ByteTokenizer
from multihead.text.foreign import ForeignTokenizer
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer, open_model, own_pieces, read_model
from multihead.text.vocabulary import MARK

MODEL = "spiece.model"

_LANGUAGE = re.compile(r"<2([A-Za-z_]+)>")
_SENTINEL = re.compile(rf"{MARK}?<extra_id_\d+>")
_TASK = re.compile(r"translation_(\w+?)_to_(\w+)")


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a model, and how they are used."""

    names: Sequence[str]
    """The entry of each id."""
    cut: Callable[[str], list[int]]
    """The ids of a text, or of a language token with what the library puts before it."""
    make: Callable[[Sequence[int], Sequence[int]], ForeignTokenizer]
    """The tokenizer with these control symbols, which puts these ids before every text."""


def read_tokenizers(
    folder: Path, config: Mapping[str, Any], languages: Languages
) -> tuple[ForeignTokenizer, ForeignTokenizer]:
    """The tokenizers of source and target; only the source has something before every text.

    Args:
        folder: the folder.
        config: content of config.json and generation_config.json.
        languages: of the user.

    Raises:
        FormatError: there is no vocabulary, or it is damaged.
        ConfigurationError: a language is not named, or the model does not have it.
        MissingDependencyError: ``sentencepiece`` is not installed, and the vocabulary needs it.
    """
    classes = (bart_folder.tokenizer_settings(folder).get("tokenizer_class"), config.get("tokenizer_class"))
    if "ByT5Tokenizer" in classes:
        made = ByteTokenizer(config["vocab_size"], bart_folder.special_ids(config, 2, folder / CONFIG))
        return made, made
    vocabulary = _read_vocabulary(folder, config)
    offered = {match[1]: name for name in vocabulary.names if (match := _LANGUAGE.fullmatch(name))}
    control = [i for i, name in enumerate(vocabulary.names) if _is_control(name)]
    if offered:
        prefix = vocabulary.cut(offered[find_language(languages.target, offered, "target")])
    else:
        words = _task_prefix(config, languages, folder).rstrip()
        prefix = vocabulary.cut(words) if words else []
    target = vocabulary.make(control, [])
    return vocabulary.make(control, prefix) if prefix else target, target


def typed_prefix(parts: TranslatorParts) -> str:
    """What users of other programs type before every text."""
    tokenizer = parts.source_tokenizer
    typed = "".join(tokenizer.vocabulary[i] for i in tokenizer.prefix).replace(MARK, " ").strip()
    return f"{typed} " if typed else ""


def _is_control(name: str) -> bool:
    return bool(_LANGUAGE.fullmatch(name) or _SENTINEL.fullmatch(name)) or name.startswith("<unused ")


def _task_prefix(config: Mapping[str, Any], languages: Languages, folder: Path) -> str:
    """The words before a source that the folder lists for a pair of languages; nothing for a pair that it lacks.

    Raises:
        ConfigurationError: the folder lists some, and no languages are named.
    """
    tasks = config.get("task_specific_params") or {}
    listed = {
        (match[1], match[2]): task.get("prefix", "")
        for name, task in tasks.items()
        if (match := _TASK.fullmatch(name)) and isinstance(task, dict)
    }
    if not listed:
        return ""
    if languages.source is None or languages.target is None:
        pairs = ", ".join(f"{source}-{target}" for source, target in listed)
        raise ConfigurationError(
            f"{folder}: this model translates {pairs}: name one with --source-language and --target-language, or the "
            "languages that it was fine-tuned for"
        )
    return next(
        (
            str(words)
            for (source, target), words in listed.items()
            if same_language(languages.source, source) and same_language(languages.target, target)
        ),
        "",
    )


def _read_vocabulary(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    if (folder / "tokenizer.json").is_file():
        return _of_library(folder / "tokenizer.json", config, folder)
    if not (folder / MODEL).is_file():
        raise FormatError(f"{folder}: there is no vocabulary; expected tokenizer.json or {MODEL}")
    model = read_model(folder / MODEL)
    pieces = own_pieces(model)
    names = bart_folder.by_id({piece: i for i, piece in enumerate(pieces)}, config["vocab_size"], folder / CONFIG)
    processor = open_model(model)
    specials = bart_folder.special_ids(config, processor.unk_id(), folder / CONFIG)
    own = [i for i in range(len(pieces)) if processor.is_control(i)]

    def make(control: Sequence[int], prefix: Sequence[int]) -> SentencePieceTokenizer:
        return SentencePieceTokenizer(model, names, specials, [*control, *own], prefix)

    def cut(text: str) -> list[int]:
        ids: list[int] = [names.index(text)] if _LANGUAGE.fullmatch(text) else processor.encode(text)
        return ids

    return Vocabulary(names, cut, make)


def _of_library(path: Path, config: Mapping[str, Any], folder: Path) -> Vocabulary:
    """The vocabulary in a tokenizer.json."""
    content, size = read_json(path), config["vocab_size"]
    match content:
        case {"model": {"type": "Unigram", "vocab": list(pieces), "unk_id": int(unk)}, "added_tokens": list(added)}:
            try:
                ids = {str(piece): i for i, (piece, _) in enumerate(pieces)}
                ids |= {str(token["content"]): token["id"] for token in added}
            except (KeyError, TypeError, ValueError):
                raise FormatError(f"{path}: its vocabulary is damaged; {COPY_AGAIN}") from None
        case _:
            raise FormatError(f"{path}: expected a unigram vocabulary with an unknown symbol, as T5 has it")
    names = bart_folder.by_id(ids, size, folder / CONFIG)
    specials = bart_folder.special_ids(config, unk, folder / CONFIG)

    def make(control: Sequence[int], prefix: Sequence[int]) -> HuggingFaceTokenizer:
        try:
            return HuggingFaceTokenizer(content, specials, control, prefix, size)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None

    def cut(text: str) -> list[int]:
        make([], [])  # or the file is refused
        ids: list[int] = tokenizers.Tokenizer.from_str(json.dumps(content)).encode(text, add_special_tokens=False).ids
        return ids

    return Vocabulary(names, cut, make)
