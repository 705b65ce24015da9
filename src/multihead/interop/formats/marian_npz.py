"""Marian's own models, as OPUS-MT-train publishes them.

Junczys-Dowmunt et al. (2018), "Marian: fast neural machine translation in C++".

The Tatoeba challenge has the same files.

    *.npz                     the weights, and the settings of the network in the array ``special:model.yml``
    decoder.yml               names of the model and the vocabularies, settings of search; optional
    *vocab.yml, *.vocab       the id of every piece, one file or one for each side; or
    *.spm                     SentencePiece models whose own ids are used
    source.spm, target.spm    SentencePiece models that segment text for a vocab.yml

What the network computes is in `marian_network`. Marian has neither padding nor a begin symbol: both are one entry more
here, whose embedding is zero, and which the bias of the output forbids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats import bart_folder
from multihead.interop.formats.languages import find_language
from multihead.interop.formats.marian import control_ids, language_tokens
from multihead.interop.formats.marian_network import read_network
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.tensors import read_arrays
from multihead.interop.formats.yaml_files import parse_texts
from multihead.model_folder import COPY_AGAIN, parse_settings
from multihead.sealed import read_file
from multihead.text.foreign import SpecialIds
from multihead.text.sentencepiece import SentencePieceTokenizer, own_pieces, read_model

SETTINGS = "special:model.yml"
"""The array with the settings of the network, as text."""

PAD = "<pad>"
"""The entry that is added for padding and begin."""


def recognizes(folder: Path) -> bool:
    """Whether the folder holds a model of Marian."""
    return not (folder / "config.json").exists() and any(_models(folder))


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in a folder of Marian.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
        ConfigurationError: the model has several target languages, and none of them or no other is named.
        MissingDependencyError: ``sentencepiece`` or ``yaml`` is not installed.
    """
    decoder = _decoder(folder)
    path = _model(folder, decoder)
    arrays = read_arrays(path)
    text = arrays.pop(SETTINGS, None)
    if text is None:
        raise FormatError(
            f"{path}: has no {SETTINGS}; it is no model of Marian, or an old one: train with a newer Marian"
        )
    options = parse_texts(text.astype("u1").tobytes().rstrip(b"\0").decode("utf-8", "replace"), path)
    config, weights = read_network(arrays, options, path)
    pieces = [_vocabulary(one, folder, side) for one, side in zip(_vocabularies(folder, decoder), SIDES, strict=True)]
    offered = language_tokens(pieces[0][1])
    chosen = find_language(languages.target, offered, "target") if offered else None
    prefix = [] if chosen is None else [offered[chosen]]
    return TranslatorParts(
        config,
        weights,
        _tokenizer(*pieces[0], config.source_vocab, prefix),
        _tokenizer(*pieces[1], config.source_vocab, []),
        _search(decoder, folder),
        languages.source,
        chosen or languages.target,
    )


SIDES = ("source", "target")


def _models(folder: Path) -> list[Path]:
    """The files of weights, without those of an optimizer."""
    return sorted(path for path in folder.glob("*.npz") if not path.name.endswith((".optimizer.npz", ".orig.npz")))


def _decoder(folder: Path) -> dict[str, Any]:
    """What decoder.yml says; nothing if there is none."""
    path = folder / "decoder.yml"
    return parse_texts(_text(path), path) if path.is_file() else {}


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: cannot be read as text; {COPY_AGAIN}") from None


def _model(folder: Path, decoder: Mapping[str, Any]) -> Path:
    named = decoder.get("models")
    if isinstance(named, list) and len(named) > 1:
        raise FormatError(f"{folder / 'decoder.yml'}: names {len(named)} models, an ensemble; leave one in the list")
    found = _models(folder)
    if isinstance(named, list) and named:
        path = folder / Path(str(named[0])).name
        if path in found:
            return path
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise FormatError(f"{folder}: several models ({names}) and no decoder.yml that names one; keep one of them")
    return found[0]


def _vocabularies(folder: Path, decoder: Mapping[str, Any]) -> tuple[Path, Path]:
    """The files of the vocabularies of source and target."""
    named = decoder.get("vocabs")
    if isinstance(named, list) and len(named) == 2:
        source, target = (folder / Path(str(name)).name for name in named)
        return source, target
    for ending in ("vocab.yml", "vocab.spm", ".vocab"):
        found = sorted(folder.glob(f"*{ending}"))
        if len(found) == 1:
            return found[0], found[0]
        sides = [path for kind in ("src", "trg") for path in found if f"{kind}.{ending.lstrip('.')}" in path.name]
        if len(sides) == 2:
            return sides[0], sides[1]
    raise FormatError(
        f"{folder}: the vocabularies cannot be told from the names of the files; name them in decoder.yml (vocabs)"
    )


def _vocabulary(path: Path, folder: Path, side: str) -> tuple[bytes, list[str]]:
    """The SentencePiece model of a side, and the pieces by id."""
    if path.suffix == ".spm":
        model = read_model(path)
        return model, own_pieces(model)
    if path.suffix == ".fsv":
        raise FormatError(f"{path}: a vocabulary with factors, which multihead does not have")
    text = _text(path)
    if not (folder / f"{side}.spm").is_file():
        codes = "source.bpe is there, but its text" if (folder / "source.bpe").is_file() else "text"
        raise FormatError(
            f"{folder}: there is no {side}.spm: {codes} was tokenized and cut by other tools, which multihead does not "
            "run; it reads models with SentencePiece"
        )
    model = read_model(folder / f"{side}.spm")
    if path.suffix not in (".yml", ".yaml", ".json"):
        return model, text.removesuffix("\n").split("\n")
    ids = parse_texts(text, path)
    try:
        numbered = {int(index): piece for piece, index in ids.items()}
        size = max(numbered) + 1
    except (TypeError, ValueError):
        raise FormatError(f"{path}: damaged: an id is no number; {COPY_AGAIN}") from None
    bart_folder.check_size(size, len(ids), path)
    return model, [numbered.get(i, f"<unused {i}>") for i in range(size)]


def _tokenizer(model: bytes, pieces: list[str], size: int, prefix: list[int]) -> SentencePieceTokenizer:
    """The tokenizer of a side, whose last entry is padding.

    The end and the unknown symbol are found by their names; ids 0 and 1 may have older names or none.
    """
    names = [pieces[i] if i < len(pieces) else f"<unused {i}>" for i in range(size - 1)] + [PAD]
    end = names.index("</s>") if "</s>" in names else 0
    unknown = names.index("<unk>") if "<unk>" in names else 1
    specials = SpecialIds(size - 1, unknown, size - 1, end)
    return SentencePieceTokenizer(model, names, specials, control_ids(names), prefix)


def _search(decoder: Mapping[str, Any], folder: Path) -> Search:
    """The settings of search in decoder.yml: ``normalize`` is alpha, 0 where it is missing."""
    if not decoder:
        return Search()
    fields = (("beam", "beam-size", "12"), ("alpha", "normalize", "0"), ("length_factor", "max-length-factor", "3"))
    values = {ours: decoder.get(theirs, default) for ours, theirs, default in fields}
    try:
        numbers = {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError):
        raise FormatError(f"{folder / 'decoder.yml'}: a setting of search is no number: {values}") from None
    return parse_settings(Search, {**numbers, "beam": int(numbers["beam"])}, folder / "decoder.yml")
