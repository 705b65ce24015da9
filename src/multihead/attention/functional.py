"""Scaled dot-product attention: the equation, in a readable form and on PyTorch's fused kernel.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1. :func:`explicit_attention` is the reference:
it defines what every other path has to compute. Which path a call takes is decided in
:mod:`multihead.attention.backends`; heads and projections are :mod:`multihead.attention.multihead`'s.

One rule holds on every path: a query that may attend to nothing yields zeros, zero weights and zero
gradients.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from multihead.attention.backends import HALF_TYPES, Backend, Plan, choose
from multihead.attention.masks import Mask


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"] | None]:
    r"""Scaled dot-product attention.

    .. math::
        \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d}} + \mathrm{bias}\right) V

    where the softmax runs over the keys that ``mask`` allows. With fewer key heads than query heads (grouped
    queries, Ainslie et al. 2023) query head h uses key head h // (heads / kv_heads).

    Args:
        query: what asks.
        key: what is asked.
        value: what is answered.
        mask: who may attend to whom; None = everyone to everyone.
        bias: added to the scores; [query, key], or four axes that broadcast to the scores. -inf forbids, like
            a mask.
        scale: the factor of the scores; default 1 / sqrt(dim).
        dropout_p: the probability with which a weight is dropped. Applied always: pass 0 when evaluating.
        need_weights: return the weights too.
        backend: ``"auto"`` picks (see :func:`~multihead.attention.backends.explain`), ``"explicit"`` is the
            readable reference (differentiable twice), ``"sdpa"`` PyTorch's fused function.

    Returns:
        The output, in the query's type, and the weights (before dropout; rows sum to 1, or to 0 where nothing
        may be attended to) or None.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`.
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
        if plan.kernel == "sdpa":
            return _sdpa(query, key, value, plan, bias, scale, dropout_p).to(dtype), None
        output, weights = explicit_attention(
            query, key, value, mask=plan.mask, bias=bias, scale=scale, dropout_p=dropout_p
        )
    return output.to(dtype), weights.to(dtype) if need_weights else None


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
        scores = scores + bias.to(scores.dtype)
        allowed = ~torch.isneginf(bias)
        mask = allowed if mask is None else mask & allowed
    weights = masked_softmax(scores, mask)
    return F.dropout(weights, dropout_p) @ value, weights


def masked_softmax(
    scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None, dim: int = -1
) -> Float[Tensor, "*axes"]:
    """Softmax over the allowed entries; the others get exactly 0, and so do all where none is allowed.

    The excluded scores are filled with the smallest finite number instead of -inf, and the result is
    multiplied by the
    mask: that way no NaN arises anywhere, forwards or backwards, and a row without an allowed entry has zero
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


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: Plan,
    bias: Tensor | None,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    mask = plan.mask
    if bias is not None:
        # A kernel takes one term only, and in the query's type: cuDNN has misread a float32 one as half.
        term = bias.to(query.dtype)
        mask = term if plan.mask is None else torch.where(plan.mask, term, -torch.inf)
        mask = mask[None, None] if mask.dim() == 2 else mask
    with _kernels_for(query.device.type, mask):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout_p,
            is_causal=plan.is_causal,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )


def _kernels_for(device_type: str, mask: Tensor | None) -> AbstractContextManager[object]:
    """Without cuDNN where a dense mask goes to a CUDA device.

    Its backward pass has returned NaN there in PyTorch 2.11 to 2.13 (issue 196678 of pytorch/pytorch).
    From reading only: not yet checked on a GPU.
    """
    if device_type != "cuda" or mask is None:
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
