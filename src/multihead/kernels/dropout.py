"""Dropout whose mask is never stored: it is drawn again backwards, from the counters of `kernels.random`.

    y = x * m / (1 - p),   m ~ Bernoulli(1 - p)           (Srivastava et al. 2014, section 4)

On a CPU p is rounded to a multiple of 1/256, from 1/256 to 255/256 (0.1 becomes 26/256 = 0.1016), since a random byte
decides, and the survivors are scaled by that rounded value, so that the mean is exact. Compiled and plain form draw the
same mask. Other devices, and models that a compiler compiles, have PyTorch's own dropout.

Fusions with what stands beside a dropout: `kernels.residual`, `kernels.activation`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.errors import ShapeError
from multihead.kernels.native import TYPES, library_for, pointer
from multihead.kernels.random import LEVELS, Key, keep_mask, layout, next_key


class Site(NamedTuple):
    """One dropout in one step: which bits it draws, and what they decide."""

    key: Key
    level: int
    """An element is kept if its byte is at least this; 0 keeps everything."""

    @property
    def scale(self) -> float:
        """What the survivors are multiplied by."""
        return LEVELS / (LEVELS - self.level)

    def arguments(self, shape: torch.Size, threads: int | None = None) -> tuple[int | float | None, ...]:
        """The last arguments of every compiled kernel, for a tensor of this shape; valid as long as this lives.

        Raises:
            ShapeError: rows are packed, and others than these.
        """
        rows, positions, _ = layout(shape)
        key = self.key
        if key.places is not None and len(key.places) != rows * positions:
            raise ShapeError(f"{len(key.places)} packed tokens are known, got a tensor {list(shape)}")
        return (
            *(key.low, key.high, key.first_row, key.row_stride, max(1, positions), pointer(key.places)),
            *(self.level, self.scale, torch.get_num_threads() if threads is None else threads),
        )

    def apply(self, x: Tensor) -> Tensor:
        """The plain form; differentiable as often as one likes."""
        if self.level == 0:
            return x
        work = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round the scale by 0.4%
        return (x * keep_mask(self.key, x.shape, self.level, x.device).to(work).mul_(self.scale)).to(x.dtype)


NOWHERE = Site(Key(0, 0), 0)
"""Drops nothing."""


def site(x: Tensor, p: float) -> Site | None:
    """The next site; None where PyTorch's own dropout is taken."""
    if p == 0.0:
        return NOWHERE
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    return Site(next_key(), min(max(round(LEVELS * p), 1), LEVELS - 1))


class _Dropout(torch.autograd.Function):
    """Its own derivative: the same mask on the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: Site) -> Tensor:
        ctx.where = where
        library = library_for()
        assert library is not None
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, positions, width = layout(x.shape)
        kind = TYPES[x.dtype]
        library.dropout(pointer(x), kind, pointer(y), kind, rows * positions, width, *where.arguments(x.shape))
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _dropout_at(gradients[0], ctx.where), None


def _dropout_at(x: Tensor, where: Site) -> Tensor:
    if library_for(x) is None:
        return where.apply(x)
    result: Tensor = _Dropout.apply(x, where)  # type: ignore[no-untyped-call]
    return result


def dropout(x: Float[Tensor, "*axes"], p: float) -> Float[Tensor, "*axes"]:
    """Dropout with probability ``p`` from 0 to 1 (rounded to 1/256 on a CPU); 0 returns ``x`` itself.

    The first axis is the row of the batch and the last the feature: see `kernels.random`.
    """
    if p == 0.0:
        return x
    where = site(x, p)
    return F.dropout(x, p) if where is None else _dropout_at(x, where)


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def probability(self) -> float:
        """What is dropped now: 0 in evaluation."""
        return self.p if self.training else 0.0

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Any shape in, the same shape out."""
        return dropout(x, self.probability)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"p={self.p}"
