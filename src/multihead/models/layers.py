"""Tokens and positions become vectors; what is done with them is left to the layers.

x_t = dropout( sqrt(D) E[token_t] + p_t )                                   (Vaswani et al. 2017, 3.4 and 3.5)

On request a layer norm follows, and sqrt(D) stands elsewhere (`TransformerConfig.embedding_scale`).

The layers of the Transformer: Figure 1 of Vaswani et al. (2017), one box a class.

Attention is computed in `multihead.attention`; here it is wired with residual sums, norms and the feed-forward
network. Each layer serves a whole sequence (training) and a single step with a cache (decoding).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention import KeyValue, Mask, MultiHeadAttention
from multihead.kernels import pointwise as residual
from multihead.kernels.pointwise import activated_linear
from multihead.kernels.random import Dropout
from multihead.models.config import TransformerConfig

_TABLE_LENGTH = 512
"""Sinusoidal positions looked up; those beyond are computed when they come, so no length is too long."""


def sinusoid(positions: Int[Tensor, " length"], width: int) -> Float[Tensor, "length {width}"]:
    """The sinusoidal encoding of given positions, in float32 from float64 angles.

    p_{t,2i} = sin(t / 10000^{2i/D}),   p_{t,2i+1} = cos(t / 10000^{2i/D})                    (3.5)
    """
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) * (-math.log(10000.0) / width)
    )
    angle = positions.double()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).float()


class SinusoidalPositions(nn.Module):
    """`sinusoid` as a layer without parameters, for any length.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoid(torch.arange(_TABLE_LENGTH), width), persistent=False)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Looks positions up where the table reaches ``limit`` (known on the host) and computes them elsewhere."""
        table: Tensor = self.table  # type: ignore[assignment]
        return table[positions] if limit <= len(table) else sinusoid(positions, self.width)


class LearnedPositions(nn.Module):
    """p_t = P[min(t, M - 1)]: a trained vector for each of M positions; those beyond share the last one.

    So a longer sentence is no error, but the model cannot tell the order of what stands there: see
    `Transformer.max_positions`.

    Args:
        count: M.
        width: D.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Looks positions up; all are below ``limit``, which is known on the host."""
        count = self.table.num_embeddings
        found: Tensor = self.table(positions if limit <= count else positions.clamp(max=count - 1))
        return found


class Embedding(nn.Module):
    """x_t = norm( dropout( s E[token_t] + p_t ) ), where scale s, positions p and norm are as ``config`` has them.

    Args:
        table: the token embedding E, which may be shared with others; positions and norm never are.
        config: of the model.
    """

    def __init__(self, table: nn.Embedding, config: TransformerConfig) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(config.width) if config.embedding_scale == "embedding" else 1.0
        self.positions = (
            LearnedPositions(config.max_positions, config.width)
            if config.positions == "learned"
            else SinusoidalPositions(config.width)
        )
        self.dropout = Dropout(config.dropout_of("embedding"))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.embedding_norm else nn.Identity()

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """Embeds whole rows that begin at position 0."""
        time = tokens.size(1)
        return self._sum(tokens, self.positions(torch.arange(time, device=tokens.device), time))

    def packed(
        self, tokens: Int[Tensor, " packed"], positions: Int[Tensor, " packed"]
    ) -> Float[Tensor, "1 packed width"]:
        """Embeds tokens of many rows as one, each at its own position."""
        return self.at(tokens, positions, int(positions.max()) + 1).transpose(0, 1)

    def at(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], limit: int
    ) -> Float[Tensor, "rows 1 width"]:
        """Embeds one token a row, each at its own position; all positions are below ``limit``."""
        return self._sum(tokens, self.positions(positions, limit))[:, None]

    def _sum(self, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded: Tensor = self.table(tokens)
        scaled = embedded if self.scale == 1.0 else embedded * self.scale
        summed: Tensor = self.norm(self.dropout(scaled + positions.to(embedded.dtype)))
        return summed


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
