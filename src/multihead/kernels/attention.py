"""Attention over short sequences on a CPU, forwards and backwards: the sentences of a translator.

    softmax(Q K^T scale) V    over the keys of each row's length (and, if causal, not after the query)

PyTorch's fused kernel is made for long sequences: backwards it takes the longer the shorter they are, in bfloat16 many
times so (docs/lab-notes.md), and wants float32 made of bfloat16 first. Here one thread does one head of one
sentence in its own cache, reads and writes either type where it lies, computes in float32, and skips the padding
altogether, so what stands there reaches nothing. A query without any key, or past its own length, gives zeros.

What attention means is defined in `multihead.attention.functional`, which decides whether to come here.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels.native import TYPES, library_for, pointer

LONGEST = 256
"""Queries and keys at most: beyond, scores leave the cache, and PyTorch's kernel is the better one."""
WIDEST = 256
"""Width of a head at most."""


def takes(query: Tensor, key: Tensor, value: Tensor, longest: int | None = None) -> bool:
    """Whether `short_attention` computes this: compiled kernels, equal heads, types and widths, and short sequences.

    Sequences end to end are as long as the ``longest`` of them.
    """
    width = query.shape[-1]
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and key.shape == value.shape
        and key.shape[-1] == width
        and 0 < width <= WIDEST
        and 0 < (query.shape[2] if longest is None else longest) <= LONGEST
        and 0 < (key.shape[2] if longest is None else longest) <= LONGEST
        and query.numel() > 0
        and library_for(query, key, value) is not None
    )


def short_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads key dim"],
    value: Float[Tensor, "batch heads key dim"],
    *,
    key_lengths: Int[Tensor, " _"] | None = None,
    query_lengths: Int[Tensor, " _"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch heads query dim"]:
    """Attention for which `takes` holds; the result lies as [batch, query, heads, dim], so that joining heads is free.

    Args:
        query: Q.
        key: K.
        value: V.
        key_lengths: keys that are real, from 0 to all, in each row; None = all.
        query_lengths: queries that are asked; the others give zeros.
        causal: query t sees the keys up to t; needs as many queries as keys.
        scale: of the scores; default 1 / sqrt(dim).

    Raises:
        ConfigurationError: `takes` does not hold.
        ShapeError: not one length a row, or a causal mask over other keys than queries.
    """
    _check(query, key, value)
    if causal and query.shape[2] != key.shape[2]:
        raise ShapeError(f"a causal mask needs as many keys as queries, got {query.shape[2]} and {key.shape[2]}")
    limits = []
    for lengths, most in ((key_lengths, key.shape[2]), (query_lengths, query.shape[2])):
        if lengths is not None and lengths.shape != query.shape[:1]:
            raise ShapeError(f"one length a row is needed: {len(query)}, got a tensor {list(lengths.shape)}")
        limits.append(None if lengths is None else lengths.to(torch.int64).clamp(0, most).contiguous())
    of_keys, of_queries = limits
    rows = _Rows(len(query), query.shape[2], key.shape[2], of_keys, of_queries, None, None)
    return _run(query, key, value, rows, causal, scale)


class EndToEnd:
    """Sequences that stand end to end in one row, as queries and as keys; looked at once for all layers.

    Args:
        query_lengths: how many queries each sequence has.
        key_lengths: and how many keys.

    Raises:
        ShapeError: these are not as many, or there are none.
    """

    def __init__(self, query_lengths: Int[Tensor, " _"], key_lengths: Int[Tensor, " _"]) -> None:
        if len(query_lengths) != len(key_lengths) or not len(query_lengths):
            raise ShapeError(f"{len(query_lengths)} sequences of queries and {len(key_lengths)} of keys")
        queries, keys = (side.to(torch.int64).contiguous() for side in (query_lengths, key_lengths))
        self.rows = _Rows(
            *(len(queries), int(queries.max()), int(keys.max())),
            *(keys, queries, keys.cumsum(0) - keys, queries.cumsum(0) - queries),
            (int(queries.sum()), int(keys.sum())),
        )
        self.longest = max(self.rows.queries, self.rows.keys)
        self.aligned = torch.equal(queries, keys)


def packed_short_attention(
    query: Float[Tensor, "1 heads query dim"],
    key: Float[Tensor, "1 heads key dim"],
    value: Float[Tensor, "1 heads key dim"],
    sequences: EndToEnd,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "1 heads query dim"]:
    """`short_attention` of sequences that stand end to end in one row: queries of the n-th to keys of the n-th.

    Args:
        query: Q, of one sequence after the other; what stands behind the last one asks nothing, and gets zeros.
        key: K, in the same order.
        value: V.
        sequences: how long they are.
        causal: query t of a sequence sees its keys up to t; needs as many queries as keys in each.
        scale: of the scores; default 1 / sqrt(dim).

    Raises:
        ConfigurationError: `takes` does not hold.
        ShapeError: the sequences are longer than the row, or a causal mask over other keys than queries.
    """
    _check(query, key, value, sequences.longest)
    assert sequences.rows.totals is not None
    for total, tensor in zip(sequences.rows.totals, (query, key), strict=True):
        if total > tensor.shape[2]:
            raise ShapeError(f"sequences of {total} positions do not fit into a row of {tensor.shape[2]}")
    if causal and not sequences.aligned:
        raise ShapeError("a causal mask needs as many keys as queries in every sequence")
    return _run(query, key, value, sequences.rows, causal, scale)


class _Rows(NamedTuple):
    """What a kernel is told about the sequences."""

    sequences: int
    queries: int
    """Of the longest sequence."""
    keys: int
    key_lengths: Tensor | None
    query_lengths: Tensor | None
    key_starts: Tensor | None
    """Where each begins in the one row of a packed tensor; None = each has a row of its own."""
    query_starts: Tensor | None
    totals: tuple[int, int] | None = None
    """Queries and keys of all sequences of a packed row."""

    def sizes(self, query: Tensor) -> Any:
        """Those of the job."""
        return _numbers(self.sequences, query.shape[1], self.queries, self.keys, query.shape[-1])

    def pointers(self) -> tuple[int | None, ...]:
        """Lengths and starts."""
        return tuple(
            pointer(part) for part in (self.key_lengths, self.query_lengths, self.key_starts, self.query_starts)
        )

    def hush(self, of_queries: Tensor, *of_keys: Tensor) -> None:
        """Zeros behind the last sequence of a packed row, which no kernel writes."""
        if self.totals is not None:
            for total, tensors in zip(self.totals, ((of_queries,), of_keys), strict=True):
                for tensor in tensors:
                    tensor[:, :, total:] = 0


def _check(query: Tensor, key: Tensor, value: Tensor, longest: int | None = None) -> None:
    if not takes(query, key, value, longest):
        raise ConfigurationError(
            f"the kernel for short sequences does not take {list(query.shape)} {query.dtype} queries with "
            f"{list(key.shape)} keys here: ask `takes` first"
        )


def _run(query: Tensor, key: Tensor, value: Tensor, rows: _Rows, causal: bool, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    result: Tensor = _Attention.apply(query, key, value, rows, causal, factor)  # type: ignore[no-untyped-call]
    return result


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _numbers(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _strides(*tensors: Tensor) -> Any:
    return _numbers(*(stride for tensor in tensors for stride in tensor.stride()[:3]))


def _heads_inside(like: Tensor, *count: int) -> Tensor:
    """An empty tensor of the same axes that lies as [batch, length, heads, dim]; ``count`` of them, in one."""
    batch, heads, length, width = like.shape
    return like.new_empty(*count, batch, length, heads, width).transpose(-2, -3)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: _Rows, causal: bool, scale: float) -> Tensor:
        library = library_for()
        assert library is not None
        query, key, value = _dense(query), _dense(key), _dense(value)
        out = _heads_inside(query)
        library.attention(
            *(rows.sizes(query), _strides(query, key, value, out)),
            *(pointer(query), pointer(key), pointer(value), pointer(out), TYPES[query.dtype]),
            *(*rows.pointers(), causal, scale, torch.get_num_threads()),
        )
        rows.hush(out)
        ctx.save_for_backward(query, key, value)
        ctx.rows, ctx.causal, ctx.scale = rows, causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        library = library_for()
        assert library is not None
        query, key, value = ctx.saved_tensors
        gradient, rows = _dense(gradients[0]), ctx.rows
        of_query = _heads_inside(query)
        of_key, of_value = _heads_inside(key, 2).unbind()
        library.attention_backward(
            *(rows.sizes(query), _strides(query, key, value, gradient, of_query, of_key)),
            *(pointer(query), pointer(key), pointer(value), pointer(gradient)),
            *(pointer(of_query), pointer(of_key), pointer(of_value), TYPES[query.dtype]),
            *(*rows.pointers(), ctx.causal, ctx.scale, torch.get_num_threads()),
        )
        rows.hush(of_query, of_key, of_value)
        return of_query, of_key, of_value, None, None, None
