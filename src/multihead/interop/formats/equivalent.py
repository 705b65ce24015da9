"""Equivalent forms of a Transformer: other weights that compute the same.

The layouts of other programs fix what ours leaves open: biases everywhere, the order of the channels of sinusoidal
positions, the epsilon of the layer norm. Each function here returns parts whose settings fit such a layout and whose
network computes the same logits, up to rounding.

The states that the residual sums pass from layer to layer are the *stream*. Its channels can be permuted and it can be
multiplied by a constant, if everything that writes to it or reads from it follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from multihead.interop.formats.parts import TranslatorParts
from multihead.models.config import TransformerConfig

_READERS = ("in_projection.weight", "expand.weight", "gate.weight", "output.weight")
"""Ends of the names of matrices whose columns are channels of the stream."""
_WRITERS = ("output_projection.weight", "output_projection.bias", "contract.weight", "contract.bias")
"""Ends of the names of matrices whose rows are channels of the stream, and of vectors."""


def with_biases(parts: TranslatorParts) -> TranslatorParts:
    """With biases of zero in every attention and feed-forward network that has none."""
    weights = dict(parts.weights)
    for name, tensor in parts.weights.items():
        bias = name.removesuffix("weight") + "bias"
        matrix = name.endswith(".weight") and name.endswith((*_READERS, *_WRITERS)) and name != "output.weight"
        if matrix and bias not in parts.weights:
            weights[bias] = tensor.new_zeros(len(tensor))
    update = {"attention_bias": True, "feed_forward_bias": True}
    return replace(parts, config=parts.config.model_copy(update=update), weights=weights)


def without_projection_scale(parts: TranslatorParts) -> TranslatorParts:
    """With an ``embedding_scale`` of 'embedding' or 'none': the last norm takes over the scale of the projection."""
    if parts.config.embedding_scale != "projection":
        return parts
    weights = dict(parts.weights)
    _multiply(weights, _last_norm(parts), parts.config.width**-0.5)
    return replace(parts, config=parts.config.model_copy(update={"embedding_scale": "none"}), weights=weights)


def with_learned_positions(parts: TranslatorParts, count: int) -> TranslatorParts:
    """With a table of positions, one for the source and one for the target.

    Args:
        parts: with positions that are vectors, or none, which are vectors of zeros.
        count: number of positions at least; a longer table of learned ones stays as it is. Tokens behind the last
            position share its vector, which is as before for learned positions only.
    """
    config, weights = parts.config, dict(parts.weights)
    length = max(count, config.max_positions) if config.positions == "learned" else count
    network, places = parts.build(Path()), torch.arange(length)
    for side in ("source", "target"):
        name = f"{side}_embedding.positions"
        if config.positions == "none":
            weights[f"{name}.table.weight"] = torch.zeros(length, config.width)
            continue
        with torch.no_grad():
            weights[f"{name}.table.weight"] = network.get_submodule(name)(places, length).contiguous()
    update = {"positions": "learned", "max_positions": length}
    return replace(parts, config=config.model_copy(update=update), weights=weights)


def in_halves(parts: TranslatorParts) -> TranslatorParts:
    """With the channels in the order of the `sinusoid` 'halves': the even ones first, which are sines if interleaved.

    Args:
        parts: with learned positions, or with interleaved sinusoids.
    """
    even = torch.arange(0, parts.config.width, 2)
    order = torch.cat((even, even + 1))
    weights = _map_stream(parts.weights, lambda tensor, axis: tensor.index_select(axis, order))
    return replace(parts, config=parts.config.model_copy(update={"sinusoid": "halves"}), weights=weights)


def with_epsilon(parts: TranslatorParts, epsilon: float) -> TranslatorParts:
    """With another epsilon in every layer norm: the stream is multiplied by c, so that

        norm(c x; c^2 e) = norm(x; e),        c = sqrt(epsilon / e)

    Args:
        parts: with learned positions, and no scale of the projection.
        epsilon: the new epsilon.
    """
    config, weights = parts.config, dict(parts.weights)
    c = math.sqrt(epsilon / config.norm_eps)
    if c == 1.0:
        return parts
    last, tied = _last_norm(parts), config.tie_output
    for name, tensor in parts.weights.items():
        if name.startswith(last):  # read by the output projection only, which is multiplied if it is an embedding
            weights[name] = tensor / c if tied else tensor
        elif _writes(name, config):
            weights[name] = tensor * c
        elif config.norm == "post" and name.endswith(_READERS) and name != "output.weight":
            weights[name] = tensor / c
    return replace(parts, config=config.model_copy(update={"norm_eps": epsilon}), weights=weights)


def _writes(name: str, config: TransformerConfig) -> bool:
    """Whether a weight determines the scale of the stream: with post-norm, every norm does."""
    post = config.norm == "post" and "residual.norm" in name
    return name.endswith(_WRITERS) or "embedding." in name or post


def _map_stream(weights: Mapping[str, Tensor], change: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
    """The weights with every axis that runs over the channels of the stream changed."""
    changed = dict(weights)
    for name, tensor in weights.items():
        if name.endswith(_READERS) or "table.weight" in name:
            changed[name] = change(tensor, 1)
        elif name.endswith(_WRITERS) or "norm." in name:
            changed[name] = change(tensor, 0)
    return changed


def _last_norm(parts: TranslatorParts) -> str:
    """The beginning of the names of the norm before the output projection."""
    config = parts.config
    return (
        "decoder_norm." if config.has_final_norm else f"decoder.{config.decoder_layers - 1}.feed_forward_residual.norm."
    )


def _multiply(weights: dict[str, Tensor], beginning: str, factor: float) -> None:
    for name, tensor in weights.items():
        if name.startswith(beginning):
            weights[name] = tensor * factor
