"""Rotary positions: products depend on distances alone, lengths do not change, cached equals uncached."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor

from multihead.attention import Causal, KeyValue, Padding, attention, rotary
from multihead.errors import ConfigurationError, ShapeError

LAYOUTS = ["interleaved", "halves"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairs_are_complex_numbers_that_turn(layout: str) -> None:
    x = draw(1, 1, 5, 6)
    turned = rotary(x, 3, base=100.0, layout=layout)  # type: ignore[arg-type]
    for place in range(5):
        for pair in range(3):
            first, second = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, pair + 3)
            before = complex(x[0, 0, place, first], x[0, 0, place, second])
            after = before * cmath.exp(1j * (place + 3) * 100.0 ** (-2 * pair / 6))
            assert turned[0, 0, place, first] == pytest.approx(after.real)
            assert turned[0, 0, place, second] == pytest.approx(after.imag)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_depend_on_the_distance_alone(layout: str) -> None:
    query, key = draw(2, 3, 1, 8), draw(2, 3, 1, 8, seed=1)

    def product(q: int, k: int) -> Tensor:
        return (rotary(query, q, layout=layout) * rotary(key, k, layout=layout)).sum(-1)  # type: ignore[arg-type]

    torch.testing.assert_close(product(7, 3), product(104, 100))
    torch.testing.assert_close(product(5, 5), (query * key).sum(-1))
    assert not torch.allclose(product(7, 3), product(7, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lengths_stay_and_turns_add_up(layout: str) -> None:
    x = draw(2, 3, 4, 8)
    turned = rotary(x, 9, layout=layout)  # type: ignore[arg-type]
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotary(x[:, :, :1], layout=layout), x[:, :, :1])  # type: ignore[arg-type]
    rows = torch.tensor([2, 5])
    once = rotary(rotary(x[:, :, :1], rows, layout=layout), 4, layout=layout)  # type: ignore[arg-type]
    torch.testing.assert_close(once, rotary(x[:, :, :1], rows + 4, layout=layout))  # type: ignore[arg-type]


def test_layouts_differ_by_a_permutation_of_features() -> None:
    x = draw(1, 2, 3, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    torch.testing.assert_close(rotary(x)[..., order], rotary(x[..., order], layout="halves"))


def test_offsets_of_rows() -> None:
    x = draw(3, 2, 4, 6)
    offsets = torch.tensor([0, 7, -2])
    together = rotary(x, offsets)
    for row, offset in enumerate(offsets.tolist()):
        torch.testing.assert_close(together[row : row + 1], rotary(x[row : row + 1], offset))


def test_cached_equals_whole_also_with_padding_on_the_left() -> None:
    """Rows of different lengths, aligned at their ends, are computed as if each were alone."""
    pad = torch.tensor([0, 2])
    query, key, value = (draw(2, 2, 6, 4, seed=seed) for seed in range(3))
    alone = [
        attention(
            rotary(query[row, None, :, p:]), rotary(key[row, None, :, p:]), value[row, None, :, p:], mask=Causal()
        )
        for row, p in enumerate(pad.tolist())
    ]
    cache: KeyValue | None = None
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        offset = start - pad
        new = KeyValue(rotary(key[:, :, start:stop], offset), value[:, :, start:stop])
        cache = new if cache is None else cache.append(new)
        turned = rotary(query[:, :, start:stop], offset)
        output, _ = attention(turned, cache.key, cache.value, mask=Causal() & ~Padding(pad))
        for row, p in enumerate(pad.tolist()):
            first = max(start, p)
            torch.testing.assert_close(output[row, :, first - start :], alone[row][0][0, :, first - p : stop - p])


def test_half_precision_keeps_its_type_and_far_positions_their_angle() -> None:
    x = draw(1, 1, 2, 8)
    turned = rotary(x.bfloat16(), 100_000)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.double(), rotary(x.bfloat16().double(), 100_000), rtol=0.02, atol=0.02)


def test_refusals(unchecked: None) -> None:
    with pytest.raises(ShapeError, match="must be even"):
        rotary(draw(1, 1, 2, 5))
    with pytest.raises(ShapeError, match=r"offset has shape \[3\]"):
        rotary(draw(2, 1, 2, 4), torch.arange(3))
    with pytest.raises(ConfigurationError, match="'interleaved' or 'halves'"):
        rotary(draw(1, 1, 2, 4), layout="thirds")  # type: ignore[arg-type]
