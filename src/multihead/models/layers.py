"""The layers of the Transformer: Figure 1 of Vaswani et al. (2017), one box a class.

Attention is computed in `multihead.attention`; here it is wired with residual sums, norms and the feed-forward
network. Each layer serves a whole sequence (training) and a single step with a cache (decoding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention import KeyValue, Mask, MultiHeadAttention
from multihead.kernels import residual
from multihead.kernels.activation import activated_linear
from multihead.kernels.dropout import Dropout
from multihead.models.config import TransformerConfig

Weights = Float[Tensor, "batch heads query key"]


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """FFN(z) = W_2 dropout(act(W_1 z + b_1)) + b_2   (3.3), at each position alike.

    act is max(0, x), or GELU(x) = x P(X <= x) with X ~ N(0, 1)   (Hendrycks & Gimpel 2016).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        self.expand = nn.Linear(config.width, config.inner)
        self.contract = nn.Linear(config.inner, config.width)
        self.dropout = Dropout(config.dropout_of("feed_forward"))

    def forward(self, z: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """Applies the network to every position."""
        if torch.is_grad_enabled():
            expand, p = self.expand, self.dropout.probability
            hidden = activated_linear(z, expand.weight, expand.bias, self.kind, p)  # type: ignore[arg-type]
        else:  # one part after the other, so that whoever watches modules sees them
            hidden = self.dropout(_ACTIVATIONS[self.kind](self.expand(z)))
        return self.contract(hidden)  # type: ignore[no-any-return]


class GatedFeedForward(FeedForward):
    """FFN(z) = W_2 dropout(act(V z + c) * (W_1 z + b_1)) + b_2   (Shazeer 2020, equation 6; biases are ours).

    act is max(0, x) in ReGLU, GELU(x) in GEGLU and x sigmoid(x) in SwiGLU. V, the ``gate``, is as large as W_1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.width, config.inner)

    def forward(self, z: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """Applies the network to every position."""
        hidden = _ACTIVATIONS[self.kind](self.gate(z)) * self.expand(z)
        return self.contract(self.dropout(hidden))  # type: ignore[no-any-return]


def _feed_forward(config: TransformerConfig) -> FeedForward:
    gated = config.feed_forward in ("reglu", "geglu", "swiglu")
    return GatedFeedForward(config) if gated else FeedForward(config)


class LayerNorm(nn.LayerNorm):
    """PyTorch's layer norm (Ba et al. 2016) in one pass each way, in the type that the next product takes."""

    def forward(self, input: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """Normalises the last axis."""
        return residual.layer_norm(input, self.weight, self.bias, self.eps, dtype=residual.product_type(input))


class Residual(nn.Module):
    """The residual sum and norm around a sub-layer f.

    post-norm (5.4):                      norm(x + dropout(f(x)))
    pre-norm (Xiong et al. 2020):         x + dropout(f(norm(x)))

    The layer computes ``f`` itself, between the two methods: ``residual.add(x, f(residual.enter(x)))``.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout_of("residual"))
        self.pre = config.norm == "pre"

    def enter(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """What the sub-layer is given."""
        return self.norm(x) if self.pre else x

    def add(
        self, x: Float[Tensor, "batch time width"], output: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        """Adds the sub-layer's output to ``x``."""
        p = self.dropout.probability
        if self.pre:
            return residual.add(x, output, p)
        return residual.add_norm(x, output, self.norm.weight, self.norm.bias, self.norm.eps, p).normed


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        key_width=config.key_width,
        value_width=config.value_width,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
    )


class EncoderLayer(nn.Module):
    """Figure 1, left: self-attention, then the feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.self_residual = Residual(config)
        self.feed_forward = _feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Float[Tensor, "batch source width"], mask: Mask, *, need_weights: bool = False
    ) -> tuple[Float[Tensor, "batch source width"], Weights | None]:
        """Returns the new states and, on request, the attention weights."""
        attended, weights = self.self_attention(self.self_residual.enter(x), mask=mask, need_weights=need_weights)
        x = self.self_residual.add(x, attended)
        x = self.feed_forward_residual.add(x, self.feed_forward(self.feed_forward_residual.enter(x)))
        return x, weights


class Decoded(NamedTuple):
    """What a decoder layer makes of a whole target."""

    states: Float[Tensor, "batch target width"]
    self_weights: Weights | None
    cross_weights: Weights | None


class DecoderLayer(nn.Module):
    """Figure 1, right: masked self-attention, attention to the encoder's memory, the feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.self_residual = Residual(config)
        self.cross_attention = _attention(config)
        self.cross_residual = Residual(config)
        self.feed_forward = _feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        y: Float[Tensor, "batch target width"],
        memory: KeyValue,
        self_mask: Mask,
        memory_mask: Mask,
        *,
        need_weights: bool = False,
    ) -> Decoded:
        """The whole target at once; ``memory`` is `project_memory` of the encoder's output."""
        attended, self_weights = self.self_attention(
            self.self_residual.enter(y), mask=self_mask, need_weights=need_weights
        )
        y = self.self_residual.add(y, attended)
        attended, cross_weights = self.cross_attention.attend(
            self.cross_residual.enter(y), memory, mask=memory_mask, need_weights=need_weights
        )
        y = self.cross_residual.add(y, attended)
        y = self.feed_forward_residual.add(y, self.feed_forward(self.feed_forward_residual.enter(y)))
        return Decoded(y, self_weights, cross_weights)

    def step(
        self,
        y: Float[Tensor, "rows 1 width"],
        memory: KeyValue,
        cache: KeyValue | None,
        self_mask: Mask | None,
        memory_mask: Mask,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "rows 1 width"], KeyValue, Float[Tensor, "sentences heads group source"] | None]:
        """One new position a row: the same as `forward` on it, with the earlier ones in ``cache``.

        The rows of one sentence are consecutive and equally many, so they are queries of one attention: its memory
        is stored and read once, not once a hypothesis. So are the weights of the attention to it, on request.
        """
        attended, _, cache = self.self_attention.step(self.self_residual.enter(y), cache, mask=self_mask)
        y = self.self_residual.add(y, attended)
        sentences = memory.key.size(0)
        group = y.size(0) // max(sentences, 1)  # a state may have lost all its rows
        together = self.cross_residual.enter(y).reshape(sentences, group, y.size(-1))
        attended, weights = self.cross_attention.attend(together, memory, mask=memory_mask, need_weights=need_weights)
        y = self.cross_residual.add(y, attended.reshape(y.shape))
        y = self.feed_forward_residual.add(y, self.feed_forward(self.feed_forward_residual.enter(y)))
        return y, cache, weights

    def project_memory(self, memory: Float[Tensor, "batch source width"]) -> KeyValue:
        """Keys and values of the encoder's output: computed once a sentence."""
        return self.cross_attention.project(memory)
