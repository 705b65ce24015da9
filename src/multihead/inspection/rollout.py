"""Attention rollout: how much of each input is in each last state.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.2. The residual sum around an attention
passes half of a state on, and the other half is mixed by the weights A_l, the mean over the heads of layer l:

    R_l = (r I + (1 - r) A_l) R_{l-1},    R_0 = I,    r = 1/2

A row of R_L says from which inputs a last state is mixed; it sums to 1. In an encoder-decoder a state of the decoder is
mixed from target inputs (T) and source inputs (S). Self-attention A_l and cross-attention C_l of layer l give

    T' = (r I + (1 - r) A_l) T        S' = (r I + (1 - r) A_l) S
    T  = r T'                         S  = r S' + (1 - r) C_l E

where E is the rollout of the encoder. T begins as I and S as 0, so that rows of T and S sum to 1 together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ConfigurationError, InputError


class DecoderRollout(NamedTuple):
    """From which inputs the last states of a decoder are mixed."""

    source: Float[Tensor, "batch target source"]
    """S: the share of each source input."""
    target: Float[Tensor, "batch target target"]
    """T: the share of each target input."""


def rollout(
    layers: Sequence[Float[Tensor, "batch _ query query"]], *, residual: float = 0.5
) -> Float[Tensor, "batch query query"]:
    """R_L of an encoder, or of a language model.

    Args:
        layers: the weights [batch, heads, length, length] of its self-attentions, the first layer first.
        residual: r, the share of a state that the residual sum passes on.

    Raises:
        InputError: there are no layers.
        ConfigurationError: ``residual`` is not between 0 and 1.
    """
    means = _means(layers, residual)
    shares = _identity(means[0])
    for mean in means:
        shares = _mixed(mean, shares, residual)
    return shares


def decoder_rollout(
    encoder: Sequence[Float[Tensor, "batch _ source source"]],
    decoder: Sequence[Float[Tensor, "batch _ target target"]],
    cross: Sequence[Float[Tensor, "batch _ target source"]],
    *,
    residual: float = 0.5,
) -> DecoderRollout:
    """S and T of an encoder-decoder.

    Args:
        encoder: the weights [batch, heads, source, source] of the encoder's self-attentions.
        decoder: the weights [batch, heads, target, target] of the decoder's self-attentions.
        cross: the weights [batch, heads, target, source] of its attentions to the encoder.
        residual: r, the share of a state that each residual sum passes on.

    Raises:
        InputError: there are no layers, or the decoder has not as many of both kinds.
        ConfigurationError: ``residual`` is not between 0 and 1.
    """
    if len(decoder) != len(cross):
        raise InputError(f"expected as many decoder as cross layers, got {len(decoder)} and {len(cross)}")
    encoded = rollout(encoder, residual=residual)
    own, others = _means(decoder, residual), _means(cross, residual)
    target, source = _identity(own[0]), torch.zeros_like(others[0])
    for mean, other in zip(own, others, strict=True):
        target = residual * _mixed(mean, target, residual)
        source = residual * _mixed(mean, source, residual) + (1 - residual) * other @ encoded
    return DecoderRollout(source, target)


def _means(layers: Sequence[Tensor], residual: float) -> list[Tensor]:
    """The mean of the heads of each layer."""
    if not 0 <= residual <= 1:
        raise ConfigurationError(f"residual: expected a number from 0 to 1, got {residual}")
    if not layers:
        raise InputError("expected the weights of at least one layer, got none")
    return [weights.mean(1) for weights in layers]


def _identity(mean: Tensor) -> Tensor:
    return torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device).expand_as(mean)


def _mixed(mean: Tensor, shares: Tensor, residual: float) -> Tensor:
    return residual * shares + (1 - residual) * mean @ shares
