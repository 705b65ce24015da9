"""Fused pointwise operations: residual + norm, activation, rotation.

Each is one pass over memory in each direction, by a compiled kernel where possible and by PyTorch's operations
elsewhere. Masks of dropout are drawn again in the backward pass instead of being stored (`kernels.random`).

    total  = x + dropout(branch)
    normed = (total - mean) / sqrt(variance + eps) * gain + shift        (Ba, Kiros & Hinton 2016)

Post-norm layers (Vaswani et al. 2017, 5.4) use only ``normed``; pre-norm layers (Xiong et al. 2020) keep ``total`` as
the residual stream and pass ``normed`` to the next sub-layer. Sums, statistics and the stream ``x`` are float32. The
branch may be bfloat16, as products return it under autocast, and ``normed`` may be requested in bfloat16, as the next
product takes it, so that no separate pass converts.

    y = dropout( act(x + bias) ),   act(x) = max(0, x)   or   x P(X <= x), X ~ N(0, 1)   (Hendrycks & Gimpel 2016)

``x`` is a product without its bias, so that the backward pass computes the bias's gradient, too. For ReLU only the
result is kept, which the next product keeps anyway: it is positive exactly where the gradient passes.

    (y_i, y_{i + d/2}) = (x_i cos a_i - x_{i + d/2} sin a_i,  x_i sin a_i + x_{i + d/2} cos a_i)     (Su et al. 2021)

rotates the queries and keys of each head by the angles a of their position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ShapeError
from multihead.kernels.linear import linear
from multihead.kernels.native import check, thread_count
from multihead.kernels.native.tensors import TYPES, library_for, pointer
from multihead.kernels.random import NO_DROPOUT, DropoutSite, dropout, next_site

Vector = Float[Tensor, " width"]


Turns = Float[Tensor, "places dim"]
"""Angles of a head of ``dim`` features at some positions: their sines, then their cosines; a constant in float32."""


class Sum(NamedTuple):
    """The residual sum, and its norm."""

    total: Float[Tensor, "*axes width"]
    normed: Float[Tensor, "*axes width"]


def add(
    x: Float[Tensor, "*axes width"], branch: Float[Tensor, "*axes width"], p: float
) -> Float[Tensor, "*axes width"]:
    """``x + dropout(branch)``.

    Args:
        x: the residual stream.
        branch: the output of a sub-layer.
        p: probability of dropout; 0 in evaluation.
    """
    site = next_site(x, p)
    if site is not None and _native(x, branch):
        total: Tensor = _AddNorm.apply(x, branch, None, None, 0.0, site, x.dtype)[0]  # type: ignore[no-untyped-call]
        return total
    return _plain_add(x, branch, p, site)


def layer_norm(
    x: Float[Tensor, "*axes width"],
    gain: Vector,
    shift: Vector | None,
    eps: float,
    *,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*axes width"]:
    """Layer norm over the last axis.

    Args:
        x: the input.
        gain: gamma.
        shift: beta.
        eps: added to the variance.
        dtype: dtype of the result; None = PyTorch's: float32 under autocast, else x's. `product_type` returns the one
            that the next product needs.
    """
    dtype = stream_type(x) if dtype is None else dtype
    if _native(x, None, gain, shift) and dtype in TYPES:
        # Contiguous outside of the function, which saves its input: a copy made inside would have no second derivative.
        dense = x.contiguous()
        normed: Tensor = _AddNorm.apply(dense, None, gain, shift, eps, NO_DROPOUT, dtype)[1]  # type: ignore[no-untyped-call]
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
    """`add`, then `layer_norm` of the sum, in one pass; gradients may flow to both results."""
    dtype = stream_type(x) if dtype is None else dtype
    site = next_site(x, p)
    if site is not None and _native(x, branch, gain, shift) and dtype in TYPES:
        return Sum(*_AddNorm.apply(x, branch, gain, shift, eps, site, dtype))  # type: ignore[no-untyped-call]
    total = _plain_add(x, branch, p, site)
    return Sum(total, _plain_norm(total, gain, shift, eps, dtype))


def product_type(x: Tensor) -> torch.dtype:
    """The dtype of a product of ``x``: autocast's if that is enabled, else x's."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def stream_type(x: Tensor) -> torch.dtype:
    """The dtype of the residual stream: float32 under autocast, in which it is summed; else x's."""
    return torch.float32 if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64 else x.dtype


def _native(x: Tensor, branch: Tensor | None, *vectors: Tensor | None) -> bool:
    """Whether to use the compiled kernel: for a float32 stream and vectors, in training.

    Without gradients (decoding, with few rows) PyTorch's operations have less overhead.
    """
    if not torch.is_grad_enabled() or x.dim() < 2 or x.dtype != torch.float32:
        return False
    for vector in vectors:
        if vector is not None and (
            vector.dtype != torch.float32 or vector.shape != x.shape[-1:] or not vector.is_contiguous()
        ):
            return False
    return (branch is None or branch.shape == x.shape) and library_for(x, branch, *vectors) is not None


def _plain_add(x: Tensor, branch: Tensor, p: float, site: DropoutSite | None) -> Tensor:
    """The definition of `add`; a float32 stream is summed in float32."""
    full = branch.to(torch.promote_types(x.dtype, branch.dtype))
    return x + (dropout(full, p) if site is None else site.apply(full))


def _plain_norm(x: Tensor, gain: Tensor, shift: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """The definition of `layer_norm`."""
    return F.layer_norm(x, x.shape[-1:], gain, shift, eps).to(dtype)


class _AddNorm(torch.autograd.Function):
    """Sum, norm, or both: without ``branch`` there is no sum, without ``gain`` no norm; a missing result is None.

    Without ``branch``, ``x`` is contiguous. PyTorch computes gradients that are differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        gain: Tensor | None,
        shift: Tensor | None,
        eps: float,
        site: DropoutSite,
        dtype: torch.dtype,
    ) -> tuple[Tensor | None, Tensor | None]:
        library = library_for(x, branch, gain, shift)
        assert library is not None
        x, rows, width = x.contiguous(), x.numel() // max(1, x.shape[-1]), x.shape[-1]
        branch = None if branch is None else branch.contiguous()
        total = None if branch is None else torch.empty_like(x)
        normed = means = rstds = None
        if gain is not None:
            normed, means, rstds = torch.empty_like(x, dtype=dtype), x.new_empty(rows), x.new_empty(rows)
        branch_type = torch.float32 if branch is None else branch.dtype
        arguments, count = site.arguments(x.shape), x.numel()
        status = library.add_norm(
            *(pointer(x, count, torch.float32), pointer(branch, count, branch_type), TYPES[branch_type]),
            *(pointer(total, count, torch.float32), *(pointer(v, width, torch.float32) for v in (gain, shift))),
            *(pointer(normed, count, dtype), TYPES[dtype], *(pointer(v, rows, torch.float32) for v in (means, rstds))),
            *(rows, width, eps, *arguments),
        )
        check(status)
        summed = None if gain is None else (x if total is None else total)
        ctx.save_for_backward(summed, gain, means, rstds)
        ctx.site = site  # keeps the memory alive that the arguments point to
        ctx.arguments, ctx.types, ctx.eps = arguments, (branch_type, dtype), eps
        ctx.has_branch, ctx.has_shift = branch is not None, shift is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_total, grad_normed = gradients  # either may be None
        total, gain, means, rstds = ctx.saved_tensors
        branch_type, dtype = ctx.types
        like = grad_total if grad_normed is None else grad_normed
        if like is None:
            return (None,) * 7
        if grad_normed is None:
            gain = None  # only the sum has a gradient: the kernel skips the norm
        if torch.is_grad_enabled() or library_for(like) is None:
            return *_plain_gradients(ctx, total, gain, grad_total, grad_normed), None, None, None
        library = library_for()
        assert library is not None
        width, count = like.shape[-1], like.numel()
        rows = count // max(1, width)
        grad_total = None if grad_total is None else grad_total.resolve_neg().contiguous()
        grad_normed = None if grad_normed is None else grad_normed.resolve_neg().contiguous()
        wants_branch = ctx.has_branch and ctx.needs_input_grad[1]
        # Without a norm, the gradient of x is grad_total itself. `empty_like` would have the strides of the gradient.
        grad_x = grad_total if gain is None else like.new_empty(like.shape, dtype=torch.float32)
        grad_branch = like.new_empty(like.shape, dtype=branch_type) if wants_branch else None
        grad_gain = _empty_vector(like, gain is not None)
        grad_shift = _empty_vector(like, gain is not None and ctx.has_shift)
        if gain is not None or grad_branch is not None:
            full = torch.float32
            status = library.add_norm_backward(
                *(pointer(grad_normed, count, dtype), TYPES[dtype], pointer(grad_total, count, full)),
                *(pointer(total, count, full), pointer(gain, width, full)),
                *(pointer(vector, rows, full) for vector in (means, rstds)),
                None if gain is None else pointer(grad_x, count, full),
                *(pointer(grad_branch, count, branch_type), TYPES[branch_type]),
                *(pointer(vector, width, full) for vector in (grad_gain, grad_shift)),
                *(rows, width, *ctx.arguments),
            )
            check(status)
        return grad_x, grad_branch, grad_gain, grad_shift, None, None, None


def _plain_gradients(
    ctx: Any, total: Tensor | None, gain: Tensor | None, grad_total: Tensor | None, grad_normed: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The definition of the gradients to x, branch, gain and shift; differentiable any number of times."""
    grad_gain = grad_shift = None
    if gain is not None:
        assert total is not None
        assert grad_normed is not None
        full = grad_normed.to(total.dtype)
        centered = total - total.mean(-1, keepdim=True)
        rstd = (centered.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        unit, of_unit = centered * rstd, full * gain
        along = (of_unit * unit).mean(-1, keepdim=True)
        of_total = (of_unit - of_unit.mean(-1, keepdim=True) - unit * along) * rstd
        grad_total = of_total if grad_total is None else grad_total + of_total
        grad_gain = (full * unit).flatten(0, -2).sum(0)
        grad_shift = full.flatten(0, -2).sum(0) if ctx.has_shift else None
    assert grad_total is not None
    grad_branch = ctx.site.apply(grad_total).to(ctx.types[0]) if ctx.has_branch else None
    return grad_total, grad_branch, grad_gain, grad_shift


def _empty_vector(like: Tensor, needed: bool) -> Tensor | None:
    return like.new_empty(like.shape[-1], dtype=torch.float32) if needed else None


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
    """``dropout(act(z weight^T + bias))``; the bias is added in the product or in the activation, whichever is faster.

    Args:
        z: the input.
        weight: W.
        bias: b.
        kind: the activation.
        p: probability of dropout; 0 in evaluation.
    """
    if torch.is_grad_enabled() and _native_activation(z, bias):
        return activation_dropout(linear(z, weight), bias, kind, p)
    return activation_dropout(linear(z, weight, bias), None, kind, p)


def activation_dropout(
    x: Float[Tensor, "*axes width"], bias: Float[Tensor, " width"] | None, kind: Activation, p: float
) -> Float[Tensor, "*axes width"]:
    """``dropout(act(x + bias))`` in the dtype of ``x``.

    Args:
        x: W z.
        bias: b, in float32.
        kind: the activation.
        p: probability of dropout; 0 in evaluation.
    """
    site = next_site(x, p)
    fits = bias is None or bias.shape == x.shape[-1:]
    if site is not None and fits and torch.is_grad_enabled() and _native_activation(x, bias):
        # Contiguous outside of the function, which may save it: see `layer_norm`.
        result: Tensor = _Activation.apply(x.contiguous(), bias, _KINDS[kind], site)  # type: ignore[no-untyped-call]
        return result
    full = x if bias is None else (x + bias).to(x.dtype)
    active = _PLAIN[kind](full)
    return dropout(active, p) if site is None else site.apply(active)


def _native_activation(x: Tensor, bias: Tensor | None) -> bool:
    """Whether to use the compiled kernel."""
    supported = bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
    return supported and x.dim() > 1 and library_for(x, bias) is not None


class _Activation(torch.autograd.Function):
    """``x`` is contiguous. PyTorch computes gradients that are differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: int, site: DropoutSite) -> Tensor:
        library = library_for(x, bias)
        assert library is not None
        y = torch.empty_like(x)
        count, width = x.numel(), x.shape[-1]
        sizes = (TYPES[x.dtype], kind, count // max(1, width), width)
        (at, to), add = (pointer(z, count, x.dtype) for z in (x, y)), pointer(bias, width, torch.float32)
        check(library.activation(at, add, to, *sizes, *site.arguments(x.shape)))
        *key, level, scale, threads = site.arguments(x.shape)
        if kind == 0:  # ReLU: y is zero where x was negative or dropped
            ctx.save_for_backward(y, None)
            level = 0  # so the backward pass need not draw the mask
        else:
            ctx.save_for_backward(x, bias)
        ctx.site = site  # keeps the memory alive that the arguments point to
        ctx.sizes, ctx.arguments, ctx.has_bias = sizes, (*key, level, scale, threads), bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, bias = ctx.saved_tensors
        if torch.is_grad_enabled() or library_for(*gradients) is None:
            return *_plain_activation_gradients(ctx, saved, bias, gradients[0]), None, None
        library = library_for()
        assert library is not None
        gradient = gradients[0].contiguous()
        grad_x = torch.empty_like(gradient)
        count, width = gradient.numel(), gradient.shape[-1]
        grad_bias = gradient.new_empty(width, dtype=torch.float32) if ctx.has_bias else None
        status = library.activation_backward(
            *(pointer(x, count, gradient.dtype) for x in (gradient, saved)),
            *(pointer(bias, width, torch.float32), pointer(grad_x, count, gradient.dtype)),
            *(pointer(grad_bias, width, torch.float32), *ctx.sizes, *ctx.arguments),
        )
        check(status)
        return grad_x, grad_bias, None, None


def _plain_activation_gradients(
    ctx: Any, saved: Tensor, bias: Tensor | None, gradient: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The definition of the gradients to x and bias; differentiable any number of times."""
    full = gradient.float()
    if ctx.sizes[1] == _KINDS["relu"]:
        *_, scale, _ = ctx.arguments
        grad_x = full * (saved > 0) * scale  # saved is y, which is 0 where x was negative or dropped
    else:
        z = saved.float() if bias is None else saved + bias
        slope = (1 + torch.erf(z / math.sqrt(2))) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        grad_x = ctx.site.apply(full) * slope
    return grad_x.to(gradient.dtype), grad_x.flatten(0, -2).sum(0) if ctx.has_bias else None


def rotate(x: Float[Tensor, "batch length width"], turns: Turns) -> Float[Tensor, "batch length width"]:
    """Queries or keys, the features of all heads side by side, rotated by the angles of their positions.

    Args:
        x: projected queries or keys; may be a part of wider rows.
        turns: of each position; or of each row's positions, row after row.

    Raises:
        ShapeError: sizes do not fit.
    """
    batch, length, width = x.shape
    places, dim = turns.shape
    if places not in (length, batch * length) or dim % 2 or width % max(dim, 1):
        raise ShapeError(
            f"x is {list(x.shape)}, and the turns {list(turns.shape)}: expected one for each of {length} positions, "
            f"or of {batch * length} in all rows, and an even width that divides {width}"
        )
    if not x.numel():
        return x
    if turns.dtype is torch.float32 and library_for(x, turns) is not None:
        rotated: Tensor = _Rotate.apply(x, turns.contiguous(), False)  # type: ignore[no-untyped-call]
        return rotated
    sine, cosine = turns.view(-1, length, 1, 2, dim // 2).unbind(-2)  # [1 or batch, length, 1, dim / 2]
    heads = x.to(torch.promote_types(x.dtype, turns.dtype)).reshape(batch, length, -1, 2, dim // 2)
    first, second = heads.unbind(-2)
    rotated = torch.stack((first * cosine - second * sine, first * sine + second * cosine), -2)
    return rotated.view(x.shape).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """Its gradient is rotated back, by itself: it is differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turns: Tensor, back: bool) -> Tensor:
        library = library_for()
        assert library is not None
        (batch, length, width), (places, dim) = x.shape, turns.shape
        if x.stride(-1) != 1 or (batch > 1 and x.stride(0) != length * x.stride(1)) or x.is_neg():
            x = x.resolve_neg().contiguous()
        # A part of wider rows is not copied. Of a single position, or a single sentence, the stride says nothing.
        step = x.stride(1) if length > 1 else x.stride(0) if batch > 1 else width
        y = torch.empty(x.shape, dtype=x.dtype)
        status = library.rotate(
            *(x.data_ptr(), step),
            *(pointer(y, x.numel(), x.dtype), TYPES[x.dtype], pointer(turns, places * dim, torch.float32)),
            *(batch * length, width, dim, places, back, thread_count()),
        )
        check(status)
        ctx.save_for_backward(turns)
        ctx.back = back
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (turns,) = ctx.saved_tensors
        return _Rotate.apply(gradients[0], turns, not ctx.back), None, None  # type: ignore[no-untyped-call]
