"""Caches are appended, selected, padded and joined without changing a value."""

from __future__ import annotations

import pytest
import torch

from multihead.attention import KeyValue
from multihead.errors import ShapeError


def cache(batch: int, length: int, heads: int = 2, dim: int = 4) -> KeyValue:
    return KeyValue(torch.randn(batch, heads, length, dim), torch.randn(batch, heads, length, 3))


def equal(a: KeyValue, b: KeyValue) -> bool:
    return torch.equal(a.key, b.key) and torch.equal(a.value, b.value)


def test_append_concatenates_in_time() -> None:
    first, second = cache(2, 3), cache(2, 1)
    both = first.append(second)
    assert both.length == 4
    assert equal(KeyValue(both.key[:, :, :3], both.value[:, :, :3]), first)
    assert equal(KeyValue(both.key[:, :, 3:], both.value[:, :, 3:]), second)
    assert first.length == 3  # a new cache; the old one is unchanged


def test_select_takes_rows_in_order_and_repeats_them() -> None:
    three = cache(3, 2)
    rows = torch.tensor([2, 0, 0])
    assert equal(three.select(rows), KeyValue(three.key[[2, 0, 0]], three.value[[2, 0, 0]]))
    assert three.select(rows[:0]).key.shape[0] == 0


def test_pad_left_puts_zeros_in_front() -> None:
    one = cache(2, 3)
    padded = one.pad_left(2)
    assert padded.length == 5
    assert padded.key[:, :, :2].eq(0).all()
    assert padded.value[:, :, :2].eq(0).all()
    assert equal(KeyValue(padded.key[:, :, 2:], padded.value[:, :, 2:]), one)
    assert equal(one.pad_left(0), one)


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (4, 4)])
def test_join_aligns_the_last_positions(left: int, right: int) -> None:
    first, second = cache(2, left), cache(1, right)
    joined = first.join(second)
    length = max(left, right)
    assert joined.length == length
    assert equal(joined.select(torch.tensor([0, 1])), first.pad_left(length - left))
    assert equal(joined.select(torch.tensor([2])), second.pad_left(length - right))


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ShapeError, match=r"append keys of shape \[3, 2, 1, 4\].*\[2, 2, 1, 4\]"):
        cache(2, 1).append(cache(3, 1))
    with pytest.raises(ShapeError, match=r"join keys of shape \[2, 3, 1, 4\].*\[2, 2, 1, 4\]"):
        cache(2, 1).join(cache(2, 1, heads=3))
