"""A translator on disk: network, tokenizers and search settings.

    config.json            format version, settings of the network, SHA-256 of weights and tokenizers, languages
    model.safetensors      the weights (a shared tensor once); no pickle is ever loaded
    tokenizer.json         or source.tokenizer.json and target.tokenizer.json, if the sides differ
    generation.json        default settings of search
    metrics.json           scores on the validation set
    README.md              a model card

`multihead.model_folder` defines the first two and the format version. Loading checks that all parts belong together.

A folder that another program wrote is loaded, too: `multihead.interop.formats` reads it, and only this file knows that
there are such folders.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead import model_folder
from multihead.decoding.search import Search, refuse_unstored
from multihead.errors import FormatError
from multihead.files import sha256_of
from multihead.model_folder import (
    CONFIG,
    COPY_AGAIN,
    FORMAT_VERSION,
    WEIGHTS,
    Rounding,
    architecture_of,
    load_weights,
    parse_settings,
    read_config,
    read_json,
    save_folder,
    write_json,
)
from multihead.models.config import ARCHITECTURES, NetworkConfig, TransformerConfig
from multihead.models.network import Network
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer
from multihead.text.languages import Languages
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer


def build_network(config: NetworkConfig) -> Network:
    """The network that ``config`` describes; parameters are drawn from PyTorch's current generator."""
    return Transformer(config) if isinstance(config, TransformerConfig) else RecurrentTranslator(config)


__all__ = ["FORMAT_VERSION", "Bundle", "load_bundle", "locate", "save_bundle", "weights_digest"]

_SHARED, _SEPARATE = ("tokenizer.json",), ("source.tokenizer.json", "target.tokenizer.json")


@dataclass(frozen=True)
class Bundle:
    """A translator in memory."""

    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    generation: Search
    """How it is searched by default; only the fields of `Search.stored` are kept."""
    source_language: str | None = None
    target_language: str | None = None


def save_bundle(
    folder: Path, bundle: Bundle, metrics: dict[str, Any], made_by: str, rounding: Rounding | None = None
) -> None:
    """Write a model folder atomically; an existing model is replaced.

    Args:
        folder: the folder to write.
        bundle: the translator.
        metrics: scores for metrics.json and the card.
        made_by: a sentence on the model's origin, for the card.
        rounding: quantization of the matrices (`multihead.model_folder`); None = float32.

    Raises:
        FormatError: the folder holds something that is not a model; it is left untouched.
        SurroundingsError: the folder cannot be written; an existing model is left untouched.
    """
    shared = bundle.source_tokenizer.digest == bundle.target_tokenizer.digest
    pair = (bundle.source_tokenizer, bundle.target_tokenizer)
    tokenizers = dict(zip(_SHARED if shared else _SEPARATE, pair, strict=False))

    def write_parts(draft: Path) -> dict[str, Any]:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        write_json(draft / "generation.json", bundle.generation.stored_values())
        write_json(draft / "metrics.json", metrics)
        (draft / "README.md").write_text(_card(bundle, metrics, made_by), encoding="utf-8")
        return {
            "tokenizers": {name: tokenizer.digest for name, tokenizer in tokenizers.items()},
            "source_language": bundle.source_language,
            "target_language": bundle.target_language,
        }

    save_folder(folder, bundle.model, bundle.model.config, write_parts, rounding)


def load_bundle(folder: Path, device: str = "cpu", languages: Languages | None = None) -> Bundle:
    """Load a model folder, the best model of a run folder, or a model of another program.

    Args:
        folder: the folder.
        device: where the network goes.
        languages: source and target, for a model of another program that has several.

    Raises:
        FormatError: the folder is none of these, something in it is missing or damaged, or a tokenizer is not the one
            that the model was trained with.
    """
    folder = locate(folder)
    if not _is_ours(folder):
        return _load_foreign(folder, device, languages or Languages())
    config = read_config(folder)
    network_config = _network_config(config, folder)
    generation = _read_search(folder / "generation.json")
    digests = config.get("tokenizers")
    if not isinstance(digests, dict) or tuple(sorted(digests)) not in (_SHARED, _SEPARATE):
        raise FormatError(f"{folder / CONFIG}: damaged: it names no tokenizers; {COPY_AGAIN}")
    tokenizers = [_read_tokenizer(folder / name, digests[name]) for name in sorted(digests)]
    model = build_network(network_config)
    load_weights(model, folder, config)
    return Bundle(
        model.eval().to(device),
        tokenizers[0],
        tokenizers[-1],
        generation,
        config.get("source_language"),
        config.get("target_language"),
    )


def locate(folder: Path) -> Path:
    """The model folder: ``folder`` itself, or the best model of a run folder.

    Raises:
        FormatError: there is no model folder, or only a part of one.
    """
    try:
        return model_folder.locate(folder)
    except FormatError as error:
        from multihead.interop.formats import opening

        if opening.recognize(folder) is None:
            raise (opening.unsupported(folder) if opening.is_foreign(folder) else error) from None
        return folder


def weights_digest(folder: Path) -> str:
    """SHA-256 of the weights; for a model of another program, of all files of its folder."""
    folder = locate(folder)
    if _is_ours(folder):
        return sha256_of(folder / WEIGHTS)
    digests = [sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _is_ours(folder: Path) -> bool:
    """Whether multihead wrote this folder; also true if no other program is known to write such a folder.

    Raises:
        FormatError: another program wrote it, and multihead does not read its format.
    """
    if (folder / CONFIG).is_file() and "format_version" in read_json(folder / CONFIG):
        return True
    from multihead.interop.formats import opening

    if opening.recognize(folder) is not None:
        return False
    if opening.is_foreign(folder):
        raise opening.unsupported(folder)
    return True


def _load_foreign(folder: Path, device: str, languages: Languages) -> Bundle:
    from multihead.interop.formats.opening import read_foreign

    parts = read_foreign(folder, languages)
    return Bundle(
        parts.build(folder).to(device),
        parts.source_tokenizer,
        parts.target_tokenizer,
        parts.generation,
        parts.source_language,
        parts.target_language,
    )


_OTHER_NETWORKS = {
    "pointer": "a pointer network, which does not translate; see `multihead pointer --help`",
    "hierarchical": "a classifier, which does not translate; see `multihead classify --help`",
    "bert-classifier": "a classifier, which does not translate; see `multihead classify --help`",
    "bert": "a BERT, which does not translate; see `multihead fill-mask --help`",
}
"""Descriptions of the networks in such folders that are not translators."""


def _network_config(config: dict[str, Any], folder: Path) -> NetworkConfig:
    architecture = architecture_of(config)
    if architecture in _OTHER_NETWORKS:
        raise FormatError(f"{folder}: {_OTHER_NETWORKS[architecture]}")
    for name, cls in ARCHITECTURES.items():
        if name == architecture:
            return parse_settings(cls, config["model"], folder / CONFIG)
    raise FormatError(
        f"{folder / CONFIG}: describes a network '{architecture}', but there are {', '.join(ARCHITECTURES)}: "
        "a newer multihead wrote it, or the file is damaged"
    )


def _read_search(path: Path) -> Search:
    values = read_json(path)
    try:
        refuse_unstored(values)
    except ValueError as error:
        raise FormatError(f"{path}: {error}; the file is damaged: {COPY_AGAIN}") from None
    return parse_settings(Search, values, path)


def _read_tokenizer(path: Path, digest: object) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise FormatError(
            f"{path}: not the tokenizer that this model was trained with (its SHA-256 is {tokenizer.digest[:12]}..., "
            f"config.json says {str(digest)[:12]}...); {COPY_AGAIN}"
        )
    return tokenizer


def _card(bundle: Bundle, metrics: dict[str, Any], made_by: str) -> str:
    """The model card: README.md of a model folder."""
    config = bundle.model.config
    languages = f"{bundle.source_language or 'source'} to {bundle.target_language or 'target'}"
    size = sum(p.numel() for p in bundle.model.parameters())
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in metrics.items()}
    measured = "\n".join("| {} | {} |".format(name, text.replace("|", "\\|")) for name, text in shown.items())
    kind = "byte-pair encoding" if isinstance(bundle.target_tokenizer, BytePairTokenizer) else "a vocabulary"
    unusual = ", ".join(f"{name} {value}" for name, value in _unusual(config).items())
    return (
        f"# Translator, {languages}\n\n{made_by}\n\n"
        f"{config.summary}, {size:,} parameters; "
        f"{kind} of {len(bundle.target_tokenizer)} entries.\n"
        + (f"Other than by default: {unusual}.\n" if unusual else "")
        + "\n"
        "```python\nfrom multihead import Translator\n\n"
        'translator = Translator.load(".")\nprint(translator.translate(["..."]))\n```\n\n'
        + (f"| measured | |\n|---|---|\n{measured}\n" if measured else "")
    )


def _unusual(config: NetworkConfig) -> dict[str, Any]:
    """Settings that differ from their defaults, without those that the card shows anyway."""
    fields, shown = type(config).model_fields, {"source_vocab", "target_vocab", "padding_id", *config.summary_fields}
    values = {name: getattr(config, name) for name in fields if name not in shown}
    return {name: value for name, value in values.items() if value != fields[name].default}
