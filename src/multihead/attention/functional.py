"""Scaled dot-product attention: the equation, in a readable form and on the kernels that compute it.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1. :func:`explicit_attention` is the reference:
it defines what every other path has to compute. Which path a call takes is decided in
:mod:`multihead.attention.backends`; heads and projections are :mod:`multihead.attention.multihead`'s.

Two rules hold on every path: a query that may attend to nothing yields zeros, zero weights and zero gradients; and
where a mask has lengths, what stands in the padding reaches nothing, NaN and infinity included.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.backends import HALF_TYPES, Backend, Plan, choose
from multihead.attention.biases import Bias
from multihead.attention.blockwise import blockwise_attention
from multihead.attention.flex import flexible_attention
from multihead.attention.fused import fused_attention
from multihead.attention.masks import Mask
from multihead.attention.masks.lengths import KnownPadding
from multihead.attention.short import limited_attention
from multihead.attention.variable_length import packed_attention


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
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"] | None]:
    r"""Scaled dot-product attention.

    .. math::
        \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d}} + \mathrm{bias}\right) V

    where the softmax runs over the keys that ``mask`` allows. With fewer key heads than query heads (grouped
    queries, Ainslie et al. 2023) query head h uses key head h // (heads / kv_heads). One key head for all of them is
    attention of many queries to the same keys and values::

        heads, _ = attention(queries, key[:, None], value[:, None])     # [batch, M, length, dim]
        join_heads(heads)                                               # their results side by side

    Args:
        query: what asks.
        key: what is asked.
        value: what is answered.
        mask: who may attend to whom; None = everyone to everyone.
        bias: added to the scores: a :class:`~multihead.attention.biases.Bias` such as ``ALiBi(heads)``, or a tensor,
            [query, key] or four axes that broadcast to the scores, which may be learned. It is converted to the
            query's type. -inf forbids, like a mask.
        scale: the factor of the scores; default 1 / sqrt(dim).
        dropout_p: the probability with which a weight is dropped. Applied always: pass 0 when evaluating.
        need_weights: return the weights too.
        backend: ``"auto"`` picks (see :func:`~multihead.attention.backends.explain`). By name: ``"explicit"``, the
            readable reference (differentiable twice); ``"sdpa"``, PyTorch's fused function; ``"blockwise"``, the same
            one block of queries after the other, without the keys that the mask hides; ``"flex"``, FlexAttention,
            compiled (``"flex_eager"``: not compiled); ``"varlen"``, PyTorch's variable-length kernel on CUDA;
            ``"short"``, our own for training on short sequences on a CPU.

    Returns:
        The output, in the query's type, and the weights (before dropout; rows sum to 1, or to 0 where nothing
        may be attended to) or None.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`, or the bias holds no floats.
        ConfigurationError: an unknown backend, one that cannot do what is asked, or an impossible dropout.
    """
    plan = choose(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        backend=backend,
    )
    dtype = query.dtype
    # The plan has settled the type; autocast must not change it again.
    with _without_autocast(query.device.type):
        if plan.compute_dtype is not None:
            query, key, value = (tensor.to(plan.compute_dtype) for tensor in (query, key, value))
        if plan.limits is not None:
            return limited_attention(query, key, value, plan.limits, scale).to(dtype), None
        padding = KnownPadding(mask)
        if padding.exists and not _looked_at(query):
            query, key, value = padding.hide(query, key, value)
        output, weights = _run(plan, query, key, value, bias, scale, dropout_p)
        if padding.exists and _looked_at(query) and not _clean(padding, query, key, output):
            output, weights = _run(plan, *padding.hide(query, key, value), bias, scale, dropout_p)
    return output.to(dtype), weights.to(dtype) if need_weights and weights is not None else None


def _run(
    plan: Plan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | Bias | None,
    scale: float | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor | None]:
    if plan.kernel == "blockwise":
        output = blockwise_attention(query, key, value, plan.blocks, bias=bias, scale=scale, dropout_p=dropout_p)
        return output, None
    if plan.kernel in ("flex", "flex_eager"):
        compiled = plan.kernel == "flex"
        return flexible_attention(query, key, value, plan.block_mask, bias=bias, scale=scale, compiled=compiled), None
    if plan.kernel == "varlen":
        assert plan.sequences is not None
        return packed_attention(query, key, value, plan.sequences, scale=scale), None
    if isinstance(bias, Bias):
        bias = bias.dense(query.shape[2], key.shape[2], query.dtype, query.device)
    if plan.kernel == "sdpa":
        output = fused_attention(
            query,
            key,
            value,
            is_causal=plan.is_causal,
            mask=plan.mask,
            bias=bias,
            scale=scale,
            dropout_p=dropout_p,
        )
        return output, None
    return explicit_attention(query, key, value, mask=plan.mask, bias=bias, scale=scale, dropout_p=dropout_p)


def explicit_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Bool[Tensor, "#batch #heads #query #key"] | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"]]:
    """The reference: :func:`attention`'s equation written out, with a mask that is lowered already.

    Returns:
        The output, and the weights before dropout. The softmax of half-precision scores is taken in float32.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if bias is not None:
        term = bias.to(scores.dtype)  # what is far below the type's range becomes -inf there
        scores = scores + term
        allowed = ~torch.isneginf(term)
        mask = allowed if mask is None else mask & allowed
    weights = masked_softmax(scores, mask)
    return F.dropout(weights, dropout_p) @ value, weights


def masked_softmax(
    scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None, dim: int = -1
) -> Float[Tensor, "*axes"]:
    """Softmax over the allowed entries; the others get exactly 0, and so do all where none is allowed.

    The excluded scores are filled with the smallest finite number instead of -inf, and the result is multiplied by
    the mask: that way no NaN arises anywhere, forwards or backwards, and a row without an allowed entry has zero
    gradients.

    Args:
        scores: any shape. Half types are computed in float32 and returned in their own type.
        mask: True = takes part; broadcasts to the scores.
        dim: the axis that sums to 1.
    """
    work = scores.float() if scores.dtype in HALF_TYPES else scores
    if mask is None:
        return work.softmax(dim).to(scores.dtype)
    filled = work.masked_fill(~mask, torch.finfo(work.dtype).min)
    return (filled.softmax(dim) * mask).to(scores.dtype)


def _looked_at(query: Tensor) -> bool:
    """Whether numbers may be looked at after they were computed: on a CPU, where nothing waits for it."""
    return query.device.type == "cpu" and not torch.compiler.is_compiling()


def _clean(padding: KnownPadding, query: Tensor, key: Tensor, output: Tensor) -> bool:
    """Whether nothing of the padding can have reached the output or a gradient.

    NaN and infinity behind a mask make a NaN of the output: they do not vanish when they are multiplied by a weight of
    0. A gradient can meet an infinite key (or padded query) that has left the output alone, so if there will be
    gradients they are looked at too. Sums, since they read everything once and write nothing; a false alarm
    costs time only.
    """
    suspects = [output]
    if output.requires_grad:
        suspects += [key, query] if padding.of_queries else [key]
    try:
        # Half types would overflow.
        total = sum(tensor.detach().sum(dtype=_summed_in(tensor)).item() for tensor in suspects)
    except RuntimeError:  # under torch.func.vmap, or with tensors that have no numbers
        return False
    return math.isfinite(total)


def _summed_in(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
