"""Reads encoder-decoder Transformers of Eole, the successor of OpenNMT-py.

    config.json            ``model``, ``transforms`` and ``transforms_configs``, with the settings that were set
    model.00.safetensors   the weights, perhaps in several files; a shared matrix once
    vocab.json             the pieces of both sides and the special symbols
    ...                    the SentencePiece model or the codes of subword-nmt that the transforms name

The encoder reads no end symbol (`TransformerConfig.source_end`). With sinusoidal positions embeddings are scaled by
sqrt(D), with learned ones they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats.opennmt import ATTENTION, attention
from multihead.interop.formats.opennmt_vocabulary import read_tokenizers
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.interop.formats.tensors import read_tensors
from multihead.model_folder import CONFIG, parse_settings, read_json
from multihead.models.config import TransformerConfig

_VOCABULARY = "vocab.json"
_LAYERS = "{}.transformer_layers"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-silu": "swiglu", "gated-gelu": "geglu"}
_SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "marian"}

_REFUSED = {
    "parallel_residual": "parallel residual connections",
    "ffn_layernorm": "norms around the feed-forward network",
    "num_experts": "a mixture of experts",
    "query_norm": "norms of queries",
    "key_norm": "norms of keys",
    "value_norm": "norms of values",
    "q_gating": "gated attention",
    "sliding_window": "a sliding window",
    "attn_scaling": "another scale of the scores",
    "layer_types": "layers of several types",
}


def recognizes(folder: Path) -> bool:
    """Whether the folder has settings of Eole, a vocabulary and weights."""
    if not (
        (folder / CONFIG).is_file() and (folder / _VOCABULARY).is_file() and any(folder.glob("model.*.safetensors"))
    ):
        return False
    model = read_json(folder / CONFIG).get("model")
    return isinstance(model, dict) and ("eole_version" in model or "decoder" in model)


def read(folder: Path, _languages: Languages) -> TranslatorParts:
    """The model in a folder of Eole.

    Raises:
        FormatError: something is missing or damaged, or the model is of a variant that multihead does not read.
        MissingDependencyError: the vocabulary needs a library that is not installed.
    """
    content = read_json(folder / CONFIG)
    settings = _Settings(content["model"], folder / CONFIG)
    settings.refuse()
    transforms = content.get("transforms") or []
    configs = content.get("transforms_configs") or {}
    cutting = [configs[name] for name in ("sentencepiece", "bpe") if name in transforms and name in configs]
    pair = read_tokenizers(folder, read_json(folder / _VOCABULARY), transforms, cutting[0] if cutting else {})
    path = folder / "model.00.safetensors"
    weights = {
        name: tensor.float()
        for shard in sorted(folder.glob("model.*.safetensors"))
        for name, tensor in read_tensors(shard).items()
    }
    source = take(weights, "src_emb.embeddings.weight", path)
    weights.setdefault("generator.weight", weights.setdefault("tgt_emb.embeddings.weight", source))
    config = _config(weights, settings, pair[0].pad_id, path)
    found = rename(weights, _modules(config), r"(^|\.)(pe\.pe|layer_scalar)$", path)
    shift = int(settings.get("embeddings", "position_shift", 0))
    if shift and config.positions == "learned":
        for side in ("source_embedding", "target_embedding"):
            found[f"{side}.positions.table.weight"] = found[f"{side}.positions.table.weight"][shift:]
    return TranslatorParts(config, fit(found, config), *pair, Search())


class _Settings:
    """The settings of a model; a part (encoder, decoder, embeddings) takes from the model what it does not set."""

    def __init__(self, model: Mapping[str, Any], path: Path) -> None:
        self._model, self._path = model, path

    def get(self, part: str, name: str, default: Any = None) -> Any:
        """A setting of a part; of the default if neither the part nor the model sets it."""
        own = self._model.get(part)
        for values in (own if isinstance(own, dict) else {}, self._model):
            if values.get(name) is not None:
                return values[name]
        return default

    def both(self, name: str, default: Any = None) -> Any:
        """A setting of encoder and decoder, which must agree."""
        encoder, decoder = (self.get(part, name, default) for part in ("encoder", "decoder"))
        if encoder != decoder:
            raise FormatError(
                f"{self._path}: {name} is {encoder} in the encoder and {decoder} in the decoder: multihead needs one "
                "value for both"
            )
        return encoder

    def refuse(self) -> None:
        """Refuse a variant that multihead does not have.

        Raises:
            FormatError: names it.
        """
        default = "transformer" if self._model.get("architecture") == "transformer" else None
        for part in ("encoder", "decoder"):
            own = self._model.get(part)
            kind = own.get(f"{part}_type", default) if isinstance(own, dict) else None
            if kind != "transformer":
                raise FormatError(f"{self._path}: the {part} is of type '{kind}'; multihead reads Eole's Transformers")
        for name, what in _REFUSED.items():
            if self.both(name):
                raise FormatError(f"{self._path}: the model has {what}, which multihead does not read")
        if self.both("layer_norm", "standard") not in ("standard", "standardFP32"):
            raise FormatError(
                f"{self._path}: layer norms of type '{self.both('layer_norm')}'; multihead reads 'standard'"
            )
        if self.get("encoder", "encoder_layer_style", "standard") != "standard":
            raise FormatError(f"{self._path}: an encoder with post-norm and a decoder with pre-norm")
        if self.get("embeddings", "normalize") or self.get("embeddings", "embedding_type", "standard") != "standard":
            raise FormatError(f"{self._path}: embeddings that are scaled or normalized, which multihead does not read")


def _config(weights: Mapping[str, Tensor], settings: _Settings, padding_id: int, path: Path) -> TransformerConfig:
    source, target = (take(weights, f"{side}_emb.embeddings.weight", path) for side in ("src", "tgt"))
    activation = settings.both("mlp_activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise FormatError(f"{path}: the activation '{activation}'; multihead reads {', '.join(_ACTIVATIONS)}")
    kind = settings.get("embeddings", "position_encoding_type", "SinusoidalInterleaved")
    if kind not in (*_SINUSOIDS, "Learned"):
        raise FormatError(f"{path}: {kind} positions; multihead reads Learned, {', '.join(_SINUSOIDS)}")
    learned = kind == "Learned"
    head = settings.both("head_dim")
    values = {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "padding_id": padding_id,
        "width": source.shape[1],
        "heads": settings.both("heads", 8),
        "kv_heads": settings.both("heads_kv"),
        "key_dim": head,
        "value_dim": head,
        "inner": len(take(weights, "encoder.transformer_layers.0.mlp.gate_up_proj.weight", path)),
        "feed_forward": _ACTIVATIONS[activation],
        "encoder_layers": count_layers(weights, _LAYERS.format("encoder")),
        "decoder_layers": count_layers(weights, _LAYERS.format("decoder")),
        "positions": "learned" if learned else "sinusoidal",
        "sinusoid": _SINUSOIDS.get(kind, "interleaved"),
        "embedding_scale": "none" if learned else "embedding",
        "source_end": False,
        "norm": "pre",
        "norm_eps": settings.both("norm_eps", 1e-5),
        "tie_embeddings": same(target, source),
        "tie_output": same(weights["generator.weight"], target),
        "output_bias": "generator.bias" in weights,
    }
    if learned:
        shift = int(settings.get("embeddings", "position_shift", 0))
        values["max_positions"] = len(take(weights, "src_emb.pe.weight", path)) - shift
    return parse_settings(TransformerConfig, values, path)


def _modules(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "source_embedding.table": ("src_emb.embeddings",),
        "target_embedding.table": ("tgt_emb.embeddings",),
        "output": ("generator",),
    }
    if config.positions == "learned":
        table["source_embedding.positions.table"] = ("src_emb.pe",)
        table["target_embedding.positions.table"] = ("tgt_emb.pe",)
    gated = config.feed_forward in ("swiglu", "geglu")
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        table[f"{side}_norm"] = (f"{side}.layer_norm",)
        norms = {"self": "input_layernorm"} | ({"cross": "precontext_layernorm"} if side == "decoder" else {})
        for i in range(layers):
            ours, theirs = f"{side}.{i}", f"{_LAYERS.format(side)}.{i}"
            table[f"{ours}.feed_forward.{'gate' if gated else 'expand'}"] = (f"{theirs}.mlp.gate_up_proj",)
            if gated:
                table[f"{ours}.feed_forward.expand"] = (f"{theirs}.mlp.up_proj",)
            table[f"{ours}.feed_forward.contract"] = (f"{theirs}.mlp.down_proj",)
            table[f"{ours}.feed_forward_residual.norm"] = (f"{theirs}.post_attention_layernorm",)
            for kind, norm in norms.items():
                table[f"{ours}.{kind}_residual.norm"] = (f"{theirs}.{norm}",)
                table |= attention(f"{ours}.{kind}_attention", f"{theirs}.{ATTENTION[kind]}")
    return table
