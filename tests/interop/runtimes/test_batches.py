"""Batches of sources: every one once, padded behind its ids."""

from __future__ import annotations

import torch

from multihead.interop.runtimes.batches import batches, chosen, pad


def test_every_source_is_in_one_batch() -> None:
    sources = [[7] * (1 + place % 5) for place in range(70)]
    found = list(batches(sources, 0))
    assert sorted(place for batch in found for place in batch.places) == list(range(70))
    for batch in found:
        rows = zip(batch.ids.tolist(), batch.mask.tolist(), batch.lengths.tolist(), strict=True)
        for place, (ids, mask, length) in zip(batch.places, rows, strict=True):
            assert (ids[:length], set(ids[length:])) == (sources[place], {0} if length < len(ids) else set())
            assert mask == [1] * length + [0] * (len(ids) - length)


def test_the_entries_of_ids() -> None:
    rows = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])
    assert chosen(rows, [2, 0]) == [2.0, 3.0]
    assert pad([[1], [2, 3]], 9).tolist() == [[1, 9], [2, 3]]
