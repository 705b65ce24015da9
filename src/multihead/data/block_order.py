"""The order of training on a large store, in constant memory.

`order.batch_order` shuffles all pairs of an epoch and holds all of its batches: 80 bytes a pair. Here an epoch is a
walk over blocks of `BLOCK` consecutive pairs, shuffled; `POOL` pairs at a time are sorted by length, cut into batches,
and the batches shuffled, as there. So only the permutation of the blocks (8 bytes a block) and one pool are held, any
pool can be computed without those before it, and a pool reads some 800 places of the disk. Batches are filled as well,
and every pair is seen as often. What differs: neighbors of the corpus stay in one pool, where 1 in 800 pairs is of the
same block, and batches are shuffled within their pool.

Corpora with weights (`order.Share`) give an epoch a sequence of places, each of which stands for a pair: epoch e of a
corpus of n pairs takes the places from ``floor(e * n * weight)`` to ``floor((e + 1) * n * weight)`` of a cyclic walk
over its shuffled blocks, so the counts of two pairs never differ by more than one. The blocks above are blocks of
places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from multihead.data.order import Array, Share, batch_order, check_shares, cut_pool
from multihead.data.store import ParallelStore

BLOCK = 256
"""Consecutive pairs that stay together: some 15 KB of ids."""
POOL = 200_000
"""Pairs that are sorted by length at a time, as in `order.batch_order`."""
SPAN = 1 << 20
"""The first batches of two pools are as many places apart; no pool has more batches."""
_LONGEST = 4096
"""Pairs among which the largest batch is sought."""
_CHUNK = 1 << 20


class _Walk(NamedTuple):
    """The places of a corpus in an epoch."""

    stop: int
    """The place after its last one."""
    shift: int
    """What is added to a place, for its place in the cyclic walk."""
    start: int
    """The first pair of the corpus in the store."""
    pairs: int
    """Number of its pairs."""
    blocks: Array | None
    """The order of its blocks in the walk; None if the epoch sees all pairs equally often: then it does not matter."""


class BlockOrder:
    """The batches of an epoch: ``order[index]`` holds the indices of the pairs of one.

    The batches of pool p have the indices ``p * SPAN``, ``p * SPAN + 1`` and so on; `after` is the next one.

    Args:
        size: number of pairs in the store.
        lengths: the lengths of sources and targets in a batch, of the pairs that it is given.
        batch_tokens: as in `order.batch_order`.
        shares: as in `order.epoch_pairs`.
        seed: chooses the order, together with ``epoch``.
        epoch: number of the epoch, from 0.

    Raises:
        InputError: as `order.check_shares`.
    """

    def __init__(
        self,
        size: int,
        lengths: Callable[[Array], tuple[Array, Array]],
        batch_tokens: int,
        shares: Sequence[Share],
        seed: int,
        epoch: int,
    ) -> None:
        shares = shares or (Share(0, size, 1),)
        check_shares(size, shares)
        self._lengths, self._batch_tokens, self._seed, self._epoch = lengths, batch_tokens, seed, epoch
        self._walks = _walks(shares, seed, epoch)
        self._places = self._walks[-1].stop
        blocks = -(-self._places // BLOCK)
        self._blocks = _random((seed, epoch), 2).permutation(blocks)
        self.pools = -(-blocks * BLOCK // POOL)
        self._pool, self._batches = -1, list[Array]()

    def __len__(self) -> int:
        """The end of the indices; 0 if the epoch has no pair."""
        return self.pools * SPAN

    def __contains__(self, index: object) -> bool:
        """Whether a batch has this index."""
        return isinstance(index, int) and 0 <= index < len(self) and index % SPAN < len(self._batches_of(index // SPAN))

    def __getitem__(self, index: int) -> Array:
        return self._batches_of(index // SPAN)[index % SPAN]

    def after(self, index: int) -> int:
        """The index of the next batch; ``len`` after the last one."""
        pool, number = divmod(index + 1, SPAN)
        return index + 1 if number < len(self._batches_of(pool)) else (pool + 1) * SPAN

    def count(self) -> int:
        """The number of batches, for which all pools are computed."""
        return sum(len(self._batches_of(pool)) for pool in range(self.pools))

    def _batches_of(self, pool: int) -> list[Array]:
        if pool != self._pool:
            blocks = self._blocks[pool * len(self._blocks) // self.pools : (pool + 1) * len(self._blocks) // self.pools]
            places = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
            pairs = self._pairs_at(places[places < self._places])
            random = _random((self._seed, self._epoch, pool), 3)
            pairs = pairs[random.permutation(len(pairs))]
            batches = cut_pool(pairs, *self._lengths(pairs), self._batch_tokens, random)
            self._pool, self._batches = pool, [batches[place] for place in random.permutation(len(batches))]
        return self._batches

    def _pairs_at(self, places: Array) -> Array:
        """The pairs that stand at some places of the epoch."""
        pairs = np.empty_like(places)
        numbers = np.searchsorted([walk.stop for walk in self._walks], places, side="right")
        for number in np.unique(numbers).tolist():
            walk, own = self._walks[number], numbers == number
            place = (places[own] + walk.shift) % walk.pairs
            pairs[own] = walk.start + (place if walk.blocks is None else _walked(place, walk.blocks, walk.pairs))
        return pairs


def _walks(shares: Sequence[Share], seed: int, epoch: int) -> list[_Walk]:
    walks, stop = list[_Walk](), 0
    for number, share in enumerate(shares):
        count = share.stop - share.start
        step = count * Fraction(share.weight)  # exact, since rounding errors would add up over the epochs
        first, last = int(epoch * step), int((epoch + 1) * step)
        blocks = None
        if (last - first) % max(1, count):
            blocks = _random((seed, number), 4).permutation(-(-count // BLOCK))
        walks.append(_Walk(stop + last - first, first % max(1, count) - stop, share.start, count, blocks))
        stop += last - first
    return walks


def _walked(places: Array, blocks: Array, count: int) -> Array:
    """The pairs at some places of a walk over blocks, of which the last one of the corpus may be shorter."""
    missing = len(blocks) * BLOCK - count
    short = int(np.flatnonzero(blocks == len(blocks) - 1)[0])
    moved = places + missing * (places >= (short + 1) * BLOCK - missing)
    return np.asarray(blocks[moved // BLOCK] * BLOCK + moved % BLOCK)


def _random(seeds: tuple[int, ...], purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seeds, spawn_key=(purpose,))))


def large_batches(store: ParallelStore, batch_tokens: int, seed: int) -> list[Array]:
    """Batches among which those are that need most memory: of the longest pairs, and of the first pool."""

    def lengths(pairs: Array) -> tuple[Array, Array]:
        return store.source.lengths_of(pairs) + 1, store.target.lengths_of(pairs) + 1

    longest, first = _longest(store), BlockOrder(len(store), lengths, batch_tokens, (), seed, 0)
    order = batch_order(*lengths(longest), batch_tokens, seed, 0)
    return [*(longest[batch] for batch in order), *first._batches_of(0)]


def _longest(store: ParallelStore) -> Array:
    """The pairs with the longest sides."""
    found, widths = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(store), _CHUNK):
        pairs = np.arange(start, min(start + _CHUNK, len(store)))
        both = np.maximum(store.source.lengths_of(pairs), store.target.lengths_of(pairs))
        found, widths = np.concatenate((found, pairs)), np.concatenate((widths, both))
        best = np.sort(np.argsort(-widths, kind="stable")[:_LONGEST])
        found, widths = found[best], widths[best]
        store.release()
    return found
