"""Our compiled kernel for training on short sequences on a CPU.

    softmax(Q K^T scale + bias) V    over the keys of each row's length (and, if causal, not after the query)

It is made for the sentences of a translator. PyTorch's fused kernel is made for long sequences: per position, its
backward pass takes longer the shorter they are, in bfloat16 many times so (docs/lab-notes.md), and bfloat16 has to be
converted to float32 first. Here one thread computes one head of one sentence within its own cache. It reads and writes
either type in place, sums in float32, and skips the padding altogether, so nothing can spread from there. A query
without any key, or past its own length, yields zeros. Where AVX512-BF16 multiplies bfloat16, factors of this type are
multiplied as they are, and weights are rounded to it, as in PyTorch's kernel; elsewhere they become float32.

The kernel takes no boolean mask, but right padding or sequences end to end in one row
(:class:`~multihead.attention.masks.EndToEnd`), causal or not; and no bias but
:class:`~multihead.attention.biases.ALiBi`, of as many queries as keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.attention.backends.call import (
    HALF_TYPES,
    Backend,
    Call,
    Kernel,
    Plan,
    compute_dtype,
    refuse_weights_and_cap,
    refuse_weights_and_dropout,
    under_autocast,
)
from multihead.attention.biases import ALiBi, Bias
from multihead.attention.masks import Causal, EndToEnd, Padding
from multihead.attention.masks.documents import PackedRow
from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels.native import check, thread_count
from multihead.kernels.native.tensors import (
    TYPES,
    addresses,
    dense_rows,
    empty_joined,
    int64_array,
    library_for,
    pointer,
    strides_of,
)

LONGEST = 256
"""Maximum number of queries and of keys: beyond, scores leave the cache, and PyTorch's kernel is faster."""
WIDEST = 256
"""Maximum width of a head."""


@dataclass(frozen=True)
class ShortPlan(Plan):
    """One call of the compiled kernel.

    Attributes:
        key_lengths: keys that are real, in each row; None = all.
        query_lengths: queries that are real, in each row; None = all.
        packed: the sequences of a single row, end to end; None = each row is a sequence.
        causal: no query sees a later key.
    """

    key_lengths: Int[Tensor, " batch"] | None = field(repr=False)
    query_lengths: Int[Tensor, " batch"] | None = field(repr=False)
    packed: PackedRow | None = field(repr=False)
    causal: bool

    reads_padding: ClassVar[bool] = False

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        assert bias is None or isinstance(bias, ALiBi)  # or the call is refused
        if self.packed is not None:
            output = packed_short_attention(query, key, value, self.packed, causal=self.causal, bias=bias, scale=scale)
            return output, None
        limits = {"key_lengths": self.key_lengths, "query_lengths": self.query_lengths}
        return short_attention(query, key, value, **limits, causal=self.causal, bias=bias, scale=scale), None


class Short(Backend):
    """The compiled kernel for short sequences."""

    name: Kernel = "short"

    def refuse(self, call: Call) -> str | None:
        refusal = refuse_weights_and_dropout(call) or refuse_weights_and_cap(call)
        if refusal is None and not _accepts(call):
            refusal = (
                "supports only CPUs with compiled kernels, float32 or bfloat16, equal heads and widths, at most "
                f"{LONGEST} positions, masks of lengths or causal ones, and no bias except ALiBi: write backend='auto'"
            )
        return refusal

    def plan(self, call: Call, why: str) -> ShortPlan:
        dtype, why_dtype = compute_dtype(call, HALF_TYPES)
        limits = _limits_of(call)
        assert limits is not None  # or the call is refused
        return ShortPlan(self.name, dtype, (why, *why_dtype), *limits)


class _Limits(NamedTuple):
    """A mask as the kernel takes it; the fields are those of `ShortPlan`."""

    key_lengths: Tensor | None
    query_lengths: Tensor | None
    packed: PackedRow | None
    causal: bool


def _accepts(call: Call) -> bool:
    if call.bias is not None and not (type(call.bias) is ALiBi and call.sizes.q_len == call.sizes.kv_len):
        return False
    kind = call.query.device.type
    if under_autocast(call.query) and torch.get_autocast_dtype(kind) not in (call.query.dtype, torch.bfloat16):
        return False
    limits = _limits_of(call)
    if limits is None or (call.bias is not None and limits.packed is not None and not limits.packed.aligned):
        return False
    return takes(call.query, call.key, call.value, None if limits.packed is None else limits.packed.longest)


def _limits_of(call: Call) -> _Limits | None:
    """The call's mask as lengths and a flag; None where it is no such mask."""
    if call.mask is None:
        return _Limits(None, None, None, False)
    conjuncts, sizes = call.mask.conjuncts, call.sizes
    others = [part for part in conjuncts if not isinstance(part, Causal)]
    causal = len(others) < len(conjuncts)
    if len(others) > 1 or (causal and sizes.q_len != sizes.kv_len):
        return None
    if not others:
        return _Limits(None, None, None, causal)
    (mask,) = others
    if isinstance(mask, EndToEnd):
        row = mask.row
        fits = len(row.query_lengths) > 0 and sizes.batch == 1 and (row.aligned or not causal)
        return _Limits(None, None, row, causal) if fits else None
    if not isinstance(mask, Padding) or mask.lengths.shape[0] != sizes.batch or mask.lengths.is_cuda:
        return None
    return _Limits(mask.lengths, mask.q_lengths, None, causal)


def takes(query: Tensor, key: Tensor, value: Tensor, longest: int | None = None) -> bool:
    """Whether `short_attention` computes this: compiled kernels, equal heads, types and widths, and short sequences.

    Of sequences end to end, ``longest`` is the length of the longest.
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
    bias: ALiBi | None = None,
    scale: float | None = None,
) -> Float[Tensor, "batch heads query dim"]:
    """Attention by the compiled kernel, where `takes` holds.

    The result is laid out as [batch, query, heads, dim], so joining the heads copies nothing.

    Args:
        query: Q.
        key: K.
        value: V.
        key_lengths: keys that are real, from 0 to all, in each row; None = all.
        query_lengths: queries that are real, likewise; the others yield zeros.
        causal: query t sees the keys up to t; needs as many queries as keys.
        bias: added to the scores; needs as many queries as keys.
        scale: of the scores; default 1 / sqrt(dim).

    Raises:
        ConfigurationError: `takes` does not hold.
        ShapeError: not one length a row, a causal mask or a bias with other keys than queries, or a bias of other
            heads.
    """
    _check(query, key, value)
    if (causal or bias is not None) and query.shape[2] != key.shape[2]:
        what = "a causal mask" if causal else "ALiBi"
        raise ShapeError(f"{what} needs as many keys as queries, got {query.shape[2]} and {key.shape[2]}")
    limits = []
    for lengths, most in ((key_lengths, key.shape[2]), (query_lengths, query.shape[2])):
        if lengths is not None and lengths.shape != query.shape[:1]:
            raise ShapeError(f"one length a row is needed: {len(query)}, got a tensor {list(lengths.shape)}")
        limits.append(None if lengths is None else lengths.to(torch.int64).clamp(0, most).contiguous())
    key_limits, query_limits = limits
    rows = _Rows(len(query), query.shape[2], key.shape[2], key_limits, query_limits, None, None)
    return _run(query, key, value, _Rule(rows, causal, slopes_of(bias, query), scale))


def packed_short_attention(
    query: Float[Tensor, "1 heads query dim"],
    key: Float[Tensor, "1 heads key dim"],
    value: Float[Tensor, "1 heads key dim"],
    packed: PackedRow,
    *,
    causal: bool = False,
    bias: ALiBi | None = None,
    scale: float | None = None,
) -> Float[Tensor, "1 heads query dim"]:
    """`short_attention` of sequences end to end in one row: queries of the n-th attend to keys of the n-th.

    Args:
        query: Q, one sequence after the other; queries behind the last one yield zeros.
        key: K, in the same order.
        value: V.
        packed: the sequences.
        causal: query t of a sequence sees its keys up to t; needs as many queries as keys in each.
        bias: added to the scores; needs as many queries as keys in each sequence.
        scale: of the scores; default 1 / sqrt(dim).

    Raises:
        ConfigurationError: `takes` does not hold.
        ShapeError: the sequences are longer than the row, a causal mask or a bias with other keys than queries, or a
            bias of other heads.
    """
    _check(query, key, value, packed.longest)
    for total, tensor in zip(packed.totals, (query, key), strict=True):
        if total > tensor.shape[2]:
            raise ShapeError(f"sequences of {total} positions do not fit into a row of {tensor.shape[2]}")
    if (causal or bias is not None) and not packed.aligned:
        raise ShapeError(f"{'a causal mask' if causal else 'ALiBi'} needs as many keys as queries in every sequence")
    lengths, starts = (packed.key_lengths, packed.query_lengths), (packed.key_starts, packed.query_starts)
    count = len(packed.query_lengths)
    rows = _Rows(count, packed.longest_query, packed.longest_key, *lengths, *starts, packed.totals)
    return _run(query, key, value, _Rule(rows, causal, slopes_of(bias, query), scale))


def _check(query: Tensor, key: Tensor, value: Tensor, longest: int | None = None) -> None:
    if not takes(query, key, value, longest):
        raise ConfigurationError(
            f"the kernel for short sequences does not take {list(query.shape)} {query.dtype} queries with "
            f"{list(key.shape)} keys here: ask `takes` first"
        )


def _run(query: Tensor, key: Tensor, value: Tensor, rule: _Rule) -> Tensor:
    result: Tensor = _Attention.apply(query, key, value, rule)  # type: ignore[no-untyped-call]
    return result


def slopes_of(bias: ALiBi | None, query: Tensor) -> tuple[Float[Tensor, " heads"], bool] | None:
    """The slopes of ALiBi, and whether it falls to both sides.

    Raises:
        ShapeError: it has other heads than the query.
    """
    if bias is None:
        return None
    if bias.heads != query.shape[1]:
        raise ShapeError(f"the bias {bias!r} has {bias.heads} heads, the query {query.shape[1]}")
    return torch.tensor(bias.slopes, dtype=torch.float32), bias.symmetric


class _Rows(NamedTuple):
    """The sequences, as the compiled functions take them."""

    sequences: int
    queries: int
    """Of the longest sequence."""
    keys: int
    """Of the longest sequence."""
    key_lengths: Tensor | None
    query_lengths: Tensor | None
    key_starts: Tensor | None
    """Where each sequence begins in the one row of a packed tensor; None = each has a row of its own."""
    query_starts: Tensor | None
    totals: tuple[int, int] | None = None
    """Queries and keys of all sequences of a packed row."""

    def sizes(self, query: Tensor) -> Any:
        """Sequences, heads, queries, keys and width, as a C array."""
        return int64_array(self.sequences, query.shape[1], self.queries, self.keys, query.shape[-1])

    def pointers(self) -> tuple[int | None, ...]:
        parts = (self.key_lengths, self.query_lengths, self.key_starts, self.query_starts)
        return tuple(pointer(part, self.sequences, torch.int64) for part in parts)

    def clear_tail(self, query_like: Tensor, key_like: Tensor | None = None) -> None:
        """Zero what is behind the last sequence of a packed row, which the kernel does not write.

        The last axis but one of a tensor is that of the row.
        """
        for total, tensor in zip(self.totals or (), (query_like, key_like), strict=False):
            if tensor is not None and total < tensor.shape[-2]:
                tensor.narrow(-2, total, tensor.shape[-2] - total).zero_()


class _Rule(NamedTuple):
    """What is computed, besides queries, keys and values."""

    rows: _Rows
    causal: bool
    slopes: tuple[Tensor, bool] | None
    """ALiBi's, and whether it falls to both sides."""
    scale: float | None

    def arguments(self, query: Tensor) -> tuple[Any, ...]:
        """The last arguments of the compiled functions; valid as long as this object is alive."""
        slopes, symmetric = (None, False) if self.slopes is None else self.slopes
        scale = 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale
        at = pointer(slopes, query.shape[1], torch.float32)
        return *self.rows.pointers(), self.causal, at, symmetric, scale, thread_count()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rule: _Rule) -> Tensor:
        library = library_for(query, key, value)
        assert library is not None
        query, key, value = dense_rows(query), dense_rows(key), dense_rows(value)
        out = empty_joined(query)
        dtype = query.dtype
        query_at, out_at = addresses(query.shape, dtype, query, out)
        status = library.attention(
            *(rule.rows.sizes(query), strides_of(query, key, value, out)),
            *(query_at, *addresses(key.shape, dtype, key, value), out_at, TYPES[dtype]),
            *rule.arguments(query),
        )
        check(status)
        rule.rows.clear_tail(out)
        ctx.save_for_backward(query, key, value)
        ctx.rule, ctx.shapes = rule, (query.shape, key.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        library = library_for()
        assert library is not None
        query, key, value = ctx.saved_tensors
        gradient, rule, (queries, keys) = dense_rows(gradients[0].resolve_neg()), ctx.rule, ctx.shapes
        of_query = empty_joined(query)
        of_keys = empty_joined(key, 2)
        of_key, of_value = of_keys.unbind()
        dtype = gradient.dtype
        query_at, gradient_at, of_query_at = addresses(queries, dtype, query, gradient, of_query)
        key_at, value_at, *of_keys_at = addresses(keys, dtype, key, value, of_key, of_value)
        status = library.attention_backward(
            *(rule.rows.sizes(query), strides_of(query, key, value, gradient, of_query, of_key)),
            *(query_at, key_at, value_at, gradient_at, of_query_at, *of_keys_at, TYPES[dtype]),
            *rule.arguments(query),
        )
        check(status)
        rule.rows.clear_tail(of_query, of_keys)
        return of_query, of_key, of_value, None
