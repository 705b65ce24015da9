"""Dropout, residual sum and layer norm in one pass over memory, forwards and backwards; the plain form beside it.

    total  = x + dropout(branch)
    normed = (total - mean) / sqrt(variance + eps) * gain + shift        (Ba, Kiros & Hinton 2016)

Post-norm layers (Vaswani et al. 2017, 5.4) go on with ``normed`` alone; pre-norm ones (Xiong et al. 2020) carry
``total`` on and give ``normed`` to the next sub-layer. Sums, statistics and the stream ``x`` are float32; the branch
may be bfloat16, as a product gives it under autocast, and ``normed`` may be wanted so, as the next product takes it:
then nothing is converted in a pass of its own. The mask is drawn again backwards.

Bias, activation and dropout of a feed-forward network's hidden layer in one pass; the plain form beside it.

    y = dropout( act(x + bias) ),   act(x) = max(0, x)   or   x P(X <= x), X ~ N(0, 1)   (Hendrycks & Gimpel 2016)

``x`` is the product before, without its bias: backwards the bias's gradient comes out of the same pass. Of the
rectifier only the result is kept, which the next product keeps anyway: it is positive just where the gradient passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from multihead.kernels.linear import linear
from multihead.kernels.native import TYPES, library_for, pointer
from multihead.kernels.random import NO_DROPOUT, DropoutSite, dropout, site

Vector = Float[Tensor, " width"]


class Sum(NamedTuple):
    """What a residual sum gives."""

    total: Float[Tensor, "*axes width"]
    normed: Float[Tensor, "*axes width"]


def add(
    x: Float[Tensor, "*axes width"], branch: Float[Tensor, "*axes width"], p: float
) -> Float[Tensor, "*axes width"]:
    """``x + dropout(branch)``.

    Args:
        x: the residual stream.
        branch: what a sub-layer made of it.
        p: of dropout; 0 outside training.
    """
    where = site(x, p)
    if where is not None and _native(x, branch):
        total: Tensor = _AddNorm.apply(x, branch, None, None, 0.0, where, x.dtype)[0]  # type: ignore[no-untyped-call]
        return total
    return _plain_add(x, branch, p, where)


def layer_norm(
    x: Float[Tensor, "*axes width"],
    gain: Vector,
    shift: Vector | None,
    eps: float,
    *,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*axes width"]:
    """Layer norm over the last axis, given out in ``dtype``.

    Args:
        x: what is normed.
        gain: gamma.
        shift: beta.
        eps: added to the variance.
        dtype: None = as PyTorch does it: float32 under autocast, else x's. `product_type` is what a product wants.
    """
    dtype = _norm_type(x) if dtype is None else dtype
    if _native(x, None, gain, shift) and dtype in TYPES:
        normed: Tensor = _AddNorm.apply(x, None, gain, shift, eps, NO_DROPOUT, dtype)[1]  # type: ignore[no-untyped-call]
        return normed
    return _plain_norm(x, gain, shift, eps, dtype)


def add_norm(
    x: Float[Tensor, "*axes width"],
    branch: Float[Tensor, "*axes width"],
    gain: Vector,
    shift: Vector | None,
    eps: float,
    p: float,
    *,
    dtype: torch.dtype | None = None,
) -> Sum:
    """`add`, then `layer_norm` of the sum, in one pass; both are returned, and gradients may come to both."""
    dtype = _norm_type(x) if dtype is None else dtype
    where = site(x, p)
    if where is not None and _native(x, branch, gain, shift) and dtype in TYPES:
        return Sum(*_AddNorm.apply(x, branch, gain, shift, eps, where, dtype))  # type: ignore[no-untyped-call]
    total = _plain_add(x, branch, p, where)
    return Sum(total, _plain_norm(total, gain, shift, eps, dtype))


def product_type(x: Tensor) -> torch.dtype:
    """The type in which a product of ``x`` will be computed: autocast's where that is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _norm_type(x: Tensor) -> torch.dtype:
    return torch.float32 if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64 else x.dtype


def _native(x: Tensor, branch: Tensor | None, *vectors: Tensor | None) -> bool:
    """Whether the compiled kernel takes this: a float32 stream and vectors, in training.

    Without gradients (decoding, a few rows at a time) PyTorch's own operations have less to prepare.
    """
    if not torch.is_grad_enabled() or x.dim() < 2 or x.dtype != torch.float32:
        return False
    for vector in vectors:
        if vector is not None and (
            vector.dtype != torch.float32 or vector.shape != x.shape[-1:] or not vector.is_contiguous()
        ):
            return False
    return (branch is None or branch.shape == x.shape) and library_for(x, branch, *vectors) is not None


def _plain_add(x: Tensor, branch: Tensor, p: float, where: DropoutSite | None) -> Tensor:
    """The definition of `add`; a float32 stream adds up in float32."""
    full = branch.to(torch.promote_types(x.dtype, branch.dtype))
    return x + (dropout(full, p) if where is None else where.apply(full))


def _plain_norm(x: Tensor, gain: Tensor, shift: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """The definition of `layer_norm`."""
    return F.layer_norm(x, x.shape[-1:], gain, shift, eps).to(dtype)


class _AddNorm(torch.autograd.Function):
    """Any part of the equation above that is wanted; what is not is None, and costs nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        gain: Tensor | None,
        shift: Tensor | None,
        eps: float,
        where: DropoutSite,
        dtype: torch.dtype,
    ) -> tuple[Tensor | None, Tensor | None]:
        library = library_for()
        assert library is not None
        x, rows, width = x.contiguous(), x.numel() // max(1, x.shape[-1]), x.shape[-1]
        branch = None if branch is None else branch.contiguous()
        total = None if branch is None else torch.empty_like(x)
        normed = means = rstds = None
        if gain is not None:
            normed, means, rstds = torch.empty_like(x, dtype=dtype), x.new_empty(rows), x.new_empty(rows)
        kind = 0 if branch is None else TYPES[branch.dtype]
        arguments = where.arguments(x.shape)
        library.add_norm(
            *(pointer(x), pointer(branch), kind, pointer(total), pointer(gain), pointer(shift)),
            *(pointer(normed), TYPES[dtype], pointer(means), pointer(rstds), rows, width, eps),
            *arguments,
        )
        summed = None if gain is None else (x if total is None else total)
        ctx.save_for_backward(summed, gain, means, rstds)
        ctx.where = where  # what the arguments point at
        ctx.arguments, ctx.types = arguments, (None if branch is None else branch.dtype, dtype)
        ctx.has_shift = shift is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        passed, of_normed = gradients
        total, gain, means, rstds = ctx.saved_tensors
        branch_type, dtype = ctx.types
        given = passed if of_normed is None else of_normed
        if given is None:
            return (None,) * 7
        if of_normed is None:
            gain = None
        library = library_for()
        assert library is not None
        width = given.shape[-1]
        passed = None if passed is None else passed.contiguous()
        of_normed = None if of_normed is None else of_normed.contiguous()
        wants_branch = branch_type is not None and ctx.needs_input_grad[1]
        of_total = passed if gain is None else torch.empty_like(given, dtype=torch.float32)
        of_branch = torch.empty_like(given, dtype=branch_type) if wants_branch else None
        of_gain = _vector(given, gain is not None)
        of_shift = _vector(given, gain is not None and ctx.has_shift)
        if gain is not None or of_branch is not None:
            library.add_norm_backward(
                *(pointer(of_normed), TYPES[dtype], pointer(passed), pointer(total), pointer(gain), pointer(means)),
                *(pointer(rstds), None if gain is None else pointer(of_total), pointer(of_branch)),
                *(0 if branch_type is None else TYPES[branch_type], pointer(of_gain), pointer(of_shift)),
                *(given.numel() // max(1, width), width),
                *ctx.arguments,
            )
        return of_total, of_branch, of_gain, of_shift, None, None, None


def _vector(like: Tensor, wanted: bool) -> Tensor | None:
    return like.new_empty(like.shape[-1], dtype=torch.float32) if wanted else None


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
    if torch.is_grad_enabled() and _native_activation(z, bias):
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
    if where is not None and fits and torch.is_grad_enabled() and _native_activation(x, bias):
        result: Tensor = _Activation.apply(x, bias, _KINDS[kind], where)  # type: ignore[no-untyped-call]
        return result
    full = x if bias is None else (x + bias).to(x.dtype)
    active = _PLAIN[kind](full)
    return dropout(active, p) if where is None else where.apply(active)


def _native_activation(x: Tensor, bias: Tensor | None) -> bool:
    """Whether the compiled kernel takes this."""
    takes = bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
    return takes and x.dim() > 1 and library_for(x, bias) is not None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: int, where: DropoutSite) -> Tensor:
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
