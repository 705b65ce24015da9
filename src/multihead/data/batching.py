"""From stored pairs to batches: which pairs go together, in which order, and their padded tensors.

A batch holds pairs of nearly equal lengths and at most so many tokens, padding included. The order of an
epoch is a pure function of the lengths, the token budget, the seed and the epoch: a run that goes on from a
position sees what it would have seen without the interruption. Splitting a batch over processes is left to
training; what the ids mean, to the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64
from torch import Tensor

from multihead.data.store import ParallelStore, TokenStore
from multihead.errors import InputError

Array = npt.NDArray[np.int64]
Lengths = Sequence[int] | npt.NDArray[np.integer[Any]]


def batch_order(
    source_lengths: Lengths,
    target_lengths: Lengths,
    batch_tokens: int,
    seed: int,
    epoch: int,
    pool: int = 200_000,
) -> list[Array]:
    """The batches of an epoch, each an array of the indices of its pairs; every index stands in exactly one.

    All pairs are shuffled and cut into pools of about ``pool`` pairs; a pool is sorted by length, blurred by
    a coin toss (without it, the same pairs would meet again in every epoch of a small corpus), and cut into
    batches with ``rows * max(longest source, longest target) <= batch_tokens``; the batches of all pools are
    shuffled. A pair longer than the budget is a batch of its own.

    Args:
        source_lengths: tokens of each source as they stand in a batch, the end symbol included.
        target_lengths: the same of each target.
        batch_tokens: the budget of a batch and a side, padding included.
        seed: chooses the order, together with ``epoch``; neither is negative.
        epoch: counted from 0.
        pool: large, so that batches are well filled; finite, so that neighbours change from epoch to epoch.
    """
    source, target = np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)
    if len(source) != len(target):
        raise InputError(f"{len(source)} source lengths but {len(target)} target lengths; expected as many")
    _check_budget(batch_tokens)
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    shuffled = random.permutation(len(source))
    batches: list[Array] = []
    for pooled in np.array_split(shuffled, max(1, round(len(shuffled) / pool))):
        # On Multi30k, in batches of 4,096, the tosses take real tokens from 96 to 94 %; of the pairs that
        # share a batch in one epoch, 16 % share one in the next, instead of 61 %.
        tosses = random.integers(0, 2, (2, len(pooled)))
        arranged = pooled[_by_length(source[pooled] + tosses[0], target[pooled] + tosses[1])]
        widths = np.maximum(source[arranged], target[arranged])
        batches.extend(np.split(arranged, _cuts(widths, batch_tokens)) if len(arranged) else [])
    return [batches[place] for place in random.permutation(len(batches))]


def _by_length(source: Array, target: Array) -> Array:
    """Sort by source, then target length; what is equal stays in its (random) order.

    Targets rise within sources of even length and fall within odd ones, so that where one source length
    gives way to the next, the targets of neighbours are still alike.
    """
    span = int(target.max(initial=0)) + 1
    turned = np.where(source % 2 == 0, target, span - 1 - target)
    return np.argsort(source * span + turned, kind="stable")


def _cuts(widths: Array, batch_tokens: int) -> list[int]:
    """Where to cut a row of sequences so that each piece, padded, is as large as the budget allows."""
    cuts: list[int] = []
    start = 0
    while True:
        # rows * widest <= budget, so a piece that begins here has at most this many rows
        most = max(1, batch_tokens // max(1, int(widths[start])))
        window = np.maximum.accumulate(widths[start : start + most])
        rows = np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(rows * window, batch_tokens, side="right")))
        if start >= len(widths):
            return cuts
        cuts.append(start)


def real_share(batches: Sequence[Array], source_lengths: Lengths, target_lengths: Lengths) -> float:
    """The share of real tokens among all that batches hold, padding included, source and target together."""
    real = padded = 0
    for lengths in (np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)):
        for batch in batches:
            real += int(lengths[batch].sum())
            padded += len(batch) * int(lengths[batch].max(initial=0))
    return real / max(1, padded)


def batches_by_tokens(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group sequences for translating: sorted by length, ``rows * longest <= batch_tokens`` in each group.

    The longest come first, so that what does not fit in memory shows at once; equal lengths stay in order. A
    sequence longer than the budget is a group of its own.
    """
    _check_budget(batch_tokens)
    widths = np.asarray(lengths, np.int64)
    if not len(widths):
        return []
    arranged = np.argsort(-widths, kind="stable")
    return [piece.tolist() for piece in np.split(arranged, _cuts(widths[arranged], batch_tokens))]


def _check_budget(batch_tokens: int) -> None:
    if batch_tokens < 1:
        raise InputError(f"a batch of {batch_tokens} tokens; expected at least 1, and 1,000 or more to train")


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs as padded tensors; padding stands on the right.

    Attributes:
        source: ids, then the end symbol.
        source_lengths: real tokens of each source, the end symbol included.
        target_input: the begin symbol, then ids: what the decoder reads.
        target_output: ids, then the end symbol: what it is to predict.
        target_lengths: real tokens of each target, one symbol included.
        target_tokens: the sum of ``target_lengths``, known without asking the device.
        indices: which pairs of the store these are.
    """

    source: Int64[Tensor, "batch source"]
    source_lengths: Int64[Tensor, " batch"]
    target_input: Int64[Tensor, "batch target"]
    target_output: Int64[Tensor, "batch target"]
    target_lengths: Int64[Tensor, " batch"]
    target_tokens: int
    indices: Array

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on ``device``."""
        return replace(
            self,
            source=self.source.to(device),
            source_lengths=self.source_lengths.to(device),
            target_input=self.target_input.to(device),
            target_output=self.target_output.to(device),
            target_lengths=self.target_lengths.to(device),
        )


def collate(store: ParallelStore, indices: Array, *, pad_id: int, bos_id: int, eos_id: int) -> Batch:
    """The batch of some pairs of a store, in the order of ``indices``."""
    source, source_lengths = _end_and_pad(*store.source.gather(indices), pad_id, eos_id)
    flat, lengths = store.target.gather(indices)
    target_output, target_lengths = _end_and_pad(flat, lengths, pad_id, eos_id)
    target_input = np.full_like(target_output, pad_id)
    target_input[:, 0] = bos_id
    target_input[:, 1:][_real(lengths)] = flat
    return Batch(
        source=torch.from_numpy(source),
        source_lengths=torch.from_numpy(source_lengths),
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target_output),
        target_lengths=torch.from_numpy(target_lengths),
        target_tokens=int(target_lengths.sum()),
        indices=indices,
    )


def collate_source(
    sequences: Sequence[Sequence[int]], pad_id: int, eos_id: int
) -> tuple[Int64[Tensor, "batch source"], Int64[Tensor, " batch"]]:
    """Sources for translating: ids, then the end symbol, padded on the right; and their lengths."""
    store = TokenStore.from_lists(sequences)
    padded, lengths = _end_and_pad(*store.gather(np.arange(len(store))), pad_id, eos_id)
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def _real(lengths: Array) -> npt.NDArray[np.bool_]:
    """Which places of a padded array hold a token: true from the left, ``lengths`` times in each row."""
    return np.arange(lengths.max(initial=0)) < lengths[:, None]


def _end_and_pad(flat: Array, lengths: Array, pad_id: int, eos_id: int) -> tuple[Array, Array]:
    padded = np.full((len(lengths), int(lengths.max(initial=0)) + 1), pad_id, np.int64)
    padded[:, :-1][_real(lengths)] = flat
    padded[np.arange(len(lengths)), lengths] = eos_id
    return padded, lengths + 1


class BatchStream:
    """The batches of a store, epoch after epoch, without end.

    Only ``position`` has to be remembered: a stream that is made at a position goes on exactly as the one
    that was there. Just the order of the current epoch is kept.

    Args:
        store: where the pairs are.
        batch_tokens: the budget of a batch and a side, padding included.
        seed: chooses the order.
        pad_id: fills up shorter sequences.
        bos_id: begins what the decoder reads.
        eos_id: ends sources and targets.
        position: epoch and place in the epoch of the first batch to be taken.

    Raises:
        InputError: the store is empty, or the epoch has no batch at that position.
    """

    def __init__(
        self,
        store: ParallelStore,
        batch_tokens: int,
        seed: int,
        *,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        position: tuple[int, int] = (0, 0),
    ) -> None:
        if not len(store):
            raise InputError("a store without a single pair; expected at least one to make batches of")
        self._store = store
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._pad_id, self._bos_id, self._eos_id = pad_id, bos_id, eos_id
        self._epoch, self._index = position
        self._order = self._order_of(self._epoch)
        if not 0 <= self._index < len(self._order):
            there = f"epoch {self._epoch} has {len(self._order)}"
            remedy = "the position was saved with other data or another batch_tokens; use those again"
            raise InputError(f"no batch {self._index}, counted from 0: {there}; {remedy}")

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and place in the epoch, both from 0, of the batch that `take` would give next."""
        return self._epoch, self._index

    @property
    def batches_in_epoch(self) -> int:
        """How many batches the current epoch has (others may differ by a few)."""
        return len(self._order)

    def take(self) -> Batch:
        """The next batch; moves the position on by one."""
        indices = self._order[self._index]
        self._index += 1
        if self._index == len(self._order):
            self._epoch, self._index = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        return collate(self._store, indices, pad_id=self._pad_id, bos_id=self._bos_id, eos_id=self._eos_id)

    def _order_of(self, epoch: int) -> list[Array]:
        source, target = self._store.source.lengths + 1, self._store.target.lengths + 1
        return batch_order(source, target, self._batch_tokens, self._seed, epoch)
