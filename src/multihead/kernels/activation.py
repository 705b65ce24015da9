"""Bias, activation and dropout of a feed-forward network's hidden layer in one pass; the plain form beside it.

    y = dropout( act(x + bias) ),   act(x) = max(0, x)   or   x P(X <= x), X ~ N(0, 1)   (Hendrycks & Gimpel 2016)

``x`` is the product before, without its bias: backwards the bias's gradient comes out of the same pass. Of the
rectifier only the result is kept, which the next product keeps anyway: it is positive just where the gradient passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.kernels.dropout import Site, dropout, site
from multihead.kernels.linear import linear
from multihead.kernels.native import TYPES, library_for, pointer

Activation = Literal["relu", "gelu"]

_KINDS = {"relu": 0, "gelu": 1}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def activated_linear(
    z: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "width in_features"],
    bias: Float[Tensor, " width"] | None,
    kind: Activation,
    p: float,
) -> Float[Tensor, "*axes width"]:
    """``dropout(act(z weight^T + bias))``, the bias added wherever that costs less.

    Args:
        z: what the network is given.
        weight: W.
        bias: b.
        kind: which activation.
        p: of dropout; 0 outside training.
    """
    if torch.is_grad_enabled() and _native(z, bias):
        return activation_dropout(linear(z, weight), bias, kind, p)
    return activation_dropout(linear(z, weight, bias), None, kind, p)


def activation_dropout(
    x: Float[Tensor, "*axes width"], bias: Float[Tensor, " width"] | None, kind: Activation, p: float
) -> Float[Tensor, "*axes width"]:
    """``dropout(act(x + bias))`` in the type of ``x``.

    Args:
        x: W z.
        bias: b, in float32.
        kind: which activation.
        p: of dropout; 0 outside training.
    """
    where = site(x, p)
    fits = bias is None or bias.shape == x.shape[-1:]
    if where is not None and fits and torch.is_grad_enabled() and _native(x, bias):
        result: Tensor = _Activation.apply(x, bias, _KINDS[kind], where)  # type: ignore[no-untyped-call]
        return result
    full = x if bias is None else (x + bias).to(x.dtype)
    active = _PLAIN[kind](full)
    return dropout(active, p) if where is None else where.apply(active)


def _native(x: Tensor, bias: Tensor | None) -> bool:
    """Whether the compiled kernel takes this."""
    takes = bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
    return takes and x.dim() > 1 and library_for(x, bias) is not None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: int, where: Site) -> Tensor:
        library = library_for()
        assert library is not None
        x = x.contiguous()
        y = torch.empty_like(x)
        sizes = (TYPES[x.dtype], kind, x.numel() // max(1, x.shape[-1]), x.shape[-1])
        library.activation(pointer(x), pointer(bias), pointer(y), *sizes, *where.arguments(x.shape))
        *key, level, scale, threads = where.arguments(x.shape)
        if kind == 0:
            ctx.save_for_backward(y, None)
            level = 0  # what was dropped is zero already
        else:
            ctx.save_for_backward(x, bias)
        ctx.where = where  # what the arguments point at
        ctx.sizes, ctx.arguments, ctx.has_bias = sizes, (*key, level, scale, threads), bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        library = library_for()
        assert library is not None
        saved, bias = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_x = torch.empty_like(gradient)
        of_bias = gradient.new_empty(gradient.shape[-1], dtype=torch.float32) if ctx.has_bias else None
        library.activation_backward(
            *(pointer(gradient), pointer(saved), pointer(bias), pointer(of_x), pointer(of_bias)),
            *(*ctx.sizes, *ctx.arguments),
        )
        return of_x, of_bias, None, None
