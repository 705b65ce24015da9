"""A model on disk: a folder with everything that turns text into text, which refuses parts of another folder.

    config.json            format version, the network's sizes, SHA-256 of weights and tokenizers, languages
    model.safetensors      the weights (a shared tensor once); no pickle is ever loaded
    tokenizer.json         or source.tokenizer.json and target.tokenizer.json where each side has its own
    generation.json        how it is searched unless one says otherwise
    metrics.json           what was measured on the validation set
    README.md              a card for people

`FORMAT_VERSION` is a promise: newer code reads every older folder, and takes what it does not say as the default.
Version 2 has more settings of networks and of search than version 1, which an older multihead would not know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from multihead.configuration import SettingsType, build
from multihead.errors import ConfigurationError, FormatError
from multihead.files import sha256_of, standing_folder, whole_folder, write_tensors
from multihead.models.config import GenerationConfig, TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer

FORMAT_VERSION = 2

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_SHARED, _SEPARATE = ("tokenizer.json",), ("source.tokenizer.json", "target.tokenizer.json")


@dataclass(frozen=True)
class Bundle:
    """A translator in memory."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    generation: GenerationConfig
    source_language: str | None = None
    target_language: str | None = None


def save(folder: Path, bundle: Bundle, metrics: dict[str, Any], made_by: str) -> None:
    """Writes a model folder, whole or not at all; a model that stands there is replaced.

    Args:
        folder: where to.
        bundle: the translator.
        metrics: what was measured, for metrics.json and the card.
        made_by: a sentence on where it comes from, for the card.

    Raises:
        FormatError: something that is not a model stands there; it is left alone.
        SurroundingsError: it cannot be written; what stood there still does.
    """
    if folder.exists() and not (folder / _CONFIG).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FormatError(f"{folder}: holds something that is not a model; nothing was touched. Choose a new folder")
    shared = bundle.source_tokenizer.digest == bundle.target_tokenizer.digest
    pair = (bundle.source_tokenizer, bundle.target_tokenizer)
    tokenizers = dict(zip(_SHARED if shared else _SEPARATE, pair, strict=False))
    with whole_folder(folder) as draft:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        write_tensors(draft / _WEIGHTS, dict(bundle.model.named_parameters()))
        config = {
            "format_version": FORMAT_VERSION,
            "model": bundle.model.config.model_dump(mode="json"),
            "weights": sha256_of(draft / _WEIGHTS),
            "tokenizers": {name: tokenizer.digest for name, tokenizer in tokenizers.items()},
            "source_language": bundle.source_language,
            "target_language": bundle.target_language,
        }
        _write_json(draft / _CONFIG, config)
        _write_json(draft / "generation.json", bundle.generation.model_dump(mode="json"))
        _write_json(draft / "metrics.json", metrics)
        (draft / "README.md").write_text(_card(bundle, metrics, made_by), encoding="utf-8")


def load(folder: Path, device: str = "cpu") -> Bundle:
    """Reads a model folder, or the best model of a run folder.

    Raises:
        FormatError: it is neither, something in it is missing or damaged, or a tokenizer is not the one that the
            model was trained with.
    """
    folder = locate(folder)
    config = _read_json(folder / _CONFIG)
    version = config.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise FormatError(
            f"{folder}: format version {version!r}; this multihead reads versions 1 to {FORMAT_VERSION}: "
            "a newer multihead wrote it, or the file is damaged"
        )
    shape = _settings(TransformerConfig, config.get("model"), folder / _CONFIG)
    generation = _settings(GenerationConfig, _read_json(folder / "generation.json"), folder / "generation.json")
    digests = config.get("tokenizers")
    if not isinstance(digests, dict) or tuple(sorted(digests)) not in (_SHARED, _SEPARATE):
        raise FormatError(f"{folder / _CONFIG}: damaged: it names no tokenizers; {_AGAIN}")
    tokenizers = [_read_tokenizer(folder / name, digests[name]) for name in sorted(digests)]
    tensors = _read_weights(folder / _WEIGHTS, config.get("weights"))
    model = Transformer(shape)
    _fill(model, tensors, folder / _WEIGHTS)
    return Bundle(
        model.eval().to(device),
        tokenizers[0],
        tokenizers[-1],
        generation,
        config.get("source_language"),
        config.get("target_language"),
    )


_AGAIN = "copy the whole model folder again"


def locate(folder: Path) -> Path:
    """The model folder that ``folder`` is, or that a run folder holds as its best.

    Raises:
        FormatError: there is none, or only a part of one.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise FormatError(f"{folder}: {what}; give the folder that `multihead train` wrote")
    for candidate in (standing_folder(folder / "best"), folder):
        there = [name for name in (_CONFIG, _WEIGHTS) if (candidate / name).is_file()]
        if len(there) == 2:
            return candidate
        if there:
            missing = _WEIGHTS if there == [_CONFIG] else _CONFIG
            raise FormatError(f"{candidate}: a model folder without its {missing}; {_AGAIN}")
    if (folder / "run.json").is_file():
        raise FormatError(f"{folder}: this run has no model yet: it was stopped before its first validation")
    raise FormatError(f"{folder}: not a model folder: it has no {_CONFIG} and {_WEIGHTS}")


def _settings(cls: type[SettingsType], values: object, path: Path) -> SettingsType:
    if not isinstance(values, dict):
        raise FormatError(f"{path}: damaged: expected settings, got {values!r}; {_AGAIN}")
    try:
        return build(cls, values, str(path))
    except ConfigurationError as error:
        raise FormatError(f"{error}; the file is damaged: {_AGAIN}") from None


def _read_weights(path: Path, digest: object) -> dict[str, Tensor]:
    """The tensors of the file whose SHA-256 is ``digest``; a folder that was made by hand may name none."""
    try:
        found, tensors = sha256_of(path), load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: damaged or unreadable ({error}); {_AGAIN}") from None
    if digest is not None and found != digest:
        raise FormatError(
            f"{path}: not the weights that {_CONFIG} was written with, or damaged (their SHA-256 is {found[:12]}..., "
            f"it says {str(digest)[:12]}...); {_AGAIN}"
        )
    return tensors


def _fill(model: Transformer, tensors: dict[str, Tensor], path: Path) -> None:
    """Fills the parameters by name; every name and shape must match."""
    parameters = dict(model.named_parameters())
    missing, surplus = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
    shapes = [name for name in parameters.keys() & tensors.keys() if parameters[name].shape != tensors[name].shape]
    if missing or surplus or shapes:
        raise FormatError(
            f"{path}: these are not the weights that config.json describes: "
            f"missing {missing[:3]}, unknown {surplus[:3]}, of another shape {sorted(shapes)[:3]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _read_tokenizer(path: Path, digest: object) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise FormatError(
            f"{path}: not the tokenizer that this model was trained with (its SHA-256 is {tokenizer.digest[:12]}..., "
            f"config.json says {str(digest)[:12]}...); {_AGAIN}"
        )
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise FormatError(f"{path}: damaged: not JSON") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: damaged: expected a JSON object")
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _card(bundle: Bundle, metrics: dict[str, Any], made_by: str) -> str:
    """The README of a model folder."""
    config = bundle.model.config
    languages = f"{bundle.source_language or 'source'} to {bundle.target_language or 'target'}"
    size = sum(p.numel() for p in bundle.model.parameters())
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in metrics.items()}
    measured = "\n".join("| {} | {} |".format(name, text.replace("|", "\\|")) for name, text in shown.items())
    unusual = ", ".join(f"{name} {value}" for name, value in _unusual(config).items())
    return (
        f"# Translator, {languages}\n\n{made_by}\n\n"
        f"Transformer, {config.encoder_layers}+{config.decoder_layers} layers, width {config.width}, "
        f"inner {config.inner}, {config.heads} heads, {config.norm}-norm, {size:,} parameters; "
        f"byte-pair encoding of {len(bundle.target_tokenizer)} entries.\n"
        + (f"Other than by default: {unusual}.\n" if unusual else "")
        + "\n"
        "```python\nfrom multihead import Translator\n\n"
        'translator = Translator.load(".")\nprint(translator.translate(["..."]))\n```\n\n'
        + (f"| measured | |\n|---|---|\n{measured}\n" if measured else "")
    )


def _unusual(config: TransformerConfig) -> dict[str, Any]:
    """The settings, other than those that the card has anyway, that are not the default."""
    sizes = {
        "source_vocab",
        "target_vocab",
        "padding_id",
        "width",
        "heads",
        "inner",
        "encoder_layers",
        "decoder_layers",
    }
    fields = TransformerConfig.model_fields
    values = {name: getattr(config, name) for name in fields if name not in sizes | {"norm"}}
    return {name: value for name, value in values.items() if value != fields[name].default}
