"""Products of linear maps by our compiled kernels on the CPU.

    y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows

On AMD processors without AVX-512 the kernel for float32 is faster than MKL at the sizes of translators
(docs/lab-notes.md): it keeps panels of 16 columns in the first cache, packs nothing but them, adds the bias before the
product and sums the rows of g while they are packed.

The kernel for bfloat16 is for processors that multiply it and have no matrix unit. It rounds operands in float32 while
it packs them, so that nothing is converted beforehand; sums, bias and the gradients of weights are in float32.

A row of y does not depend on how many other rows there are. `kernels.linear` decides when a kernel is used.
"""

from __future__ import annotations

from ctypes import CDLL
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.kernels.native import check, thread_count
from multihead.kernels.native.tensors import TYPES, in_half, library_for, pointer, without_autocast

COLUMNS = 64
"""The number of input features must be a multiple of this where the gradient of a weight is wanted in float32."""


def obstacle(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why the kernel does not support this linear map; None if it does."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if in_half(x, weight):
        if any(tensor.dtype not in TYPES or not tensor.is_cpu for tensor in tensors):
            return f"takes tensors of float32 or bfloat16 on a CPU, not {x.dtype} on {x.device.type}"
        return None if library_for(*tensors) is not None else "needs the compiled kernels and plain tensors"
    if any(tensor.dtype != torch.float32 or not tensor.is_cpu for tensor in tensors):
        return f"takes float32 tensors on a CPU, not {x.dtype} on {x.device.type}"
    if torch.is_autocast_enabled("cpu"):
        return "computes in float32 or bfloat16, and autocast asks for another type"
    if torch.is_grad_enabled() and weight.requires_grad and weight.shape[1] % COLUMNS:
        return f"trains weights for a multiple of {COLUMNS} input features, not {weight.shape[1]}"
    if library_for(*tensors) is None:
        return "needs the compiled kernels and plain tensors"
    return None


def product(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out in_features"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*axes out"]:
    """``x weight^T + bias`` in float32; a transposed weight is not copied. Not differentiable."""
    library = library_for(x, weight, bias)
    assert library is not None
    turned = not weight.is_contiguous() and weight.t().is_contiguous()
    return _product(library, x, weight.t() if turned else weight.contiguous(), bias, turned=turned)


def _product(library: CDLL, x: Tensor, weight: Tensor, bias: Tensor | None, *, turned: bool) -> Tensor:
    """`product`; the weight is contiguous, and that of a transposed one is [in_features, out]."""
    in_features, out = weight.shape if turned else reversed(weight.shape)
    x, full = x.contiguous(), torch.float32
    rows = x.numel() // max(1, in_features)
    y = x.new_empty(*x.shape[:-1], out)
    bias = None if bias is None else bias.contiguous()
    status = library.linear(
        *(pointer(x, rows * in_features, full), pointer(weight, out * in_features, full), pointer(bias, out, full)),
        *(pointer(y, rows * out, full), rows, in_features, out, turned, thread_count()),
    )
    check(status)
    return y


def half_product(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out in_features"],
    bias: Float[Tensor, " out"] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "*axes out"]:
    """``x weight^T + bias`` by the kernel for bfloat16, as ``dtype``; a transposed weight is not copied.

    The tensors are of float32 or bfloat16, and the kernels support them (`library_for`). Not differentiable.
    """
    library = library_for(x, weight, bias)
    assert library is not None
    turned = not weight.is_contiguous() and weight.t().is_contiguous()
    weight = weight.t() if turned else weight.contiguous()
    in_features, out = weight.shape if turned else reversed(weight.shape)
    x, bias = x.contiguous(), None if bias is None else bias.float().contiguous()
    rows = x.numel() // max(1, in_features)
    y = x.new_empty(*x.shape[:-1], out, dtype=dtype)
    status = library.half_linear(
        *(pointer(x, rows * in_features, x.dtype), TYPES[x.dtype]),
        *(pointer(weight, out * in_features, weight.dtype), TYPES[weight.dtype], pointer(bias, out, torch.float32)),
        *(pointer(y, rows * out, dtype), TYPES[dtype], rows, in_features, out, turned, thread_count()),
    )
    check(status)
    return y


def add_half_weight_gradient(
    g: Float[Tensor, "*axes out"],
    x: Float[Tensor, "*axes in_features"],
    into: Float[Tensor, "out in_features"] | None = None,
    *,
    with_bias: bool = False,
) -> tuple[Float[Tensor, "out in_features"], Float[Tensor, " out"] | None]:
    """As `add_weight_gradient`, by the kernel for bfloat16 and for any number of features.

    ``g`` and ``x`` are of float32 or bfloat16, and the results of float32.
    """
    library = library_for(g, x, into)
    assert library is not None
    out, in_features, full = g.shape[-1], x.shape[-1], torch.float32
    rows = g.numel() // max(1, out)
    g, x = g.contiguous(), x.contiguous()
    total = x.new_empty(out, in_features, dtype=full) if into is None else into
    sums = x.new_empty(out, dtype=full) if with_bias else None
    status = library.half_linear_weight(
        *(pointer(g, rows * out, g.dtype), TYPES[g.dtype], pointer(x, rows * in_features, x.dtype), TYPES[x.dtype]),
        *(pointer(total, out * in_features, full), pointer(sums, out, full)),
        *(rows, in_features, out, into is not None, thread_count()),
    )
    check(status)
    return total, sums


def add_weight_gradient(
    g: Float[Tensor, "*axes out"],
    x: Float[Tensor, "*axes in_features"],
    into: Float[Tensor, "out in_features"] | None = None,
    *,
    with_bias: bool = False,
) -> tuple[Float[Tensor, "out in_features"], Float[Tensor, " out"] | None]:
    """``g^T x``, added to ``into`` if that is given, and on request the sum of g's rows.

    The number of input features is a multiple of `COLUMNS`. Not differentiable.
    """
    library = library_for(g, x, into)
    assert library is not None
    out, in_features, full = g.shape[-1], x.shape[-1], torch.float32
    rows = g.numel() // max(1, out)
    assert in_features % COLUMNS == 0
    g, x = g.contiguous(), x.contiguous()
    total = x.new_empty(out, in_features) if into is None else into
    sums = x.new_empty(out) if with_bias else None
    status = library.linear_weight(
        *(pointer(g, rows * out, full), pointer(x, rows * in_features, full)),
        *(pointer(total, out * in_features, full), pointer(sums, out, full)),
        *(rows, in_features, out, into is not None, thread_count()),
    )
    check(status)
    return total, sums


class _Linear(torch.autograd.Function):
    """Each of the three products by the kernel; PyTorch computes gradients that are differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        create_graph = torch.is_grad_enabled()
        library = library_for(g)
        grad_x = grad_weight = grad_bias = None
        # `backward` may be called under autocast even if the forward pass was not.
        with without_autocast("cpu"):
            if create_graph or library is None:
                grad_x = g @ weight if wants_x else None
                g, x = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (g, x))
                grad_weight = g.t() @ x if wants_weight else None
                return grad_x, grad_weight, g.sum(0) if wants_bias else None
            if wants_x:
                grad_x = _product(library, g, weight.contiguous(), None, turned=True)
            if wants_weight:
                grad_weight, grad_bias = add_weight_gradient(g, x, with_bias=wants_bias)
            elif wants_bias:
                grad_bias = g.reshape(-1, g.shape[-1]).sum(0)
        return grad_x, grad_weight, grad_bias


class _HalfLinear(torch.autograd.Function):
    """As `_Linear`, with products of bfloat16: y is of bfloat16, gradients have the types of what they belong to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_type = None if bias is None else bias.dtype
        return half_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        # `backward` may be called under autocast even if the forward pass was not.
        with without_autocast("cpu"):
            if torch.is_grad_enabled() or library_for(g) is None:
                full, other = g.float(), x.float()
                grad_x = (full @ weight.float()).to(x.dtype) if wants_x else None
                full, other = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (full, other))
                grad_weight = (full.t() @ other).to(weight.dtype) if wants_weight else None
                return grad_x, grad_weight, full.sum(0).to(ctx.bias_type) if wants_bias else None
            if wants_x:
                grad_x = half_product(g, weight.t(), None, x.dtype)
            if wants_weight:
                grad_weight, grad_bias = add_half_weight_gradient(g, x, with_bias=wants_bias)
                grad_weight = grad_weight.to(weight.dtype)
            elif wants_bias:
                grad_bias = g.reshape(-1, g.shape[-1]).float().sum(0)
        return grad_x, grad_weight, None if grad_bias is None else grad_bias.to(ctx.bias_type)


def differentiable_product(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out in_features"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*axes out"]:
    """The product of a linear map where `obstacle` is None, differentiable any number of times.

    In bfloat16 where PyTorch would multiply in it (`in_half`), and in float32 elsewhere.
    """
    half = in_half(x, weight)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        function = _HalfLinear if half else _Linear
        y: Tensor = function.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return half_product(x, weight, bias) if half else product(x, weight, bias)
