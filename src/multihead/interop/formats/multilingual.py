"""Vocabularies of models in which the token of a language begins a text.

M2M-100, NLLB-200 and mBART-50 put the token of the source language before the source, and that of the target language
before the target. Their folders have one of these sets of files:

    tokenizer.json                                    the library `tokenizers`; ids and languages are in it
    vocab.json, sentencepiece.bpe.model               ids by piece; the languages follow (M2M-100)
    sentencepiece.bpe.model                           fairseq's order: four symbols, the pieces, the languages

Models of one pair have no such tokens. Their tokenizer.json says what stands before a text, and
target_tokenizer/tokenizer.json is that of a target with another vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.errors import FormatError
from multihead.interop.formats import bart_folder
from multihead.interop.formats.languages import find_language
from multihead.interop.formats.parts import Languages
from multihead.model_folder import CONFIG, COPY_AGAIN, read_json
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer, own_pieces, read_model
from multihead.text.tokenizer import Tokenizer

MODEL = "sentencepiece.bpe.model"
TARGET = "target_tokenizer"
"""Folder of the tokenizer of a target with another vocabulary."""
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first entries in fairseq's order."""

_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a model, and how a tokenizer is made of them."""

    languages: Mapping[str, int]
    """The id of each language's token."""
    make: Callable[[Sequence[int]], Tokenizer]
    """The tokenizer that puts these ids before every text."""
    before: Sequence[int] = ()
    """What stands before a text where there are no languages."""


@dataclass(frozen=True)
class Sides:
    """The tokenizers of both sides and their languages, if the model has several."""

    source: Tokenizer
    target: Tokenizer
    source_language: str | None
    target_language: str | None


def read_sides(folder: Path, vocabulary: Vocabulary, config: Mapping[str, Any], languages: Languages) -> Sides:
    """The tokenizers for a pair of languages.

    The target language may be left out where the model's settings force one (``forced_bos_token_id``).

    Raises:
        ConfigurationError: a language is not named, or the model does not have it.
    """
    offered = vocabulary.languages
    if not offered:
        begin = config.get("forced_bos_token_id")
        other = folder / TARGET
        own = {**config, "vocab_size": config.get("decoder_vocab_size") or config["vocab_size"]}
        written = read_vocabulary(other, own, []) if other.is_dir() else vocabulary
        target_tokenizer = written.make([] if begin is None else [begin])
        return Sides(vocabulary.make(vocabulary.before), target_tokenizer, languages.source, languages.target)
    forced = [name for name, index in offered.items() if index == config.get("forced_bos_token_id")]
    source = find_language(languages.source, offered, "source")
    target = forced[0] if languages.target is None and forced else find_language(languages.target, offered, "target")
    return Sides(vocabulary.make([offered[source]]), vocabulary.make([offered[target]]), source, target)


def read_vocabulary(folder: Path, config: Mapping[str, Any], codes: Sequence[str]) -> Vocabulary:
    """The vocabulary of a folder.

    Args:
        folder: the folder.
        config: its config.json.
        codes: strings of the languages' tokens, in the order in which they follow the pieces where no file has them.

    Raises:
        FormatError: files are missing or damaged.
    """
    if (folder / "tokenizer.json").is_file():
        return _of_library(folder, config)
    if not (folder / MODEL).is_file():
        raise FormatError(f"{folder}: there is no vocabulary; expected tokenizer.json or {MODEL}")
    model = read_model(folder / MODEL)
    if (folder / "vocab.json").is_file():
        ids = read_json(folder / "vocab.json")
        following = len(ids)
        ids |= {code: following + i for i, code in enumerate(codes) if code not in ids}
    else:
        ids = {piece: i for i, piece in enumerate([*SYMBOLS, *own_pieces(model)[3:], *codes, "<mask>"])}
    names = bart_folder.by_id(ids, config["vocab_size"], folder / CONFIG)
    if "<unk>" not in names:
        raise FormatError(f"{folder}: the vocabulary has no entry <unk>; {COPY_AGAIN}")
    specials = bart_folder.special_ids(config, names.index("<unk>"), folder / CONFIG)
    known = {*SYMBOLS, "<mask>", *codes}
    control = [i for i, name in enumerate(names) if name in known or name.startswith("<unused ")]
    languages = {_name(code): ids[code] for code in codes}
    return Vocabulary(languages, lambda prefix: SentencePieceTokenizer(model, names, specials, control, prefix))


def _of_library(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in a tokenizer.json."""
    path = folder / "tokenizer.json"
    content = read_json(path)
    added = content.get("added_tokens")
    tokens = {
        token["content"]: token["id"] for token in added or () if isinstance(token, dict) and token.get("special")
    }
    unk = tokens.get("<unk>")
    if type(unk) is not int:
        raise FormatError(f"{path}: has no special token <unk>; {COPY_AGAIN}")
    specials = bart_folder.special_ids(config, unk, folder / CONFIG)
    languages = {_name(token): index for token, index in tokens.items() if _LANGUAGE.fullmatch(token)}
    size = config["vocab_size"]

    def make(prefix: Sequence[int]) -> Tokenizer:
        try:
            return HuggingFaceTokenizer(content, specials, prefix, prefix, size)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None

    return Vocabulary(languages, make, [] if languages else _before(content.get("post_processor"), specials.eos, path))


def _before(template: Any, end: int, path: Path) -> list[int]:
    """The ids that a template puts before a text; behind it must be the end symbol.

    Raises:
        FormatError: the template is of an unknown kind, or has more behind a text.
    """
    match template:
        case {"type": "TemplateProcessing", "single": list(parts), "special_tokens": dict(tokens)}:
            try:
                ids = [
                    tokens[part["SpecialToken"]["id"]]["ids"][0] if "SpecialToken" in part else None for part in parts
                ]
                text = ids.index(None)
            except (KeyError, IndexError, TypeError, ValueError):
                raise FormatError(f"{path}: its template is damaged; {COPY_AGAIN}") from None
            before, behind = ids[:text], ids[text + 1 :]
        case {"type": "RobertaProcessing", "cls": [_, int(first)], "sep": [_, int(last)]}:
            before, behind = [first], [last]
        case _:
            before, behind = [], [end]
    if behind != [end]:
        raise FormatError(f"{path}: its template does not end with the end symbol alone, as multihead's texts do")
    return [i for i in before if i is not None]


def _name(token: str) -> str:
    """The language of a token: ``__de__`` is de, other tokens are languages as they stand."""
    match = _LANGUAGE.fullmatch(token)
    return token if match is None else match[1] or match[2]
