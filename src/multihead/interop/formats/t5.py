"""T5 folders of `transformers`, also mT5, ByT5 and MADLAD-400.

Raffel et al. (2020), "Exploring the limits of transfer learning with a unified text-to-text Transformer"; Xue et al.
(2021, 2022), mT5 and ByT5; Kudugunta et al. (2023), "MADLAD-400". Pre-norm Transformers with RMS norms, relative
positions and no biases. The scores of their attention are not divided by sqrt(d_k): here the queries are multiplied by
it. If the output projection is the embedding (version 1.0), it is scaled by 1 / sqrt(D). Decoding begins with padding,
or with the symbol that the settings name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats import bart_folder, renaming
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.t5_tokenizer import read_tokenizers
from multihead.interop.formats.tensors import read_weights
from multihead.model_folder import CONFIG, COPY_AGAIN, parse_settings, read_json
from multihead.models.config import TransformerConfig
from multihead.models.stack_config import GATED

_FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-relu": "reglu",
    "gated-gelu": "geglu_tanh",
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
}
"""Their feed-forward networks, and ours of the same equation."""

_SIZES = {
    "width": "d_model",
    "heads": "num_heads",
    "key_dim": "d_kv",
    "value_dim": "d_kv",
    "inner": "d_ff",
    "encoder_layers": "num_layers",
    "source_vocab": "vocab_size",
    "target_vocab": "vocab_size",
}

_SHARED, _SOURCE, _TARGET, _OUTPUT = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)

_UNUSED = r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"
"""In old files only; no layer reads it."""


def recognizes(folder: Path) -> bool:
    """Whether the folder holds a T5 or mT5 model."""
    return bart_folder.model_type(folder) in ("t5", "mt5")


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in a T5 folder.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
        ConfigurationError: a language is not named, or the model does not have it.
        MissingDependencyError: ``sentencepiece`` is not installed, and the vocabulary needs it.
    """
    config = bart_folder.generation_settings(folder, read_json(folder / CONFIG))
    if config.get("decoder_start_token_id") is None:
        config["decoder_start_token_id"] = config.get("pad_token_id")
    embeddings, rest = _embeddings(read_weights(folder), folder)
    settings = _settings(config, embeddings, folder / CONFIG)
    source, target = read_tokenizers(folder, config, languages)
    weights = embeddings | _weights(rest, settings, folder)
    return TranslatorParts(
        settings,
        renaming.fit(weights, settings),
        source,
        target,
        bart_folder.read_search(folder, config),
        languages.source,
        languages.target,
    )


def _embeddings(tensors: Mapping[str, Tensor], folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The embeddings and the output projection under our names, each once or more; and all other tensors."""
    names = (_SHARED, _SOURCE, _TARGET, _OUTPUT)
    shared = next((tensors[name] for name in names if name in tensors), None)
    if shared is None:
        raise FormatError(f"{folder}: the weight '{_SHARED}' is missing; {COPY_AGAIN}")
    target = tensors.get(_TARGET, shared)
    found = {
        "source_embedding.table.weight": tensors.get(_SOURCE, shared).float(),
        "target_embedding.table.weight": target.float(),
        "output.weight": tensors.get(_OUTPUT, target).float(),
    }
    return found, {name: tensor for name, tensor in tensors.items() if name not in names}


def _settings(config: Mapping[str, Any], embeddings: Mapping[str, Tensor], path: Path) -> TransformerConfig:
    """The settings of the network.

    Raises:
        FormatError: a setting is missing, or is none that multihead has.
    """
    missing = [name for name in _SIZES.values() if config.get(name) is None]
    if missing:
        raise FormatError(f"{path}: has no {missing[0]}; {COPY_AGAIN}")
    kind = config.get("feed_forward_proj", "relu")
    if kind not in _FEED_FORWARDS:
        raise FormatError(
            f"{path}: feed_forward_proj is {kind!r}; this multihead reads models with {', '.join(_FEED_FORWARDS)}"
        )
    source, target, output = embeddings.values()
    values = {
        **{ours: config[theirs] for ours, theirs in _SIZES.items()},
        "decoder_layers": config.get("num_decoder_layers") or config["num_layers"],
        "padding_id": config.get("pad_token_id"),
        "attention_bias": False,
        "feed_forward": _FEED_FORWARDS[kind],
        "feed_forward_bias": False,
        "positions": "relative",
        "relative_buckets": config.get("relative_attention_num_buckets", 32),
        "relative_distance": config.get("relative_attention_max_distance", 128),
        "embedding_scale": "projection" if _scales(config) else "none",
        "norm": "pre",
        "norm_kind": "rms",
        "norm_eps": config.get("layer_norm_epsilon", 1e-6),
        "tie_embeddings": renaming.same(source, target),
        "tie_output": renaming.same(output, target),
        "dropout": config.get("dropout_rate", 0.1),
        "attention_dropout": config.get("dropout_rate", 0.1),
    }
    return parse_settings(TransformerConfig, values, path)


def _scales(config: Mapping[str, Any]) -> bool:
    """Whether the last states are scaled: in T5 unless the settings say that its output is untied, in mT5 never."""
    if config.get("model_type") == "mt5":
        return False
    return bool(config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False))


def _weights(tensors: Mapping[str, Tensor], config: TransformerConfig, folder: Path) -> dict[str, Tensor]:
    """All weights but the embeddings, under our names.

    Raises:
        FormatError: a weight is missing, or there is one that the network does not have.
    """
    assert config.key_dim is not None
    scale = math.sqrt(config.key_dim)  # exact where d_k is a power of four, as 64
    scaled = {name: tensor.float() * (scale if name.endswith(".q.weight") else 1) for name, tensor in tensors.items()}
    found = renaming.rename(scaled, dict(_modules(config)), _UNUSED, folder)
    for side in ("encoder", "decoder"):
        found[f"{side}_positions.table"] = found.pop(f"{side}_positions.weight")
    return found


def _modules(config: TransformerConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each of our modules, and theirs."""
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        yield f"{side}_positions", (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",)
        yield f"{side}_norm", (f"{side}.final_layer_norm",)
        kinds = {"self": "SelfAttention"} | ({"cross": "EncDecAttention"} if side == "decoder" else {})
        for i in range(layers):
            ours, theirs = f"{side}.{i}", f"{side}.block.{i}.layer"
            for place, (kind, name) in enumerate(kinds.items()):
                module = f"{theirs}.{place}.{name}"
                yield f"{ours}.{kind}_attention.in_projection", tuple(f"{module}.{part}" for part in "qkv")
                yield f"{ours}.{kind}_attention.output_projection", (f"{module}.o",)
                yield f"{ours}.{kind}_residual.norm", (f"{theirs}.{place}.layer_norm",)
            last = f"{theirs}.{len(kinds)}"
            yield f"{ours}.feed_forward_residual.norm", (f"{last}.layer_norm",)
            gated = config.feed_forward in GATED
            yield f"{ours}.feed_forward.expand", (f"{last}.DenseReluDense.{'wi_1' if gated else 'wi'}",)
            yield f"{ours}.feed_forward.contract", (f"{last}.DenseReluDense.wo",)
            if gated:
                yield f"{ours}.feed_forward.gate", (f"{last}.DenseReluDense.wi_0",)
