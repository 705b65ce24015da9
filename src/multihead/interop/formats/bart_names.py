"""Names of weights in the family of BART, mBART, Marian and Pegasus.

The models of this family in ``transformers`` name and cut their weights alike. They differ from ours in the names, in
the projections to queries, keys and values, which we keep as one matrix, and in the bias of the output, which has an
axis more. What the models compute differs in more than names: each format knows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from multihead.models.config import TransformerConfig

SHARED = "model.shared.weight"
"""Their embedding where source and target share one."""

BIAS = "final_logits_bias"
"""Their bias of the output, [1, target_vocab]."""

_ENDS = (
    ("source_embedding.table", ("model.encoder.embed_tokens",)),
    ("source_embedding.positions.table", ("model.encoder.embed_positions",)),
    ("source_embedding.norm", ("model.encoder.layernorm_embedding",)),
    ("encoder_norm", ("model.encoder.layer_norm",)),
    ("target_embedding.table", ("model.decoder.embed_tokens",)),
    ("target_embedding.positions.table", ("model.decoder.embed_positions",)),
    ("target_embedding.norm", ("model.decoder.layernorm_embedding",)),
    ("decoder_norm", ("model.decoder.layer_norm",)),
    ("output", ("lm_head",)),
)

_ATTENTION = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}

_LAYER = {
    "self_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.expand": "fc1",
    "feed_forward.contract": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}


def modules(config: TransformerConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules with parameters that a network may have: our name, and theirs.

    An in-projection has three names, of queries, keys and values, which stand below each other in our matrix.
    """
    yield from _ENDS
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        kinds = list(_ATTENTION) if side == "decoder" else ["self_attention"]
        for i in range(layers):
            theirs = f"model.{side}.layers.{i}"
            for kind in kinds:
                name = f"{theirs}.{_ATTENTION[kind]}"
                yield f"{side}.{i}.{kind}.in_projection", tuple(f"{name}.{part}_proj" for part in "qkv")
                yield f"{side}.{i}.{kind}.output_projection", (f"{name}.out_proj",)
            for ours, their in _LAYER.items():
                if side == "decoder" or not ours.startswith("cross"):
                    yield f"{side}.{i}.{ours}", (f"{theirs}.{their}",)


def rename(ours: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Our weights under their names. Names that are none of ours are left out."""
    found: dict[str, Tensor] = {}
    for module, names in modules(config):
        for kind in ("weight", "bias"):
            tensor = ours.get(f"{module}.{kind}")
            if tensor is not None:
                parts = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
                found |= {f"{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
    bias = found.pop("lm_head.bias", None)
    return found if bias is None else found | {BIAS: bias[None]}


def rename_back(theirs: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Their weights under our names: the inverse of `rename`. Names that are none of theirs are left out.

    A weight that the settings share appears once, whichever of its names it has there.
    """
    found: dict[str, Tensor] = {}
    for module, names in modules(config):
        for kind in ("weight", "bias"):
            parts = [theirs[f"{name}.{kind}"] for name in names if f"{name}.{kind}" in theirs]
            if len(parts) == len(names):
                found[f"{module}.{kind}"] = torch.cat(parts) if len(parts) > 1 else parts[0]
    if SHARED in theirs:
        for side in ("source", "target"):
            found.setdefault(f"{side}_embedding.table.weight", theirs[SHARED])
    if BIAS in theirs:
        found["output.bias"] = theirs[BIAS][0]
    table, output = "target_embedding.table.weight", "output.weight"
    if config.tie_output and output in found:
        found.setdefault(table, found.pop(output))
    if config.tie_embeddings and table in found:
        found.setdefault("source_embedding.table.weight", found.pop(table))
    return found
