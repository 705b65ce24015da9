"""Layers of the Transformer: embeddings, residuals, encoder, decoder.

One class per box of Figure 1 of Vaswani et al. (2017). `multihead.attention` computes attention; here it is combined
with residual sums, norms and the feed-forward network. Each layer processes a whole sequence (training) or one step
with a cache (decoding).

    x_t = dropout( sqrt(D) E[token_t] + p_t )                               (embedding: sections 3.4 and 3.5)

Optionally a layer norm follows, and sqrt(D) is applied elsewhere (`StackConfig.embedding_scale`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention import ALiBi, KeyValue, Mask, MultiHeadAttention, RelativeBias, RelativePositions
from multihead.attention.biases import Bias
from multihead.errors import ShapeError
from multihead.kernels import pointwise
from multihead.kernels.linear import Linear
from multihead.kernels.pointwise import Turns
from multihead.kernels.random import Dropout
from multihead.models.factors import FactoredEmbedding
from multihead.models.guidance import Guidance
from multihead.models.stack_config import GATED, Sinusoid, StackConfig
from multihead.platforms import WITHOUT_FLOAT64

_TABLE_LENGTH = 512
"""Sinusoidal positions in the lookup table; later ones are computed on demand, so there is no maximum length."""


def sinusoid(
    positions: Int[Tensor, " length"], width: int, layout: Sinusoid = "interleaved"
) -> Float[Tensor, "length {width}"]:
    """The sinusoidal encoding of given positions, in float32 from float64 angles.

    p_{t,2i} = sin(t / 10000^{2i/D}),   p_{t,2i+1} = cos(t / 10000^{2i/D})                    (3.5)

    Other programs have other layouts: ``halves`` (Marian and Pegasus in transformers) has all sines first, then all
    cosines; ``marian`` (Marian itself) has halves, too, and its exponents are i / (D/2 - 1); ``fairseq`` (also
    M2M-100 and NLLB) is that with t + 2 instead of t, as the positions 0 and 1 belong to special symbols.

    Raises:
        ShapeError: the width is odd, or below 2: a sine without its cosine has no rotation between positions, and
            programs do not agree on what stands in its place.
    """
    if width < 2 or width % 2:
        raise ShapeError(
            f"sinusoids come in pairs, so width must be even and at least 2, got {width}: take {max(width + 1, 2)}"
        )
    at = positions.cpu() if positions.device.type in WITHOUT_FLOAT64 else positions
    half = torch.arange(width // 2, dtype=torch.float64, device=at.device)
    steps = width / 2 if layout in ("interleaved", "halves") else max(width / 2 - 1, 1)
    frequency = torch.exp(half * (-math.log(10000.0) / steps))
    angle = (at.double() + (2 if layout == "fairseq" else 0))[:, None] * frequency
    if layout == "interleaved":
        encoded = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    else:
        encoded = torch.cat((angle.sin(), angle.cos()), dim=-1)
    return encoded.float().to(positions.device)


class SinusoidalPositions(nn.Module):
    """`sinusoid` as a layer without parameters, for any length.

    Args:
        width: D.
        layout: of the channels.
    """

    def __init__(self, width: int, layout: Sinusoid = "interleaved") -> None:
        super().__init__()
        self.width, self.layout = width, layout
        positions = torch.arange(_TABLE_LENGTH)
        table = torch.empty(_TABLE_LENGTH, width) if positions.is_meta else sinusoid(positions, width, layout)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Encode positions below ``limit``, which is on the host so that a GPU need not synchronize."""
        table: Tensor = self.table  # type: ignore[assignment]
        return table[positions] if limit <= len(table) else sinusoid(positions, self.width, self.layout)


class LearnedPositions(nn.Module):
    """p_t = P[min(t, M - 1)]: a trained vector for each of M positions; later positions share the last one.

    Longer sentences are therefore allowed, but the model cannot tell the order of their tail: see
    `Transformer.max_positions`.

    Args:
        count: M.
        width: D.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Encode positions below ``limit``, which is on the host."""
        count = self.table.num_embeddings
        found: Tensor = self.table(positions if limit <= count else positions.clamp(max=count - 1))
        return found


class LinearPositions(nn.Module):
    """`ALiBi` as a layer without parameters; its slopes are on the model's device.

    Args:
        heads: H.
        causal: whether no query sees later keys; otherwise scores fall to both sides.
    """

    slopes: Float[Tensor, " heads"]

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.rule = ALiBi(heads, symmetric=not causal)
        self.register_buffer("slopes", torch.tensor(self.rule.slopes), persistent=False)

    def forward(self, q_len: int, kv_len: int | None = None) -> Float[Tensor, "1 heads query key"]:
        """The bias as a tensor; the last query is at the last key."""
        keys = torch.arange(q_len if kv_len is None else kv_len, device=self.slopes.device)
        return self.rule.with_slopes(self.slopes, keys[len(keys) - q_len :], keys)


def biased_positions(config: StackConfig, *, causal: bool) -> RelativeBias | LinearPositions | None:
    """The bias that all self-attentions of an encoder or decoder share; None if positions are of another kind."""
    if config.positions == "alibi":
        return LinearPositions(config.heads, causal=causal)
    if config.positions != "relative":
        return None
    sizes = {"buckets": config.relative_buckets, "max_distance": config.reach}
    return RelativeBias(config.heads, **sizes, causal=causal)


def shaw_positions(config: StackConfig, *, causal: bool) -> RelativePositions | None:
    """The vectors of distances of one self-attention; None if positions are of another kind."""
    if config.positions != "shaw":
        return None
    key, value = config.key_width // config.heads, config.value_width // config.heads
    return RelativePositions(key, config.reach, value_dim=value, causal=causal)


def rotary_positions(config: StackConfig) -> SinusoidalPositions | None:
    """The turns (`kernels.pointwise.Turns`) of all self-attentions; None if positions are of another kind.

    Their angles, t / 10000^{2i/d}, are those of a sinusoidal encoding as wide as a head (Su et al. 2021, 3.2.2).
    """
    return SinusoidalPositions(config.key_width // config.heads, "halves") if config.positions == "rotary" else None


class Places(NamedTuple):
    """What self-attention knows about the positions of its queries and keys, common to all layers of a stack."""

    bias: Float[Tensor, "1 heads query key"] | Bias | None = None
    """Added to the scores."""
    turns: Turns | None = None
    """By which queries and keys are rotated."""


NO_PLACES = Places()
"""Positions are vectors that are added to the embeddings."""


def places_of(
    biased: RelativeBias | LinearPositions | None,
    rotary: SinusoidalPositions | None,
    time: int,
    device: torch.device,
) -> Places:
    """Of the first ``time`` positions, by the bias of a stack and its turns."""
    if isinstance(biased, LinearPositions) and device.type == "cpu":
        return Places(biased.rule)  # which the kernel for short sequences knows
    bias = None if biased is None else biased(time)
    return Places(bias, None if rotary is None else rotary(torch.arange(time, device=device), time))


class Embedding(nn.Module):
    """x_t = norm( dropout( s E[token_t] + p_t ) ), with scale s, positions p and norm of ``config``.

    Relative, rotary and linear positions enter self-attention instead (`Places`, `shaw_positions`): then p is left out.

    Args:
        table: the token embedding E, which may be shared; positions and norm are not.
        config: settings of the model.
    """

    def __init__(self, table: nn.Embedding | FactoredEmbedding, config: StackConfig) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(config.width) if config.embedding_scale == "embedding" else 1.0
        self.positions = _position_vectors(config)
        self.dropout = Dropout(config.dropout_of("embedding"))
        self.norm = _embedding_norm(config)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """Embed rows that start at position 0."""
        time = tokens.size(1)
        return self._sum(tokens, torch.arange(time, device=tokens.device), time)

    def packed(
        self, tokens: Int[Tensor, " packed"], positions: Int[Tensor, " packed"]
    ) -> Float[Tensor, "1 packed width"]:
        """Embed the packed tokens of many rows as one row, each token at its own position."""
        return self.at(tokens, positions, int(positions.max()) + 1).transpose(0, 1)

    def at(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], limit: int
    ) -> Float[Tensor, "rows 1 width"]:
        """Embed one token per row, each at its own position; all positions are below ``limit``."""
        return self._sum(tokens, positions, limit)[:, None]

    def _sum(self, tokens: Tensor, positions: Tensor, limit: int) -> Tensor:
        embedded: Tensor = self.table(tokens)
        summed = embedded if self.scale == 1.0 else embedded * self.scale
        if self.positions is not None:
            summed = summed + self.positions(positions, limit).to(embedded.dtype)
        normed: Tensor = self.norm(self.dropout(summed))
        return normed


def _position_vectors(config: StackConfig) -> LearnedPositions | SinusoidalPositions | None:
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.width)
    return SinusoidalPositions(config.width, config.sinusoid) if config.positions == "sinusoidal" else None


Weights = Float[Tensor, "batch heads query key"]
"""Attention weights of a layer."""

_gelu_tanh = partial(F.gelu, approximate="tanh")

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": _gelu_tanh,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
    "geglu_tanh": _gelu_tanh,
}


class FeedForward(nn.Module):
    """FFN(z) = W_2 dropout(act(W_1 z + b_1)) + b_2   (3.3), at each position.

    act is max(0, x), GELU(x) = x P(X <= x) with X ~ N(0, 1)   (Hendrycks & Gimpel 2016), SiLU(x) = x sigmoid(x), or
    GELU's approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). The biases are optional.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        self.expand = nn.Linear(config.width, config.inner, bias=config.feed_forward_bias)
        self.contract = Linear(config.inner, config.width, bias=config.feed_forward_bias)
        self.dropout = Dropout(config.dropout_of("feed_forward"))

    def forward(self, z: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        if torch.is_grad_enabled() and self.kind in ("relu", "gelu"):
            expand, p = self.expand, self.dropout.probability
            hidden = pointwise.activated_linear(z, expand.weight, expand.bias, self.kind, p)
        else:  # module by module, so that hooks on the modules are called; the others have no fused kernel
            hidden = self.dropout(_ACTIVATIONS[self.kind](self.expand(z)))
        return self.contract(hidden)  # type: ignore[no-any-return]


class GatedFeedForward(FeedForward):
    """FFN(z) = W_2 dropout(act(V z + c) * (W_1 z + b_1)) + b_2   (Shazeer 2020, equation 6; biases are ours).

    act is max(0, x) in ReGLU, GELU(x) in GEGLU (or its approximation) and x sigmoid(x) in SwiGLU. V, the ``gate``, is
    as large as W_1.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.width, config.inner, bias=config.feed_forward_bias)

    def forward(self, z: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        hidden = _ACTIVATIONS[self.kind](self.gate(z)) * self.expand(z)
        return self.contract(self.dropout(hidden))  # type: ignore[no-any-return]


def _feed_forward(config: StackConfig) -> FeedForward:
    return GatedFeedForward(config) if config.feed_forward in GATED else FeedForward(config)


class LayerNorm(nn.LayerNorm):
    """PyTorch's layer norm (Ba et al. 2016) in one pass each way, in the type that the next product takes."""

    def forward(self, input: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """Normalize the last axis."""
        return pointwise.layer_norm(input, self.weight, self.bias, self.eps, dtype=pointwise.product_type(input))


class RMSNorm(nn.RMSNorm):
    """RMS norm (Zhang & Sennrich 2019), x g / sqrt(mean(x^2) + eps), in the type that the next product takes."""

    def forward(self, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """Normalize the last axis."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps).to(pointwise.product_type(x))


class StreamRMSNorm(RMSNorm):
    """RMS norm whose result is the residual stream, and is summed in float32."""

    def forward(self, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """Normalize the last axis."""
        wide = x.to(pointwise.stream_type(x))
        return F.rms_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.eps)


def make_norm(config: StackConfig) -> LayerNorm | RMSNorm:
    """A norm of the kind that the settings say, in front of products."""
    return (RMSNorm if config.norm_kind == "rms" else LayerNorm)(config.width, eps=config.norm_eps)


def _stream_norm(config: StackConfig) -> LayerNorm | RMSNorm:
    """A norm of the same kind behind a sum; `pointwise.add_norm` computes a layer norm with the sum."""
    return StreamRMSNorm(config.width, eps=config.norm_eps) if config.norm_kind == "rms" else make_norm(config)


def _embedding_norm(config: StackConfig) -> nn.Module:
    if not config.embedding_norm:
        return nn.Identity()
    return nn.LayerNorm(config.width, eps=config.norm_eps) if config.norm_kind == "layer" else _stream_norm(config)


class Residual(nn.Module):
    """The residual sum and norm around a sub-layer f.

    post-norm (5.4):                      norm(x + dropout(f(x)))
    pre-norm (Xiong et al. 2020):         x + dropout(f(norm(x)))

    The caller computes ``f``, between the two methods: ``residual.add(x, f(residual.enter(x)))``.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm: LayerNorm | RMSNorm = make_norm(config) if self.pre else _stream_norm(config)
        self.dropout = Dropout(config.dropout_of("residual"))

    def enter(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The input of the sub-layer."""
        return self.norm(x) if self.pre else x

    def add(
        self, x: Float[Tensor, "batch time width"], output: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        """Add the sub-layer's output to ``x``."""
        p = self.dropout.probability
        if self.pre:
            return pointwise.add(x, output, p)
        if isinstance(self.norm, RMSNorm):
            normed: Tensor = self.norm(pointwise.add(x, output, p))
            return normed
        return pointwise.add_norm(x, output, self.norm.weight, self.norm.bias, self.norm.eps, p).normed


def _attention(config: StackConfig, relative: RelativePositions | None = None) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        key_width=config.key_width,
        value_width=config.value_width,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
        qk_norm=None if config.query_key_norm == "none" else config.query_key_norm,
        norm_eps=config.norm_eps,
        relative=relative,
    )


class EncoderLayer(nn.Module):
    """Figure 1, left: self-attention, then the feed-forward network.

    Args:
        config: settings of the model.
        causal: whether no position will see later ones: a decoder without a source (`models.decoder`).
    """

    def __init__(self, config: StackConfig, *, causal: bool = False) -> None:
        super().__init__()
        self.self_attention = _attention(config, shaw_positions(config, causal=causal))
        self.self_residual = Residual(config)
        self.feed_forward = _feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Float[Tensor, "batch source width"],
        mask: Mask,
        places: Places = NO_PLACES,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch source width"], Weights | None]:
        """The new states and, on request, the attention weights."""
        entered = self.self_residual.enter(x)
        attended, weights = self.self_attention(entered, mask=mask, **places._asdict(), need_weights=need_weights)
        return self.combine(x, entered, attended), weights

    def step(
        self, x: Float[Tensor, "rows time width"], cache: KeyValue | None, mask: Mask | None, places: Places = NO_PLACES
    ) -> tuple[Float[Tensor, "rows time width"], KeyValue]:
        """Process new positions, with the keys and values of earlier ones in ``cache``.

        Args:
            x: the new positions.
            cache: as the last step returned it; None = there are no earlier positions.
            mask: over all positions; ``Causal()`` if several are new.
            places: as in `forward`.

        Returns:
            The new states and the new cache.
        """
        entered = self.self_residual.enter(x)
        attended, _, cache = self.self_attention.step(entered, cache, mask=mask, **places._asdict())
        return self.combine(x, entered, attended), cache

    def combine(
        self,
        x: Float[Tensor, "batch time width"],
        entered: Float[Tensor, "batch time width"],  # noqa: ARG002 - which parallel blocks read again
        attended: Float[Tensor, "batch time width"],
    ) -> Float[Tensor, "batch time width"]:
        """The new states: self-attention read ``entered`` of the states ``x``, and found ``attended``."""
        x = self.self_residual.add(x, attended)
        return self.feed_forward_residual.add(x, self.feed_forward(self.feed_forward_residual.enter(x)))


class Decoded(NamedTuple):
    """Output of a decoder layer for a whole target."""

    states: Float[Tensor, "batch target width"]
    self_weights: Weights | None
    cross_weights: Weights | None
    guided: Float[Tensor, ""] | None = None
    """The loss of the guided head, where one is guided."""


class DecoderLayer(nn.Module):
    """Figure 1, right: masked self-attention, attention to the encoder's memory, the feed-forward network."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config, shaw_positions(config, causal=True))
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
        places: Places = NO_PLACES,
        *,
        need_weights: bool = False,
        guidance: Guidance | None = None,
    ) -> Decoded:
        """Process the whole target at once; ``memory`` is `project_memory` of the encoder's output."""
        attended, self_weights = self.self_attention(
            self.self_residual.enter(y), mask=self_mask, **places._asdict(), need_weights=need_weights
        )
        y = self.self_residual.add(y, attended)
        entered = self.cross_residual.enter(y)
        guided = None if guidance is None else guidance(self.cross_attention.project_query(entered), memory.key)
        attended, cross_weights = self.cross_attention.attend(
            entered, memory, mask=memory_mask, need_weights=need_weights
        )
        y = self.cross_residual.add(y, attended)
        y = self.feed_forward_residual.add(y, self.feed_forward(self.feed_forward_residual.enter(y)))
        return Decoded(y, self_weights, cross_weights, guided)

    def step(
        self,
        y: Float[Tensor, "rows 1 width"],
        memory: KeyValue,
        cache: KeyValue | None,
        self_mask: Mask | None,
        memory_mask: Mask,
        places: Places = NO_PLACES,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "rows 1 width"], KeyValue, Float[Tensor, "sentences heads group source"] | None]:
        """Process one new position per row, as `forward` does, with the keys and values of earlier ones in ``cache``.

        The rows of a sentence are adjacent and equally many, so they are processed as several queries to one memory,
        which is stored and read once per sentence instead of once per hypothesis.

        Returns:
            The new states, the new cache, and on request the weights of the attention to the memory.
        """
        entered = self.self_residual.enter(y)
        attended, _, cache = self.self_attention.step(entered, cache, mask=self_mask, **places._asdict())
        y = self.self_residual.add(y, attended)
        attended, weights = self.attend_grouped(self.cross_residual.enter(y), memory, memory_mask, need_weights)
        y = self.cross_residual.add(y, attended)
        y = self.feed_forward_residual.add(y, self.feed_forward(self.feed_forward_residual.enter(y)))
        return y, cache, weights

    def attend_grouped(
        self, z: Float[Tensor, "rows 1 width"], memory: KeyValue, mask: Mask, need_weights: bool
    ) -> tuple[Float[Tensor, "rows 1 width"], Float[Tensor, "sentences heads group source"] | None]:
        """Attention of one position per row to the memory; the hypotheses of a sentence are its queries."""
        sentences = memory.key.size(0)
        group = z.size(0) // max(sentences, 1)  # a state may have no rows
        queries = z.reshape(sentences, group, z.size(-1))
        attended, weights = self.cross_attention.attend(queries, memory, mask=mask, need_weights=need_weights)
        return attended.reshape(z.shape), weights

    def project_memory(self, memory: Float[Tensor, "batch source width"]) -> KeyValue:
        """Keys and values of the encoder's output, computed once per sentence."""
        return self.cross_attention.project(memory)
