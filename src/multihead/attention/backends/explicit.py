"""The reference: the equation in plain tensor operations.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1. Every other backend has to compute what
:func:`explicit_attention` computes. It alone returns the weights and can be differentiated twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.backends.call import Backend, Call, Kernel, Plan, at_least_float32, compute_dtype, dense_bias
from multihead.attention.backends.sdpa import lower
from multihead.attention.biases import Bias


@dataclass(frozen=True)
class ExplicitPlan(Plan):
    """Scores, softmax and weighted sum, one after the other.

    Attributes:
        mask: as small as it can be and still broadcast to [batch, heads, query, key]; None = everything.
        soft_cap: the bound of the scores before the bias, or None.
    """

    mask: Bool[Tensor, "b h q k"] | None
    soft_cap: float | None = None

    @property
    def details(self) -> str:
        return "" if self.mask is None else f" with a boolean mask {list(self.mask.shape)}"

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,
    ) -> tuple[Tensor, Tensor | None]:
        term = dense_bias(bias, query, key)
        return explicit_attention(
            query,
            key,
            value,
            mask=self.mask,
            bias=term,
            scale=scale,
            dropout_p=dropout_p,
            soft_cap=self.soft_cap,
        )


class Explicit(Backend):
    """The readable reference, which accepts every call."""

    name: Kernel = "explicit"

    def refuse(self, call: Call) -> str | None:  # noqa: ARG002
        return None

    def plan(self, call: Call, why: str) -> ExplicitPlan:
        dtype, why_dtype = compute_dtype(call)
        lowered = lower(call.mask, call.sizes, call.query.device, native_causal=False)
        return ExplicitPlan(self.name, dtype, (why, lowered.why, *why_dtype), lowered.mask, call.soft_cap)


def explicit_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Bool[Tensor, "#batch #heads #query #key"] | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    soft_cap: float | None = None,
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"]]:
    """The equation of :func:`multihead.attention.attention` written out, for a boolean mask.

    Returns:
        The output, and the weights before dropout. The softmax of half-precision scores is taken in float32.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    weights = explicit_weights(query, key, mask=mask, bias=bias, scale=scale, soft_cap=soft_cap)
    return F.dropout(weights, dropout_p) @ value, weights


def explicit_weights(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads key dim"],
    *,
    mask: Bool[Tensor, "#batch #heads #query #key"] | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Float[Tensor, "batch heads query key"]:
    """The weights of :func:`explicit_attention`, for as many key heads as query heads."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)  # [batch, heads, query, key]
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if bias is not None:
        term = bias.to(scores.dtype)  # what is far below the type's range becomes -inf there
        scores = scores + term
        allowed = ~torch.isneginf(term)
        mask = allowed if mask is None else mask & allowed
    return masked_softmax(scores, mask)


def masked_softmax(
    scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None, dim: int = -1
) -> Float[Tensor, "*axes"]:
    """Softmax over the allowed entries; the others get exactly 0, also where none is allowed.

    Excluded scores are filled with the smallest finite number instead of -inf, and the result is multiplied by the
    mask. So no NaN arises, forwards or backwards, and a row without an allowed entry has zero gradients.

    Args:
        scores: any shape. Half types are computed in float32 and returned in their own type.
        mask: True = takes part; broadcasts to the scores.
        dim: the axis that sums to 1.
    """
    work = at_least_float32(scores)
    if mask is None:
        return work.softmax(dim).to(scores.dtype)
    filled = work.masked_fill(~mask, torch.finfo(work.dtype).min)
    return (filled.softmax(dim) * mask).to(scores.dtype)
