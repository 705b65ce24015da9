"""Shares: how often an epoch sees the pairs of each corpus; batches are tested in `test_batching`."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.shares import assert_nobody_is_ahead, corpora, shares_of

from multihead.data.order import Array, Share, epoch_pairs
from multihead.errors import InputError


def times(size: int, shares: list[Share], seed: int, epoch: int) -> Array:
    seen = epoch_pairs(size, shares, seed, epoch)
    assert (np.diff(seen) >= 0).all()
    return np.bincount(seen, minlength=size)


class TestShares:
    @settings(max_examples=60)
    @given(corpora, st.integers(0, 2**63), st.integers(1, 40))
    def test_no_pair_of_a_corpus_is_ever_more_than_once_ahead_of_another(
        self, parts: list[tuple[int, float]], seed: int, epochs: int
    ) -> None:
        shares = shares_of(parts)
        size = shares[-1].stop
        total = np.zeros(size, np.int64)
        for epoch in range(epochs):
            now = times(size, shares, seed, epoch)
            total += now
            assert_nobody_is_ahead(now, total, shares, epoch)

    def test_far_ahead_nothing_has_added_up(self) -> None:
        shares = [Share(0, 997, 0.1), Share(997, 2000, 1.7)]
        for epoch in (10**6, 10**12):
            now = times(2000, shares, 1, epoch)
            for share in shares:
                count, weight = share.stop - share.start, Fraction(share.weight)
                expected = math.floor((epoch + 1) * count * weight) - math.floor(epoch * count * weight)
                assert now[share.start : share.stop].sum() == expected

    def test_half_of_them_now_and_the_other_half_next(self) -> None:
        one, two, three = (times(100, [Share(0, 100, 0.5)], 1, epoch) for epoch in range(3))
        assert (one + two == 1).all()
        assert (three == one).all()
        assert 10 < one[:50].sum() < 40  # any half, not the first

    def test_whole_weights_see_everything_so_often(self) -> None:
        assert epoch_pairs(5, [Share(0, 2, 1), Share(2, 5, 3)], 9, 4).tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
        assert epoch_pairs(4, [], 9, 4).tolist() == [0, 1, 2, 3]

    def test_it_is_a_function_of_seed_and_epoch_and_each_share_has_its_own_draw(self) -> None:
        shares = [Share(0, 200, 0.5), Share(200, 400, 0.5)]
        first = times(400, shares, 1, 0)
        assert (times(400, shares, 1, 0) == first).all()
        for seed, epoch in ((2, 0), (1, 1)):
            assert (times(400, shares, seed, epoch) != first).any()
        assert (first[:200] != first[200:]).any()

    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ([Share(0, 4, 1)], r"shares \[0, 4\) of 10 pairs; expected them end to end, from 0 to 10"),
            ([Share(0, 11, 1)], "end to end"),
            ([Share(1, 10, 1)], "end to end"),
            ([Share(0, 6, 1), Share(5, 10, 1)], "end to end"),
            ([Share(0, 12, 1), Share(12, 10, 1)], "end to end"),
            ([Share(0, 10, 0)], "weight 0; expected a number above 0"),
            ([Share(0, 10, -1.5)], "weight -1.5"),
            ([Share(0, 10, math.inf)], "weight inf"),
            ([Share(0, 10, math.nan)], "weight nan"),
            ([Share(0, 10, 0.05)], "an epoch sees 0.5 pairs on average"),
        ],
    )
    def test_senseless_shares(self, shares: list[Share], message: str) -> None:
        with pytest.raises(InputError, match=message):
            epoch_pairs(10, shares, 0, 0)

    def test_two_million_pairs_are_chosen_in_a_moment(self) -> None:
        shares = [Share(0, 1_000_000, 0.3), Share(1_000_000, 2_000_000, 1.5)]
        started = time.process_time()
        epoch_pairs(2_000_000, shares, 0, 7)
        assert time.process_time() - started < 1
