"""Masks from positions alone: causal, sliding window, prefix.

If there are more keys than queries, the queries are the last positions: query q is at key q + kv_len - q_len, as in a
decoder with a cache of keys. Only ``Causal(align="start")`` differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.attention.masks.algebra import Device, Mask, Rule
from multihead.attention.masks.intervals import Intervals, band
from multihead.attention.masks.lengths import as_lengths
from multihead.errors import ConfigurationError


class Causal(Mask):
    """No query sees a later key.

    Args:
        align: which ends of queries and keys coincide when there are more keys than queries. ``"end"``: the last query
            is at the last key (k <= q + kv_len - q_len), which cached decoding needs. ``"start"``: the first query is
            at the first key (k <= q), as with PyTorch's ``is_causal``. Equal when q_len == kv_len.
    """

    def __init__(self, align: Literal["end", "start"] = "end") -> None:
        if align not in ("end", "start"):
            raise ConfigurationError(f"align={align!r}: a causal mask is aligned at 'end' or at 'start'")
        self.align = align

    def _offset(self, q_len: int, kv_len: int) -> int:
        return kv_len - q_len if self.align == "end" else 0

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """k <= q + offset."""
        offset = _captured(self._offset(q_len, kv_len), device)
        return lambda b, h, q, k: k <= q + offset  # noqa: ARG005

    def dense(
        self,
        q_len: int,
        kv_len: int,
        device: Device = None,
        *,
        batch: int = 1,  # noqa: ARG002
        heads: int = 1,  # noqa: ARG002
    ) -> Bool[Tensor, "b h q k"]:
        """[1, 1, q_len, kv_len]."""
        offset = self._offset(q_len, kv_len)
        return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool, device=device).tril(offset)

    def intervals(self, q_len: int, kv_len: int) -> Intervals:
        """[0, q + offset]."""
        if self.align == "end":
            return band(q_len, kv_len, None, 0)
        return Intervals(np.zeros((1, 1), np.int64), np.arange(1, q_len + 1, dtype=np.int64)[None, :])

    def __repr__(self) -> str:
        return "Causal()" if self.align == "end" else "Causal(align='start')"


class SlidingWindow(Mask):
    """A query sees itself, ``left`` keys before it and ``right`` after it (Beltagy et al. 2020, section 3.1).

    The sizes are those of FlashAttention and of PyTorch's ``varlen_attn``: ``SlidingWindow(w)`` has w + 1 keys.
    The ``sliding_window=w`` of Hugging Face and Mistral counts the query itself: it is ``SlidingWindow(w - 1)``.

    Args:
        left: the number of keys before the query.
        right: the number of keys after it; 0 = none of the future.

    Raises:
        ConfigurationError: a size is not a whole number, or is negative.
    """

    def __init__(self, left: int, right: int = 0) -> None:
        for name, size in (("left", left), ("right", right)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ConfigurationError(
                    f"{name}={size!r}: a window reaches a whole number of keys, 0 or more. For one without a left "
                    "end write Causal(), for one without any Full()"
                )
        self.left, self.right = left, right

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """q + offset - left <= k <= q + offset + right."""
        offset, left, right = _captured(kv_len - q_len, device), self.left, self.right
        return lambda b, h, q, k: (k >= q + offset - left) & (k <= q + offset + right)  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals:
        """[q + offset - left, q + offset + right]."""
        return band(q_len, kv_len, self.left, self.right)

    def __repr__(self) -> str:
        return f"SlidingWindow({self.left})" if self.right == 0 else f"SlidingWindow({self.left}, {self.right})"


class PrefixLM(Mask):
    """All queries see the first ``lengths[b]`` keys, and no other later key (Raffel et al. 2020, section 3.2.1).

    With padding: ``PrefixLM(prefix) & Padding(lengths)``.

    Args:
        lengths: [batch], the length of each sentence's prefix, as a tensor or as plain numbers.

    Raises:
        MaskError: the lengths are not integers.
        ShapeError: they do not have one axis.
    """

    def __init__(self, lengths: Tensor | Sequence[int]) -> None:
        self.lengths, self.host_lengths = as_lengths(lengths, "lengths")

    @property
    def device(self) -> torch.device | None:
        """The device of ``lengths``."""
        return self.lengths.device

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """One sentence per length; any number of heads."""
        return self.lengths.shape[0], 1

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """k < lengths[b], or k <= q + offset."""
        device = self.device if device is None else device
        lengths, offset = self.lengths.to(device), _captured(kv_len - q_len, device)
        return lambda b, h, q, k: (k < lengths[b]) | (k <= q + offset)  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:
        """[0, max(prefix, q + offset + 1)), if the prefixes are known on the host."""
        if self.host_lengths is None:
            return None
        causal = band(q_len, kv_len, None, 0)
        return Intervals(causal.low, np.maximum(np.array(self.host_lengths, dtype=np.int64)[:, None], causal.high))

    def __repr__(self) -> str:
        return f"PrefixLM({self.lengths.tolist() if self.host_lengths is None else list(self.host_lengths)})"


def _captured(offset: int, device: Device) -> Tensor:
    """The offset as a tensor: compiled kernels are specialized to plain numbers that a rule captures."""
    return torch.full((), offset, device=device)
