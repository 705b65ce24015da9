"""Some attention weights, and their sums, without memory for all of them

Fused kernels never have the weights, and a call with ``need_weights=True`` has all of them: batch x heads x queries x
keys numbers. Who looks at weights mostly wants few: those of some queries or heads, or how much attention each key
receives. They follow from queries and keys alone, on every device, so the output can come from a fused kernel::

    output, _ = attention(query, key, value, mask=Causal())
    last = attention_weights(query, key, mask=Causal(), queries=[-1])        # [batch, heads, 1, keys]
    received = received_attention(query, key, mask=Causal())                 # [batch, heads, keys]

`MultiHeadAttention.project_query` and `project` give the queries and keys of a layer.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from multihead.attention.backends.call import at_least_float32, describe_call
from multihead.attention.backends.explicit import explicit_weights
from multihead.attention.biases import Bias
from multihead.attention.masks import Mask
from multihead.attention.masks.standard import KnownPadding
from multihead.errors import ConfigurationError, ShapeError

BLOCK = 128
"""Queries whose scores are in memory at a time."""


def attention_weights(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    queries: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Float[Tensor, "batch some_heads some_queries key"]:
    r"""The weights of some queries and heads; those of the others are never computed.

    .. math::
        \alpha_{bhij} = \mathrm{softmax}_j\left(\frac{q_{bhi} k_{bhj}}{\sqrt{d}} + \mathrm{bias}\right)
        \qquad h \in \mathrm{heads},\ i \in \mathrm{queries}

    Args:
        query, key, mask, bias, scale, soft_cap: as in :func:`multihead.attention.attention`.
        queries: positions; negative ones count from the end. All if ``None``.
        heads: numbers of query heads, likewise.

    Returns:
        The weights, in the order of ``heads`` and ``queries``: those that `attention` returns.

    Raises:
        ShapeError: the tensors do not fit together, or there is no such query or head.
        MaskError, ConfigurationError: as in `attention`.
    """
    scores = _Scores(query, key, mask, bias, scale, soft_cap)
    chosen = _places(queries, query.shape[2], "query")
    which = None if heads is None else _places(heads, query.shape[1], "head")
    runs = _runs(chosen)
    parts = [scores.weights(run, which) for run in runs] or [scores.weights(range(0), which)]
    return torch.cat(parts, dim=2)


def received_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    counted: Bool[Tensor, "batch query"] | None = None,
    block: int = BLOCK,
) -> Float[Tensor, "batch heads key"]:
    r"""How much attention each key receives: the sum of its weights over the queries.

    .. math::
        c_{bhj} = \sum_{i\,\mathrm{counted}} \alpha_{bhij}

    Blocks of queries are computed one after the other, so memory is batch x heads x ``block`` x keys numbers, with
    gradients as well: each block is computed again in the backward pass. Divided by the number of queries it is the
    mean weight. It tells sinks and heavy hitters (Zhang et al. 2023, "H2O", section 3) from keys that nobody reads.

    Args:
        query, key, mask, bias, scale, soft_cap: as in :func:`multihead.attention.attention`.
        counted: which queries count; all if ``None``. Padded queries attend like others unless the mask says that they
            are padding (``Padding(lengths, q_lengths)``).
        block: queries at a time.

    Returns:
        The sums, in float32 if the query is of a half type.

    Raises:
        ShapeError: the tensors do not fit together.
        MaskError, ConfigurationError: as in `attention`; a block without queries.
    """
    if block < 1:
        raise ConfigurationError(f"block={block}: at least one query at a time is needed")
    scores = _Scores(query, key, mask, bias, scale, soft_cap)
    batch, heads, q_len, _ = query.shape
    if counted is not None and counted.shape != (batch, q_len):
        raise ShapeError(f"counted: expected one boolean for each query, {[batch, q_len]}, got {list(counted.shape)}")

    def one(start: int) -> Tensor:
        run = range(start, min(start + block, q_len))
        weights = at_least_float32(scores.weights(run))
        if counted is not None:
            weights = weights.masked_fill(~counted[:, None, run.start : run.stop, None], 0)
        return weights.sum(dim=2)

    tensors = [query, key, *([bias] if isinstance(bias, Tensor) else [])]
    learned = isinstance(bias, Bias) and bias.learned
    with_gradients = torch.is_grad_enabled() and (learned or any(tensor.requires_grad for tensor in tensors))
    total = at_least_float32(query).new_zeros(batch, heads, key.shape[2])
    for start in range(0, q_len, block):
        total = total + (checkpoint(one, start, use_reentrant=False) if with_gradients else one(start))
    return total


class _Scores:
    """A call whose weights are computed for some queries at a time."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Mask | None,
        bias: Tensor | Bias | None,
        scale: float | None,
        soft_cap: float | None,
    ) -> None:
        call = describe_call(query, key, key, mask=mask, bias=bias, dropout_p=0.0, need_weights=True, soft_cap=soft_cap)
        if mask is not None and call.training:
            # A masked weight of NaN is 0, but its gradient would be multiplied by the NaN in queries and keys.
            query, key, _ = KnownPadding(mask).hide(query, key, key[..., :0])
        self.query, self.key, self.mask, self.bias = query, key, mask, bias
        self.scale, self.soft_cap = scale, soft_cap

    def weights(self, queries: range, heads: list[int] | None = None) -> Tensor:
        """Of queries that follow one another, and of some heads [batch, heads, queries, keys]."""
        q, k = self.query[:, :, queries.start : queries.stop], self.key
        batch, count, q_len, kv_len = len(q), self.query.shape[1], self.query.shape[2], k.shape[2]
        groups = count // k.shape[1]
        if heads is not None:
            q, k = q[:, heads], k[:, [head // groups for head in heads]]
        elif groups > 1:
            k = k.repeat_interleave(groups, dim=1)
        mask = bias = None
        if self.mask is not None:
            mask = self.mask.part(range(batch), count, queries, range(kv_len), q_len, kv_len, q.device)
            mask = _of_heads(mask, heads)
        if self.bias is not None:
            bias = _of_heads(self._bias(queries, kv_len), heads)
        return explicit_weights(q, k, mask=mask, bias=bias, scale=self.scale, soft_cap=self.soft_cap)

    def _bias(self, queries: range, kv_len: int) -> Tensor:
        """Its part for some queries [1 or batch, 1 or heads, 1 or queries, 1 or keys]."""
        assert self.bias is not None
        if isinstance(self.bias, Bias):
            offset = kv_len - self.query.shape[2]
            return self.bias.part(queries, range(kv_len), offset, self.query.dtype, self.query.device)
        four = self.bias[None, None] if self.bias.dim() == 2 else self.bias
        return four if four.shape[2] == 1 else four[:, :, queries.start : queries.stop]


def _of_heads(term: Tensor, heads: list[int] | None) -> Tensor:
    """The part for some heads, of a tensor that may have one for all."""
    return term if heads is None or term.shape[1] == 1 else term[:, heads]


def _places(given: Sequence[int] | None, count: int, what: str) -> list[int]:
    """The numbers from 0 on.

    Raises:
        ShapeError: one is not there.
    """
    if given is None:
        return list(range(count))
    numbers = [operator.index(one) for one in given]
    for one in numbers:
        if not -count <= one < count:
            raise ShapeError(f"there is no {what} {one}: there are {count}, from 0 to {count - 1}")
    return [one % count for one in numbers]


def _runs(places: list[int]) -> list[range]:
    """Neighbours that follow one another, together."""
    found: list[range] = []
    for place in places:
        if found and found[-1].stop == place:
            found[-1] = range(found[-1].start, place + 1)
        else:
            found.append(range(place, place + 1))
    return found
