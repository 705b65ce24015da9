"""Replacements for `capture`: heads at zero, at their mean, another run's.

Each is a function of a tensor [batch, heads, queries, ...], the outputs of the heads or their weights. Heads are
counted from 0, as along the axis of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.errors import ConfigurationError

_Heads = Float[Tensor, "batch heads query _"]


def zero_heads(*heads: int) -> Callable[[_Heads], _Heads]:
    """O_h = 0 for each of ``heads``: the same as zeros in their columns of W^O."""

    def replace(own: Tensor) -> Tensor:
        return put(own, torch.zeros_like(own), heads)

    return replace


def mean_heads(*heads: int, real: Bool[Tensor, "batch query"] | None = None) -> Callable[[_Heads], _Heads]:
    """O_h at every position is its mean over all positions of the batch: what varies is taken out.

    Args:
        heads: which heads.
        real: the queries that count; by default all. False for padding.
    """

    def replace(own: Tensor) -> Tensor:
        chosen = own.new_ones(own.shape[0], own.shape[2]) if real is None else real.to(own)
        mean = (own * chosen[:, None, :, None]).sum((0, 2), keepdim=True) / chosen.sum().clamp(min=1)
        return put(own, mean.expand_as(own), heads)

    return replace


def patch_heads(recorded: Float[Tensor, "batch heads query _"], *heads: int) -> Callable[[_Heads], _Heads]:
    """O_h is what another run has recorded, for each of ``heads``; the others keep their own.

    Args:
        recorded: `Attended.heads` or `Attended.weights` of a run with inputs of the same lengths.
        heads: which heads.
    """

    def replace(own: Tensor) -> Tensor:
        return put(own, recorded, heads)

    return replace


def put(
    own: Float[Tensor, "batch heads query _"], new: Float[Tensor, "batch heads query _"], heads: tuple[int, ...]
) -> Float[Tensor, "batch heads query _"]:
    """``own``, with some heads of ``new``. If the shapes differ, ``new``, which `capture` refuses.

    Raises:
        ConfigurationError: no heads are named, or one does not exist.
    """
    count = own.shape[1]
    wrong = [head for head in heads if not 0 <= head < count]
    if wrong or not heads:
        raise ConfigurationError(f"heads: expected numbers from 0 to {count - 1}, got {wrong[0] if wrong else 'none'}")
    if own.shape != new.shape:
        return new
    chosen = torch.zeros(count, dtype=torch.bool, device=own.device)
    chosen[list(heads)] = True
    return torch.where(chosen[:, None, None], new.to(own), own)
