"""The best of many candidates, with ties broken the same way every time: the lowest index wins.

``torch.topk`` leaves open which of two equal values it takes and how it orders them, so that the answer could
change with the processor and with the shape of the batch. Half-precision log-probabilities tie often.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def best(
    values: Float[Tensor, "rows candidates"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """The ``count`` largest values of each row (all, if there are fewer), descending, and their indices.

    Equal values stand, and are taken, in the order of their indices. Which of several -inf are taken is left
    open: they stand for nothing that could be chosen.
    """
    if count >= values.shape[1]:
        ordered = values.sort(dim=1, descending=True, stable=True)
        return ordered.values, ordered.indices
    top, indices = values.topk(count + 1, dim=1)  # one more, to see whether the cut goes through a tie
    tied = (top[:, -2] == top[:, -1]) & (top[:, -1] > -torch.inf)
    indices = indices[:, :count]
    if tied.any():
        indices[tied] = _lowest_indices(values[tied], top[tied, -1:], count)
    indices = indices.sort(dim=1).values
    ordered = values.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return ordered.values, indices.gather(1, ordered.indices)


def _lowest_indices(
    values: Float[Tensor, "rows candidates"], cut: Float[Tensor, "rows 1"], count: int
) -> Int[Tensor, "rows count"]:
    """Indices of everything above the cut, filled up to ``count`` with the first that lie on it."""
    above, on = ~(values <= cut), values == cut  # NaN is above, as in topk
    missing = count - above.sum(dim=1, keepdim=True)
    chosen = above | (on & (on.cumsum(dim=1) <= missing))
    return chosen.nonzero()[:, 1].view(-1, count)
