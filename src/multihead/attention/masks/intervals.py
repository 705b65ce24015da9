"""What is known of a mask on the host: for every query, the keys from ``low`` up to (not including) ``high``.

Causal masks, windows, right padding and packed documents all let a query see one stretch of keys, and so does
every intersection of them. Where the two ends are known without asking a device, kernels can leave out what is
not seen (:mod:`multihead.attention.blocks`). Plain numpy: nothing here touches a tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


class Intervals(NamedTuple):
    """The stretch of keys that each query sees; empty where ``high <= low``.

    Attributes:
        low: [rows, queries], the first key; either axis may have size 1 where it makes no difference.
        high: the same, one behind the last key.
    """

    low: Positions
    high: Positions

    def intersect(self, other: Intervals) -> Intervals:
        """What both let through; an interval again."""
        return Intervals(np.maximum(self.low, other.low), np.minimum(self.high, other.high))

    def spread(self, rows: int, q_len: int, kv_len: int) -> Intervals:
        """Written out as [rows or 1, q_len], within the keys that there are; empty ones as [0, 0)."""
        low, high = np.clip(self.low, 0, kv_len), np.clip(self.high, 0, kv_len)
        shape = np.broadcast_shapes(low.shape, high.shape)
        shape = (rows if shape[0] > 1 else 1, q_len)
        empty = np.broadcast_to(high <= low, shape)
        return Intervals(
            np.where(empty, 0, np.broadcast_to(low, shape)), np.where(empty, 0, np.broadcast_to(high, shape))
        )


def everything(kv_len: int) -> Intervals:
    """Every query sees every key."""
    return Intervals(np.zeros((1, 1), np.int64), np.full((1, 1), kv_len, np.int64))


def band(q_len: int, kv_len: int, left: int | None, right: int | None) -> Intervals:
    """Each query sees from ``left`` keys before its own place to ``right`` after it; None = as far as there are.

    The last query stands at the last key.
    """
    place = np.arange(q_len, dtype=np.int64)[None, :] + (kv_len - q_len)
    whole = everything(kv_len)
    return Intervals(whole.low if left is None else place - left, whole.high if right is None else place + right + 1)
