"""Dropout whose random numbers cost little on a CPU; PyTorch's own stands beside it for every other device.

    y = x * m / (1 - p),   m ~ Bernoulli(1 - p)           (Srivastava et al. 2014, section 4)

PyTorch's CPU dropout draws one number after another: 6 ns an element on the machine of docs/lab-notes.md. Here one
63-bit draw serves eight elements, a byte for each: 1.3 ns. The price: p is rounded to a multiple of 1/128
(0.1 becomes 13/128 = 0.1016), and the survivors are scaled by that rounded value, so that the mean is exact.

Where the random numbers come from (the seed of each step) is the caller's business.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

_LEVELS = 128


def keep_mask(shape: torch.Size, p: float) -> Bool[Tensor, ...]:
    """Draws a mask on the CPU that is True with probability 1 - round(128 p) / 128, independently everywhere."""
    count = math.prod(shape)
    # 63 random bits shifted up by one: the lowest bit is always 0, so a byte is uniform over even thresholds.
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_().bitwise_left_shift_(1)
    return (words.view(torch.uint8)[:count] >= 2 * round(_LEVELS * p)).view(shape)


class _ByteDropout(torch.autograd.Function):
    """Multiplies by the scaled mask, forwards and backwards: it has the type of ``x``, so that nothing is converted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        scaled = keep.to(x.dtype).mul_(scale)
        ctx.save_for_backward(scaled)
        return x * scaled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (scaled,) = ctx.saved_tensors
        return gradients[0] * scaled, None, None


def dropout(x: Float[Tensor, ...], p: float) -> Float[Tensor, ...]:
    """Dropout with probability ``p`` (rounded to 1/128 on a CPU); 0 returns ``x`` itself."""
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = round(_LEVELS * p)
    if dropped in (0, _LEVELS):  # too near to 0 or 1 for a byte
        return F.dropout(x, p)
    result: Tensor = _ByteDropout.apply(x, keep_mask(x.shape, p), _LEVELS / (_LEVELS - dropped))  # type: ignore[no-untyped-call]
    return result


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, ...]) -> Float[Tensor, ...]:
        """Any shape in, the same shape out."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"p={self.p}"
