r"""Sparsemax and entmax-1.5: distributions with exact zeros.

    sparsemax(s) = argmin_p |p - s|^2                   = [s - tau]_+          Martins & Astudillo 2016, section 2
    entmax15(s)  = argmax_p p . s + H_1.5(p)            = [s / 2 - tau]_+^2    Peters et al. 2019, section 3

over the distributions p, where tau is the threshold with which the result sums to 1. Sorted scores give tau exactly: it
is that of the k highest scores, for the one k whose scores, and no other, lie above it. Both gradients have one form
(Peters et al. 2019):

    ds = u * (dp - (u . dp) / (u . 1)),    u = 1[p > 0] for sparsemax, sqrt(p) for entmax-1.5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.attention.backends.call import at_least_float32


def sparsemax(scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None) -> Float[Tensor, "*axes"]:
    r"""The distribution nearest to the scores, over the allowed entries of the last axis.

    .. math::
        \mathrm{sparsemax}(s) = \arg\min_{p \in \Delta} \lVert p - s \rVert^2 = [s - \tau]_+

    Scores that are 1 or more below the highest get exactly 0. A row without an allowed entry is 0, with a gradient of
    0. A row with NaN or +inf is NaN, as with softmax. Half types are computed in float32. Differentiable once.

    Args:
        scores: any shape.
        mask: True = takes part; broadcasts to the scores.
    """
    return _masked(_Sparsemax.apply, scores, mask)


def entmax15(scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None) -> Float[Tensor, "*axes"]:
    r"""Entmax with alpha = 1.5, halfway between softmax (1) and sparsemax (2), over the last axis.

    .. math::
        \mathrm{entmax}_{1.5}(s) = \arg\max_{p \in \Delta} p^T s + H_{1.5}(p) = [s / 2 - \tau]_+^2, \quad
        H_{1.5}(p) = \frac{4}{3} \sum_n \big(p_n - p_n^{1.5}\big)

    Scores that are 2 or more below the highest get exactly 0; elsewhere as `sparsemax`.

    Args:
        scores: any shape.
        mask: True = takes part; broadcasts to the scores.
    """
    return _masked(_Entmax15.apply, scores, mask)


def _masked(project: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    if scores.shape[-1] == 0:
        return scores.clone()
    work = at_least_float32(scores)
    if mask is None:
        return project(work).to(scores.dtype)
    # As in `masked_softmax`: the product zeroes rows without an allowed entry, and their gradients.
    return (project(work.masked_fill(~mask, torch.finfo(work.dtype).min)) * mask).to(scores.dtype)


class _Sparsemax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        below = scores - scores.amax(-1, keepdim=True)  # at most 0, which keeps the sums exact
        ordered = below.clamp(min=-1).sort(-1, descending=True).values
        count = _counts(ordered)
        thresholds = (ordered.cumsum(-1) - 1) / count  # tau, if the k highest scores are the support
        support = (ordered > thresholds).sum(-1, keepdim=True)
        return (below - thresholds.gather(-1, _last(support))).clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _project_gradient((weights > 0).to(gradient.dtype), gradient)


class _Entmax15(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        below = (scores - scores.amax(-1, keepdim=True)) / 2
        ordered = below.clamp(min=-1).sort(-1, descending=True).values
        count = _counts(ordered)
        # sum (s / 2 - tau)^2 = 1 over the k highest, solved for tau.
        mean, square = ordered.cumsum(-1) / count, ordered.square().cumsum(-1) / count
        thresholds = mean - (1 / count - (square - mean.square())).clamp(min=0).sqrt()
        support = ((ordered >= thresholds) & (ordered > -1)).sum(-1, keepdim=True)
        return (below - thresholds.gather(-1, _last(support))).clamp(min=0).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _project_gradient(weights.sqrt(), gradient)


def _last(support: Tensor) -> Tensor:
    """The place of the lowest score in the support; 0 for a row with NaN or infinity, whose thresholds are all NaN."""
    return (support - 1).clamp(min=0)


def _counts(ordered: Tensor) -> Tensor:
    return torch.arange(1, ordered.shape[-1] + 1, device=ordered.device, dtype=ordered.dtype)


def _project_gradient(u: Tensor, gradient: Tensor) -> Tensor:
    return u * (gradient - (u * gradient).sum(-1, keepdim=True) / u.sum(-1, keepdim=True))
