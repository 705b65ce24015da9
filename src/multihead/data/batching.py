"""Batches of sentence pairs as padded tensors, and the stream of them.

`order` chooses which pairs form a batch and in which order batches come; it is a pure function, so a stream that starts
at a position continues as if it had never stopped. Cutting sentences into other subwords (BPE-dropout) belongs to
`text.segment`. Of several processes, each takes its own rows of a batch (`Portion`) and never sees the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float32, Int64, Shaped
from torch import Tensor

from multihead.data.order import (
    Array,
    Share,
    batch_order,
    epoch_pairs,
    row_range,
)
from multihead.data.store import ParallelStore, TokenStore, flatten
from multihead.errors import InputError
from multihead.kernels.guided import Links
from multihead.kernels.soft_targets import SoftTargets

if TYPE_CHECKING:
    from multihead.data.block_order import BlockOrder

T = TypeVar("T")

_SAMPLE = 2048
"""Number of pairs that are resegmented to estimate how much longer sentences become."""
_EXCESS_SHARE = 0.01
"""Share of sentences that may become longer than estimated."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs as tensors, padded on the right.

    Attributes:
        source: ids, then the end symbol; or other inputs of a model, such as real numbers.
        source_lengths: number of tokens of each source, including the end symbol.
        target_input: the begin symbol, then ids: the input of the decoder.
        target_output: ids, then the end symbol: what the decoder predicts.
        target_lengths: number of tokens of each target, including one symbol.
        target_tokens: the sum of ``target_lengths``, known without synchronizing with the device.
        indices: the pairs of the store in this batch.
        soft: what teachers predict at each of the ``target_tokens`` positions, pair after pair; None without teachers.
        weights: by what the loss of each pair is multiplied; None without weights.
        links: which target tokens translate which source tokens; None if attention is not guided.
    """

    source: Shaped[Tensor, "batch source *features"]
    source_lengths: Int64[Tensor, " batch"]
    target_input: Int64[Tensor, "batch target"]
    target_output: Int64[Tensor, "batch target"]
    target_lengths: Int64[Tensor, " batch"]
    target_tokens: int
    indices: Array
    soft: SoftTargets | None = None
    weights: Float32[Tensor, " batch"] | None = None
    links: Links | None = None

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments of a sequence-to-sequence model's ``loss``."""
        extras = [self.soft, self.weights, self.links]
        while extras and extras[-1] is None:
            extras.pop()
        return self.source, self.source_lengths, self.target_input, self.target_output, *extras

    @property
    def divisor(self) -> float:
        """What the loss of an update is divided by: the target tokens, each counted as often as its pair's weight."""
        if self.weights is None:
            return float(self.target_tokens)
        return float((self.weights.double() * self.target_lengths).sum())

    @property
    def source_tokens(self) -> int:
        """The sum of ``source_lengths``."""
        return int(self.source_lengths.sum())

    @property
    def cells(self) -> int:
        """Rows times the larger width of source and target, as counted by `TrainingConfig.batch_tokens`."""
        return len(self) * max(self.source.shape[1], self.target_input.shape[1])

    def part(self, start: int, stop: int) -> Batch:
        """The rows from ``start`` to ``stop``, without columns that are padding in all of them."""
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
            soft=self._soft_of(start, stop),
            weights=None if self.weights is None else self.weights[place],
            links=None if self.links is None else self.links.part(start, stop),
        )

    def _soft_of(self, start: int, stop: int) -> SoftTargets | None:
        if self.soft is None:
            return None
        return self.soft.rows(int(self.target_lengths[:start].sum()), int(self.target_lengths[:stop].sum()))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on ``device``; a GPU copies pinned memory while the host goes on."""
        to_gpu = torch.device(device).type == "cuda"
        return self._each(lambda tensor: tensor.to(device, non_blocking=to_gpu))

    def pinned(self) -> Batch:
        """The same batch in pinned memory, from which a GPU copies without waiting for the host."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor changed."""
        soft, weights = self.soft, self.weights
        return replace(
            self,
            source=change(self.source),
            source_lengths=change(self.source_lengths),
            target_input=change(self.target_input),
            target_output=change(self.target_output),
            target_lengths=change(self.target_lengths),
            soft=None
            if soft is None
            else soft._replace(ids=change(soft.ids), probabilities=change(soft.probabilities)),
            weights=None if weights is None else change(weights),
            links=None if self.links is None else self.links.each(change),
        )


@dataclass(frozen=True, eq=False)
class Portion:
    """A batch of which one of several processes holds its own rows only.

    Attributes:
        rows: the own rows; the first row of the batch if there are none.
        count: number of own rows.
        first_row: number of the first own row in the batch.
        indices: the pairs of the store in the whole batch.
        tokens: target and source tokens of the whole batch; None if they depend on how the others cut their rows.
        divisor: `Batch.divisor` of the whole batch, if there are weights; None likewise.
    """

    rows: Batch
    count: int
    first_row: int
    indices: Array
    tokens: tuple[int, int] | None
    divisor: float | None = None

    def to(self, device: torch.device | str) -> Portion:
        """The same with its tensors on ``device``."""
        return replace(self, rows=self.rows.to(device))

    def pinned(self) -> Portion:
        """The same in pinned memory."""
        return replace(self, rows=self.rows.pinned())


def collate(store: ParallelStore, indices: Array, *, pad_id: int, bos_id: int, eos_id: int) -> Batch:
    """The batch of the pairs of a store at ``indices``, in this order."""
    return _collate(store.source.gather(indices), store.target.gather(indices), indices, pad_id, bos_id, eos_id)


def _collate(
    sources: tuple[Array, Array], targets: tuple[Array, Array], indices: Array, pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """The batch of sources and targets, each given as concatenated ids and the lengths of the sequences."""
    source, source_lengths = _end_and_pad(*sources, pad_id, eos_id)
    flat, lengths = targets
    target_output, target_lengths = _end_and_pad(flat, lengths, pad_id, eos_id)
    target_input = np.full_like(target_output, pad_id)
    target_input[:, 0] = bos_id
    target_input[:, 1:][_token_mask(lengths)] = flat
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
    """Sources for translation: ids and the end symbol, padded on the right; and their lengths."""
    store = TokenStore.from_lists(sequences)
    padded, lengths = _end_and_pad(*store.gather(np.arange(len(store))), pad_id, eos_id)
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def _token_mask(lengths: Array) -> npt.NDArray[np.bool_]:
    """Where a padded array holds tokens: the first ``lengths`` columns of each row are True."""
    return np.arange(lengths.max(initial=0)) < lengths[:, None]


def _end_and_pad(flat: Array, lengths: Array, pad_id: int, eos_id: int) -> tuple[Array, Array]:
    padded = np.full((len(lengths), int(lengths.max(initial=0)) + 1), pad_id, np.int64)
    padded[:, :-1][_token_mask(lengths)] = flat
    padded[np.arange(len(lengths)), lengths] = eos_id
    return padded, lengths + 1


@runtime_checkable
class Resegment(Protocol):
    """Cuts sentences into other subwords in each epoch, deterministically (BPE-dropout: Provilkov et al. 2020).

    Called with the side (0 source, 1 target), the stored ids of sentences, the index of each one's pair in the store,
    and the epoch; returns the ids to use instead.
    """

    def __call__(self, side: int, ids: list[list[int]], pairs: list[int], epoch: int, /) -> list[list[int]]:
        """The new ids of each sentence."""
        ...


class BatchStream:
    """The endless stream of batches of a store, epoch after epoch.

    Its only state is ``position``: a stream created at a position continues exactly like the one that was there. Only
    the order of the current epoch is kept in memory, or a part of it.

    With ``segment``, sentences become longer than stored, and by how much is only known after cutting them. The budget
    holds nevertheless, in two steps. Batches are composed with the expected lengths
    ``growth * length + spread * sqrt(length)``, both estimated once on a sample, so that 1 sentence in 100 becomes
    longer. A sentence for which its batch then has no room is used as stored; batches have nearly equal lengths, so
    these are the few sentences with the most cuts. So every pair is seen, the budget holds for each batch, and the
    batches remain a function of seed and epoch.

    Args:
        store: the pairs.
        batch_tokens: maximum number of tokens of a batch on each side, including padding.
        seed: chooses the order.
        pad_id: the padding symbol.
        bos_id: the begin symbol of decoder inputs.
        eos_id: the end symbol of sources and targets.
        position: epoch and index within the epoch of the first batch.
        shares: how often an epoch sees which pairs; empty to see each pair once.
        segment: cuts the sentences of a batch anew; None to use them as stored.
        blocks: order a large store by `block_order`, in constant memory.

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
        blocks: bool = False,
    ) -> None:
        if not len(store):
            raise InputError("a store without a single pair; expected at least one to make batches of")
        self._store = store
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._pad_id, self._bos_id, self._eos_id = pad_id, bos_id, eos_id
        self._shares, self._segment, self._in_blocks = tuple(shares), segment, blocks
        self._growth = None if segment is None else _growth(store, segment, seed)
        self._epoch, self._index = position
        self._order = self._order_of(self._epoch)
        if self._index == 0:
            self._skip_empty_epochs()
        if not (0 <= self._index < len(self._order) if isinstance(self._order, list) else self._index in self._order):
            there = f"epoch {self._epoch} has {self.batches_in_epoch}"
            remedy = "the position was saved with other data or another batch_tokens; use those again"
            raise InputError(f"no batch {self._index}, counted from 0: {there}; {remedy}")

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index within the epoch, both from 0, of the next batch; `BlockOrder` leaves indices out."""
        return self._epoch, self._index

    @property
    def batches_in_epoch(self) -> int:
        """Number of batches in the current epoch (other epochs may differ by a few)."""
        return len(self._order) if isinstance(self._order, list) else self._order.count()

    def take(self) -> Batch:
        """The next batch; advances the position by one."""
        indices, epoch = self._advance()
        return self._collated(indices, epoch, len(indices))

    def take_indices(self) -> Array:
        """The pairs of the next batch; advances the position by one."""
        return self._advance()[0]

    def take_portion(self, rank: int, size: int) -> Portion:
        """What one of ``size`` processes needs of the next batch; the other rows are neither read nor cut anew."""
        indices, epoch = self._advance()
        start, stop = row_range(len(indices), rank, size)
        own = indices[start:stop] if stop > start else indices[:1]
        tokens = None
        if self._segment is None:
            target, source = (side.lengths_of(indices) for side in (self._store.target, self._store.source))
            tokens = int(target.sum()) + len(indices), int(source.sum()) + len(indices)
        return Portion(self._collated(own, epoch, len(indices)), stop - start, start, indices, tokens)

    def _advance(self) -> tuple[Array, int]:
        """The pairs of the next batch, and its epoch."""
        indices, epoch = self._order[self._index], self._epoch
        self._index = self._index + 1 if isinstance(self._order, list) else self._order.after(self._index)
        if self._index == len(self._order):
            self._epoch, self._index = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
            self._skip_empty_epochs()
        return indices, epoch

    def _collated(self, indices: Array, epoch: int, rows: int) -> Batch:
        """The given pairs of a batch of so many rows."""
        sources, targets = (self._rows(side, indices, epoch, rows) for side in (0, 1))
        return _collate(sources, targets, indices, self._pad_id, self._bos_id, self._eos_id)

    def _order_of(self, epoch: int) -> list[Array] | BlockOrder:
        if self._in_blocks:
            from multihead.data.block_order import BlockOrder

            return BlockOrder(len(self._store), self._lengths, self._batch_tokens, self._shares, self._seed, epoch)
        source, target = self._store.source.lengths, self._store.target.lengths
        if self._growth is not None:
            source, target = (_expected(x, *g) for x, g in zip((source, target), self._growth, strict=True))
        if not self._shares:
            return batch_order(source + 1, target + 1, self._batch_tokens, self._seed, epoch)
        seen = epoch_pairs(len(self._store), self._shares, self._seed, epoch)
        order = batch_order(source[seen] + 1, target[seen] + 1, self._batch_tokens, self._seed, epoch)
        return [seen[batch] for batch in order]

    def _lengths(self, pairs: Array) -> tuple[Array, Array]:
        """The expected lengths of some pairs in a batch; called once for the pairs of several hundred batches."""
        self._store.release()  # what earlier batches were read from
        source, target = self._store.source.lengths_of(pairs), self._store.target.lengths_of(pairs)
        if self._growth is not None:
            source, target = (_expected(x, *g) for x, g in zip((source, target), self._growth, strict=True))
        return source + 1, target + 1

    def _skip_empty_epochs(self) -> None:
        # Small shares may leave an epoch without pairs, but not every one (`order.check_shares`).
        while not self._order:
            self._epoch += 1
            self._order = self._order_of(self._epoch)

    def _rows(self, side: int, indices: Array, epoch: int, rows: int) -> tuple[Array, Array]:
        """The concatenated ids of one side of some pairs of a batch, and the length of each sequence."""
        flat, lengths = (self._store.source, self._store.target)[side].gather(indices)
        if self._segment is None:
            return flat, lengths
        stored = _lists(flat, lengths)
        fresh = _resegment(self._segment, side, stored, indices.tolist(), epoch)
        room = self._batch_tokens // rows - 1  # for the end symbol
        return flatten([new if len(new) <= room else old for new, old in zip(fresh, stored, strict=True)])


class CollatedStream(Generic[T]):
    """The endless stream of batches of a store, grouped and ordered by `BatchStream`, for other models.

    Args:
        store: what is grouped by its lengths.
        batch_tokens: maximum size of a batch: rows times the longest of them.
        seed: chooses the order.
        collate: makes a batch of the rows of the store at some places.
        position: epoch and index within the epoch of the first batch.
        blocks: as in `BatchStream`.

    Raises:
        InputError: the store is empty, or the epoch has no batch at that position.
    """

    def __init__(
        self,
        store: ParallelStore,
        batch_tokens: int,
        seed: int,
        collate: Callable[[Array], T],
        position: tuple[int, int] = (0, 0),
        *,
        blocks: bool = False,
    ) -> None:
        self._collate = collate
        self._order = BatchStream(  # only the indices of its batches are used
            store, batch_tokens, seed, pad_id=0, bos_id=0, eos_id=0, position=position, blocks=blocks
        )

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index within the epoch, both from 0, of the next batch."""
        return self._order.position

    @property
    def batches_in_epoch(self) -> int:
        """Number of batches in the current epoch."""
        return self._order.batches_in_epoch

    def take(self) -> T:
        """The next batch; advances the position by one."""
        return self._collate(self._order.take_indices())


def _growth(store: ParallelStore, segment: Resegment, seed: int) -> list[tuple[float, float]]:
    """Growth and spread of each side, as in `BatchStream`: the mean growth, and the excess of single sentences."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(2,))))
    sample = np.sort(random.choice(len(store), min(len(store), _SAMPLE), replace=False))
    found = []
    for side, tokens in enumerate((store.source, store.target)):
        stored = _lists(*tokens.gather(sample))
        old = np.array([len(ids) for ids in stored])
        new = np.array([len(ids) for ids in _resegment(segment, side, stored, sample.tolist(), 0)])
        growth = float(new.sum() / max(1, old.sum()))
        excess = (new - growth * old) / np.sqrt(np.maximum(old, 1))
        found.append((growth, float(np.quantile(excess, 1 - _EXCESS_SHARE))))
    return found


def _expected(lengths: npt.NDArray[Any], growth: float, spread: float) -> npt.NDArray[Any]:
    """The expected lengths after resegmenting, at least the stored ones; see `BatchStream`.

    Each of the n subwords of a sentence is cut further at random, so the growth has a spread of the order of sqrt(n).
    """
    grown = np.ceil(growth * lengths + spread * np.sqrt(lengths)).astype(lengths.dtype)
    return np.asarray(np.maximum(lengths, grown))


def _resegment(segment: Resegment, side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
    fresh = segment(side, ids, pairs, epoch)
    if len(fresh) != len(ids):
        raise InputError(f"{len(ids)} sentences were to be segmented again, but {len(fresh)} came back")
    return fresh


def _lists(flat: Array, lengths: Array) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    ids = flat.tolist()
    return [ids[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
