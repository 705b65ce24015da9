"""Output projection and cross-entropy, fused in cache-sized pieces.

    z = h W^T
    loss = sum_i  log sum_v exp z_iv  -  (1 - s) z_iy  -  (s / V) sum_v z_iv       (label smoothing s:
                                                                                    Szegedy et al. 2016, section 7)

The logits of a batch are the largest tensor of a small translator (4,096 x 10,000 floats = 160 MB). Here, pieces of at
most `ROWS` rows are projected, reduced, and at once turned into their gradient  dz = softmax(z) - (1 - s) 1[y] - s / V,
so that the logits are never in memory as a whole, and only dh and dW are kept for the backward pass. The compiled
kernel computes everything between the products in one pass, and writes dz over z. `plain` is the unfused definition.
"""

from __future__ import annotations

from ctypes import CDLL
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from multihead.errors import ShapeError
from multihead.kernels.linear import linear, weight_gradient
from multihead.kernels.native import TYPES, library_for, pointer

ROWS = 512
"""Rows per piece: 512 x 8,000 logits in float32 are 16 MB."""


class Loss(NamedTuple):
    """Sums over the rows; divide by the number of rows for means."""

    total: Float[Tensor, ""]
    """The smoothed cross-entropy in nats: the training objective."""
    nll: Float[Tensor, ""]
    """The cross-entropy without smoothing, in nats: the log of the perplexity times the rows. Has no gradient."""
    correct: Int[Tensor, ""]
    """Number of rows in which no logit is larger than the target's."""


def plain(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocab width"],
    target: Int[Tensor, " rows"],
    smoothing: float,
) -> Loss:
    """The definition with PyTorch's operations; `linear_cross_entropy` computes the same."""
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    nll = F.cross_entropy(logits.detach(), target, reduction="sum")
    at_target = logits.gather(-1, target[:, None]).squeeze(-1)
    return Loss(total, nll, (at_target == logits.amax(-1)).sum())


def linear_cross_entropy(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocab width"],
    target: Int[Tensor, " rows"],
    smoothing: float = 0.0,
) -> Loss:
    """Project ``hidden`` by ``weight`` and sum the cross-entropy with ``target`` over the rows.

    Under autocast the products have its dtype; sums and exponentials are always at least float32.
    """
    device = hidden.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    total, nll, correct = _Function.apply(hidden, weight, target, smoothing, product)  # type: ignore[no-untyped-call]
    return Loss(total, nll, correct)


class _Function(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, product: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = hidden.requires_grad or weight.requires_grad
        accumulator = torch.promote_types(hidden.dtype, torch.float32)
        low_hidden, low_weight = hidden.to(product), weight.to(product)
        sums = torch.zeros(2, dtype=accumulator, device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=accumulator) if needs_grad else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(target), ROWS):
                piece, labels = low_hidden[start : start + ROWS], target[start : start + ROWS]
                logits = linear(piece, low_weight)  # [at most ROWS, vocab]
                total, nll, gradient, hits = _piece(logits, labels, smoothing, needs_grad, accumulator)
                sums += torch.stack((total, nll))
                correct += hits
                if grad_hidden is not None and grad_weight is not None:
                    low = gradient.to(product)
                    grad_hidden[start : start + ROWS] = linear(low, low_weight.t())  # dh = dz W
                    grad_weight += weight_gradient(low, piece)  # dW = dz^T h
        ctx.save_for_backward(grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(correct)
        return sums[0], sums[1].detach(), correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = gradients[0]  # a scalar: 1 / tokens when the loss is a mean
        return grad_hidden * scale, grad_weight * scale, None, None, None


def _piece(
    logits: Tensor, target: Tensor, smoothing: float, needs_grad: bool, accumulator: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Total loss, nll, dz [rows, vocab] and number of hits of one piece; ``logits`` is overwritten."""
    library = library_for(logits)
    if library is not None and accumulator == torch.float32:
        return _compiled_piece(library, logits, target, smoothing, needs_grad)
    logits = logits.to(accumulator)
    vocabulary = logits.size(-1)
    largest = logits.amax(-1)
    at_target = logits.gather(-1, target[:, None]).squeeze(-1)
    hits = (at_target == largest).sum()
    sums = logits.sum(-1) if smoothing else torch.zeros_like(largest)
    exponentials = logits.sub_(largest[:, None]).exp_()
    partition = exponentials.sum(-1)
    log_partition = largest + partition.log()
    nll = (log_partition - at_target).sum()
    total = (log_partition - (1 - smoothing) * at_target - smoothing / vocabulary * sums).sum()
    if needs_grad:
        exponentials.div_(partition[:, None])  # softmax(z), which becomes dz in place
        if smoothing:
            exponentials.sub_(smoothing / vocabulary)
        minus = torch.full_like(at_target, smoothing - 1.0)
        exponentials.scatter_add_(-1, target[:, None], minus[:, None])
    return total, nll, exponentials, hits


def _compiled_piece(
    library: CDLL, logits: Tensor, target: Tensor, smoothing: float, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_piece` by the compiled kernel, which sums in float64."""
    rows, vocabulary = logits.shape
    if len(target) != rows:
        raise ShapeError(f"one target a row is needed, got {len(target)} of them and at least {rows} rows")
    target = target.to(torch.int64).contiguous()
    if rows and not 0 <= int(target.min()) <= int(target.max()) < vocabulary:
        raise IndexError(f"targets must be from 0 to {vocabulary - 1}")
    sums = torch.empty(2, rows, dtype=torch.float64)  # total and nll of each row
    hits = torch.empty(rows, dtype=torch.int64)
    library.cross_entropy(
        *(pointer(logits), TYPES[logits.dtype], pointer(target), rows, vocabulary, smoothing, needs_grad),
        *(pointer(sums[0]), pointer(sums[1]), pointer(hits), torch.get_num_threads()),
    )
    total, nll = sums.sum(1).float().unbind()
    return total, nll, logits, hits.sum()
