"""Batches: every pair once per epoch, within the budget, well filled, in an order that can be resumed."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multihead.data.batching import Batch, BatchStream, Resegment, collate, collate_source
from multihead.data.order import Share, batch_order, batches_by_tokens, epoch_pairs, real_share
from multihead.data.store import ParallelStore
from multihead.data.store_writers import ParallelWriter
from multihead.data.text_files import read_lines
from multihead.errors import InputError

Array = npt.NDArray[np.int64]
PAD, BOS, EOS = 0, 1, 2
MULTI30K = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "multi30k"


def some_lengths(count: int, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    source = random.lognormal(2.5, 0.7, count).astype(np.int64) + 1
    return source, np.maximum(1, (source * random.lognormal(0, 0.3, count)).astype(np.int64))


def some_store(count: int, seed: int = 0) -> ParallelStore:
    random = np.random.default_rng(seed)
    sides = [[random.integers(3, 50, length).tolist() for length in side] for side in some_lengths(count, seed)]
    return ParallelStore.from_lists(*sides)


def as_lists(order: list[Array]) -> list[list[int]]:
    return [batch.tolist() for batch in order]


def same(one: Batch, other: Batch) -> bool:
    return (
        all(torch.equal(vars(one)[name], vars(other)[name]) for name in vars(one) if name not in NOT_TENSORS)
        and one.target_tokens == other.target_tokens
        and np.array_equal(one.indices, other.indices)
    )


NOT_TENSORS = ("target_tokens", "indices", "soft", "weights", "links")

pair_lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


class TestOrder:
    @given(pair_lengths, st.integers(1, 100), st.integers(0, 2**63), st.integers(0, 1000), st.integers(1, 70))
    def test_every_index_once_and_within_the_budget(
        self, lengths: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int, pool: int
    ) -> None:
        source, target = ([pair[side] for pair in lengths] for side in (0, 1))
        order = batch_order(source, target, batch_tokens, seed, epoch, pool=pool)
        assert sorted(index for batch in order for index in batch.tolist()) == list(range(len(lengths)))
        for batch in as_lists(order):
            assert batch
            widest = max(max(lengths[index]) for index in batch)
            assert len(batch) * widest <= batch_tokens or len(batch) == 1

    def test_it_is_a_function_of_seed_and_epoch(self) -> None:
        lengths = some_lengths(2000)
        np.random.seed(1)  # the global state must not matter
        order = as_lists(batch_order(*lengths, 500, 3, 5, pool=300))
        np.random.seed(2)
        assert as_lists(batch_order(*lengths, 500, 3, 5, pool=300)) == order
        for seed, epoch in ((3, 6), (4, 5), (5, 3)):
            assert as_lists(batch_order(*lengths, 500, seed, epoch, pool=300)) != order

    def test_neighbours_and_the_order_of_lengths_change_with_the_epoch(self) -> None:
        source, target = some_lengths(5000)
        one, two = (batch_order(source, target, 500, 0, epoch) for epoch in (0, 1))
        batch_in_two = np.empty(5000, np.int64)
        for number, batch in enumerate(two):
            batch_in_two[batch] = number
        met = sum(len(batch) * (len(batch) - 1) for batch in one)
        met_again = sum(int((n * (n - 1)).sum()) for n in (np.bincount(batch_in_two[batch]) for batch in one))
        assert met_again < 0.3 * met
        means = np.array([source[batch].mean() for batch in one])
        assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3

    def test_equal_lengths_are_shuffled(self) -> None:
        equal = np.full(100, 10)
        order = as_lists(batch_order(equal, equal, 200, 0, 0))
        assert [len(batch) for batch in order] == [20] * 5
        assert any(max(batch) - min(batch) > 50 for batch in order)

    def test_a_batch_takes_all_that_fits(self) -> None:
        source, target = some_lengths(5000)
        widths = np.maximum(source, target)
        batches = sorted(batch_order(source, target, 1000, 0, 0), key=lambda batch: source[batch].min())
        fill = [len(batch) * widths[batch].max() / 1000 for batch in batches]
        assert np.median(fill) > 0.9

    def test_no_pairs_no_batches(self) -> None:
        assert batch_order([], [], 100, 0, 0) == []

    def test_senseless_arguments(self) -> None:
        with pytest.raises(InputError, match="2 source lengths but 1 target"):
            batch_order([1, 2], [1], 100, 0, 0)
        for function in (lambda: batch_order([1], [1], 0, 0, 0), lambda: batches_by_tokens([1], 0)):
            with pytest.raises(InputError, match="a batch of 0 tokens"):
                function()

    def test_a_million_pairs_are_ordered_in_a_moment(self) -> None:
        lengths = some_lengths(1_000_000)
        started = time.process_time()
        batch_order(*lengths, 4096, 0, 0)
        assert time.process_time() - started < 3

    def test_share_of_real_tokens_on_multi30k(self) -> None:
        if not MULTI30K.is_dir():
            pytest.skip("the shared Multi30k data is not here")
        # a subword has about six characters: a stand-in for a tokenizer
        source, target = (
            np.array([len(line) // 6 + 2 for line in read_lines(MULTI30K / f"train.{code}.gz")])
            for code in ("de", "en")
        )
        order = batch_order(source, target, 4096, 0, 0)
        assert real_share(order, source, target) >= 0.88
        shuffled = np.array_split(np.random.default_rng(0).permutation(len(source)), len(order))
        assert real_share(shuffled, source, target) < 0.6

    def test_share_counts_both_sides(self) -> None:
        # sources 2 + 4 of 8, targets 1 + 1 of 2, then a single pair without padding
        batches = [np.array([0, 1]), np.array([2])]
        assert real_share(batches, [2, 4, 3], [1, 1, 7]) == (6 + 2 + 10) / (8 + 2 + 10)


class TestCollate:
    def test_each_row_is_its_pair(self) -> None:
        store = some_store(200)
        indices = np.array([5, 0, 199, 17, 17])
        batch = collate(store, indices, pad_id=PAD, bos_id=BOS, eos_id=EOS)
        for row, index in enumerate(indices.tolist()):
            source, target = store.source[index].tolist(), store.target[index].tolist()
            s, t = int(batch.source_lengths[row]), int(batch.target_lengths[row])
            assert batch.source[row, :s].tolist() == [*source, EOS]
            assert batch.target_input[row, :t].tolist() == [BOS, *target]
            assert batch.target_output[row, :t].tolist() == [*target, EOS]
            for padding in (batch.source[row, s:], batch.target_input[row, t:], batch.target_output[row, t:]):
                assert (padding == PAD).all()
        assert batch.source.shape == (5, batch.source_lengths.max())
        assert batch.target_input.shape == batch.target_output.shape == (5, batch.target_lengths.max())
        assert batch.target_tokens == batch.target_lengths.sum() == (batch.target_output != PAD).sum()
        assert batch.indices.tolist() == indices.tolist()
        assert {vars(batch)[name].dtype for name in vars(batch) if name not in NOT_TENSORS} == {torch.int64}

    def test_empty_sides_are_just_their_symbols(self) -> None:
        store = ParallelStore.from_lists([[], [7]], [[], []])
        batch = collate(store, np.array([0, 1]), pad_id=PAD, bos_id=BOS, eos_id=EOS)
        assert batch.source.tolist() == [[EOS, PAD], [7, EOS]]
        assert batch.target_input.tolist() == [[BOS], [BOS]]
        assert batch.target_output.tolist() == [[EOS], [EOS]]

    def test_from_disk_as_from_memory_and_on_any_device(self, tmp_path: Path) -> None:
        memory = some_store(20)
        with ParallelWriter(tmp_path / "d", 50, 50) as writer:
            writer.append(
                *([side[i].tolist() for i in range(20)] for side in (memory.source, memory.target)),
                range(1, 21),
            )
        ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
        batch = collate(memory, np.arange(20), **ids)
        assert same(collate(ParallelStore.open(tmp_path / "d"), np.arange(20), **ids), batch)
        moved = batch.to("meta")
        assert {vars(moved)[n].device.type for n in vars(moved) if n not in NOT_TENSORS} == {"meta"}
        assert same(batch.to("cpu"), batch)

    def test_sources_alone_are_as_in_a_batch(self) -> None:
        store = some_store(30)
        sequences = [store.source[index].tolist() for index in range(30)]
        source, lengths = collate_source(sequences, PAD, EOS)
        batch = collate(store, np.arange(30), pad_id=PAD, bos_id=BOS, eos_id=EOS)
        assert torch.equal(source, batch.source)
        assert torch.equal(lengths, batch.source_lengths)


class TestGroupsForTranslating:
    @given(st.lists(st.integers(0, 50), max_size=50), st.integers(1, 200))
    def test_each_once_sorted_within_the_budget(self, lengths: list[int], batch_tokens: int) -> None:
        groups = batches_by_tokens(lengths, batch_tokens)
        flat = [index for group in groups for index in group]
        assert flat == sorted(range(len(lengths)), key=lambda index: -lengths[index])  # sorted() is stable
        for group, following in zip(groups, [*groups[1:], []], strict=False):
            widest = lengths[group[0]]
            assert len(group) * widest <= batch_tokens or len(group) == 1
            if following:  # no further pair would fit
                assert (len(group) + 1) * max(1, widest) > batch_tokens


class TestStream:
    def stream(self, store: ParallelStore, position: tuple[int, int] = (0, 0)) -> BatchStream:
        return BatchStream(store, 300, 11, pad_id=PAD, bos_id=BOS, eos_id=EOS, position=position)

    def test_it_goes_through_whole_epochs_in_order(self) -> None:
        store = some_store(150)
        stream = self.stream(store)
        for epoch in range(3):
            expected = batch_order(store.source.lengths + 1, store.target.lengths + 1, 300, 11, epoch)
            assert stream.batches_in_epoch == len(expected)
            for index, batch in enumerate(as_lists(expected)):
                assert stream.position == (epoch, index)
                taken = stream.take()
                assert taken.indices.tolist() == batch
                assert max(taken.source.numel(), taken.target_input.numel()) <= 300

    def test_resumed_anywhere_it_equals_the_uninterrupted_one(self) -> None:
        store = some_store(150)
        stream, positions, batches = self.stream(store), [], []
        for _ in range(3 * stream.batches_in_epoch):
            positions.append(stream.position)
            batches.append(stream.take())
        for start in (0, 1, stream.batches_in_epoch - 1, stream.batches_in_epoch, len(batches) - 4):
            resumed = self.stream(store, positions[start])
            for position, batch in list(zip(positions, batches, strict=True))[start : start + 12]:
                assert resumed.position == position
                assert same(resumed.take(), batch)

    def test_a_position_of_other_data_and_an_empty_store(self) -> None:
        store = some_store(50)
        for index in (-1, 50):
            with pytest.raises(InputError, match=rf"no batch {index}, counted from 0: epoch 2 has"):
                self.stream(store, (2, index))
        with pytest.raises(InputError, match="without a single pair"):
            self.stream(ParallelStore.from_lists([], []))


class TestShares:
    SHARES = (Share(0, 50, 0.4), Share(50, 90, 1.0), Share(90, 150, 2.5))

    def stream(
        self, store: ParallelStore, shares: tuple[Share, ...], position: tuple[int, int] = (0, 0)
    ) -> BatchStream:
        return BatchStream(store, 300, 11, pad_id=PAD, bos_id=BOS, eos_id=EOS, position=position, shares=shares)

    def test_an_epoch_holds_what_the_shares_say_within_the_budget(self) -> None:
        store = some_store(150)
        stream = self.stream(store, self.SHARES)
        for epoch in range(4):
            batches = [stream.take() for _ in range(stream.batches_in_epoch)]
            assert stream.position == (epoch + 1, 0)
            seen = np.sort(np.concatenate([batch.indices for batch in batches]))
            assert seen.tolist() == epoch_pairs(150, self.SHARES, 11, epoch).tolist()
            for batch in batches:
                assert max(batch.source.numel(), batch.target_input.numel()) <= 300

    def test_resumed_anywhere_it_equals_the_uninterrupted_one(self) -> None:
        store = some_store(150)
        stream, positions, batches = self.stream(store, self.SHARES), [], []
        for _ in range(3 * stream.batches_in_epoch):
            positions.append(stream.position)
            batches.append(stream.take())
        for start in (0, 1, len(batches) // 2, len(batches) - 4):
            resumed = self.stream(store, self.SHARES, positions[start])
            assert all(same(resumed.take(), batch) for batch in batches[start : start + 12])

    def test_one_share_of_everything_is_no_share(self) -> None:
        store = some_store(150)
        plain, shared = self.stream(store, ()), self.stream(store, (Share(0, 60, 1), Share(60, 150, 1)))
        assert all(same(plain.take(), shared.take()) for _ in range(2 * plain.batches_in_epoch))

    def test_an_epoch_without_a_pair_is_passed_over(self) -> None:
        stream = self.stream(some_store(4), (Share(0, 2, 0.25), Share(2, 4, 0.25)))
        positions = [(stream.position, stream.take().indices.tolist()) for _ in range(4)]
        assert [epoch for (epoch, _), _ in positions] == [1, 3, 5, 7]
        assert sorted(positions[0][1] + positions[1][1]) == [0, 1, 2, 3]
        resumed = self.stream(some_store(4), (Share(0, 2, 0.25), Share(2, 4, 0.25)), (3, 0))
        assert resumed.take().indices.tolist() == positions[1][1]

    def test_shares_of_another_store(self) -> None:
        with pytest.raises(InputError, match="end to end, from 0 to 20"):
            self.stream(some_store(20), self.SHARES)


def chopped(side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
    """Each subword becomes one to four copies at random, as BPE-dropout changes lengths."""
    rows = []
    for row, pair in zip(ids, pairs, strict=True):
        random = np.random.default_rng((side, pair, epoch))
        rows.append(np.repeat(row, 1 + random.binomial(3, 0.1, len(row))).tolist())
    return rows


class TestSegmentedAnew:
    def stream(
        self, store: ParallelStore, segment: Resegment | None, position: tuple[int, int] = (0, 0), budget: int = 1000
    ) -> BatchStream:
        ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
        return BatchStream(store, budget, 11, **ids, position=position, segment=segment)

    def test_every_pair_is_seen_anew_within_the_budget(self) -> None:
        store = some_store(1500)
        stream, fill, kept = self.stream(store, chopped), [], 0
        for epoch in range(2):
            seen = []
            for _ in range(stream.batches_in_epoch):
                batch = stream.take()
                numbers = batch.indices.tolist()
                seen += numbers
                fill.append(max(batch.source.numel(), batch.target_input.numel()) / 1000)
                rows = (batch.source, batch.source_lengths), (batch.target_output, batch.target_lengths)
                for side, ((padded, lengths), tokens) in enumerate(
                    zip(rows, (store.source, store.target), strict=True)
                ):
                    stored = [tokens[number].tolist() for number in numbers]
                    fresh = chopped(side, stored, numbers, epoch)
                    for row, length, new, old in zip(padded.tolist(), lengths.tolist(), fresh, stored, strict=True):
                        if row[:length] != [*new, EOS]:  # only where there was no room for it
                            assert row[:length] == [*old, EOS]
                            assert (len(new) + 1) * len(numbers) > 1000
                            kept += 1
                assert batch.target_tokens == batch.target_lengths.sum() == (batch.target_output != PAD).sum()
            assert sorted(seen) == list(range(1500))
        assert max(fill) <= 1
        assert np.median(fill) > 0.8
        assert 0 < kept < 0.02 * 4 * 1500

    def test_epochs_differ_and_resumed_anywhere_it_equals_the_uninterrupted_one(self) -> None:
        store = some_store(150)
        stream, positions, batches = self.stream(store, chopped, budget=300), [], []
        for _ in range(2 * stream.batches_in_epoch):
            positions.append(stream.position)
            batches.append(stream.take())
        for start in (0, 1, len(batches) - 3):
            resumed = self.stream(store, chopped, positions[start], budget=300)
            assert all(same(resumed.take(), batch) for batch in batches[start : start + 8])
        cut: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
        for (epoch, _), batch in zip(positions, batches, strict=True):
            cut[epoch] += zip(batch.indices.tolist(), batch.source_lengths.tolist(), strict=True)
        assert sorted(cut[0]) != sorted(cut[1])

    def test_cuts_that_change_nothing_change_nothing(self) -> None:
        store = some_store(300)
        plain, cut = self.stream(store, None), self.stream(store, lambda side, ids, pairs, epoch: ids)
        assert all(same(plain.take(), cut.take()) for _ in range(2 * plain.batches_in_epoch))

    def test_a_pair_longer_than_the_budget_is_read_as_it_is_stored(self) -> None:
        store = ParallelStore.from_lists([[7] * 40], [[8]])
        stream = self.stream(store, chopped, budget=20)
        assert stream.take().source.tolist() == [[*[7] * 40, EOS]]

    def test_sentences_that_do_not_come_back(self) -> None:
        with pytest.raises(InputError, match="20 sentences were to be segmented again, but 19 came back"):
            self.stream(some_store(20), lambda side, ids, pairs, epoch: ids[1:])
