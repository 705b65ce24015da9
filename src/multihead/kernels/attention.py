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
from typing import Any

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


def takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `short_attention` computes this: compiled kernels, equal heads, types and widths, and short sequences."""
    width = query.shape[-1]
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and key.shape == value.shape
        and key.shape[-1] == width
        and 0 < width <= WIDEST
        and 0 < query.shape[2] <= LONGEST
        and 0 < key.shape[2] <= LONGEST
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
    if not takes(query, key, value):
        raise ConfigurationError(
            f"the kernel for short sequences does not take {list(query.shape)} {query.dtype} queries with "
            f"{list(key.shape)} keys here: ask `takes` first"
        )
    if causal and query.shape[2] != key.shape[2]:
        raise ShapeError(f"a causal mask needs as many keys as queries, got {query.shape[2]} and {key.shape[2]}")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    limits = []
    for lengths, most in ((key_lengths, key.shape[2]), (query_lengths, query.shape[2])):
        if lengths is not None and lengths.shape != query.shape[:1]:
            raise ShapeError(f"one length a row is needed: {len(query)}, got a tensor {list(lengths.shape)}")
        limits.append(None if lengths is None else lengths.to(torch.int64).clamp(0, most).contiguous())
    result: Tensor = _Attention.apply(query, key, value, *limits, causal, factor)  # type: ignore[no-untyped-call]
    return result


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _numbers(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_lengths: Tensor | None,
        query_lengths: Tensor | None,
        causal: bool,
        scale: float,
    ) -> Tensor:
        library = library_for()
        assert library is not None
        query, key, value = _dense(query), _dense(key), _dense(value)
        batch, heads, queries, width = query.shape
        out = query.new_empty(batch, queries, heads, width).transpose(1, 2)
        strides = (stride for tensor in (query, key, value, out) for stride in tensor.stride()[:3])
        library.attention(
            *(_numbers(batch, heads, queries, key.shape[2], width), _numbers(*strides)),
            *(pointer(query), pointer(key), pointer(value), pointer(out), TYPES[query.dtype]),
            *(pointer(key_lengths), pointer(query_lengths), causal, scale, torch.get_num_threads()),
        )
        ctx.save_for_backward(query, key, value, key_lengths, query_lengths)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        library = library_for()
        assert library is not None
        query, key, value, key_lengths, query_lengths = ctx.saved_tensors
        gradient = _dense(gradients[0])
        batch, heads, queries, width = query.shape
        keys = key.shape[2]
        of_query = query.new_empty(batch, queries, heads, width).transpose(1, 2)
        of_both = query.new_empty(2, batch, keys, heads, width).transpose(2, 3)
        of_key, of_value = of_both.unbind()
        tensors = (query, key, value, gradient, of_query, of_key)
        strides = (stride for tensor in tensors for stride in tensor.stride()[:3])
        library.attention_backward(
            *(_numbers(batch, heads, queries, keys, width), _numbers(*strides)),
            *(pointer(query), pointer(key), pointer(value), pointer(gradient)),
            *(pointer(of_query), pointer(of_key), pointer(of_value), TYPES[query.dtype]),
            *(pointer(key_lengths), pointer(query_lengths), ctx.causal, ctx.scale, torch.get_num_threads()),
        )
        return of_query, of_key, of_value, None, None, None, None
