"""What the host knows of a mask: the stretch of keys that each query sees.

Causal masks, windows, right padding and packed documents all let a query see one stretch of keys, from ``low`` up to
(not including) ``high``, and so does every intersection of them. Where both ends are known without asking a device,
backends leave out what is not seen (:mod:`multihead.attention.backends.blockwise`). Plain NumPy: nothing here touches a
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
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
        """The keys that both allow, an interval again."""
        return Intervals(np.maximum(self.low, other.low), np.minimum(self.high, other.high))

    def spread(self, rows: int, q_len: int, kv_len: int) -> Intervals:
        """Broadcast to [rows or 1, q_len] and clip to the keys that exist; empty intervals become [0, 0)."""
        low, high = np.clip(self.low, 0, kv_len), np.clip(self.high, 0, kv_len)
        shape = np.broadcast_shapes(low.shape, high.shape)
        shape = (rows if shape[0] != 1 else 1, q_len)
        empty = np.broadcast_to(high <= low, shape)
        return Intervals(
            np.where(empty, 0, np.broadcast_to(low, shape)), np.where(empty, 0, np.broadcast_to(high, shape))
        )


@dataclass(frozen=True)
class Stretch:
    """Consecutive queries that follow a simple pattern.

    Attributes:
        queries: their positions.
        keys: from the first key that any of them sees up to the last; empty if none is seen.
        pattern: ``"same"`` = all see all of ``keys``; ``"triangle"`` = each sees one more than the one before it,
            the first sees one; ``"other"``.
    """

    queries: range
    keys: range
    pattern: str


def everything(kv_len: int) -> Intervals:
    """Every query sees every key."""
    return Intervals(np.zeros((1, 1), np.int64), np.full((1, 1), kv_len, np.int64))


def band(q_len: int, kv_len: int, left: int | None, right: int | None) -> Intervals:
    """Each query sees from ``left`` keys before its own place to ``right`` after it; None = without limit.

    The last query stands at the last key.
    """
    place = np.arange(q_len, dtype=np.int64)[None, :] + (kv_len - q_len)
    whole = everything(kv_len)
    return Intervals(whole.low if left is None else place - left, whole.high if right is None else place + right + 1)


def equal_rows(intervals: Intervals, batch: int) -> Iterator[tuple[range, Positions, Positions]]:
    """Group neighboring sentences with the same intervals: the rows, and ``low`` and ``high`` of each query."""
    low, high = intervals
    if len(low) == 0:  # no sentence: one group of none, whose queries see nothing
        low, high = np.zeros((2, 1, low.shape[1]), np.int64)
    if len(low) == 1:
        yield range(batch), low[0], high[0]
        return
    changes = np.flatnonzero(((low[1:] != low[:-1]) | (high[1:] != high[:-1])).any(axis=1)) + 1
    for start, stop in pairwise([0, *changes.tolist(), len(low)]):
        yield range(start, stop), low[start], high[start]


def stretches(low: Positions, high: Positions) -> Iterator[Stretch]:
    """The queries in order, cut where the pattern of what they see changes."""
    steps = np.stack([np.diff(low), np.diff(high)])
    jump = ((steps != 0) & (steps != 1)).any(axis=0)
    change = np.zeros_like(jump)
    change[1:] = (steps[:, 1:] != steps[:, :-1]).any(axis=0) & ~jump[1:] & ~jump[:-1]
    cuts = np.flatnonzero(jump | change) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(low)]):
        keys = hull(low[start:stop], high[start:stop])
        uniform = low[start] == low[stop - 1] and high[start] == high[stop - 1]
        triangle = low[start] == low[stop - 1] and high[stop - 1] - high[start] == stop - start - 1 == len(keys) - 1
        pattern = "same" if uniform else "triangle" if triangle else "other"
        yield Stretch(range(start, stop), keys, pattern)


def hull(low: Positions, high: Positions) -> range:
    """From the first key that any query sees up to the last."""
    seen = high > low
    return range(int(low[seen].min()), int(high[seen].max())) if seen.any() else range(0)
