"""Reads Transformers of OpenNMT-py 3 (Klein et al. 2017).

    NAME_step_N.pt         the last step counts: options, vocabularies, and weights unless NAME_step_N.*.safetensors
    ...                    the SentencePiece model or the codes of subword-nmt that the options name

The encoder reads no end symbol (`TransformerConfig.source_end`). Embeddings are scaled by sqrt(D) with the positions,
whose sines and cosines are interleaved or in halves. Texts are cut by the transform in the options, ``sentencepiece``
or ``bpe``; without one they must be cut already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import load_checkpoint, options, section
from multihead.interop.formats.opennmt_vocabulary import read_tokenizers
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.interop.formats.tensors import read_tensors
from multihead.model_folder import parse_settings
from multihead.models.config import TransformerConfig

_SIDES = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_TABLE = "{}.embeddings.make_embedding.emb_luts.0"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swiglu", "gated-gelu": "geglu"}
_SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "marian"}

_REFUSED = {
    "copy_attn": "a copy mechanism",
    "parallel_residual": "parallel residual connections",
    "num_experts": "a mixture of experts",
    "lora_layers": "LoRA layers",
    "lora_embedding": "LoRA embeddings",
    "quant_layers": "quantized layers",
    "sliding_window": "a sliding window",
    "n_src_feats": "source features",
}


def recognizes(folder: Path) -> bool:
    """Whether the folder has a checkpoint with a name of OpenNMT-py."""
    return bool(_checkpoints(folder))


def read(folder: Path, _languages: Languages) -> TranslatorParts:
    """The model in a folder of OpenNMT-py: that of the last step.

    Raises:
        FormatError: something is missing or damaged, or the model is of a variant that multihead does not read.
        MissingDependencyError: the vocabulary needs a library that is not installed.
    """
    path = _checkpoints(folder)[-1]
    checkpoint = load_checkpoint(path)
    settings, vocabularies = options(checkpoint.get("opt")), checkpoint.get("vocab")
    if not isinstance(vocabularies, dict) or not settings:
        raise FormatError(f"{path}: a checkpoint of OpenNMT-py 1 or 2; its tools/convertv2_v3.py converts it")
    _refuse(settings, path)
    weights = _weights(checkpoint, path)
    pair = read_tokenizers(folder, vocabularies, settings.get("transforms") or [], settings)
    config = _config(weights, settings, pair[0].pad_id, path)
    return TranslatorParts(
        config,
        fit(rename(weights, _modules(config), r"\.pe\.pe$", path), config),
        *pair,
        Search(),
    )


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, by step."""
    found = ((re.search(r"_step_(\d+)\.pt$", path.name), path) for path in folder.glob("*.pt"))
    return [path for _, path in sorted((int(step.group(1)), path) for step, path in found if step)]


def _refuse(settings: Mapping[str, Any], path: Path) -> None:
    for side in _SIDES:
        kind = settings.get(f"{side}_type", "rnn")
        if kind != "transformer":
            raise FormatError(f"{path}: the {side} is of type '{kind}'; multihead reads OpenNMT's Transformers")
    for name, what in _REFUSED.items():
        if settings.get(name):
            raise FormatError(f"{path}: the model has {what}, which multihead does not read")
    expected = {
        "model_task": "seq2seq",
        "layer_norm": "standard",
        "generator_function": "softmax",
    }
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise FormatError(f"{path}: {name} is '{settings[name]}'; multihead reads '{value}'")
    if settings.get("self_attn_type") == "average":
        raise FormatError(f"{path}: self-attention of type 'average', which multihead does not read")
    relative = settings.get("max_relative_positions", 0)
    kinds = {-1: "rotary", -2: "ALiBi", 0: "no"}
    if relative or not settings.get("position_encoding"):
        raise FormatError(f"{path}: {kinds.get(relative, 'relative')} positions; multihead reads sinusoidal ones")


def _weights(checkpoint: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """The weights of the network and of its generator."""
    if checkpoint.get("model") is None:
        shards = sorted(path.parent.glob(f"{path.stem}.*.safetensors"))
        if not shards:
            raise FormatError(f"{path}: has no weights, and {path.stem}.00.safetensors is missing")
        return {name: tensor.float() for shard in shards for name, tensor in read_tensors(shard).items()}
    generator = section(dict(checkpoint), "generator", path)
    return section(dict(checkpoint), "model", path) | {
        f"generator.{name.removeprefix('0.')}": tensor for name, tensor in generator.items()
    }


def _config(
    weights: Mapping[str, Tensor], settings: Mapping[str, Any], padding_id: int, path: Path
) -> TransformerConfig:
    source, target = (take(weights, f"{_TABLE.format(side)}.weight", path) for side in _SIDES)
    activation = settings.get("pos_ffn_activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise FormatError(f"{path}: the activation '{activation}'; multihead reads {', '.join(_ACTIVATIONS)}")
    dropout = settings.get("dropout", 0.1)
    values = {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "padding_id": padding_id,
        "width": source.shape[1],
        "heads": settings.get("heads", 8),
        "kv_heads": settings.get("num_kv") or (1 if settings.get("multiquery") else None),
        "inner": len(take(weights, "encoder.transformer.0.feed_forward.w_1.weight", path)),
        "feed_forward": _ACTIVATIONS[activation],
        "encoder_layers": count_layers(weights, _SIDES["encoder"]),
        "decoder_layers": count_layers(weights, _SIDES["decoder"]),
        "sinusoid": _SINUSOIDS.get(settings.get("position_encoding_type", "SinusoidalInterleaved")),
        "source_end": False,
        "norm": "pre",
        "norm_eps": settings.get("norm_eps", 1e-6),
        "dropout": dropout[0] if isinstance(dropout, list) else dropout,
        "tie_embeddings": same(target, source),
        "tie_output": same(weights.get("generator.weight"), target),
        "output_bias": "generator.bias" in weights,
    }
    return parse_settings(TransformerConfig, values, path)


def _modules(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "source_embedding.table": (_TABLE.format("encoder"),),
        "target_embedding.table": (_TABLE.format("decoder"),),
        "output": ("generator",),
    }
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        table[f"{side}_norm"] = (f"{side}.layer_norm",)
        norms = {"self": "layer_norm"} if side == "encoder" else {"self": "layer_norm_1", "cross": "layer_norm_2"}
        for i in range(layers):
            theirs = f"{_SIDES[side]}.{i}"
            for ours, name in _layer(config):
                table[f"{side}.{i}.{ours}"] = (f"{theirs}.{name}",)
            for kind, norm in norms.items():
                table[f"{side}.{i}.{kind}_residual.norm"] = (f"{theirs}.{norm}",)
                table |= attention(f"{side}.{i}.{kind}_attention", f"{theirs}.{ATTENTION[kind]}")
    return table


def _layer(config: TransformerConfig) -> Iterator[tuple[str, str]]:
    gated = config.feed_forward in ("swiglu", "geglu")
    yield "feed_forward.gate" if gated else "feed_forward.expand", "feed_forward.w_1"
    if gated:
        yield "feed_forward.expand", "feed_forward.w_3"
    yield "feed_forward.contract", "feed_forward.w_2"
    yield "feed_forward_residual.norm", "feed_forward.layer_norm"


ATTENTION = {"self": "self_attn", "cross": "context_attn"}
"""Attention in a layer of OpenNMT-py and Eole."""


def attention(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    """The modules of multi-head attention in OpenNMT-py and Eole."""
    parts = tuple(f"{theirs}.linear_{part}" for part in ("query", "keys", "values"))
    return {f"{ours}.in_projection": parts, f"{ours}.output_projection": (f"{theirs}.final_linear",)}
