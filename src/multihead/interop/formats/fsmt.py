"""Reads FSMT folders: fairseq's WMT19 models in `transformers`.

    config.json               settings of the network: sizes of both sides, no norm after the last layers
    generation_config.json    settings of search; older folders have them in config.json
    model.safetensors         the weights under fairseq's names, or pytorch_model.bin
    vocab-src.json            the id of each piece; ``</w>`` ends a piece that ends its word
    vocab-tgt.json
    merges.txt                the codes of the byte-pair encoding: fastBPE's, perhaps without their counts
    tokenizer_config.json     the two languages

The network is `fairseq`'s with post-norm. Text is tokenized by Moses, after its punctuation and characters were
normalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multihead.errors import FormatError
from multihead.interop.formats.bart_folder import model_type, read_search
from multihead.interop.formats.fairseq import network
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.pieces import read_lines
from multihead.interop.formats.tensors import read_weights
from multihead.model_folder import CONFIG, read_json
from multihead.text.foreign import SpecialIds
from multihead.text.preparation import Preparation, PreparedTokenizer
from multihead.text.subword_nmt.codes import END, Codes
from multihead.text.subword_nmt.segmenting import SEPARATOR
from multihead.text.word_pieces import WordPieceTokenizer

_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_SEARCH = {"num_beams": 5, "length_penalty": 1.0, "max_length": 200}
"""The settings of search of a folder that does not name them."""


def recognizes(folder: Path) -> bool:
    """Whether the folder has the settings of an FSMT model."""
    return (folder / CONFIG).is_file() and model_type(folder) == "fsmt"


def read(folder: Path, _languages: Languages) -> TranslatorParts:
    """The model in an FSMT folder.

    Raises:
        FormatError: something is missing or damaged, or the model is of a variant that multihead does not read.
        MissingDependencyError: ``sacremoses`` is not installed.
    """
    config, path = read_json(folder / CONFIG), folder / CONFIG
    languages = config.get("langs")
    if not isinstance(languages, list) or len(languages) != 2:
        raise FormatError(f"{path}: langs is {languages!r}, expected two languages; copy the whole folder again")
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file() and read_json(tokenizer).get("do_lower_case"):
        raise FormatError(f"{tokenizer}: text is lowercased before Moses tokenizes it, which multihead does not do")
    weights = {
        name.removeprefix("model."): tensor.float()
        for name, tensor in read_weights(folder).items()
        if ".embed_positions." not in name  # sinusoids
    }
    options = config | {
        "activation_fn": config.get("activation_function", "relu"),
        "no_scale_embedding": not config.get("scale_embedding", True),
    }
    settings, found = network(weights, options, path)
    pair = (
        _tokenizer(folder, "vocab-src.json", config, languages),
        _tokenizer(folder, "vocab-tgt.json", config, languages),
    )
    search = read_search(folder, _SEARCH | config)
    source, target = map(str, languages)
    return TranslatorParts(settings, found, *pair, search, source, target)


def _tokenizer(folder: Path, name: str, config: Mapping[str, Any], languages: list[Any]) -> PreparedTokenizer:
    path = folder / name
    ids = read_json(path)
    pieces = sorted(ids, key=lambda piece: ids[piece]) if all(type(i) is int for i in ids.values()) else []
    if sorted(ids.values()) != list(range(len(pieces))) or not pieces:
        raise FormatError(f"{path}: expected pieces with the ids from 0 on, each once; copy the file again")
    named = {"pad": config.get("pad_token_id", 1), "bos": config.get("decoder_start_token_id", 2)}
    special = SpecialIds(**named, unk=ids.get("<unk>", 3), eos=config.get("eos_token_id", 2))
    control = [ids[piece] for piece in _SPECIALS if piece in ids]
    vocabulary = [
        piece if i in control else piece.removesuffix(END) if piece.endswith(END) else piece + SEPARATOR
        for i, piece in enumerate(pieces)
    ]
    inner = WordPieceTokenizer(vocabulary, special, control, codes=_codes(folder / "merges.txt"))
    source, target = map(str, languages)
    steps = Preparation(
        moses=source, detokenize=target, moses_punctuation=source, moses_unicode=True, split_dashes=True
    )
    return PreparedTokenizer(inner, steps)


def _codes(path: Path) -> Codes:
    lines = (" ".join(line.split(" ")[:2]) for line in read_lines(path))
    return Codes.read(["#version: 0.2", *lines], path)
