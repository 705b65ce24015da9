"""Which parts of the scores a mask leaves: blocks of queries, each with the only keys that it may see.

Worked out from what the host knows of a mask (:mod:`multihead.attention.masks.intervals`): sizes of windows, borders
of documents, lengths given as plain numbers. Nothing waits for a device. The blocks are computed, one call of the
fused kernel each, in :mod:`multihead.attention.blockwise`; whether that pays is decided in
:mod:`multihead.attention.backends`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, pairwise

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.attention.masks import And, Intervals, Mask
from multihead.attention.masks.intervals import Positions, everything

BLOCK = 128
"""Queries of a block where nothing says where to cut; shorter pieces are put together."""


@dataclass(frozen=True)
class Block:
    """Some queries of some sentences, and the keys that any of them may see.

    Attributes:
        rows: the sentences.
        queries: positions of the queries.
        keys: positions of the keys.
        is_causal: query i of the block sees its first i + 1 keys (then there are as many, and ``mask`` is None).
        mask: which of the keys each query sees, None = all of them.
    """

    rows: range
    queries: range
    keys: range
    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None


@dataclass(frozen=True)
class Stretch:
    """Queries that follow one another in a simple pattern.

    Attributes:
        queries: their positions.
        keys: from the first key that any sees up to the last; empty if none is seen.
        pattern: ``"same"`` = all see all of ``keys``; ``"triangle"`` = each sees one more than the one before it,
            the first sees one; ``"other"``.
    """

    queries: range
    keys: range
    pattern: str


def intervals_of(mask: Mask, batch: int, q_len: int, kv_len: int) -> tuple[Intervals, tuple[Mask, ...]]:
    """What the host knows of the mask, as [1 or batch, q_len], and the conjuncts that it does not know."""
    known: list[Intervals] = []
    rest: list[Mask] = []
    for part in mask.conjuncts:
        found = part.intervals(q_len, kv_len)
        if found is None:
            rest.append(part)
        else:
            known.append(found)
    both = reduce(Intervals.intersect, known, everything(kv_len))
    return both.spread(batch, q_len, kv_len), tuple(rest)


def groups_of_rows(intervals: Intervals, batch: int) -> Iterator[tuple[range, Positions, Positions]]:
    """Neighbouring sentences with the same intervals: which, and ``low`` and ``high`` of each query."""
    low, high = intervals
    if len(low) == 1:
        yield range(batch), low[0], high[0]
        return
    changes = np.flatnonzero(((low[1:] != low[:-1]) | (high[1:] != high[:-1])).any(axis=1)) + 1
    for start, stop in pairwise([0, *changes.tolist(), len(low)]):
        yield range(start, stop), low[start], high[start]


def stretches(low: Positions, high: Positions) -> Iterator[Stretch]:
    """The queries in order, cut where the pattern of what they see changes."""
    steps = np.stack([np.diff(low), np.diff(high)])
    jump = ((steps != 0) & (steps != 1)).any(axis=0)
    change = np.zeros_like(jump)
    change[1:] = (steps[:, 1:] != steps[:, :-1]).any(axis=0) & ~jump[1:] & ~jump[:-1]
    cuts = np.flatnonzero(jump | change) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(low)]):
        keys = _hull(low[start:stop], high[start:stop])
        uniform = low[start] == low[stop - 1] and high[start] == high[stop - 1]
        triangle = low[start] == low[stop - 1] and high[stop - 1] - high[start] == stop - start - 1 == len(keys) - 1
        pattern = "same" if uniform else "triangle" if triangle else "other"
        yield Stretch(range(start, stop), keys, pattern)


def plan_blocks(
    mask: Mask,
    *,
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    device: torch.device,
    triangles: bool = True,
) -> tuple[Block, ...]:
    """Blocks that cover every query of every sentence once, in order.

    Args:
        mask: any mask.
        batch: sentences.
        heads: heads.
        q_len: the number of queries.
        kv_len: the number of keys.
        device: where masks of blocks are to lie.
        triangles: whether blocks may be ``is_causal``.

    Raises:
        ShapeError: the mask was made for other lengths.
    """
    intervals, rest = intervals_of(mask, batch, q_len, kv_len)
    planner = _Planner(And(*rest) if rest else None, heads, q_len, kv_len, device, triangles and not rest)
    return tuple(
        block for rows, low, high in groups_of_rows(intervals, batch) for block in planner.blocks(rows, low, high)
    )


def cells(blocks: tuple[Block, ...], heads: int) -> int:
    """How many scores the blocks compute; a triangle counts half."""
    return sum(
        heads * len(block.rows) * len(block.queries) * len(block.keys) // (2 if block.is_causal else 1)
        for block in blocks
    )


class _Planner:
    """Cuts, and writes out what is left of the mask in each block."""

    def __init__(
        self, rest: Mask | None, heads: int, q_len: int, kv_len: int, device: torch.device, triangles: bool
    ) -> None:
        self.rest, self.heads, self.device = rest, heads, device
        self.q_len, self.kv_len, self.triangles = q_len, kv_len, triangles
        self.written: dict[tuple[bytes, bytes, int], Tensor] = {}

    def blocks(self, rows: range, low: Positions, high: Positions) -> Iterator[Block]:
        """Long simple stretches as they are; the others together, in pieces of about `BLOCK` queries."""
        if self.q_len == 0:
            yield self.block(rows, range(0), low, high, "other")
            return

        def is_whole(stretch: Stretch) -> bool:
            simple = stretch.pattern == "same" or (stretch.pattern == "triangle" and self.triangles)
            return simple and (len(stretch.queries) >= BLOCK // 2 or len(stretch.queries) == self.q_len)

        for whole, group in groupby(stretches(low, high), is_whole):
            if whole:
                for stretch in group:
                    yield self.block(rows, stretch.queries, low, high, stretch.pattern)
            else:
                for queries in _pieces([stretch.queries for stretch in group]):
                    yield self.block(rows, queries, low, high, "other")

    def block(self, rows: range, queries: range, low: Positions, high: Positions, pattern: str) -> Block:
        """One block, with the keys that its queries may see and the mask that is still needed."""
        mine = slice(queries.start, queries.stop)
        low, high = low[mine], high[mine]
        # The kernel wants a key to be there; that nobody sees it, the mask says.
        keys = _hull(low, high) or range(min(1, self.kv_len))
        if pattern == "triangle":
            return Block(rows, queries, keys, True, None)
        if pattern == "same" and len(queries) and high[0] > low[0]:
            mask = None
        else:
            mask = self.write(low - keys.start, high - keys.start, len(keys))
        if self.rest is not None:
            unknown = self.rest.part(rows, self.heads, queries, keys, self.q_len, self.kv_len, self.device)
            mask = unknown if mask is None else mask & unknown
        return Block(rows, queries, keys, False, mask)

    def write(self, low: Positions, high: Positions, count: int) -> Tensor:
        """The intervals as booleans; the blocks of a band share one tensor."""
        name = (low.tobytes(), high.tobytes(), count)
        if name not in self.written:
            place = np.arange(count)
            allowed = (place >= low[:, None]) & (place < high[:, None])
            self.written[name] = torch.from_numpy(allowed)[None, None].to(self.device)
        return self.written[name]


def _hull(low: Positions, high: Positions) -> range:
    seen = high > low
    return range(int(low[seen].min()), int(high[seen].max())) if seen.any() else range(0)


def _pieces(neighbours: list[range]) -> Iterator[range]:
    """Put together until there are `BLOCK` of them, and cut into equal parts of about as many."""
    start = neighbours[0].start
    for queries in neighbours:
        length = queries.stop - start
        if length < BLOCK and queries is not neighbours[-1]:
            continue
        parts = max(1, round(length / BLOCK))
        edges = [start + length * part // parts for part in range(parts + 1)]
        yield from (range(a, b) for a, b in pairwise(edges))
        start = queries.stop
