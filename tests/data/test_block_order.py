"""The order of a large store: every pair as often as in `order`, batches as full, resumable at any position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.shares import assert_nobody_is_ahead, corpora, shares_of

from multihead.data import block_order
from multihead.data.batching import BatchStream
from multihead.data.block_order import SPAN, BlockOrder, large_batches
from multihead.data.order import Array, Share, batch_order, real_share
from multihead.data.store import ParallelStore
from multihead.errors import InputError


@pytest.fixture(autouse=True, scope="module")
def small() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_order, "BLOCK", 4)
        patch.setattr(block_order, "POOL", 40)
        yield


def ordered(
    lengths: Array, budget: int = 100, shares: tuple[Share, ...] = (), seed: int = 1, epoch: int = 0
) -> BlockOrder:
    return BlockOrder(len(lengths), lambda pairs: (lengths[pairs], lengths[pairs]), budget, shares, seed, epoch)


def batches_of(order: BlockOrder) -> list[Array]:
    found, index = [], 0
    while index < len(order):
        assert index in order
        found.append(order[index])
        index = order.after(index)
    assert len(found) == order.count()
    return found


def drawn(count: int, seed: int = 0, longest: int = 40) -> Array:
    return np.random.default_rng(seed).integers(1, longest, count)


@settings(max_examples=60)
@given(corpora, st.integers(0, 2**63), st.integers(1, 12))
def test_no_pair_of_a_corpus_is_ever_more_than_once_ahead_of_another(
    parts: list[tuple[int, float]], seed: int, epochs: int
) -> None:
    shares = tuple(shares_of(parts))
    lengths, total = drawn(shares[-1].stop), np.zeros(shares[-1].stop, np.int64)
    for epoch in range(epochs):
        seen = [np.empty(0, np.int64), *batches_of(ordered(lengths, shares=shares, seed=seed, epoch=epoch))]
        now = np.bincount(np.concatenate(seen), minlength=len(lengths))
        total += now
        assert_nobody_is_ahead(now, total, shares, epoch)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 39, 41, 163, 400])
def test_an_epoch_sees_every_pair_once_within_the_budget(count: int) -> None:
    lengths = drawn(count)
    batches = batches_of(ordered(lengths))
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert all(len(batch) * lengths[batch].max() <= 100 for batch in batches)


def test_it_is_a_function_of_seed_and_epoch() -> None:
    lengths = drawn(200)
    first, again, *others = (
        [batch.tolist() for batch in batches_of(ordered(lengths, seed=seed, epoch=epoch))]
        for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert first == again
    assert all(first != other for other in others)


def test_any_pool_is_computed_without_the_others() -> None:
    lengths = drawn(400)
    asked: list[Array] = []

    def look(pairs: Array) -> tuple[Array, Array]:
        asked.append(pairs)
        return lengths[pairs], lengths[pairs]

    order = BlockOrder(400, look, 100, (), 1, 0)
    assert order.pools == 10
    assert order[7 * SPAN].tolist() == ordered(lengths)[7 * SPAN].tolist()
    assert sum(map(len, asked)) == 40
    assert 7 * SPAN + 10_000 not in order
    assert 10 * SPAN not in order
    assert -1 not in order


def test_batches_are_as_full_as_those_of_the_whole_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_order, "BLOCK", 16)
    monkeypatch.setattr(block_order, "POOL", 2000)
    source = np.random.default_rng(1).integers(3, 60, 10_000)
    target = np.maximum(source + np.random.default_rng(2).integers(-4, 5, 10_000), 1)
    blocks = BlockOrder(10_000, lambda pairs: (source[pairs], target[pairs]), 1500, (), 1, 0)
    ours, theirs = batches_of(blocks), batch_order(source, target, 1500, 1, 0, pool=2000)
    assert real_share(ours, source, target) == pytest.approx(real_share(theirs, source, target), abs=0.005)
    assert len(ours) == pytest.approx(len(theirs), rel=0.01)


def test_neighbors_of_the_corpus_meet_as_seldom_as_other_pairs_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the pool, 15 of the 2,047 other pairs of a batch are expected to be from the same block of 16."""
    monkeypatch.setattr(block_order, "BLOCK", 16)
    monkeypatch.setattr(block_order, "POOL", 2048)
    met = possible = 0
    for batch in batches_of(ordered(drawn(8192, longest=30), 2000)):
        counts = np.bincount(batch // 16)
        met, possible = met + int((counts * (counts - 1)).sum()), possible + len(batch) * (len(batch) - 1)
    assert met / possible == pytest.approx(15 / 2047, rel=0.1)


def store_of(count: int) -> ParallelStore:
    sides = ([[1] * int(n) for n in drawn(count, seed)] for seed in (1, 2))
    return ParallelStore.from_lists(*sides)


def stream(store: ParallelStore, position: tuple[int, int] = (0, 0), **options: Any) -> BatchStream:
    return BatchStream(store, 200, 3, pad_id=0, bos_id=2, eos_id=3, position=position, blocks=True, **options)


def test_a_stream_goes_on_from_any_position() -> None:
    store = store_of(150)
    taken, whole = [], stream(store, shares=(Share(0, 100, 1.0), Share(100, 150, 0.5)))
    while whole.position < (3, 0):
        taken.append((whole.position, whole.take().indices.tolist()))
    assert [position for position, _ in taken[:2]] == [(0, 0), (0, 1)]
    for start in range(0, len(taken), 7):
        resumed = stream(store, taken[start][0], shares=(Share(0, 100, 1.0), Share(100, 150, 0.5)))
        assert [(resumed.position, resumed.take().indices.tolist()) for _ in taken[start:]] == taken[start:]
    with pytest.raises(InputError, match="no batch 999"):
        stream(store, (0, 999))


def test_the_budget_holds_when_sentences_are_cut_anew() -> None:
    store = store_of(150)

    def longer(_: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
        return [[*own, *own[: (pair + epoch) % 5]] for own, pair in zip(ids, pairs, strict=True)]

    cut = stream(store, segment=longer)
    seen = []
    while cut.position < (1, 0):
        batch = cut.take()
        assert batch.cells <= 200
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(150))


def test_the_longest_pairs_are_among_the_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_order, "_LONGEST", 20)
    monkeypatch.setattr(block_order, "_CHUNK", 64)
    store = store_of(400)
    widths = np.maximum(store.source.lengths, store.target.lengths)
    first = np.concatenate(large_batches(store, 200, 3)[:1])
    found = np.concatenate(large_batches(store, 200, 3))
    assert widths[found].max() == widths.max()
    assert sorted(widths[found])[-20:] == sorted(widths)[-20:]
    assert len(first) <= 200
