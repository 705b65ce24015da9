"""Multi-head attention: projections and heads around `attention`.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2. One class serves self-attention, cross-attention and
cached decoding, which differ only in the call. Caches are arguments and results (:mod:`multihead.attention.cache`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.backends.call import check_dropout, check_soft_cap
from multihead.attention.biases import Bias
from multihead.attention.cache import KeyValue
from multihead.attention.functional import BackendName, attention
from multihead.attention.masks import Mask
from multihead.attention.relative import RelativePositions, relative_attention
from multihead.attention.sinks import sink_attention
from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels.linear import Linear, linear
from multihead.kernels.pointwise import Turns, layer_norm, rotate

QueryKeyNorm = Literal["layer", "rms"]
"""See `HeadNorm`."""

Weights = Float[Tensor, "batch heads query key"] | None


class PackedLinear(nn.Module):
    """Several linear maps of one input, y_i = x W_i^T + b_i, computed as a single product.

    ``weight`` [sum of sizes, in_features] holds the maps one below the other. Each map is initialized separately,
    Xavier-uniform (the bound of the packed matrix would be smaller), and biases are zero.

    Args:
        in_features: width of the input.
        sizes: widths of the outputs.
        bias: whether the maps have biases.
    """

    def __init__(self, in_features: int, sizes: tuple[int, ...], bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.sizes = sizes
        self.starts = (0, *accumulate(sizes))
        self.weight = nn.Parameter(torch.empty(sum(sizes), in_features))
        self.bias = nn.Parameter(torch.empty(sum(sizes))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        with torch.no_grad():
            for part in self.weight.split_with_sizes(self.sizes):
                nn.init.xavier_uniform_(part)
            if self.bias is not None:
                self.bias.zero_()

    def forward(
        self, x: Float[Tensor, "*axes width"], first: int = 0, last: int | None = None
    ) -> tuple[Float[Tensor, "*axes _"], ...]:
        """The outputs of the maps from ``first`` up to (not including) ``last``; all maps by default.

        Raises:
            ShapeError: the input has the wrong width.
        """
        return self.project(x, self.weight, first, last)

    def project(
        self, x: Float[Tensor, "*axes width"], weight: Float[Tensor, "out in_features"], first: int, last: int | None
    ) -> tuple[Float[Tensor, "*axes _"], ...]:
        """As `forward`, with another weight in place of its own."""
        if x.shape[-1] != self.in_features:
            raise ShapeError(f"the input has shape {list(x.shape)}, but its last axis must be {self.in_features}")
        sizes = self.sizes[first:last]
        if len(sizes) == len(self.sizes):
            packed = linear(x, weight, self.bias)
        else:
            rows = slice(self.starts[first], self.starts[first] + sum(sizes))
            packed = linear(x, weight[rows], None if self.bias is None else self.bias[rows])
        return packed.split_with_sizes(sizes, dim=-1)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {' + '.join(map(str, self.sizes))}, bias={self.bias is not None}"


class HeadNorm(nn.Module):
    r"""A norm of each head, with one learned gain g for all heads and no shift.

    .. math::
        \mathrm{rms}(x) = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \, g, \qquad
        \mathrm{layer}(x) = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}} \, g

    Args:
        dim: the width of a head.
        kind: ``"rms"`` or ``"layer"``.
        eps: epsilon.
    """

    def __init__(self, dim: int, kind: QueryKeyNorm, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim, self.kind, self.eps = dim, kind, eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Normalize heads that stand side by side."""
        heads = x.view(*x.shape[:-1], x.shape[-1] // self.dim, self.dim)
        if self.kind == "layer":
            gain = self.weight if x.dtype == torch.float32 else self.weight.to(x.dtype)
            return layer_norm(heads, gain, None, self.eps, dtype=x.dtype).flatten(-2)
        return F.rms_norm(heads, (self.dim,), self.weight.to(x.dtype), self.eps).to(x.dtype).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.kind}, eps={self.eps:g}"


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMS norm in the type of its input, with which PyTorch wants a gain of the same type."""

    def forward(self, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """Normalize the last axis."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention, batch first.

    .. math::
        \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O \\
        \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)

    If queries and memory have the same width, W^Q, W^K and W^V of all heads are one matrix, ``in_projection.weight``
    [q + k + v, width]: self-attention projects with a single product, and cross-attention with slices of the matrix.
    With another ``memory_width`` there are ``query_projection`` [q, width] and ``memory_projection`` [k + v,
    memory_width] instead. W^O is ``output_projection`` [width, v].

    Args:
        width: of the queries and of the output (the paper's d_model).
        heads: the number of heads (the paper's h).
        kv_heads: the number of heads of keys and values (default: ``heads``); fewer = grouped queries.
        key_width: of the queries of all heads together (default: ``width``); a head's d_k is key_width / heads.
        value_width: of the outputs of all heads together (default: ``width``); a head's d_v is value_width / heads.
        memory_width: of the input of keys and values (default: ``width``).
        bias: whether the projections have biases.
        dropout: the probability with which a weight is dropped in training. Above 0, attention on a CPU is unfused.
        qk_norm: a norm of the queries and of the keys of every head before the score, ``"rms"`` or ``"layer"`` (Henry
            et al. 2020; Dehghani et al. 2023): ``query_norm`` and ``key_norm`` are `HeadNorm`. None = there is none.
            Rotary positions rotate what is normalized; caches hold normalized keys.
        norm_eps: the epsilon of these norms.
        soft_cap: a bound of the scores, as in :func:`multihead.attention.attention`.
        sink: whether each head has a learned sink (:func:`multihead.attention.sink_attention`): ``sink`` [heads] holds
            its logits, 0 at first. Weights then sum to less than 1.
        relative: vectors of the distances between positions (Shaw et al. 2018), for self-attention only
            (:func:`multihead.attention.relative_attention`); neither with a soft cap nor with a sink.

    Raises:
        ConfigurationError: a width or number of heads below 1, heads that do not divide the widths, an impossible
            dropout or soft cap, an unknown norm, or what does not go together.
        ShapeError: the vectors of distances have other widths than the heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        memory_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        qk_norm: QueryKeyNorm | None = None,
        norm_eps: float = 1e-6,
        soft_cap: float | None = None,
        sink: bool = False,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.dropout = width, heads, dropout
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.key_width = width if key_width is None else key_width
        self.value_width = width if value_width is None else value_width
        self.memory_width = width if memory_width is None else memory_width
        self._check_sizes()
        kv_sizes = tuple(total // heads * self.kv_heads for total in (self.key_width, self.value_width))
        self.in_projection: PackedLinear | None = None
        self.query_projection: PackedLinear | None = None
        self.memory_projection: PackedLinear | None = None
        if self.memory_width == width:
            self.in_projection = PackedLinear(width, (self.key_width, *kv_sizes), bias)
        else:
            self.query_projection = PackedLinear(width, (self.key_width,), bias)
            self.memory_projection = PackedLinear(self.memory_width, kv_sizes, bias)
        if qk_norm not in (None, "layer", "rms"):
            raise ConfigurationError(
                f"qk_norm={qk_norm!r}: norms of queries and keys are 'layer' or 'rms', None = none"
            )
        dim = self.key_width // heads
        self.query_norm = None if qk_norm is None else HeadNorm(dim, qk_norm, norm_eps)
        self.key_norm = None if qk_norm is None else HeadNorm(dim, qk_norm, norm_eps)
        self.output_projection = Linear(self.value_width, width, bias=bias)
        nn.init.xavier_uniform_(self.output_projection.weight)
        if bias:
            nn.init.zeros_(self.output_projection.bias)
        self.soft_cap, self.relative_positions = soft_cap, relative
        self.sink = nn.Parameter(torch.zeros(heads)) if sink else None
        self._check_kinds()

    def _check_kinds(self) -> None:
        if self.soft_cap is not None:
            check_soft_cap(self.soft_cap)
        if self.relative_positions is None:
            return
        if self.soft_cap is not None or self.sink is not None:
            other = "sink=True" if self.soft_cap is None else f"soft_cap={self.soft_cap}"
            raise ConfigurationError(f"relative positions and {other} do not go together: leave out one of them")
        self.relative_positions.check(self.key_width // self.heads, self.value_width // self.heads)

    def _check_sizes(self) -> None:
        for name, size in (("heads", self.heads), ("kv_heads", self.kv_heads)):
            if size < 1:
                raise ConfigurationError(f"{name}={size}: at least one head is needed")
        for name in ("width", "key_width", "value_width", "memory_width"):
            if (size := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={size}: must be at least 1")
        for name, size in (("key_width", self.key_width), ("value_width", self.value_width)):
            if size % self.heads:
                raise ConfigurationError(
                    f"{'width' if size == self.width else name}={size} cannot be divided among {self.heads} "
                    f"heads: take a multiple of {self.heads}, such as {(size // self.heads + 1) * self.heads}"
                )
        if self.heads % self.kv_heads:
            raise ConfigurationError(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}: every key head serves "
                "the same number of query heads"
            )
        check_dropout(self.dropout, "dropout")

    def forward(
        self,
        query: Float[Tensor, "batch query width"],
        key: Float[Tensor, "batch key memory_width"] | None = None,
        value: Float[Tensor, "batch key memory_width"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        turns: Turns | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch query width"], Weights]:
        """Self-attention (``key`` None, or the very same tensor), or attention to another sequence.

        Args:
            query: [batch, query, width].
            key: [batch, key, memory_width]; None = the query.
            value: [batch, key, memory_width]; None = the key.
            mask: which query may attend to which key. Where a query may attend to nothing, the output is W^O's bias.
            bias: added to the scores, as in :func:`multihead.attention.attention`.
            turns: in self-attention: rotary positions, see `step`.
            need_weights: return the weights of every head too.
            backend: by name, as in :func:`multihead.attention.attention`.

        Returns:
            The output [batch, query, width], and the weights [batch, heads, query, key] (before dropout) or None.
        """
        key = query if key is None else key
        value = key if value is None else value
        if self.in_projection is not None and key is query and value is query:
            output, weights, _ = self.step(
                query, None, mask=mask, bias=bias, turns=turns, need_weights=need_weights, backend=backend
            )
            return output, weights
        if turns is not None:
            raise ShapeError("turns: queries and keys of another sequence have no common positions; leave it out")
        self._check_own()
        kv = self.project(key, value)
        return self.attend(query, kv, mask=mask, bias=bias, need_weights=need_weights, backend=backend)

    def project_query(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch heads query head_dim"]:
        """The queries of every head, Q W^Q."""
        if self.in_projection is None:
            assert self.query_projection is not None
            (query,) = self.query_projection(x)
        else:
            (query,) = self.in_projection(x, 0, 1)
        return split_heads(query if self.query_norm is None else self.query_norm(query), self.heads)

    def project(
        self,
        key: Float[Tensor, "batch key memory_width"],
        value: Float[Tensor, "batch key memory_width"] | None = None,
    ) -> KeyValue:
        """The keys and values of every head, K W^K and V W^V, for use in many steps (see `attend`)."""
        if self.in_projection is None:
            assert self.memory_projection is not None
            maps, first = self.memory_projection, 0
        else:
            maps, first = self.in_projection, 1
        if value is None or value is key:
            keys, values = maps(key, first, first + 2)
        else:
            (keys,), (values,) = maps(key, first, first + 1), maps(value, first + 1, first + 2)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        return KeyValue(split_heads(keys, self.kv_heads), split_heads(values, self.kv_heads))

    def attend(
        self,
        query: Float[Tensor, "batch query width"],
        kv: KeyValue,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch query width"], Weights]:
        """The same as `forward`, with keys and values that `project` has projected already."""
        self._check_own()
        return self._attend(self.project_query(query), kv, mask, bias, need_weights, backend)

    def step(
        self,
        x: Float[Tensor, "batch query width"],
        cache: KeyValue | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        turns: Turns | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch query width"], Weights, KeyValue]:
        """Self-attention of new positions to the cached ones and to themselves.

        Args:
            x: the new positions.
            cache: the keys and values of earlier positions, as the last step returned them; None = there are none.
            mask: over all keys, old and new; ``Causal()`` if there are several new positions.
            bias: over all keys too.
            turns: rotary positions (Su et al. 2021): queries and keys of the new positions are rotated by these angles
                (:func:`multihead.kernels.pointwise.rotate`); the cache has rotated keys.
            need_weights: return the weights of every head too.
            backend: by name.

        Returns:
            The output, the weights or None, and the cache with the new positions appended.

        Raises:
            ShapeError: ``memory_width`` differs from ``width``, so self-attention is impossible.
        """
        if self.in_projection is None:
            raise ShapeError(
                f"queries have the width {self.width} and memory {self.memory_width}: this module attends to "
                "another sequence only. Pass it as key=, or use attend()"
            )
        query, keys, values = self.in_projection(x)
        if self.query_norm is not None and self.key_norm is not None:
            query, keys = self.query_norm(query), self.key_norm(keys)
        if turns is not None:
            query, keys = rotate(query, turns), rotate(keys, turns)
        kv = KeyValue(split_heads(keys, self.kv_heads), split_heads(values, self.kv_heads))
        kv = kv if cache is None else cache.append(kv)
        return *self._attend(split_heads(query, self.heads), kv, mask, bias, need_weights, backend), kv

    def _check_own(self) -> None:
        if self.relative_positions is not None:
            raise ShapeError(
                "relative positions: queries and keys of another sequence have no common positions; leave out relative="
            )

    def mix(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        """The heads [batch, heads, query, value_dim] and their weights or None.

        ``options`` are those of :func:`multihead.attention.attention`. Inside
        :func:`multihead.inspection.capture.capture`, another function takes the place of this one.
        """
        if self.relative_positions is not None:
            return relative_attention(query, key, value, self.relative_positions, **options)
        if self.sink is not None:
            return sink_attention(query, key, value, self.sink, soft_cap=self.soft_cap, **options)
        return attention(query, key, value, soft_cap=self.soft_cap, **options)

    def _attend(
        self,
        query: Tensor,
        kv: KeyValue,
        mask: Mask | None,
        bias: Tensor | Bias | None,
        need_weights: bool,
        backend: BackendName,
    ) -> tuple[Tensor, Tensor | None]:
        heads, weights = self.mix(
            query,
            kv.key,
            kv.value,
            mask=mask,
            bias=bias,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
            backend=backend,
        )
        return self.output_projection(join_heads(heads)), weights

    def extra_repr(self) -> str:
        cap = "" if self.soft_cap is None else f", soft_cap={self.soft_cap:g}"
        return f"heads={self.heads}, kv_heads={self.kv_heads}, dropout={self.dropout}{cap}"


def split_heads(x: Float[Tensor, "batch length width"], heads: int) -> Float[Tensor, "batch {heads} length dim"]:
    """[batch, length, heads * dim] -> [batch, heads, length, dim], without a copy."""
    return x.view(*x.shape[:2], heads, x.shape[-1] // heads).transpose(1, 2)


def join_heads(x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch length width"]:
    """[batch, heads, length, dim] -> [batch, length, heads * dim], the heads' results side by side."""
    return x.transpose(1, 2).flatten(2)
