"""The order of training: an epoch's pairs, its batches, their sequence.

Everything is a pure function of lengths, token budget, shares, seed and epoch, so a run that resumes at a position sees
the batches it would have seen without the interruption. This module works on indices only; `batching` turns them into
tensors. It holds the whole order of an epoch; that of a large store is in `block_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.errors import InputError

Array = npt.NDArray[np.int64]
Lengths = Sequence[int] | npt.NDArray[np.integer[Any]]


MOST_WHOLE = 2_000_000
"""Pairs of text up to which an epoch is ordered as a whole: then it takes 0.2 GB and half a second."""


def row_range(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Share ``[rank * rows / size, (rank + 1) * rows / size)`` of a batch; shares differ by at most one row."""
    return rank * rows // size, (rank + 1) * rows // size


class Share(NamedTuple):
    """The pairs [start, stop) of a store, which are one corpus of several, and how often an epoch sees each.

    A weight of 0.5 means one half in each epoch and the other half in the next; 2 means each pair twice per epoch.
    """

    start: int
    stop: int
    weight: float


def usual_order(pairs: int) -> Literal["whole", "blocks"]:
    """How an epoch of so much text is ordered: as a whole, by `batch_order`, or in blocks, by `block_order`."""
    return "whole" if pairs <= MOST_WHOLE else "blocks"


def epoch_pairs(size: int, shares: Sequence[Share], seed: int, epoch: int) -> Array:
    """The sorted indices of the pairs that an epoch sees; a pair seen twice is listed twice.

    The n pairs of a share are shuffled once into a cyclic sequence; epoch e takes the places from
    ``floor(e * n * weight)`` to ``floor((e + 1) * n * weight)`` of it. So an epoch sees every pair ``floor(weight)`` or
    ``ceil(weight)`` times, and e epochs together see it ``floor(e * weight)`` or ``ceil(e * weight)`` times: the counts
    of two pairs of a corpus never differ by more than one.

    Args:
        size: number of pairs.
        shares: the corpora; empty to see every pair once.
        seed: chooses the pairs of an epoch if a weight is not a whole number.
        epoch: number of the epoch, from 0.

    Raises:
        InputError: as `check_shares`.
    """
    if not shares:
        return np.arange(size)
    check_shares(size, shares)
    times = np.empty(size, np.int64)
    for number, share in enumerate(shares):
        count = share.stop - share.start
        step = count * Fraction(share.weight)  # exact, since rounding errors would add up over the epochs
        first, last = int(epoch * step), int((epoch + 1) * step)
        rounds, rest = divmod(last - first, max(1, count))
        times[share.start : share.stop] = rounds
        if rest:
            random = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, number), spawn_key=(1,))))
            walk = share.start + random.permutation(count)
            times[walk[(first + np.arange(rest)) % count]] += 1
    return np.repeat(np.arange(size), times)


def check_shares(size: int, shares: Sequence[Share]) -> None:
    """Check shares of ``size`` pairs.

    Raises:
        InputError: the shares are not contiguous from the first pair to the last; a weight is not positive and finite;
            or all weights are so small that most epochs would see no pair.
    """
    ends = [0, *(share.stop for share in shares)]
    starts = [*(share.start for share in shares), size]
    if ends != starts or any(one > other for one, other in pairwise(ends)):
        listed = ", ".join(f"[{share.start}, {share.stop})" for share in shares)
        raise InputError(f"shares {listed} of {size} pairs; expected them end to end, from 0 to {size}")
    for share in shares:
        if not 0 < share.weight < float("inf"):
            raise InputError(f"a share of weight {share.weight}; expected a number above 0, such as 0.5 or 2")
    seen = sum((share.stop - share.start) * share.weight for share in shares)
    if shares and seen < 1:
        raise InputError(f"with these weights an epoch sees {seen:.3g} pairs on average; expected larger weights")


def batch_order(
    source_lengths: Lengths,
    target_lengths: Lengths,
    batch_tokens: int,
    seed: int,
    epoch: int,
    pool: int = 200_000,
) -> list[Array]:
    """The batches of an epoch, each an array of the indices of its pairs; every index is in exactly one batch.

    All pairs are shuffled and split into pools of about ``pool`` pairs. A pool is sorted by length, with lengths
    jittered by a coin toss (otherwise the same pairs would share a batch in every epoch of a small corpus), and cut
    into batches with ``rows * max(longest source, longest target) <= batch_tokens``; the batches of all pools are
    shuffled. A pair longer than the budget is a batch of its own.

    Args:
        source_lengths: number of tokens of each source in a batch, including the end symbol.
        target_lengths: likewise for each target.
        batch_tokens: maximum number of tokens of a batch on each side, including padding.
        seed: chooses the order, together with ``epoch``; neither is negative.
        epoch: number of the epoch, from 0.
        pool: large enough to fill batches well, small enough that neighbors change from epoch to epoch.
    """
    source, target = np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)
    if len(source) != len(target):
        raise InputError(f"{len(source)} source lengths but {len(target)} target lengths; expected as many")
    _check_budget(batch_tokens)
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    shuffled = random.permutation(len(source))
    batches: list[Array] = []
    for pooled in np.array_split(shuffled, max(1, round(len(shuffled) / pool))):
        batches.extend(cut_pool(pooled, source[pooled], target[pooled], batch_tokens, random))
    return [batches[place] for place in random.permutation(len(batches))]


def cut_pool(
    pooled: Array, source: Array, target: Array, batch_tokens: int, random: np.random.Generator
) -> list[Array]:
    """The batches of a pool, as in `batch_order`, in the order of their lengths.

    Args:
        pooled: the pairs, in random order.
        source: the length of the source of each.
        target: likewise.
        batch_tokens: as in `batch_order`.
        random: of the coin tosses.
    """
    if not len(pooled):
        return []
    # On Multi30k, in batches of 4,096 tokens, the tosses lower the share of real tokens from 96 to 94%; of the pairs
    # that share a batch in one epoch, 16% share one in the next, instead of 61%.
    tosses = random.integers(0, 2, (2, len(pooled)))
    places = _by_length(source + tosses[0], target + tosses[1])
    widths = np.maximum(source, target)[places]
    return np.split(pooled[places], _cuts(widths, batch_tokens))


def _by_length(source: Array, target: Array) -> Array:
    """Sort by source, then target length; equal pairs stay in their (random) order.

    Target lengths ascend among sources of even length and descend among odd ones, so that neighbors have similar
    targets where one source length ends and the next begins.
    """
    span = int(target.max(initial=0)) + 1
    turned = np.where(source % 2 == 0, target, span - 1 - target)
    return np.argsort(source * span + turned, kind="stable")


def _cuts(widths: Array, batch_tokens: int) -> list[int]:
    """Where to cut a list of sequences so that each piece, padded, is as large as the budget allows."""
    cuts: list[int] = []
    start = 0
    while True:
        # rows * widest <= budget, so a piece that starts here has at most this many rows
        most = max(1, batch_tokens // max(1, int(widths[start])))
        window = np.maximum.accumulate(widths[start : start + most])
        rows = np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(rows * window, batch_tokens, side="right")))
        if start >= len(widths):
            return cuts
        cuts.append(start)


def real_share(batches: Sequence[Array], source_lengths: Lengths, target_lengths: Lengths) -> float:
    """The share of tokens that are not padding, over source and target of all batches."""
    real = padded = 0
    for lengths in (np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)):
        for batch in batches:
            real += int(lengths[batch].sum())
            padded += len(batch) * int(lengths[batch].max(initial=0))
    return real / max(1, padded)


def batches_by_tokens(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group sequences for translation: sorted by length, with ``rows * longest <= batch_tokens`` in each group.

    The longest come first, so that running out of memory shows at once; equal lengths stay in order. A sequence longer
    than the budget is a group of its own.
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
