"""Our compiled kernel for long sequences on a CPU, forward and backward.

    softmax(Q K^T scale + bias) V    over the stretch of keys that each query sees

Queries and keys are computed in blocks whose scores stay in a core's cache, with the softmax on the fly, so that memory
is linear in the length (Dao et al. 2022, "FlashAttention"). PyTorch's fused kernel does the same; of masks it knows the
causal one and booleans. This one takes every mask that lets a query see one stretch of keys, and leaves out what no
query sees: causal masks (with more keys than queries, too), windows, packed documents, padding on the right, and what
``&`` makes of them. It reads and writes float32 or bfloat16 in place and computes in float32. Where AVX512-BF16
multiplies bfloat16, factors of this type are multiplied as they are, and weights are rounded to it, as in PyTorch's
kernel. Results do not depend on the number of threads. A query without any key yields zeros, and nothing spreads from
the padding. The only bias that it takes is :class:`~multihead.attention.biases.ALiBi`. A sink
(`attention.sinks`) scales the result of each query by its share of the sum of exponentials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.attention.backends.call import (
    Backend,
    Call,
    Kernel,
    Plan,
    Sizes,
    compute_dtype,
    refuse_weights_and_cap,
    refuse_weights_and_dropout,
    under_autocast,
)
from multihead.attention.backends.short import slopes_of
from multihead.attention.biases import ALiBi, Bias
from multihead.attention.masks import Causal, Full, Mask, Padding
from multihead.attention.masks.intervals import Intervals, everything
from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels.native import check, multiplies_half, thread_count
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
from multihead.platforms import Processor, processor

WIDEST = 512
"""Maximum width of a head: blocks of wider ones leave the cache."""

MANY = 256 * 256
"""Queries times keys of a head from which it is faster without a causal mask, too."""

_HALF_PRODUCTS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Features of processors that multiply bfloat16; PyTorch's kernel uses them."""


class Rule(NamedTuple):
    """Where the kernel is taken, by the type that is computed in; other types only for what a mask leaves out."""

    always: frozenset[torch.dtype]
    never: frozenset[torch.dtype] = frozenset()
    early: frozenset[torch.dtype] = frozenset()
    """Where it is faster than other kernels below `MANY` scores, whatever the mask is."""


class Stretches(NamedTuple):
    """The stretch of keys that each query sees.

    Attributes:
        low: [1 or batch, query], the first key.
        high: the same, one behind the last key; ``low`` if the query sees none.
    """

    low: Int[Tensor, "rows query"]
    high: Int[Tensor, "rows query"]


@dataclass(frozen=True)
class LongPlan(Plan):
    """One call of the compiled kernel.

    Attributes:
        seen: what each query sees.
        visible: share of the scores that are seen.
        sink: a logit for each head, for `attention.sinks`.
    """

    seen: Stretches = field(repr=False)
    visible: float
    sink: Tensor | None = field(default=None, repr=False)

    reads_padding: ClassVar[bool] = False

    @property
    def details(self) -> str:
        return "" if self.visible == 1 else f" with {100 * self.visible:.0f}% of the scores"

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
        return long_attention(query, key, value, self.seen, bias=bias, scale=scale, sink=self.sink), None


class Long(Backend):
    """The compiled kernel for long sequences."""

    name: Kernel = "long"

    def refuse(self, call: Call) -> str | None:
        refusal = refuse_weights_and_dropout(call) or refuse_weights_and_cap(call)
        if refusal is None and not _accepts(call):
            refusal = (
                "supports only CPUs with compiled kernels, float32 or bfloat16, values as wide as keys, masks that let "
                "each query see one stretch of keys, known on the host, and no bias except ALiBi: write backend='auto'"
            )
        return refusal

    def pays(self, call: Call) -> bool:
        """Whether it is faster than PyTorch's kernel for a long call that it does not refuse.

        On processors where it has been measured it is from `MANY` scores on, and with a causal mask always; elsewhere
        only what it leaves out counts.
        """
        rule, wanted = rule_of_this_processor(), _type_of(call)
        if wanted in rule.never:
            return False
        if call.sizes.q_len * call.sizes.kv_len < MANY:
            return wanted in rule.always and self.beats_short(call)
        return wanted in rule.always or call.mask is not None

    def beats_short(self, call: Call) -> bool:
        """Whether it is faster than the kernel for short sequences, where both take a call.

        That one computes what a causal mask hides, and multiplies in float32.
        """
        parts = () if call.mask is None else call.mask.conjuncts
        return any(isinstance(part, Causal) for part in parts) or _type_of(call) in rule_of_this_processor().early

    def plan(self, call: Call, why: str) -> LongPlan:
        dtype, why_dtype = compute_dtype(call, (torch.bfloat16,))
        found = _stretches_of(call.mask, call.sizes)
        assert found is not None  # or the call is refused
        seen, visible = found
        return LongPlan(self.name, dtype, (why, *why_dtype), seen, visible)


@lru_cache(maxsize=1)
def rule_of_this_processor() -> Rule:
    """`rule_of` this processor and the library that it loads."""
    return rule_of(processor(), multiplies_half())


def rule_of(processor: Processor, half: bool) -> Rule:
    """Where the kernel is taken, from what was measured (docs/lab-notes.md).

    Args:
        processor: float32 was measured with AVX2 without AVX-512, and on Zen 5. Without products of bfloat16, both
            types are computed in float32.
        half: `multiplies_half`.
    """
    features, bfloat16 = processor.features, frozenset({torch.bfloat16})
    measured = processor.is_zen_5 or ("avx2" in features and "avx512f" not in features)
    always = frozenset({torch.float32}) if measured else frozenset()
    if not _HALF_PRODUCTS & features:
        return Rule(always | bfloat16 if measured else always)
    return Rule(always | bfloat16, early=bfloat16) if half else Rule(always, never=bfloat16)


def _type_of(call: Call) -> torch.dtype:
    """The type that is computed in."""
    return torch.get_autocast_dtype("cpu") if under_autocast(call.query) else call.query.dtype


def _accepts(call: Call) -> bool:
    if torch.compiler.is_compiling() or not takes(call.query, call.key, call.value):
        return False
    if call.bias is not None and type(call.bias) is not ALiBi:
        return False
    if under_autocast(call.query) and torch.get_autocast_dtype("cpu") not in (call.query.dtype, torch.bfloat16):
        return False
    return _stretches_of(call.mask, call.sizes) is not None


def _stretches_of(mask: Mask | None, sizes: Sizes) -> tuple[Stretches, float] | None:
    """The call's mask as the kernel takes it, and the share of the scores that are seen; None for other masks."""
    if mask is None:
        return _everything(sizes.q_len, sizes.kv_len)
    lengths = (sizes.batch, sizes.q_len, sizes.kv_len)
    return mask.cached("stretches", lengths, lambda: _make(mask, *lengths))


@lru_cache(16)
def _everything(q_len: int, kv_len: int) -> tuple[Stretches, float] | None:
    return _make(Full(), 1, q_len, kv_len)


def _make(mask: Mask, batch: int, q_len: int, kv_len: int) -> tuple[Stretches, float] | None:
    known = everything(kv_len)
    for part in mask.conjuncts:
        intervals = part.intervals(q_len, kv_len) or _intervals_of_lengths(part, q_len, kv_len)
        if intervals is None:
            return None
        known = known.intersect(intervals)
    low, high = known.spread(batch, q_len, kv_len)
    visible = float((high - low).mean()) / kv_len if high.size and kv_len else 0.0
    as_tensor = [torch.from_numpy(np.ascontiguousarray(one, dtype=np.int32)) for one in (low, high)]
    return Stretches(*as_tensor), visible


def _intervals_of_lengths(part: Mask, q_len: int, kv_len: int) -> Intervals | None:
    """What `Padding` sees whose lengths are tensors, if they are on the CPU: reading them there waits for nothing."""
    if not isinstance(part, Padding) or not part.lengths.is_cpu or type(part.lengths) is not Tensor:
        return None
    if part.q_lengths is not None and not part.q_lengths.is_cpu:
        return None
    q_lengths = None if part.q_lengths is None else part.q_lengths.tolist()
    return Padding(part.lengths.tolist(), q_lengths).intervals(q_len, kv_len)


def takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `long_attention` computes this: compiled kernels, equal types, and values as wide as keys."""
    return (
        library_for(query, key, value) is not None
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3] <= WIDEST
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
        and max(query.shape[2], key.shape[2]) < 2**30
        and query.numel() > 0
        and key.numel() > 0
    )


def long_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key dim"],
    seen: Stretches,
    *,
    bias: ALiBi | None = None,
    scale: float | None = None,
    sink: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads query dim"]:
    r"""Attention by the compiled kernel, where `takes` holds.

    With a sink z, rows are divided by a larger sum:

    .. math::
        o = o' e^{l' - l}, \quad l = \log(e^{l'} + e^z), \quad dz = -\sum e^{z - l} (do \cdot o)

    where o' and l' are output and logarithm of the sum without it. The other gradients are those of the kernel with o
    and l in place of o' and l'.

    The result is laid out as [batch, query, heads, dim], so joining the heads copies nothing.

    Args:
        query: Q.
        key: K; query head h uses key head h // (heads / kv_heads).
        value: V.
        seen: the keys that each query sees.
        bias: added to the scores.
        scale: of the scores; default 1 / sqrt(dim).
        sink: z, a logit for each head.

    Raises:
        ConfigurationError: `takes` does not hold.
        ShapeError: the stretches are not of these queries and keys, or bias or sink are of other heads.
    """
    if not takes(query, key, value):
        raise ConfigurationError(
            f"the kernel for long sequences does not take {list(query.shape)} {query.dtype} queries with "
            f"{list(key.shape)} keys here: ask `takes` first"
        )
    shapes = [(rows, query.shape[2]) for rows in (1, len(query))]
    low, high = (one.clamp(0, key.shape[2]).to(torch.int32).contiguous() for one in seen)
    if low.shape not in shapes or low.shape != high.shape:
        raise ShapeError(f"one stretch a query is needed: {shapes[1]}, got {list(low.shape)} and {list(high.shape)}")
    if sink is not None and sink.shape != query.shape[1:2]:
        raise ShapeError(f"one logit a head is needed: [{query.shape[1]}], got {list(sink.shape)}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rule = _Rule(Stretches(low, high), slopes_of(bias, query), scale)
    result: Tensor = _Attention.apply(query, key, value, sink, rule)  # type: ignore[no-untyped-call]
    return result


class _Rule(NamedTuple):
    """What is computed, besides queries, keys and values."""

    seen: Stretches
    slopes: tuple[Tensor, bool] | None
    """ALiBi's, and whether it falls to both sides."""
    scale: float

    def sizes(self, query: Tensor, key: Tensor) -> Any:
        """Batch, heads, key heads, queries, keys, width and rows of the stretches, as a C array."""
        batch, heads, queries, width = query.shape
        return int64_array(batch, heads, key.shape[1], queries, key.shape[2], width, len(self.seen.low))

    def arguments(self, query: Tensor) -> tuple[Any, ...]:
        """The last arguments of the compiled functions; valid as long as this object is alive."""
        places = (pointer(one, self.seen.low.numel(), torch.int32) for one in self.seen)
        slopes, symmetric = (None, False) if self.slopes is None else self.slopes
        return *places, pointer(slopes, query.shape[1], torch.float32), symmetric, self.scale, thread_count()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, rule: _Rule) -> Tensor:
        library = library_for(query, key, value)
        assert library is not None
        query, key, value = dense_rows(query), dense_rows(key), dense_rows(value)
        out = empty_joined(query)
        logs = torch.empty(query.shape[:3], dtype=torch.float32)
        dtype = query.dtype
        query_at, out_at = addresses(query.shape, dtype, query, out)
        status = library.long_attention(
            *(rule.sizes(query, key), strides_of(query, key, value, out)),
            *(query_at, *addresses(key.shape, dtype, key, value), out_at),
            *(pointer(logs, logs.numel(), torch.float32), TYPES[dtype], *rule.arguments(query)),
        )
        check(status)
        if sink is not None:  # a query that sees no key has an output of 0, whatever its sum is
            total = torch.logaddexp2(logs, _base_2(sink))
            out.mul_(torch.exp2(logs - total).unsqueeze(-1))
            logs = total
        ctx.save_for_backward(query, key, value, out, logs, sink)
        ctx.rule, ctx.shapes = rule, (query.shape, key.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        library = library_for()
        assert library is not None
        query, key, value, out, logs, sink = ctx.saved_tensors
        gradient, rule, (queries, keys) = dense_rows(gradients[0].resolve_neg()), ctx.rule, ctx.shapes
        of_query = empty_joined(query)
        of_key, of_value = empty_joined(key, 2).unbind()
        dtype = gradient.dtype
        query_at, out_at, gradient_at, of_query_at = addresses(queries, dtype, query, out, gradient, of_query)
        key_at, value_at, *of_keys_at = addresses(keys, dtype, key, value, of_key, of_value)
        status = library.long_attention_backward(
            *(rule.sizes(query, key), strides_of(query, key, value, out, gradient, of_query, of_key)),
            *(query_at, key_at, value_at, out_at, gradient_at, pointer(logs, queries[:3].numel(), torch.float32)),
            *(of_query_at, *of_keys_at, TYPES[dtype], *rule.arguments(query)),
        )
        check(status)
        of_sink = None
        if sink is not None and ctx.needs_input_grad[3]:
            along = (gradient.float() * out.float()).sum(-1)
            of_sink = -(torch.exp2(_base_2(sink) - logs) * along).sum((0, 2)).to(sink.dtype)
        return of_query, of_key, of_value, of_sink, None


def _base_2(sink: Float[Tensor, " heads"]) -> Float[Tensor, "1 heads 1"]:
    """The logits of a sink, as the kernel's sums are logarithms to base 2."""
    return (sink.float() / math.log(2)).view(1, -1, 1)
