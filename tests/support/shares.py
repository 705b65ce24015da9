"""Corpora with weights, and a check that an order of training treats all pairs of a corpus alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from multihead.data.order import Array, Share

weights = st.floats(0.01, 4) | st.sampled_from([0.1, 1 / 3, 0.5, 1.0, 2.0, 2.5])
corpora = st.lists(st.tuples(st.integers(0, 30), weights), min_size=1, max_size=4).filter(
    lambda parts: sum(count * weight for count, weight in parts) >= 1
)
"""Pairs and weight of each corpus; an epoch has at least one pair."""


def shares_of(parts: list[tuple[int, float]]) -> list[Share]:
    ends = np.cumsum([count for count, _ in parts]).tolist()
    return [Share(end - count, end, weight) for (count, weight), end in zip(parts, ends, strict=True)]


def assert_nobody_is_ahead(now: Array, total: Array, shares: Sequence[Share], epoch: int) -> None:
    """Check that the counts of a corpus's pairs differ by at most one, in this epoch and in total.

    Args:
        now: how often this epoch sees each pair.
        total: how often the epochs up to and including this one see each pair.
        shares: the corpora.
        epoch: its number, from 0.
    """
    for share in shares:
        part, so_far = now[share.start : share.stop], total[share.start : share.stop]
        expected = (epoch + 1) * Fraction(share.weight)
        assert set(part.tolist()) <= {math.floor(share.weight), math.ceil(share.weight)}
        assert set(so_far.tolist()) <= {math.floor(expected), math.ceil(expected)}
        assert so_far.sum() == math.floor(expected * len(part))
