"""From stored pairs to batches: their padded tensors, one after the other, epoch after epoch.

Which pairs go together and in which order is for `order` to say; it is a pure function of the lengths, the token
budget, the shares, the seed and the epoch, so a run that goes on from a position sees what it would have seen without
the interruption. Splitting a batch over processes is left to training; what the ids mean, to the tokenizer; how a
sentence is cut into other subwords (BPE-dropout), to `text.segment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from multihead.data.order import (
    Array,
    Lengths,
    Share,
    batch_order,
    batches_by_tokens,
    epoch_pairs,
    real_share,
)
from multihead.data.store import ParallelStore, TokenStore, flatten
from multihead.errors import InputError

__all__ = [
    "Batch",
    "BatchStream",
    "Lengths",
    "Resegment",
    "Share",
    "batch_order",
    "batches_by_tokens",
    "collate",
    "collate_source",
    "real_share",
]

_SAMPLE = 2048
"""Pairs that are segmented anew to see how much longer sentences become."""
_SURPRISED = 0.01
"""Share of sentences that may become longer than it is foreseen."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs as padded tensors; padding stands on the right.

    Attributes:
        source: ids, then the end symbol; or what else a model reads, such as real numbers.
        source_lengths: real tokens of each source, the end symbol included.
        target_input: the begin symbol, then ids: what the decoder reads.
        target_output: ids, then the end symbol: what it is to predict.
        target_lengths: real tokens of each target, one symbol included.
        target_tokens: the sum of ``target_lengths``, known without asking the device.
        indices: which pairs of the store these are.
    """

    source: Shaped[Tensor, "batch source *features"]
    source_lengths: Int64[Tensor, " batch"]
    target_input: Int64[Tensor, "batch target"]
    target_output: Int64[Tensor, "batch target"]
    target_lengths: Int64[Tensor, " batch"]
    target_tokens: int
    indices: Array

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a sequence-to-sequence model's ``loss`` reads."""
        return self.source, self.source_lengths, self.target_input, self.target_output

    @property
    def source_tokens(self) -> int:
        """The sum of ``source_lengths``."""
        return int(self.source_lengths.sum())

    @property
    def cells(self) -> int:
        """Its size: rows times the longer of its two widths, as `TrainingConfig.batch_tokens` counts."""
        return len(self) * max(self.source.shape[1], self.target_input.shape[1])

    def part(self, start: int, stop: int) -> Batch:
        """Some rows, without the columns that are padding in all of them."""
        place = slice(start, stop)
        source_lengths, target_lengths = self.source_lengths[place], self.target_lengths[place]
        source_width, target_width = int(source_lengths.max()), int(target_lengths.max())
        return replace(
            self,
            source=self.source[place, :source_width],
            source_lengths=source_lengths,
            target_input=self.target_input[place, :target_width],
            target_output=self.target_output[place, :target_width],
            target_lengths=target_lengths,
            target_tokens=int(target_lengths.sum()),
            indices=self.indices[place],
        )

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
    return _collated(store.source.gather(indices), store.target.gather(indices), indices, pad_id, bos_id, eos_id)


def _collated(
    sources: tuple[Array, Array], targets: tuple[Array, Array], indices: Array, pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """The batch of sources and targets, each as all ids in a row and the length of each sequence."""
    source, source_lengths = _end_and_pad(*sources, pad_id, eos_id)
    flat, lengths = targets
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


@runtime_checkable
class Resegment(Protocol):
    """Cuts sentences into other subwords in each epoch; the same ones whenever it is asked for the same epoch.

    Called with the side (0 source, 1 target), the stored ids of some sentences, the index of each one's pair in the
    store, and the epoch; gives the ids to be read instead. (BPE-dropout: Provilkov et al. 2020.)
    """

    def __call__(self, side: int, ids: list[list[int]], pairs: list[int], epoch: int, /) -> list[list[int]]:
        """The ids of each sentence, cut anew."""
        ...


class BatchStream:
    """The batches of a store, epoch after epoch, without end.

    Only ``position`` has to be remembered: a stream that is made at a position goes on exactly as the one
    that was there. Just the order of the current epoch is kept.

    With ``segment`` sentences become longer than the store knows, and how long can only be said by cutting them. The
    budget is kept all the same, in two steps. Batches are composed of the lengths that are to be expected:
    ``growth * length + spread * sqrt(length)``, both measured once on a sample, so that 1 sentence in 100 becomes
    longer than that. Then a sentence for which its batch turns out to have no room is read as it is stored; as batches
    are of nearly equal lengths, these are those few whose cuts came out the most numerous. So every pair is seen, the
    budget holds for each batch, and the batches remain a function of seed and epoch.

    Args:
        store: where the pairs are.
        batch_tokens: the budget of a batch and a side, padding included.
        seed: chooses the order.
        pad_id: fills up shorter sequences.
        bos_id: begins what the decoder reads.
        eos_id: ends sources and targets.
        position: epoch and place in the epoch of the first batch to be taken.
        shares: how often an epoch sees which pairs; none for each pair once.
        segment: cuts the sentences of a batch anew; None to take them as they are stored.

    Raises:
        InputError: the store is empty, the shares do not fit it (`order.check_shares`), or the epoch has no batch at
            that position.
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
        shares: Sequence[Share] = (),
        segment: Resegment | None = None,
    ) -> None:
        if not len(store):
            raise InputError("a store without a single pair; expected at least one to make batches of")
        self._store = store
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._pad_id, self._bos_id, self._eos_id = pad_id, bos_id, eos_id
        self._shares, self._segment = tuple(shares), segment
        self._growth = None if segment is None else _growth(store, segment, seed)
        self._epoch, self._index = position
        self._order = self._order_of(self._epoch)
        if self._index == 0:
            self._pass_empty_epochs()
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
        indices, epoch = self._order[self._index], self._epoch
        self._index += 1
        if self._index == len(self._order):
            self._epoch, self._index = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
            self._pass_empty_epochs()
        sources, targets = (self._rows(side, indices, epoch) for side in (0, 1))
        return _collated(sources, targets, indices, self._pad_id, self._bos_id, self._eos_id)

    def _order_of(self, epoch: int) -> list[Array]:
        source, target = self._store.source.lengths, self._store.target.lengths
        if self._growth is not None:
            source, target = (_expected(x, *g) for x, g in zip((source, target), self._growth, strict=True))
        if not self._shares:
            return batch_order(source + 1, target + 1, self._batch_tokens, self._seed, epoch)
        seen = epoch_pairs(len(self._store), self._shares, self._seed, epoch)
        order = batch_order(source[seen] + 1, target[seen] + 1, self._batch_tokens, self._seed, epoch)
        return [seen[batch] for batch in order]

    def _pass_empty_epochs(self) -> None:
        """Small shares may leave an epoch without a pair, but not every one (`order.check_shares`)."""
        while not self._order:
            self._epoch += 1
            self._order = self._order_of(self._epoch)

    def _rows(self, side: int, indices: Array, epoch: int) -> tuple[Array, Array]:
        """All ids of one side of a batch in a row, and the length of each sequence."""
        flat, lengths = (self._store.source, self._store.target)[side].gather(indices)
        if self._segment is None:
            return flat, lengths
        stored = _lists(flat, lengths)
        fresh = _cut(self._segment, side, stored, indices.tolist(), epoch)
        room = self._batch_tokens // len(indices) - 1  # for the end symbol
        return flatten([new if len(new) <= room else old for new, old in zip(fresh, stored, strict=True)])


def _growth(store: ParallelStore, segment: Resegment, seed: int) -> list[tuple[float, float]]:
    """Of each side: how much longer the new sentences are on the whole, and how much longer than that single ones."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(2,))))
    sample = np.sort(random.choice(len(store), min(len(store), _SAMPLE), replace=False))
    found = []
    for side, tokens in enumerate((store.source, store.target)):
        stored = _lists(*tokens.gather(sample))
        old = np.array([len(ids) for ids in stored])
        new = np.array([len(ids) for ids in _cut(segment, side, stored, sample.tolist(), 0)])
        growth = float(new.sum() / max(1, old.sum()))
        excess = (new - growth * old) / np.sqrt(np.maximum(old, 1))
        found.append((growth, float(np.quantile(excess, 1 - _SURPRISED))))
    return found


def _expected(lengths: npt.NDArray[np.int32], growth: float, spread: float) -> npt.NDArray[np.int32]:
    """The lengths to be expected after cutting anew, but at least the stored ones: see `BatchStream`.

    A sentence of n subwords is cut further at places that are drawn one by one, so what it grows by has a spread of
    the order of sqrt(n).
    """
    grown = np.ceil(growth * lengths + spread * np.sqrt(lengths)).astype(np.int32)
    return np.maximum(lengths, grown)


def _cut(segment: Resegment, side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
    fresh = segment(side, ids, pairs, epoch)
    if len(fresh) != len(ids):
        raise InputError(f"{len(ids)} sentences were to be cut anew, but {len(fresh)} came back; expected as many")
    return fresh


def _lists(flat: Array, lengths: Array) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    ids = flat.tolist()
    return [ids[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
