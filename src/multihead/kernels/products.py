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
    return _product(x, weight, bias, torch.float32, half=False)


def half_product(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out in_features"],
    bias: Float[Tensor, " out"] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "*axes out"]:
    """``x weight^T + bias`` by the kernel for bfloat16, as ``dtype``; a transposed weight is not copied.

    The tensors are of float32 or bfloat16, and the kernels support them (`library_for`). Not differentiable.
    """
    return _product(x, weight, None if bias is None else bias.float(), dtype, half=True)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, half: bool) -> Tensor:
    library = library_for(x, weight, bias)
    assert library is not None
    turned = not weight.is_contiguous() and weight.t().is_contiguous()
    weight = weight.t() if turned else weight.contiguous()
    in_features, out = weight.shape if turned else reversed(weight.shape)
    x, bias = x.contiguous(), None if bias is None else bias.contiguous()
    rows, full = x.numel() // max(1, in_features), torch.float32
    y, sizes = x.new_empty(*x.shape[:-1], out, dtype=dtype), (rows, in_features, out, turned, thread_count())
    if half:
        factors = *_typed(x, rows * in_features), *_typed(weight, out * in_features)
        status = library.half_linear(*factors, pointer(bias, out, full), *_typed(y, rows * out), *sizes)
    else:
        status = library.linear(
            *(pointer(x, rows * in_features, full), pointer(weight, out * in_features, full)),
            *(pointer(bias, out, full), pointer(y, rows * out, full), *sizes),
        )
    check(status)
    return y


def _typed(tensor: Tensor, count: int) -> tuple[int | None, int]:
    """The address and the type of a tensor, as the kernels for bfloat16 take them."""
    return pointer(tensor, count, tensor.dtype), TYPES[tensor.dtype]


def add_weight_gradient(
    g: Float[Tensor, "*axes out"],
    x: Float[Tensor, "*axes in_features"],
    into: Float[Tensor, "out in_features"] | None = None,
    *,
    with_bias: bool = False,
    half: bool = False,
) -> tuple[Float[Tensor, "out in_features"], Float[Tensor, " out"] | None]:
    """``g^T x``, added to ``into`` if that is given, and on request the sum of g's rows. Not differentiable.

    The number of input features is a multiple of `COLUMNS`. With ``half``, the kernel for bfloat16 computes it, for any
    number of features, and ``g`` and ``x`` are of float32 or bfloat16. The results are of float32.
    """
    library = library_for(g, x, into)
    assert library is not None
    out, in_features, full = g.shape[-1], x.shape[-1], torch.float32
    rows = g.numel() // max(1, out)
    g, x = g.contiguous(), x.contiguous()
    total = x.new_empty(out, in_features, dtype=full) if into is None else into
    sums = x.new_empty(out, dtype=full) if with_bias else None
    results = pointer(total, out * in_features, full), pointer(sums, out, full)
    sizes = rows, in_features, out, into is not None, thread_count()
    if half:
        factors = *_typed(g, rows * out), *_typed(x, rows * in_features)
        status = library.half_linear_weight(*factors, *results, *sizes)
    else:
        assert in_features % COLUMNS == 0
        status = library.linear_weight(
            *(pointer(g, rows * out, full), pointer(x, rows * in_features, full), *results, *sizes)
        )
    check(status)
    return total, sums


class _Linear(torch.autograd.Function):
    """Each of the three products by the kernel; PyTorch computes gradients that are differentiated again.

    With ``half``, y is of bfloat16, and gradients have the types of what they belong to.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, half: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.half, ctx.bias_type = half, None if bias is None else bias.dtype
        return half_product(x, weight, bias) if half else product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        # `backward` may be called under autocast even if the forward pass was not.
        with without_autocast("cpu"):
            if torch.is_grad_enabled() or library_for(g) is None:
                full = g.float()
                grad_x = (full @ weight.float()).to(x.dtype) if wants_x else None
                full, other = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (full, x.float()))
                grad_weight, grad_bias = full.t() @ other if wants_weight else None, full.sum(0) if wants_bias else None
            else:
                if wants_x:
                    turned = weight.contiguous().t()
                    grad_x = half_product(g, turned, None, x.dtype) if ctx.half else product(g, turned)
                if wants_weight:
                    grad_weight, grad_bias = add_weight_gradient(g, x, with_bias=wants_bias, half=ctx.half)
                elif wants_bias:
                    grad_bias = g.reshape(-1, g.shape[-1]).float().sum(0)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_x, grad_weight, None if grad_bias is None else grad_bias.to(ctx.bias_type), None


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
        y: Tensor = _Linear.apply(x, weight, bias, half)  # type: ignore[no-untyped-call]
        return y
    return half_product(x, weight, bias) if half else product(x, weight, bias)
