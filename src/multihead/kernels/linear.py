"""A linear map in float32 by whichever library multiplies faster on this processor; PyTorch's own stands beside it.

    y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows

PyTorch hands float32 products on a CPU to MKL, which on AMD processors keeps to 256-bit instructions. Where the
processor computes 512 bits at once (Zen 5) oneDNN, which PyTorch has with it, is twice as fast; elsewhere they are
equal (docs/lab-notes.md). Which one is taken is a rule from facts of the processor, never a measurement, so that equal
runs stay equal bit for bit; the environment variable MULTIHEAD_LINEAR (``pytorch`` or ``onednn``) overrules it. What
oneDNN is not for goes to PyTorch: other devices and types, autocast, compiling, function transforms, few rows.

oneDNN compiles code for each number of rows and keeps it, so it gets multiples of `ROWS` and PyTorch gets the rest:
batches of ever new sizes then have a few shapes only.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from multihead.errors import ConfigurationError

Library = Literal["pytorch", "onednn"]

VARIABLE = "MULTIHEAD_LINEAR"

ROWS = 256
"""oneDNN multiplies a multiple of so many rows at a time; PyTorch does the rest."""

LEAST = 2**25
"""Multiplications below which a product is not worth a call of its own (a sixth of a millisecond)."""

_ZEN_5 = 26
"""The family of the first AMD processors with 512-bit arithmetic."""


def linear(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out_features in_features"],
    bias: Float[Tensor, " out_features"] | None = None,
    *,
    library: Library | None = None,
) -> Float[Tensor, "*axes out_features"]:
    """``torch.nn.functional.linear``, and as fast as the processor can; differentiable as often as that is.

    Args:
        x: any number of axes.
        weight: W.
        bias: b.
        library: by name; None = :func:`library_for_this_processor`, where the call is one for it.

    Raises:
        ConfigurationError: oneDNN is asked for by name and cannot do this call.
    """
    if library is None and torch.compiler.is_compiling():  # a compiler chooses for itself
        return F.linear(x, weight, bias)
    chosen = library_for_this_processor() if library is None else library
    if chosen == "onednn":
        refusal = _refusal(x, weight, bias)
        if refusal and library is not None:
            raise ConfigurationError(f"library='onednn' {refusal}: write library=None")
        if not refusal and (library is not None or _large(x, weight)):
            return _onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def weight_gradient(
    g: Float[Tensor, "rows out_features"], x: Float[Tensor, "rows in_features"]
) -> Float[Tensor, "out_features in_features"]:
    """``g.t() @ x``, the gradient of a weight, by the library that `linear` takes; itself without a gradient."""
    fit = not torch.compiler.is_compiling() and library_for_this_processor() == "onednn"
    if fit and len(g) >= ROWS and g.numel() * x.shape[-1] >= LEAST and not _refusal(g, x, None):
        return _sum_over_rows(g.detach(), x.detach())
    return g.t() @ x


class Linear(nn.Linear):
    """``torch.nn.Linear``, its product by :func:`linear`."""

    def forward(self, input: Float[Tensor, "*axes in_features"]) -> Float[Tensor, "*axes out_features"]:
        """y = x W^T + b."""
        return linear(input, self.weight, self.bias)


@lru_cache(maxsize=1)
def library_for_this_processor() -> Library:
    """The library for large float32 products: the environment's word, or the rule of this module's docstring.

    Raises:
        ConfigurationError: the environment variable names something else.
    """
    wanted = os.environ.get(VARIABLE, "")
    for name in get_args(Library):
        if wanted == name:
            return name  # type: ignore[no-any-return]
    if wanted:
        raise ConfigurationError(f"{VARIABLE}={wanted!r}: there are {' and '.join(get_args(Library))}")
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "pytorch"
    with_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return "onednn" if with_mkl and _has_onednn() and _is_zen_5(facts) else "pytorch"


def _is_zen_5(facts: str) -> bool:
    """Whether Linux's text about the first processor says AMD, of a family from Zen 5 on, with 512-bit instructions."""
    first = facts.split("\n\n", 1)[0]
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    family = said.get("cpu family", "")
    return (
        said.get("vendor_id") == "AuthenticAMD"
        and family.isdigit()
        and int(family) >= _ZEN_5
        and "avx512f" in said.get("flags", "").split()
    )


def _large(x: Tensor, weight: Tensor) -> bool:
    rows = x.numel() // max(1, x.shape[-1])
    return rows >= ROWS and rows * weight.numel() >= LEAST


def _refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why oneDNN cannot do this call; None if it can."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return "is not for compiled code"
    if torch._C._are_functorch_transforms_active():
        return "does not know torch.func's transforms"
    if any(type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided for tensor in given):
        return "takes plain tensors"
    if any(tensor.is_nested or tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in given):
        return f"takes float32 tensors on a CPU, not {x.dtype} on {x.device.type}"
    if torch.is_autocast_enabled("cpu"):
        return "computes in float32, and autocast asks for another type"
    if any(unpack_dual(tensor).tangent is not None for tensor in given):  # type: ignore[no-untyped-call]
        return "has no forward-mode derivative"
    if not torch.backends.mkldnn.enabled or not _has_onednn():
        return "needs a PyTorch with oneDNN, and oneDNN switched on"
    return None


@lru_cache(maxsize=1)
def _has_onednn() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    compute = _Linear.apply if wanted else _rows_by
    y: Tensor = compute(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """Each of the three products by oneDNN; a gradient that is itself differentiated, by PyTorch."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _rows_by(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        again = torch.is_grad_enabled()
        of_x = of_weight = None
        # `backward` may be called where autocast is on, though the forward pass was not.
        with torch.autocast("cpu", enabled=False):
            if ctx.needs_input_grad[0]:
                of_x = g @ weight if again else _rows_by(g, weight.t(), None)
            if ctx.needs_input_grad[1]:
                of_weight = g.t() @ x if again else _sum_over_rows(g, x)
        return of_x, of_weight, g.sum(0) if ctx.needs_input_grad[2] else None


def _rows_by(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for x [rows, in] and W [out, in]."""
    whole = _whole(x)
    if whole == 0:
        return F.linear(x, weight, bias)
    if whole == len(x):
        return _product(x, weight, bias)
    return torch.cat((_product(x[:whole], weight, bias), F.linear(x[whole:], weight, bias)))


def _sum_over_rows(g: Tensor, x: Tensor) -> Tensor:
    """g^T x for g [rows, out] and x [rows, in]."""
    whole = _whole(x)
    if whole == 0:
        return g.t() @ x
    # The first factor is copied, so it is the narrower one.
    left, right = (x, g) if x.shape[1] < g.shape[1] else (g, x)
    total = _product(left[:whole].t(), right[:whole].t(), None)
    if whole < len(x):
        total.addmm_(left[whole:].t(), right[whole:])
    return total.t() if left is x else total


def _whole(x: Tensor) -> int:
    """How many rows oneDNN gets."""
    return len(x) // ROWS * ROWS if x.dtype == torch.float32 else 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result
