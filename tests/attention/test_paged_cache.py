"""A paged cache holds what rows of plain tensors hold, whatever was appended, selected, joined and dropped."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from multihead.attention import Causal, KeyValue, PagedKeyValue, PagePool, attention
from multihead.errors import ConfigurationError, ShapeError

HEADS, KEY, VALUE = 2, 4, 3


def made(pages: int = 100, page_size: int = 4) -> PagePool:
    return PagePool(pages, page_size, kv_heads=HEADS, key_width=KEY, value_width=VALUE, dtype=torch.float64)


def new(rows: int, length: int, draw: torch.Generator) -> KeyValue:
    key, value = (
        torch.randn(rows, HEADS, length, width, generator=draw, dtype=torch.float64) for width in (KEY, VALUE)
    )
    return KeyValue(key, value)


def holds(cache: PagedKeyValue, rows: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether each row has these keys and values [heads, length, width] at its end, and padding before."""
    dense, mask = cache.dense()
    longest = max((key.shape[1] for key, _ in rows), default=0)
    seen = mask.dense(1, longest).expand(len(rows), 1, 1, longest)[:, 0, 0]
    found = zip(dense.key, dense.value, seen, rows, strict=True)
    return cache.lengths == tuple(key.shape[1] for key, _ in rows) and all(
        torch.equal(k[:, here], key) and torch.equal(v[:, here], value) for k, v, here, (key, value) in found
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_any_history_is_that_of_plain_rows(seed: int, page_size: int) -> None:
    """Older caches do not change, although newer ones share their pages."""
    chosen, draw, pool = random.Random(seed), torch.Generator().manual_seed(seed), made(3000, page_size)
    empty = torch.zeros(HEADS, 0, KEY).double(), torch.zeros(HEADS, 0, VALUE).double()
    known = [(PagedKeyValue.begin(pool, 3), [empty] * 3)]
    for _ in range(25):
        cache, rows = chosen.choice(known)  # any of them, not the last only
        match chosen.choice(("append", "append", "select", "join")):
            case "append":
                more = new(len(rows), chosen.randrange(1, 6), draw)
                grown = [
                    (torch.cat((key, k), 1), torch.cat((value, v), 1))
                    for (key, value), k, v in zip(rows, more.key, more.value, strict=True)
                ]
                known.append((cache.append(more), grown))
            case "select":
                order = [chosen.randrange(len(rows)) for _ in range(chosen.randrange(1, 5))]
                known.append((cache.select(order), [rows[row] for row in order]))
            case _:
                other, others = chosen.choice(known)
                if len(rows) + len(others) < 9:
                    known.append((cache.join(other), rows + others))
    assert all(holds(cache, rows) for cache, rows in known)
    assert pool.used > 0
    del cache, other, known
    assert pool.used == 0  # every page has returned


def test_a_common_beginning_is_held_once() -> None:
    draw, pool = torch.Generator().manual_seed(0), made(page_size=4)
    prompt = PagedKeyValue.begin(pool, 1).append(new(1, 10, draw))
    assert pool.used == 3
    beam = prompt.select([0, 0, 0, 0])
    assert pool.used == 3
    beam = beam.append(new(4, 1, draw))  # the third page has room: one row continues in it, three in copies
    assert pool.used == 6
    del prompt
    beam = beam.append(new(4, 1, draw))
    assert pool.used == 6
    assert beam.select([2]).lengths == (12,)
    beam = beam.select([2])
    assert pool.used == 3


def test_attention_to_pages_is_attention_to_each_row() -> None:
    draw, pool = torch.Generator().manual_seed(0), made()
    short, long = (PagedKeyValue.begin(pool, 1).append(new(1, length, draw)) for length in (3, 9))
    both = short.join(long).join(PagedKeyValue.begin(pool, 1))
    query = torch.randn(3, 4, 2, KEY, generator=draw, dtype=torch.float64)
    held, mask = both.append(new(3, 2, draw)).dense()
    output, _ = attention(query, held.key, held.value, mask=mask & Causal())
    for row, length in enumerate((5, 11, 2)):
        key, value = held.key[row, None, :, -length:], held.value[row, None, :, -length:]
        alone, _ = attention(query[row, None], key, value, mask=Causal())
        torch.testing.assert_close(output[row, None], alone, rtol=1e-11, atol=1e-12)
    pool.key.fill_(float("nan"))  # the padding of a row is some other row's page, and may hold anything
    kept, mask = both.dense()
    hidden, _ = attention(query[:, :, :1], kept.key, kept.value, mask=mask)
    assert (hidden[2] == 0).all()  # the third row has no keys yet


def test_half_types_and_empty_caches() -> None:
    pool = PagePool(4, 2, kv_heads=HEADS, key_width=KEY, dtype=torch.bfloat16)
    cache = PagedKeyValue.begin(pool, 2)
    assert cache.dense()[0].key.shape == (2, HEADS, 0, KEY)
    assert PagedKeyValue.begin(pool, 0).dense()[0].value.shape == (0, HEADS, 0, KEY)
    draw = torch.Generator().manual_seed(0)
    key = torch.randn(2, HEADS, 3, KEY, generator=draw, requires_grad=True)
    held, _ = cache.append(KeyValue(key, key)).dense()
    assert held.key.dtype == torch.bfloat16
    assert torch.equal(held.key, key.bfloat16())
    assert not held.key.requires_grad


def test_what_does_not_fit_is_named() -> None:
    draw, pool = torch.Generator().manual_seed(0), made(pages=2)
    cache = PagedKeyValue.begin(pool, 1).append(new(1, 6, draw))
    with pytest.raises(ConfigurationError, match="all 2 pages are in use"):
        cache.append(new(1, 3, draw))
    assert pool.used == 2
    assert cache.append(new(1, 2, draw)).lengths == (8,)  # a failed call took no pages
    with pytest.raises(ShapeError, match=r"cannot append keys \[2, 2, 1, 4\]"):
        cache.append(new(2, 1, draw))
    with pytest.raises(ConfigurationError, match="different pools"):
        cache.join(PagedKeyValue.begin(made(), 1))
    with pytest.raises(ConfigurationError, match="pages=0"):
        made(pages=0)
