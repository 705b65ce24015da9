"""MarianMT folders of `transformers`, such as OPUS-MT's.

    config.json, generation_config.json, model.safetensors    `bart_folder`
    source.spm, target.spm                                    SentencePiece models
    vocab.json                                                the id of every piece of both
    target_vocab.json                                         that of the target, if the vocabularies are separate
    tokenizer_config.json                                     languages

The network is post-norm, its positions have the sines in the first half and the cosines in the second, and its output
has a bias. Decoding begins with padding. A model with several target languages has a token for each (``>>deu<<``),
which stands before the source. Marian's own files are read by `marian_npz`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from multihead.errors import FormatError
from multihead.interop.formats import bart_folder
from multihead.interop.formats.languages import find_language
from multihead.interop.formats.multilingual import read_sides, read_vocabulary
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.tensors import read_weights
from multihead.model_folder import CONFIG, COPY_AGAIN, read_json
from multihead.models.config import TransformerConfig
from multihead.text.foreign import SpecialIds
from multihead.text.sentencepiece import SentencePieceTokenizer, read_model

_LANGUAGE = re.compile(r">>(.+)<<")


def recognizes(folder: Path) -> bool:
    """Whether the folder holds a MarianMT model."""
    return bart_folder.model_type(folder) == "marian"


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in a MarianMT folder.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
        ConfigurationError: the model has several target languages, and none of them or no other is named.
        MissingDependencyError: ``sentencepiece`` is not installed.
    """
    config = read_json(folder / CONFIG)
    bart_folder.refuse(folder, config, {"normalize_before": (False,), "normalize_embedding": (False,)})
    tensors = read_weights(folder)
    settings = bart_folder.read_settings(folder, config, tensors, norm="post", **bart_folder.position_settings(tensors))
    if not (folder / "source.spm").is_file() and (folder / "tokenizer.json").is_file():
        sides = read_sides(folder, read_vocabulary(folder, config, []), config, languages)
        source, target, chosen = sides.source, sides.target, sides.target_language
    else:
        source, target, chosen = _tokenizers(folder, config, settings, languages)
    names = bart_folder.tokenizer_settings(folder)
    return TranslatorParts(
        settings,
        bart_folder.our_weights(folder, settings, tensors, lambda name: name in bart_folder.POSITIONS),
        source,
        target,
        bart_folder.read_search(folder, config),
        languages.source or names.get("source_lang"),
        chosen or languages.target or names.get("target_lang"),
    )


def _tokenizers(
    folder: Path, config: Mapping[str, Any], settings: TransformerConfig, languages: Languages
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer, str | None]:
    """The tokenizers of both sides, and the target language if the model has several."""
    separate = not config.get("share_encoder_decoder_embeddings", True)
    source_names = _read_pieces(folder / "vocab.json", settings.source_vocab)
    target_names = _read_pieces(folder / "target_vocab.json", settings.target_vocab) if separate else source_names
    prefix: list[int] = []
    specials, chosen = [], None
    for names in (source_names, target_names):
        if "<unk>" not in names:
            raise FormatError(f"{folder}: the vocabulary has no entry <unk>; {COPY_AGAIN}")
        specials.append(bart_folder.special_ids(config, names.index("<unk>"), folder / CONFIG))
    offered = language_tokens(source_names)
    if offered:
        chosen = find_language(languages.target, offered, "target")
        prefix = [offered[chosen]]
    source = _tokenizer(folder / "source.spm", source_names, specials[0], prefix)
    forbidden = bart_folder.suppressed(folder, config)
    target = _tokenizer(folder / "target.spm", target_names, specials[1], [], forbidden)
    return source, target, chosen


def _tokenizer(
    path: Path, names: list[str], specials: SpecialIds, prefix: Sequence[int], forbidden: Set[int] = frozenset()
) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(read_model(path), names, specials, control_ids(names) | forbidden, prefix)


def language_tokens(names: list[str]) -> dict[str, int]:
    """The target languages that a vocabulary has tokens for, with their ids."""
    found = ((_LANGUAGE.fullmatch(name), i) for i, name in enumerate(names))
    return {match[1]: i for match, i in found if match}


def control_ids(names: list[str]) -> set[int]:
    """The entries that stand for no text: tokens of languages, symbols, rows without an entry."""
    known = {"<s>", "</s>", "<unk>", "<pad>"}
    return {i for i, name in enumerate(names) if name in known or _LANGUAGE.fullmatch(name) or _UNUSED.match(name)}


_UNUSED = re.compile(r"<unused \d+>")


def _read_pieces(path: Path, size: int) -> list[str]:
    """The pieces by id, from a JSON object of ids by piece; rows of the embedding without a piece get a name.

    Raises:
        FormatError: the file is missing or damaged, or does not fit ``size``.
    """
    return bart_folder.by_id(read_json(path), size, path)
