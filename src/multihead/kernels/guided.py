"""Cross-entropy between a word alignment and the weights of a head.

    a_ts = softmax_s(q_t . k_s / sqrt(d))        the head's weights, from query t to key s
    loss = - sum_t sum_s A_ts log a_ts           A_ts = 1 / |S_t| for s in S_t, the keys that t is aligned with, else 0

(Chen et al. 2016, "Guided alignment training for topic-aware neural machine translation"; Garg et al. 2019, "Jointly
learning to align and translate with Transformer models", equation 3.) Queries that are aligned with nothing have no
loss. Only the weights of this head are computed; the attention itself may be fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from multihead.kernels.native.tensors import without_autocast


class Links(NamedTuple):
    """The links of a batch of pairs between target and source tokens, and how much they count."""

    rows: Int64[Tensor, " links"]
    """The pair of each link; ascending."""
    targets: Int64[Tensor, " links"]
    """The position t of its target token."""
    sources: Int64[Tensor, " links"]
    """The position s of its source token."""
    shares: Float32[Tensor, " links"]
    """A_ts; those of a target token add up to 1."""
    weight: float
    """The factor of this loss beside that of the labels."""

    def part(self, start: int, stop: int) -> Links:
        """The links of some pairs, which are counted from 0 again."""
        chosen = (self.rows >= start) & (self.rows < stop)
        rows = self.rows[chosen] - start
        return Links(rows, self.targets[chosen], self.sources[chosen], self.shares[chosen], self.weight)

    def each(self, change: Callable[[Tensor], Tensor]) -> Links:
        """The same links with every tensor changed."""
        rows, targets, sources, shares = map(change, (self.rows, self.targets, self.sources, self.shares))
        return Links(rows, targets, sources, shares, self.weight)


def guided_cross_entropy(
    query: Float[Tensor, "batch target dim"],
    key: Float[Tensor, "batch source dim"],
    lengths: Int[Tensor, " batch"],
    links: Links,
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of a head, summed over all target tokens, without the factor ``links.weight``.

    Args:
        query: q of every target position.
        key: k of every source position, padded on the right.
        lengths: how many keys of each row are real.
        links: the alignment; its positions are those of ``query`` and ``key``.
        weights: by what the loss of each row is multiplied.
    """
    with without_autocast(query.device.type):
        kind = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(kind) @ key.to(kind).transpose(1, 2) / math.sqrt(query.shape[-1])  # [batch, target, source]
        beyond = torch.arange(key.shape[1], device=key.device) >= lengths[:, None]
        log_weights = scores.masked_fill(beyond[:, None], -math.inf).log_softmax(-1)
        shares = links.shares if weights is None else links.shares * weights[links.rows]
        return -(shares * log_weights[links.rows, links.targets, links.sources]).sum()
