"""Biases that are added to the scores: ALiBi, relative positions.

They are added before the softmax. Biases add and masks intersect, so they are separate arguments:
``attention(..., mask=Causal(), bias=ALiBi(8))``. Any tensor is a bias too; those here are defined for any length. If
there are more keys than queries, the queries are the last positions, as in masks. Rotary positions, which rotate
queries and keys instead, are in :mod:`multihead.attention.rotary`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.errors import ConfigurationError

Device = torch.device | str | None

ScoreRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""``(score, b, h, q, k)`` -> the score with the bias added. FlexAttention calls this a ``score_mod``."""


class Bias(ABC):
    """A bias for any lengths, which depends on head and positions alone."""

    heads: int

    @abstractmethod
    def at(self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]) -> Float[Tensor, "1 heads query key"]:
        """The bias for queries and keys at these positions of the sequence, on their device."""

    @property
    def learned(self) -> bool:
        """Whether it needs a gradient."""
        return False

    def dense(
        self, q_len: int, kv_len: int, dtype: torch.dtype | None = None, device: Device = None
    ) -> Float[Tensor, "1 heads query key"]:
        """The bias of all queries and keys; the last query is at the last key."""
        term = self.at(torch.arange(q_len, device=device) + (kv_len - q_len), torch.arange(kv_len, device=device))
        return term if dtype is None else term.to(dtype)

    def part(
        self, queries: range, keys: range, offset: int, dtype: torch.dtype | None = None, device: Device = None
    ) -> Float[Tensor, "1 heads query key"]:
        """The bias of some queries and keys; query q is at key q + ``offset``."""
        positions = torch.arange(queries.start, queries.stop, device=device) + offset
        term = self.at(positions, torch.arange(keys.start, keys.stop, device=device))
        return term if dtype is None else term.to(dtype)

    def score_rule(self, q_len: int, kv_len: int, device: Device = None) -> ScoreRule:
        """The bias as a function of indices, for FlexAttention; by default it reads the `dense` one."""
        term = self.dense(q_len, kv_len, device=device)[0]  # in PyTorch 2.6, an index is all tensors or none
        return lambda score, b, h, q, k: score + term[h, q, k]  # noqa: ARG005


class ALiBi(Bias):
    r"""Attention with linear biases (Press, Smith & Lewis 2022, section 3), which favor near keys.

    .. math::
        \mathrm{bias}_{hij} = m_h (j - i), \qquad m_h = 2^{-8h/H} \quad (h = 1 \ldots H)

    for a number of heads H that is a power of two. For any other number, as in the paper's code, the slopes are those
    of the next lower power of two, followed by every other one of the next higher. Meant for causal attention, where
    j <= i. ``symmetric`` gives -m |i - j|, for attention to both sides.

    Args:
        heads: H.
        symmetric: penalize distance to both sides.

    Raises:
        ConfigurationError: there is no head.
    """

    def __init__(self, heads: int, symmetric: bool = False) -> None:
        if heads < 1:
            raise ConfigurationError(f"heads={heads}: at least one head is needed")
        self.heads, self.symmetric = heads, symmetric
        power = 2 ** int(math.log2(heads))
        slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        slopes += [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * (heads - power), 2)]
        self.slopes: tuple[float, ...] = tuple(slopes)

    def at(self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]) -> Float[Tensor, "1 heads query key"]:
        """m_h (key - query), or -m_h |key - query|; float32."""
        return self.with_slopes(torch.tensor(self.slopes, device=keys.device), queries, keys)

    def with_slopes(
        self, slopes: Float[Tensor, " heads"], queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
    ) -> Float[Tensor, "1 heads query key"]:
        """As `at`, with the slopes as a tensor that is on the device already."""
        distance = (keys - queries[:, None]).to(torch.float32)
        if self.symmetric:
            distance = -distance.abs()
        return slopes[None, :, None, None] * distance

    def score_rule(self, q_len: int, kv_len: int, device: Device = None) -> ScoreRule:
        """The bias as a function of indices, computed without a tensor of scores."""
        slopes, offset = torch.tensor(self.slopes, device=device), torch.full((), kv_len - q_len, device=device)
        if self.symmetric:
            return lambda score, b, h, q, k: score - slopes[h] * (k - q - offset).abs()  # noqa: ARG005
        return lambda score, b, h, q, k: score + slopes[h] * (k - q - offset)  # noqa: ARG005

    def __repr__(self) -> str:
        return f"ALiBi({self.heads}, symmetric=True)" if self.symmetric else f"ALiBi({self.heads})"


class RelativeBias(nn.Module, Bias):
    """A learned bias for each head and each range of distances (Raffel et al. 2020, section 2.1; T5).

    bias_hij = table[bucket(j - i), h]. Half of the buckets hold one distance each, the other half ranges that grow
    logarithmically up to ``max_distance``; all greater distances share the last bucket. With attention to both sides
    (``causal=False``) half of the buckets are for keys after the query.

    T5 shares one such module between its layers and does not scale its scores (``scale=1.0``).

    Args:
        heads: the number of heads.
        buckets: rows of the table.
        max_distance: where the last bucket begins.
        causal: whether queries see earlier keys only (later ones then share the bucket of distance 0).

    Raises:
        ConfigurationError: too few buckets, or no distance for the logarithmic ones.
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.buckets, self.max_distance, self.causal = heads, buckets, max_distance, causal
        self.side = buckets if causal else buckets // 2
        if heads < 1 or self.side < 2 or buckets % (1 if causal else 2) or max_distance <= self.side // 2:
            raise ConfigurationError(
                f"heads={heads}, buckets={buckets}, max_distance={max_distance}, causal={causal}: at least one head, "
                f"two buckets a side (an even number of them unless causal) and max_distance above {self.side // 2} "
                "are needed"
            )
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def bucket(self, distance: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
        """The row of the table for each distance, key minus query."""
        before = -distance
        first = torch.zeros_like(distance)
        if self.causal:
            before = before.clamp(min=0)
        else:
            first = torch.where(distance > 0, self.side, 0)
            before = before.abs()
        exact = self.side // 2
        # Between `exact` and `max_distance` the buckets grow by a constant factor.
        growth = torch.log(before.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        # Rounded down before `exact` is added: a float32 just below an integer would be rounded up to it by the sum.
        far = (exact + (growth * (self.side - exact)).to(distance.dtype)).clamp(max=self.side - 1)
        return first + torch.where(before < exact, before, far)

    def at(self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]) -> Float[Tensor, "1 heads query key"]:
        """table[bucket(j - i)], by head."""
        return self.table[self.bucket(keys - queries[:, None])].permute(2, 0, 1)[None]

    @property
    def learned(self) -> bool:
        """Whether the table needs a gradient."""
        return self.table.requires_grad

    def forward(self, q_len: int, kv_len: int | None = None) -> Float[Tensor, "1 heads query key"]:
        """The bias as a tensor, to compute once and pass to several layers."""
        return self.dense(q_len, q_len if kv_len is None else kv_len, device=self.table.device)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, causal={self.causal}"
