"""A model on disk: a folder with everything that turns text into text, which refuses parts of another folder.

    config.json            format version, the network's sizes, the tokenizers' SHA-256, languages, what made it
    model.safetensors      the weights (a shared tensor once); no pickle is ever loaded
    tokenizer.json         or source.tokenizer.json and target.tokenizer.json where each side has its own
    generation.json        how it is searched unless one says otherwise
    metrics.json           what was measured on the validation set
    README.md              a card for people

`FORMAT_VERSION` is a promise: newer code reads every older folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from multihead.errors import FormatError
from multihead.files import recover_folder, whole_folder
from multihead.models.config import GenerationConfig, TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer

FORMAT_VERSION = 1


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
    """Writes a model folder, whole or not at all; one that stands there is replaced.

    Args:
        folder: where to.
        bundle: the translator.
        metrics: what was measured, for metrics.json and the card.
        made_by: a sentence on where it comes from, for the card.
    """
    shared = bundle.source_tokenizer.digest == bundle.target_tokenizer.digest
    tokenizers = {"tokenizer.json": bundle.source_tokenizer}
    if not shared:
        tokenizers = {
            "source.tokenizer.json": bundle.source_tokenizer,
            "target.tokenizer.json": bundle.target_tokenizer,
        }
    config = {
        "format_version": FORMAT_VERSION,
        "model": bundle.model.config.model_dump(mode="json"),
        "tokenizers": {name: tokenizer.digest for name, tokenizer in tokenizers.items()},
        "source_language": bundle.source_language,
        "target_language": bundle.target_language,
    }
    with whole_folder(folder) as draft:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        weights = {name: p.detach().cpu().contiguous() for name, p in bundle.model.named_parameters()}
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        _write_json(draft / "config.json", config)
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
    config = _read_json(folder / "config.json")
    version = config.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise FormatError(
            f"{folder}: format version {version!r}; this multihead reads versions 1 to {FORMAT_VERSION}: "
            "a newer multihead wrote it, or the file is damaged"
        )
    try:
        shape = TransformerConfig(**config["model"])
        generation = GenerationConfig(**_read_json(folder / "generation.json"))
        digests: dict[str, str] = config["tokenizers"]
    except (KeyError, TypeError, ValidationError) as error:
        raise FormatError(f"{folder}: config.json or generation.json is damaged: {error}") from None
    tokenizers = [_read_tokenizer(folder / name, digest) for name, digest in digests.items()]
    model = Transformer(shape)
    _fill(model, folder / "model.safetensors")
    return Bundle(
        model.eval().to(device),
        tokenizers[0],
        tokenizers[-1],
        generation,
        config.get("source_language"),
        config.get("target_language"),
    )


def locate(folder: Path) -> Path:
    """The model folder that ``folder`` is, or that a run folder holds as its best.

    Raises:
        FormatError: there is none.
    """
    if not folder.is_dir():
        raise FormatError(f"{folder}: there is no such folder; give the one that `multihead train` wrote")
    recover_folder(folder / "best")
    for candidate in (folder / "best", folder):
        if (candidate / "model.safetensors").is_file() and (candidate / "config.json").is_file():
            return candidate
    if (folder / "run.json").is_file():
        raise FormatError(f"{folder}: this run has no model yet: it was stopped before its first validation")
    raise FormatError(f"{folder}: not a model folder: it has no config.json and model.safetensors")


def _fill(model: Transformer, path: Path) -> None:
    """Loads weights by name; every name and shape must match."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: damaged or unreadable ({error}); copy the folder again") from None
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


def _read_tokenizer(path: Path, digest: str) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise FormatError(
            f"{path}: not the tokenizer that this model was trained with (its SHA-256 is {tokenizer.digest[:12]}..., "
            f"config.json says {digest[:12]}...); copy the whole model folder again"
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
    size = sum(p.numel() for p in bundle.model.parameters()) / 1e6
    measured = "\n".join(f"| {name} | {value} |" for name, value in metrics.items())
    return (
        f"# Translator, {languages}\n\n{made_by}\n\n"
        f"Transformer, {config.encoder_layers}+{config.decoder_layers} layers, width {config.width}, "
        f"{config.heads} heads, {config.norm}-norm, {size:.1f} million parameters; "
        f"byte-pair encoding of {len(bundle.target_tokenizer)} entries.\n\n"
        "```python\nfrom multihead import Translator\n\n"
        'translator = Translator.load(".")\nprint(translator.translate(["..."]))\n```\n\n'
        f"| on the validation set | |\n|---|---|\n{measured}\n"
    )
