"""CTranslate2: the folder that ``ctranslate2.Translator`` loads.

The package ctranslate2 declares the layout of its weights (``ctranslate2.specs``) and rounds them; here ours get its
names. Both networks have the same equations; the only limit is the length: our positions are stored as a table, of
`POSITIONS` rows, because CTranslate2 computes other sinusoids by itself.

    ours                                        CTranslate2
    in_projection (query, key, value stacked)   self_attention/linear_0; cross-attention splits it into 0 and 1
    output_projection                           the last linear of the attention
    self_residual.norm                          self_attention/layer_norm
    expand, contract, gate                      ffn/linear_0, linear_1; with a gate, that is linear_0 and expand
                                                linear_0_noact
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from multihead.errors import require_package
from multihead.interop.formats.ctranslate2_card import readme, write_tokenizers
from multihead.interop.formats.parts import TranslatorParts, network_refusals, refused_tokenizers
from multihead.models.layers import Embedding
from multihead.models.transformer import Transformer
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "float16", "bfloat16")
"""Types of weights. With int8 the vectors stay float32, with ``int8_X`` they become X. Positions stay float32."""

POSITIONS = 1024
"""Rows of the table of positions: CTranslate2 reads at most 1,024 tokens by default, and writes at most 256."""

_ACTIVATIONS = {"relu": "RELU", "reglu": "RELU", "gelu": "GELU", "geglu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
_GATED = ("reglu", "geglu", "swiglu")


def refusals(parts: TranslatorParts) -> list[str]:
    """What CTranslate2's Transformer lacks."""
    config = parts.config
    reasons = network_refusals(config, rotary=True)
    if config.key_width != config.value_width:
        reasons.append(
            f"values of another width than the keys (key_dim {config.key_dim}, value_dim {config.value_dim}), but "
            "CTranslate2 has one head_dim"
        )
    for tokenizer in (parts.source_tokenizer, parts.target_tokenizer):
        if tokenizer.factors == 1 and len(set(tokenizer.vocabulary)) != len(tokenizer):
            reasons.append("two entries of its vocabulary with the same name, and CTranslate2 knows entries by name")
            break
    known = (BytePairTokenizer, SentencePieceTokenizer, HuggingFaceTokenizer)
    return reasons + refused_tokenizers(parts, lambda tokenizer: type(tokenizer) in known)


def allowed(_quantization: str) -> float:
    """The largest difference of a log-probability: both sides compute in float32 with the same rounded weights."""
    return 1e-3


def write(parts: TranslatorParts, folder: Path, quantization: str) -> None:
    """Write the folder: model.bin, config.json, vocabularies, our tokenizers, README.md.

    Raises:
        MissingDependencyError: ctranslate2 is not installed.
    """
    spec = specification(parts.build(Path("the model")))
    for side, tokenizer in (("source", parts.source_tokenizer), ("target", parts.target_tokenizer)):
        size = parts.config.source_vocab if side == "source" else parts.config.target_vocab
        getattr(spec, f"register_{side}_vocabulary")(_names(tokenizer, size))
    _source, target = parts.source_tokenizer, parts.target_tokenizer
    settings = {
        "unk_token": target.vocabulary[target.unk_id],
        "bos_token": target.vocabulary[target.bos_id],
        "eos_token": target.vocabulary[target.eos_id],
        "decoder_start_token": target.vocabulary[target.bos_id],
        "add_source_bos": False,
        "add_source_eos": parts.config.source_end,
        "layer_norm_epsilon": parts.config.norm_eps,
    }
    for name, value in settings.items():
        setattr(spec.config, name, value)
    spec.validate()
    sides = [side for side in (spec.encoder, spec.decoder) if hasattr(side, "position_encodings")]
    variables = [side.position_encodings.encodings for side in sides]
    tables = [variable.numpy() for variable in variables]  # a variable is rounded in place
    spec.optimize(quantization)
    for side, variable, table in zip(sides, variables, tables, strict=True):
        if not isinstance(side.position_encodings.encodings, str):  # the name of an equal table
            side.position_encodings.encodings = type(variable)(table)
    spec.save(str(folder))
    write_tokenizers(parts, folder)
    (folder / "README.md").write_text(readme(parts, quantization, POSITIONS), encoding="utf-8", newline="\n")


def _names(tokenizer: Tokenizer, size: int) -> list[str]:
    """The strings of the entries, filled up to the size of the embedding."""
    return [*tokenizer.vocabulary, *(f"<unused_{i}>" for i in range(len(tokenizer), size))]


def specification(model: Transformer) -> TransformerSpec:
    """The declared model with our weights in it."""
    require_package("ctranslate2.specs", "ctranslate2", "a CTranslate2 folder")
    from ctranslate2 import specs

    config = model.config
    options: dict[str, Any] = {
        "pre_norm": config.has_final_norm,  # declares the last norm
        "activation": getattr(specs.Activation, _ACTIVATIONS[config.feed_forward]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.feed_forward in _GATED,
        "num_heads_kv": config.kv_heads,
        "head_dim": config.key_width // config.heads if config.key_dim else None,
    }
    if config.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # all features of a head, paired by halves
    encoder = specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **options)
    if config.positions == "rotary":
        del encoder.position_encodings  # a decoder with rotary positions is declared without
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, config.heads, **options)
    for side in (encoder, decoder):
        side.pre_norm = config.norm == "pre"
        side.scale_embeddings = config.embedding_scale == "embedding"
    if model.output_scale != 1.0:
        decoder.scale_outputs = np.float32(model.output_scale)
    spec = specs.TransformerSpec(encoder, decoder)
    _fill(spec, model)
    return spec


def _fill(spec: Any, model: Transformer) -> None:
    encoder, decoder, config = spec.encoder, spec.decoder, model.config
    _embedding(encoder, encoder.embeddings[0], model.source_embedding, config.embedding_norm)
    _embedding(decoder, decoder.embeddings, model.target_embedding, config.embedding_norm)
    if config.has_final_norm:
        _norm(encoder.layer_norm, model.encoder_norm)
        _norm(decoder.layer_norm, model.decoder_norm)
    _linear(decoder.projection, model.output.weight, model.output.bias)
    for layer, ours in zip(encoder.layer, model.encoder, strict=True):
        _self_attention(layer.self_attention, ours)
        _feed_forward(layer.ffn, ours)
    for layer, ours in zip(decoder.layer, model.decoder, strict=True):
        _self_attention(layer.self_attention, ours)
        _cross_attention(layer.attention, ours, config.key_width)
        _feed_forward(layer.ffn, ours)


def _embedding(side: Any, table: Any, ours: Embedding, norm: bool) -> None:
    table.weight = _array(ours.table.weight)
    if ours.positions is not None:
        side.position_encodings.encodings = _array(ours.positions(torch.arange(POSITIONS), POSITIONS))
    elif hasattr(side, "position_encodings"):  # there are none; else they are rotary
        side.position_encodings.encodings = _array(torch.zeros(POSITIONS, ours.table.weight.size(1)))
    if norm:
        _norm(side.layernorm_embedding, ours.norm)


def _self_attention(spec: Any, ours: Any) -> None:
    _norm(spec.layer_norm, ours.self_residual.norm)
    attention = ours.self_attention
    _linear(spec.linear[0], attention.in_projection.weight, attention.in_projection.bias)
    _linear(spec.linear[1], attention.output_projection.weight, attention.output_projection.bias)


def _cross_attention(spec: Any, ours: Any, queries: int) -> None:
    """Queries apart from keys and values."""
    _norm(spec.layer_norm, ours.cross_residual.norm)
    weight, bias = ours.cross_attention.in_projection.weight, ours.cross_attention.in_projection.bias
    _linear(spec.linear[0], weight[:queries], None if bias is None else bias[:queries])
    _linear(spec.linear[1], weight[queries:], None if bias is None else bias[queries:])
    output = ours.cross_attention.output_projection
    _linear(spec.linear[2], output.weight, output.bias)


def _feed_forward(spec: Any, ours: Any) -> None:
    _norm(spec.layer_norm, ours.feed_forward_residual.norm)
    feed_forward = ours.feed_forward
    gated = feed_forward.kind in _GATED
    activated = feed_forward.gate if gated else feed_forward.expand
    _linear(spec.linear_0, activated.weight, activated.bias)
    if gated:
        _linear(spec.linear_0_noact, feed_forward.expand.weight, feed_forward.expand.bias)
    _linear(spec.linear_1, feed_forward.contract.weight, feed_forward.contract.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _norm(spec: Any, ours: Any) -> None:
    spec.gamma, spec.beta = _array(ours.weight), _array(ours.bias)


def _array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    array: np.ndarray[Any, np.dtype[np.float32]] = tensor.detach().float().contiguous().numpy().copy()
    return array


def represented(parts: TranslatorParts, quantization: str) -> TranslatorParts:
    """The parts with the weights that a file of this quantization has, in float32.

    int8 rounds each row of a matrix: q_ij = round(w_ij s_i) with s_i = 127 / max_j |w_ij|, and w_ij becomes q_ij / s_i.
    """
    kind, _, rest = quantization.partition("_")
    matrices = kind if kind != "float32" else None
    others = rest if kind == "int8" else kind

    def rounded(name: str, tensor: Tensor) -> Tensor:
        if ".positions." in name:
            return tensor
        if tensor.dim() == 2 and matrices == "int8":
            largest = tensor.abs().amax(1, keepdim=True)
            # 127 as a tensor: PyTorch divides a number by a tensor as reciprocal and product, which rounds twice.
            steps = torch.full_like(largest, 127.0)
            scale = steps / torch.where(largest == 0, steps, largest)
            return (tensor * scale).round() / scale
        return tensor.to(getattr(torch, others)).float() if others else tensor

    return replace(parts, weights={name: rounded(name, tensor) for name, tensor in parts.weights.items()})
