"""From settings to the network that they describe: the one place that knows all of them.

A translator on disk: a folder with everything that turns text into text, which refuses parts of another folder.

    config.json            format version, the network's sizes, SHA-256 of weights and tokenizers, languages
    model.safetensors      the weights (a shared tensor once); no pickle is ever loaded
    tokenizer.json         or source.tokenizer.json and target.tokenizer.json where each side has its own
    generation.json        how it is searched unless one says otherwise
    metrics.json           what was measured on the validation set
    README.md              a card for people

The first two are `multihead.model_folder`'s, the format version too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.errors import FormatError
from multihead.model_folder import (
    CONFIG,
    COPY_AGAIN,
    FORMAT_VERSION,
    Rounding,
    architecture_of,
    load_weights,
    locate,
    parse_settings,
    read_config,
    read_json,
    save_folder,
    write_json,
)
from multihead.models.config import ARCHITECTURES, GenerationConfig, NetworkConfig, TransformerConfig
from multihead.models.network import Network
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer


def build_network(config: NetworkConfig) -> Network:
    """The network of ``config``, with first values drawn from PyTorch's current generator."""
    return Transformer(config) if isinstance(config, TransformerConfig) else RecurrentTranslator(config)


__all__ = ["FORMAT_VERSION", "Bundle", "load_bundle", "locate", "save_bundle"]

_SHARED, _SEPARATE = ("tokenizer.json",), ("source.tokenizer.json", "target.tokenizer.json")


@dataclass(frozen=True)
class Bundle:
    """A translator in memory."""

    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    generation: GenerationConfig
    source_language: str | None = None
    target_language: str | None = None


def save_bundle(
    folder: Path, bundle: Bundle, metrics: dict[str, Any], made_by: str, rounding: Rounding | None = None
) -> None:
    """Writes a model folder, whole or not at all; a model that stands there is replaced.

    Args:
        folder: where to.
        bundle: the translator.
        metrics: what was measured, for metrics.json and the card.
        made_by: a sentence on where it comes from, for the card.
        rounding: of its matrices (`multihead.model_folder`), for a smaller file.

    Raises:
        FormatError: something that is not a model stands there; it is left alone.
        SurroundingsError: it cannot be written; what stood there still does.
    """
    shared = bundle.source_tokenizer.digest == bundle.target_tokenizer.digest
    pair = (bundle.source_tokenizer, bundle.target_tokenizer)
    tokenizers = dict(zip(_SHARED if shared else _SEPARATE, pair, strict=False))

    def parts(draft: Path) -> dict[str, Any]:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        write_json(draft / "generation.json", bundle.generation.model_dump(mode="json"))
        write_json(draft / "metrics.json", metrics)
        (draft / "README.md").write_text(_card(bundle, metrics, made_by), encoding="utf-8")
        return {
            "tokenizers": {name: tokenizer.digest for name, tokenizer in tokenizers.items()},
            "source_language": bundle.source_language,
            "target_language": bundle.target_language,
        }

    save_folder(folder, bundle.model, bundle.model.config, parts, rounding)


def load_bundle(folder: Path, device: str = "cpu") -> Bundle:
    """Reads a model folder, or the best model of a run folder.

    Raises:
        FormatError: it is neither, something in it is missing or damaged, or a tokenizer is not the one that the
            model was trained with.
    """
    folder = locate(folder)
    config = read_config(folder)
    shape = _network_config(config, folder)
    searched = folder / "generation.json"
    generation = parse_settings(GenerationConfig, read_json(searched), searched)
    digests = config.get("tokenizers")
    if not isinstance(digests, dict) or tuple(sorted(digests)) not in (_SHARED, _SEPARATE):
        raise FormatError(f"{folder / CONFIG}: damaged: it names no tokenizers; {COPY_AGAIN}")
    tokenizers = [_read_tokenizer(folder / name, digests[name]) for name in sorted(digests)]
    model = build_network(shape)
    load_weights(model, folder, config)
    return Bundle(
        model.eval().to(device),
        tokenizers[0],
        tokenizers[-1],
        generation,
        config.get("source_language"),
        config.get("target_language"),
    )


_OTHERS = {
    "pointer": "a pointer network, which does not translate; see `multihead pointer --help`",
    "hierarchical": "a classifier, which does not translate; see `multihead classify --help`",
    "bert-classifier": "a classifier, which does not translate; see `multihead classify --help`",
    "bert": "a BERT, which does not translate; see `multihead fill-mask --help`",
}
"""What networks are for that are kept in the same kind of folder."""


def _network_config(config: dict[str, Any], folder: Path) -> NetworkConfig:
    architecture = architecture_of(config)
    if architecture in _OTHERS:
        raise FormatError(f"{folder}: {_OTHERS[architecture]}")
    for name, cls in ARCHITECTURES.items():
        if name == architecture:
            return parse_settings(cls, config["model"], folder / CONFIG)
    raise FormatError(
        f"{folder / CONFIG}: describes a network '{architecture}', but there are {', '.join(ARCHITECTURES)}: "
        "a newer multihead wrote it, or the file is damaged"
    )


def _read_tokenizer(path: Path, digest: object) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise FormatError(
            f"{path}: not the tokenizer that this model was trained with (its SHA-256 is {tokenizer.digest[:12]}..., "
            f"config.json says {str(digest)[:12]}...); {COPY_AGAIN}"
        )
    return tokenizer


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
        f"{config.summary}, {size:,} parameters; "
        f"byte-pair encoding of {len(bundle.target_tokenizer)} entries.\n"
        + (f"Other than by default: {unusual}.\n" if unusual else "")
        + "\n"
        "```python\nfrom multihead import Translator\n\n"
        'translator = Translator.load(".")\nprint(translator.translate(["..."]))\n```\n\n'
        + (f"| measured | |\n|---|---|\n{measured}\n" if measured else "")
    )


def _unusual(config: NetworkConfig) -> dict[str, Any]:
    """The settings, other than those that the card has anyway, that are not the default."""
    fields, shown = type(config).model_fields, {"source_vocab", "target_vocab", "padding_id", *config.in_summary}
    values = {name: getattr(config, name) for name in fields if name not in shown}
    return {name: value for name, value in values.items() if value != fields[name].default}
