"""The part of a batch that each of several processes takes, and batches that a thread prepares ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch

from multihead.data.ahead import DEPTH, Ahead
from multihead.data.batching import Batch, BatchStream, Resegment
from multihead.data.store import ParallelStore

PATIENCE = 60.0


def chopped(side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
    """Each subword becomes one or two copies at random, as BPE-dropout changes lengths."""
    draws = [np.random.default_rng((side, pair, epoch)) for pair in pairs]
    return [np.repeat(row, 1 + draw.integers(0, 2, len(row))).tolist() for row, draw in zip(ids, draws, strict=True)]


@pytest.fixture(params=[None, chopped], ids=["stored", "cut anew"])
def stream(request: pytest.FixtureRequest) -> Callable[[], BatchStream]:
    draw = np.random.default_rng(3)
    rows = [draw.integers(4, 90, draw.integers(1, 30)).tolist() for _ in range(120)]
    store, segment = ParallelStore.from_lists(rows[:60], rows[60:]), request.param

    def open_stream() -> BatchStream:
        return BatchStream(store, 200, 5, pad_id=0, bos_id=2, eos_id=3, segment=segment)

    return open_stream


def same(one: Batch, other: Batch) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Batch)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else np.all(a == b) for a, b in pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_the_portions_of_a_batch_are_its_rows(stream, size):
    """Equal to the rows of the whole batch, tensor by tensor; values that no single process knows are None.

    No batch has 20 rows.
    """
    whole, parts = stream(), [stream() for _ in range(size)]
    for _ in range(2 * whole.batches_in_epoch):
        batch = whole.take()
        portions = [part.take_portion(rank, size) for rank, part in enumerate(parts)]
        assert all(part.position == whole.position for part in parts)
        assert sum(portion.count for portion in portions) == len(batch)
        tokens = [0, 0]
        for portion in portions:
            assert np.array_equal(portion.indices, batch.indices)
            if portion.count:
                assert same(portion.rows, batch.part(portion.first_row, portion.first_row + portion.count))
                tokens = [tokens[0] + portion.rows.target_tokens, tokens[1] + portion.rows.source_tokens]
            else:
                assert same(portion.rows, batch.part(0, 1))
            assert portion.tokens in (None, (batch.target_tokens, batch.source_tokens))
        assert tokens == [batch.target_tokens, batch.source_tokens]


def test_rows_of_others_are_not_cut(stream):
    """The work of BPE-dropout is divided by the number of processes."""
    seen: list[int] = []
    plain = stream()
    if plain._segment is None:
        return

    def counted(side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
        seen.extend(pairs)
        return chopped(side, ids, pairs, epoch)

    counting: Resegment = counted
    plain._segment = counting
    portion = plain.take_portion(1, 2)
    assert sorted(set(seen)) == sorted(portion.rows.indices.tolist())
    assert len(seen) == 2 * portion.count < 2 * len(portion.indices)


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_taken_ahead_is_the_same_with_the_same_positions(stream, size):
    plain, ahead = stream(), Ahead(stream(), size - 1, size)
    for _ in range(2 * plain.batches_in_epoch):
        assert ahead.position == plain.position
        want = plain.take() if size == 1 else plain.take_portion(1, 2)
        got = ahead.take()
        assert same(got, want) if isinstance(want, Batch) else same(got.rows, want.rows)
    ahead.close()
    assert not ahead._thread.is_alive()


class Failing:
    """A stream whose third batch cannot be made."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream, self.taken = stream, 0

    @property
    def position(self) -> tuple[int, int]:
        return self.stream.position

    def take(self) -> Batch:
        self.taken += 1
        if self.taken == 3:
            raise OSError("the disk is gone")
        return self.stream.take()

    take_portion = take


def test_an_error_comes_where_the_batch_is_asked_for(stream):
    ahead = Ahead(Failing(stream()))
    position = [ahead.take() for _ in range(2)] and ahead.position
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.take()
    assert ahead.position == position
    ahead.close()


def test_no_more_is_taken_ahead_than_said(stream):
    counting = Failing(stream())
    counting.taken = 10
    ahead = Ahead(counting)
    for taken in range(1, 5):
        ahead.take()
        assert counting.taken - 10 <= taken + DEPTH
    ahead.close()
    assert counting.taken - 10 <= 4 + DEPTH
