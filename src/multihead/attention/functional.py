"""Scaled dot-product attention, and the choice of its backend.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1. Each backend is a file of
:mod:`multihead.attention.backends`; :func:`~multihead.attention.backends.explicit.explicit_attention` is the reference
for all of them. Heads and projections are in :mod:`multihead.attention.multihead`.

Two rules hold for every backend. A query that may attend to nothing yields zeros, zero weights and zero gradients. And
where a mask has lengths, nothing spreads from the padding, not even NaN or infinity.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attention.backends.blockwise import Blockwise
from multihead.attention.backends.call import Backend, Call, Plan, describe_call
from multihead.attention.backends.explicit import Explicit
from multihead.attention.backends.flex import Flex
from multihead.attention.backends.long import Long
from multihead.attention.backends.sdpa import Sdpa
from multihead.attention.backends.short import Short
from multihead.attention.backends.varlen import Varlen
from multihead.attention.biases import Bias
from multihead.attention.masks import EndToEnd, Mask
from multihead.attention.masks.standard import KnownPadding
from multihead.errors import ConfigurationError
from multihead.kernels.native.tensors import without_autocast

BackendName = Literal["auto", "explicit", "sdpa", "blockwise", "short", "long", "flex", "flex_eager", "varlen"]

_EXPLICIT, _SDPA, _BLOCKWISE, _SHORT, _LONG = Explicit(), Sdpa(), Blockwise(), Short(), Long()

LONG_SCORES, LONG_QUERIES = 128 * 128, 64
"""Scores and queries of a head from which ``"long"`` is asked: below, another kernel is faster (measured)."""

_BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (_EXPLICIT, _SDPA, _BLOCKWISE, _SHORT, _LONG, Flex("flex"), Flex("flex_eager"), Varlen())
}


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    soft_cap: float | None = None,
    backend: BackendName = "auto",
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"] | None]:
    r"""Scaled dot-product attention.

    .. math::
        \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d}} + \mathrm{bias}\right) V

    where the softmax runs over the keys that ``mask`` allows. With fewer key heads than query heads (grouped
    queries, Ainslie et al. 2023) query head h uses key head h // (heads / kv_heads). A single key head for all query
    heads is attention of many queries to the same keys and values::

        heads, _ = attention(queries, key[:, None], value[:, None])     # [batch, M, length, dim]
        join_heads(heads)                                               # their results side by side

    Args:
        query: Q.
        key: K.
        value: V.
        mask: which query may attend to which key; None = all of them.
        bias: added to the scores: a :class:`~multihead.attention.biases.Bias` such as ``ALiBi(heads)``, or a tensor,
            [query, key] or four axes that broadcast to the scores, which may be learned. It is converted to the
            query's type. -inf forbids, like a mask.
        scale: the factor of the scores; default 1 / sqrt(dim).
        dropout_p: the probability with which a weight is dropped. Always applied: pass 0 when evaluating.
        need_weights: return the weights too.
        soft_cap: bound the scores smoothly before the bias is added, s <- cap tanh(s / cap) (Gemma Team 2024, section
            2). Unfused, but for ``backend="flex"``.
        backend: ``"auto"`` picks (see :func:`explain`). By name: ``"explicit"``, the readable reference
            (differentiable twice); ``"sdpa"``, PyTorch's fused function; ``"blockwise"``, the same one block of queries
            after the other, without the keys that the mask hides; ``"flex"``, FlexAttention, compiled
            (``"flex_eager"``: not compiled); ``"varlen"``, PyTorch's variable-length kernel on CUDA; ``"short"``, our
            own for training on short sequences on a CPU; ``"long"``, our own for long ones.

    Returns:
        The output, in the query's type, and the weights (before dropout; rows sum to 1, or to 0 where nothing
        may be attended to) or None.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`, or the bias holds no floats.
        ConfigurationError: an unknown backend, one that cannot do what is asked, an impossible dropout or soft cap.
    """
    plan = choose(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        soft_cap=soft_cap,
        backend=backend,
    )
    output, weights = run_plan(plan, query, key, value, mask, bias, scale, dropout_p)
    return output, weights.to(query.dtype) if need_weights and weights is not None else None


def choose(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    soft_cap: float | None = None,
    backend: BackendName = "auto",
) -> Plan:
    """The plan for a call of :func:`attention` with the same arguments; computes nothing.

    It follows from kinds, shapes, types and flags alone, and from what the host knows of a mask, never from values on a
    device. A backend requested by name is taken, or an error says why it cannot be: there is no silent fallback.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`, or the bias holds no floats.
        ConfigurationError: an unknown backend, one that cannot do what is asked, an impossible dropout or soft cap.
    """
    call = describe_call(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        soft_cap=soft_cap,
    )
    return plan_of(call, backend)


def plan_of(call: Call, backend: BackendName) -> Plan:
    """The plan for a call that is described; as :func:`choose`.

    Raises:
        ConfigurationError: an unknown backend, or one that cannot do what is asked.
    """
    if backend == "auto":
        automatic, why = _first_that_accepts(call)
        return automatic.plan(call, why)
    named = _BACKENDS.get(backend)
    if named is None:
        raise ConfigurationError(f"backend={backend!r}: expected one of {', '.join(('auto', *_BACKENDS))}")
    refusal = named.refuse(call)
    if refusal is not None:
        raise ConfigurationError(f"backend={backend!r} {refusal}")
    return named.plan(call, "requested by name")


def _first_that_accepts(call: Call) -> tuple[Backend, str]:
    """The backend that ``"auto"`` takes, and why; in order of preference."""
    if call.need_weights:
        return _EXPLICIT, "the weights are requested, and fused kernels do not return them"
    if call.soft_cap is not None:
        return _EXPLICIT, "soft_cap is set, and among the fused kernels only FlexAttention supports it"
    if _is_end_to_end(call) and _SHORT.refuse(call) is None:
        return _SHORT, "short sequences lie end to end in one row on a CPU"
    learned = "training on short sequences on a CPU, with no mask or one of lengths, causal or both"
    if call.training and not (_is_long(call) and _LONG.beats_short(call)) and _SHORT.refuse(call) is None:
        return _SHORT, learned
    if _is_long(call) and _LONG.refuse(call) is None and _LONG.pays(call):
        return _LONG, "a long sequence on a CPU, and each query sees one stretch of keys"
    if call.training and _SHORT.refuse(call) is None:
        return _SHORT, learned
    if call.mask is not None and _BLOCKWISE.pays(call):
        return _BLOCKWISE, "the mask hides so many keys that computing block by block is less work"
    return _SDPA, "no weights are requested, so the fused scaled_dot_product_attention is used"


def _is_end_to_end(call: Call) -> bool:
    """Whether sequences share a row: each would be a call of its own to any other kernel."""
    return call.mask is not None and any(isinstance(part, EndToEnd) for part in call.mask.conjuncts)


def _is_long(call: Call) -> bool:
    """Whether there are enough scores for our kernel of long sequences.

    Not asked under a compiler, which would guard the sizes.
    """
    if torch.compiler.is_compiling() or call.query.device.type != "cpu":
        return False
    sizes = call.sizes
    return bool(sizes.q_len >= LONG_QUERIES and sizes.q_len * sizes.kv_len >= LONG_SCORES)


def explain(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,  # noqa: ARG001 - so that it takes every call that `attention` takes
    dropout_p: float = 0.0,
    need_weights: bool = False,
    soft_cap: float | None = None,
    backend: BackendName = "auto",
) -> str:
    """Which backend :func:`attention` takes for these arguments, and why; computes nothing.

    Raises:
        InputError: whatever ``attention`` would raise for the same arguments.
    """
    plan = choose(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        soft_cap=soft_cap,
        backend=backend,
    )
    batch, heads, q_len, _ = query.shape
    call = f"{batch} x {heads} heads, {q_len} queries, {key.shape[2]} keys, {query.dtype} on {query.device.type}"
    return f"{call}: {plan.kernel}{plan.details}. Why: {plan.reason}"


def run_plan(
    plan: Plan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    bias: Tensor | Bias | None,
    scale: float | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor | None]:
    """The output in the query's type, and the weights in that of the plan, if its backend has them."""
    dtype = query.dtype
    # The plan has settled the type; autocast must not change it again.
    with without_autocast(query.device.type):
        if plan.compute_dtype is not None:
            query, key, value = (tensor.to(plan.compute_dtype) for tensor in (query, key, value))
        if mask is not None and plan.reads_padding:
            output, weights = _run_without_padding(plan, query, key, value, mask, bias, scale, dropout_p)
        else:
            output, weights = plan.run(query, key, value, bias, scale, dropout_p)
    return output.to(dtype), weights


def _run_without_padding(
    plan: Plan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    bias: Tensor | Bias | None,
    scale: float | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor | None]:
    """Run a plan so that nothing spreads from the padding.

    Where the result can be inspected, it is computed again with zeros in place of the padding if anything has spread:
    that is seldom, and the zeros cost a copy. Elsewhere the zeros come first, and also with dropout: a second run would
    draw other numbers, so that seeds would mean something else wherever the padding holds a NaN.
    """
    padding = KnownPadding(mask)
    if not padding.exists:
        return plan.run(query, key, value, bias, scale, dropout_p)
    if _can_inspect(query) and not dropout_p:
        output, weights = plan.run(query, key, value, bias, scale, dropout_p)
        if _is_clean(padding, query, key, output):
            return output, weights
    return plan.run(*padding.hide(query, key, value), bias, scale, dropout_p)


def _can_inspect(query: Tensor) -> bool:
    """Whether reading computed numbers is free: on a CPU, where nothing waits for it."""
    return query.device.type == "cpu" and not torch.compiler.is_compiling()


def _is_clean(padding: KnownPadding, query: Tensor, key: Tensor, output: Tensor) -> bool:
    """Whether nothing of the padding can have reached the output or a gradient.

    NaN and infinity behind a mask make a NaN of the output: they do not vanish when they are multiplied by a weight of
    0. A gradient can meet an infinite key (or padded query) that has left the output alone, so if there will be
    gradients those are inspected too. Sums do, since they read everything once and write nothing; a false alarm costs
    time only.
    """
    suspects = [output]
    if output.requires_grad:
        suspects += [key, query] if padding.of_queries else [key]
    try:
        # In float32 at least, because half types would overflow.
        total = sum(
            tensor.detach().sum(dtype=torch.promote_types(tensor.dtype, torch.float32)).item() for tensor in suspects
        )
    except RuntimeError:  # under torch.func.vmap, or with tensors that have no numbers
        return False
    return math.isfinite(total)
