"""``best`` is the beginning of a stable sort, with any ties."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.decoding.candidates import best


@settings(max_examples=150)
@given(
    rows=st.integers(1, 4), candidates=st.integers(1, 40), count=st.integers(1, 45),
    levels=st.integers(1, 30), seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)  # fmt: skip
def test_equals_a_stable_sort(
    rows: int, candidates: int, count: int, levels: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (rows, candidates), generator=generator).to(dtype)
    expected = values.sort(dim=1, descending=True, stable=True)
    got, indices = best(values, count)
    assert torch.equal(got, expected.values[:, :count])
    assert torch.equal(indices, expected.indices[:, :count])


def test_impossible_candidates_come_last_and_are_no_tie() -> None:
    values = torch.full((2, 50), -torch.inf)
    values[0, 30], values[0, 20], values[1, 7] = -1.0, -2.0, -5.0
    got, indices = best(values, 3)
    assert indices[0, :2].tolist() == [30, 20]
    assert indices[1, 0] == 7
    assert got.isinf().sum() == 3


def test_nan_comes_first_so_that_it_cannot_hide() -> None:
    for values in (torch.randn(2, 50), torch.zeros(2, 50)):
        values[1, 40] = torch.nan
        assert best(values, 4)[1][1, 0] == 40
