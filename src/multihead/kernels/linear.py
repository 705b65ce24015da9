"""Linear maps on the CPU; output projection fused with cross-entropy.

    y = x W^T + b        dx = g W        dW = g^T x        db = sum of g's rows

On a CPU, PyTorch computes float32 products with MKL, which uses 256-bit instructions on AMD processors. Where the
processor has 512-bit arithmetic (Zen 5), oneDNN, which is part of PyTorch, is twice as fast; elsewhere both are equally
fast. On AMD processors without AVX-512, our own kernel (`kernels.products`) is faster than both (docs/lab-notes.md).
Products of bfloat16, as the tensors' type or autocast's, are computed by our own kernel on Zen 4, where it is faster
than oneDNN, and by PyTorch elsewhere. `linear` chooses by a rule about the processor, never by a measurement, so that
equal runs stay equal bit for bit. The environment variable MULTIHEAD_LINEAR (``pytorch``, ``onednn`` or ``compiled``)
overrides it. PyTorch's own product is used wherever the other cannot be: on other devices and dtypes, under
torch.compile and function transforms, and for few rows. oneDNN compiles and caches code for each number of rows. It
therefore gets a multiple of `ONEDNN_ROWS`, so that batches of many sizes need few compilations, and PyTorch computes
the remaining rows.

    z = h W^T
    loss = sum_i  log sum_v exp z_iv  -  (1 - s) z_iy  -  (s / V) sum_v z_iv       (label smoothing s:
                                                                                    Szegedy et al. 2016, section 7)

The logits z of a batch are the largest tensor of a small translator (4,096 x 10,000 floats = 160 MB). In
`linear_cross_entropy`, pieces of at most `LOSS_ROWS` rows are projected, reduced, and at once turned into their
gradient  dz = softmax(z) - (1 - s) 1[y] - s / V,  so that the logits are never in memory as a whole, and only dh and dW
are kept for the backward pass. The compiled kernel computes everything between the products in one pass, and writes dz
over z. `plain_linear_cross_entropy` is the unfused definition. Soft targets, such as a teacher's predictions, are in
`kernels.soft_targets`. With a factor f_i for each row, the loss is sum_i f_i loss_i, and dz_i is multiplied by f_i.
"""

from __future__ import annotations

import os
from ctypes import CDLL
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.function import once_differentiable

from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels import products, soft_targets
from multihead.kernels.native import check, load_kernels, multiplies_half, thread_count
from multihead.kernels.native.tensors import TYPES, in_half, library_for, pointer, without_autocast
from multihead.kernels.soft_targets import SoftTargets
from multihead.platforms import Processor, processor

Library = Literal["pytorch", "onednn", "compiled"]

VARIABLE = "MULTIHEAD_LINEAR"

ONEDNN_ROWS = 256
"""oneDNN gets a multiple of this many rows; PyTorch computes the rest."""

MIN_PRODUCTS = 2**25
"""Minimum number of multiplications for oneDNN; fewer take less than a sixth of a millisecond."""

MIN_ROWS = 64
"""Minimum number of rows for our own kernel."""

MIN_OWN_PRODUCTS = 2**21
"""Minimum number of multiplications for our own kernel; fewer take less than a twentieth of a millisecond."""


def linear(
    x: Float[Tensor, "*axes in_features"],
    weight: Float[Tensor, "out_features in_features"],
    bias: Float[Tensor, " out_features"] | None = None,
    *,
    library: Library | None = None,
) -> Float[Tensor, "*axes out_features"]:
    """``torch.nn.functional.linear`` with the faster library; differentiable any number of times.

    Args:
        x: input with any number of axes.
        weight: W.
        bias: b.
        library: the library to use; None = :func:`library_for_this_processor`, where it supports the call.

    Raises:
        ConfigurationError: ``library`` is "onednn" or "compiled", which does not support the call.
    """
    if library is None and torch.compiler.is_compiling():  # the compiler chooses the kernel
        return F.linear(x, weight, bias)
    chosen = library_for_this_processor(in_half(x, weight)) if library is None else library
    if chosen == "onednn":
        obstacle = _onednn_obstacle(x, weight, bias)
        if obstacle and library is not None:
            raise ConfigurationError(f"library='onednn' {obstacle}: write library=None")
        if not obstacle and (library is not None or _large(x, weight)):
            return _onednn(x, weight, bias)
    if chosen == "compiled" and (library is not None or _worth_it(x, weight)):
        obstacle = products.obstacle(x, weight, bias)
        if obstacle and library is not None:
            raise ConfigurationError(f"library='compiled' {obstacle}: write library=None")
        if not obstacle:
            return products.differentiable_product(x, weight, bias)
    return F.linear(x, weight, bias)


def weight_gradient(
    g: Float[Tensor, "rows out_features"], x: Float[Tensor, "rows in_features"]
) -> Float[Tensor, "out_features in_features"]:
    """``g.t() @ x``, the gradient of a weight, by the library that `linear` uses; not differentiable."""
    if torch.compiler.is_compiling() or library_for_this_processor() != "onednn":
        return g.t() @ x
    if len(g) >= ONEDNN_ROWS and g.numel() * x.shape[-1] >= MIN_PRODUCTS and not _onednn_obstacle(g, x, None):
        return _sum_over_rows(g.detach(), x.detach())
    return g.t() @ x


def _add_weight_gradient(total: Tensor, g: Tensor, x: Tensor) -> None:
    """Add `weight_gradient` to ``total``."""
    half = in_half(g, x)
    own = not torch.compiler.is_compiling() and library_for_this_processor(half) == "compiled" and total.is_contiguous()
    if own and (half or not x.shape[1] % products.COLUMNS) and products.obstacle(g, x, total) is None:
        products.add_weight_gradient(g, x, total, half=half)
    else:
        total += weight_gradient(g, x)


class Linear(nn.Linear):
    """``torch.nn.Linear`` with :func:`linear`."""

    def forward(self, input: Float[Tensor, "*axes in_features"]) -> Float[Tensor, "*axes out_features"]:
        return linear(input, self.weight, self.bias)


@lru_cache(maxsize=2)
def library_for_this_processor(half: bool = False) -> Library:
    """The library for large products of float32, or of bfloat16 if ``half``.

    It is from the environment, or by the rule of this module's docstring. Products of bfloat16 are "pytorch" where
    the environment says "onednn", which PyTorch uses for them by itself.

    Raises:
        ConfigurationError: the environment variable has another value.
    """
    requested = os.environ.get(VARIABLE, "")
    for name in get_args(Library):
        if requested == name:
            return "pytorch" if half and name == "onednn" else name
    if requested:
        raise ConfigurationError(f"{VARIABLE}={requested!r}: expected one of {', '.join(get_args(Library))}")
    own = processor().is_zen_4 and multiplies_half() if half else _is_amd_avx2(processor())
    if own and load_kernels().library is not None:
        return "compiled"
    if half:
        return "pytorch"
    with_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return "onednn" if with_mkl and _has_onednn() and processor().is_zen_5 else "pytorch"


def _is_amd_avx2(processor: Processor) -> bool:
    """Whether it is an AMD processor with 256-bit instructions and none of 512 bits."""
    return processor.is_amd and {"avx2", "fma"} <= processor.features and "avx512f" not in processor.features


def _worth_it(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is large enough for our own kernel, which is not traced."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False  # the sizes are tensors
    rows = x.numel() // max(1, x.shape[-1])
    return rows >= MIN_ROWS and rows * weight.numel() >= MIN_OWN_PRODUCTS


def _large(x: Tensor, weight: Tensor) -> bool:
    rows = x.numel() // max(1, x.shape[-1])
    return rows >= ONEDNN_ROWS and rows * weight.numel() >= MIN_PRODUCTS


def _onednn_obstacle(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why oneDNN does not support this call; None if it does."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return "is not for compiled code"
    if torch._C._are_functorch_transforms_active():
        return "does not know torch.func's transforms"
    if any(type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided for tensor in tensors):
        return "takes plain tensors"
    if any(tensor.is_nested or tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
        return f"takes float32 tensors on a CPU, not {x.dtype} on {x.device.type}"
    if torch.is_autocast_enabled("cpu"):
        return "computes in float32, and autocast asks for another type"
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):  # type: ignore[no-untyped-call]
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
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    compute = _Linear.apply if needs_grad else _linear_by_rows
    y: Tensor = compute(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """Each of the three products by oneDNN; PyTorch computes gradients that are differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _linear_by_rows(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        create_graph = torch.is_grad_enabled()
        grad_x = grad_weight = None
        # `backward` may be called under autocast even if the forward pass was not.
        with without_autocast("cpu"):
            if ctx.needs_input_grad[0]:
                grad_x = g @ weight if create_graph else _linear_by_rows(g, weight.t(), None)
            if ctx.needs_input_grad[1]:
                grad_weight = g.t() @ x if create_graph else _sum_over_rows(g, x)
        return grad_x, grad_weight, g.sum(0) if ctx.needs_input_grad[2] else None


def _linear_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for x [rows, in] and W [out, in]."""
    split = _onednn_rows(x)
    if split == 0:
        return F.linear(x, weight, bias)
    if split == len(x):
        return _product(x, weight, bias)
    return torch.cat((_product(x[:split], weight, bias), F.linear(x[split:], weight, bias)))


def _sum_over_rows(g: Tensor, x: Tensor) -> Tensor:
    """g^T x [out, in] for g [rows, out] and x [rows, in]."""
    split = _onednn_rows(x)
    if split == 0:
        return g.t() @ x
    # oneDNN copies the transposed first factor, so that is the narrower one; the result may be transposed, x^T g.
    left, right = (x, g) if x.shape[1] < g.shape[1] else (g, x)
    total = _product(left[:split].t(), right[:split].t(), None)
    if split < len(x):
        total.addmm_(left[split:].t(), right[split:])
    return total.t() if left is x else total


def _onednn_rows(x: Tensor) -> int:
    """Number of leading rows for oneDNN: a multiple of `ONEDNN_ROWS`."""
    return len(x) // ONEDNN_ROWS * ONEDNN_ROWS if x.dtype == torch.float32 else 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b by oneDNN."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


LOSS_ROWS = 512
"""Rows per piece: 512 x 8,000 logits in float32 are 16 MB."""


class Loss(NamedTuple):
    """Sums over the rows; divide by the number of rows for means."""

    total: Float[Tensor, ""]
    """The training objective in nats: the smoothed cross-entropy; with soft targets its mean with theirs; each row
    multiplied by its factor, if there are any."""
    nll: Float[Tensor, ""]
    """The cross-entropy without smoothing, in nats: the log of the perplexity times the rows. Has no gradient."""
    correct: Int[Tensor, ""]
    """Number of rows in which no logit is larger than the target's."""
    labels: Float[Tensor, ""] | None = None
    """With soft targets or factors: the smoothed cross-entropy of the targets alone. Has no gradient."""
    soft: Float[Tensor, ""] | None = None
    """With soft targets: the cross-entropy with them alone. Has no gradient."""
    guided: Float[Tensor, ""] | None = None
    """With links: the cross-entropy of the alignment with a head's weights (`kernels.guided`). Has no gradient."""


def plain_linear_cross_entropy(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocab width"],
    target: Int[Tensor, " rows"],
    smoothing: float,
    bias: Float[Tensor, " vocab"] | None = None,
    soft: SoftTargets | None = None,
    factors: Float[Tensor, " rows"] | None = None,
) -> Loss:
    """The definition with PyTorch's operations; `linear_cross_entropy` computes the same."""
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    nll = F.cross_entropy(logits.detach(), target, reduction="sum")
    at_target = logits.gather(-1, target[:, None]).squeeze(-1)
    hits = (at_target == logits.amax(-1)).sum()
    if soft is None and factors is None:
        return Loss(labels.sum(), nll, hits)
    rows, own = labels, None
    if soft is not None:
        own = soft_targets.plain_soft_cross_entropy(logits, soft)
        rows = (1 - soft.weight) * labels + soft.weight * own
    total = rows.sum() if factors is None else (rows * factors).sum()
    return Loss(total, nll, hits, labels.sum().detach(), None if own is None else own.sum().detach())


def linear_cross_entropy(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocab width"],
    target: Int[Tensor, " rows"],
    smoothing: float = 0.0,
    bias: Float[Tensor, " vocab"] | None = None,
    soft: SoftTargets | None = None,
    factors: Float[Tensor, " rows"] | None = None,
) -> Loss:
    """Project ``hidden`` by ``weight`` and ``bias`` and sum the cross-entropy with ``target`` over the rows.

    Under autocast the products have its dtype; sums and exponentials are always at least float32. With ``soft``, the
    total is the mean with the cross-entropy of these distributions, as `kernels.soft_targets` says. With ``factors``,
    the total counts each row so many times; the other sums do not.

    Raises:
        ShapeError: there are not as many targets, soft targets or factors as rows.
    """
    given: dict[str, Tensor | None] = {
        "targets": target,
        "soft targets": None if soft is None else soft.ids,
        "factors": factors,
    }
    for name, one in given.items():
        if one is not None and len(one) != len(hidden):
            raise ShapeError(f"expected {name} for each of {len(hidden)} rows, got {len(one)}")
    device = hidden.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if not torch.is_grad_enabled():  # the gradients that the forward pass computes would be for nobody
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    return Loss(*_LinearCrossEntropy.apply(hidden, weight, bias, target, smoothing, product, soft, factors))  # type: ignore[no-untyped-call]


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        product: torch.dtype,
        soft: SoftTargets | None,
        factors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        needs_grad = any(tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias))
        accumulator = torch.promote_types(hidden.dtype, torch.float32)
        low_hidden, low_weight = hidden.to(product), weight.to(product)
        low_bias = None if bias is None else bias.to(product)
        counted = (2 if factors is None else 3) if soft is None else 4
        sums = torch.zeros(counted, dtype=accumulator, device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=accumulator) if weight.requires_grad else None
        grad_bias = torch.zeros_like(bias, dtype=accumulator) if bias is not None and bias.requires_grad else None
        with without_autocast(hidden.device.type):
            for start in range(0, len(target), LOSS_ROWS):
                piece, labels = low_hidden[start : start + LOSS_ROWS], target[start : start + LOSS_ROWS]
                own = None if soft is None else soft.rows(start, start + LOSS_ROWS)
                logits = linear(piece, low_weight, low_bias)  # [at most LOSS_ROWS, vocab]
                losses, gradient, hits = _piece(logits, labels, smoothing, own, needs_grad, accumulator)
                if factors is not None:
                    times = factors[start : start + LOSS_ROWS]
                    losses = torch.cat((losses[:1] * times, losses[1:], losses[: counted - len(losses)]))
                    gradient = gradient.mul_(times[:, None]) if needs_grad else gradient
                sums += losses.sum(1).to(accumulator)
                correct += hits
                if grad_hidden is not None:
                    low = gradient.to(product)
                    grad_hidden[start : start + LOSS_ROWS] = linear(low, low_weight.t())  # dh = dz W
                    if grad_weight is not None:
                        _add_weight_gradient(grad_weight, low, piece)  # dW = dz^T h
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
        ctx.save_for_backward(
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if bias is None or grad_bias is None else grad_bias.to(bias.dtype),
        )
        total, nll, *others = (part.clone() for part in sums)  # an output that is a view of another gets gradients
        ctx.mark_non_differentiable(nll, correct, *others)
        return total, nll, correct, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]  # a scalar: 1 / tokens when the loss is a mean
        found = [None if gradient is None else gradient * scale for gradient in ctx.saved_tensors]
        return *found, None, None, None, None, None


def _piece(
    logits: Tensor, target: Tensor, smoothing: float, soft: SoftTargets | None, needs_grad: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [2, with soft targets 4; rows] of a piece, dz [rows, vocab], number of hits; overwrites ``logits``."""
    library = library_for(logits) if dtype == torch.float32 else None
    if library is not None:
        target = _checked_target(logits, target)
    else:
        logits = logits.to(dtype)
    if soft is not None:
        return soft_targets.piece(logits, target, smoothing, soft, library, needs_grad)
    if library is not None:
        return _compiled_piece(library, logits, target, smoothing, needs_grad)
    vocabulary = logits.size(-1)
    largest = logits.amax(-1)
    at_target = logits.gather(-1, target[:, None]).squeeze(-1)
    hits = (at_target == largest).sum()
    sums = logits.sum(-1) if smoothing else torch.zeros_like(largest)
    exponentials = logits.sub_(largest[:, None]).exp_()
    partition = exponentials.sum(-1)
    log_partition = largest + partition.log()
    nll = log_partition - at_target
    total = log_partition - (1 - smoothing) * at_target - smoothing / vocabulary * sums
    if needs_grad:
        exponentials.div_(partition[:, None])  # softmax(z), which becomes dz in place
        if smoothing:
            exponentials.sub_(smoothing / vocabulary)
        minus = torch.full_like(at_target, smoothing - 1.0)
        exponentials.scatter_add_(-1, target[:, None], minus[:, None])
    return torch.stack((total, nll)), exponentials, hits


def _checked_target(logits: Tensor, target: Tensor) -> Tensor:
    """The targets as the compiled kernels take them, which check nothing."""
    rows, vocabulary = logits.shape
    target = target.to(torch.int64).contiguous()
    if rows and not 0 <= int(target.min()) <= int(target.max()) < vocabulary:
        raise IndexError(f"targets must be from 0 to {vocabulary - 1}")
    return target


def _compiled_piece(
    library: CDLL, logits: Tensor, target: Tensor, smoothing: float, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`_piece` by the compiled kernel, which sums in float64."""
    rows, vocabulary = logits.shape
    sums = torch.empty(2, rows, dtype=torch.float64)  # total and nll of each row
    hits = torch.empty(rows, dtype=torch.int64)
    status = library.cross_entropy(
        *(pointer(logits, rows * vocabulary, logits.dtype), TYPES[logits.dtype]),
        *(pointer(target, rows, torch.int64), rows, vocabulary, smoothing, needs_grad),
        *(pointer(part, rows, torch.float64) for part in sums),
        *(pointer(hits, rows, torch.int64), thread_count()),
    )
    check(status)
    return sums, logits, hits.sum()
