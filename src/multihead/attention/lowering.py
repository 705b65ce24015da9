"""A mask becomes the least that a kernel needs: nothing, a flag, the smallest boolean, blocks, sequences.

By structure, kind, shape and type alone: no value is read from a device. What was lowered is kept by the mask
(:meth:`~multihead.attention.masks.algebra.Mask.remembered`), so that the layers of a network share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.attention.blocks import BLOCK, Block, cells, groups_of_rows, intervals_of, plan_blocks
from multihead.attention.checks import check_broadcast
from multihead.attention.masks import And, Causal, Mask

BLOCK_COST = 20_000
"""What each block after the first costs beside its scores, in scores: calls, slices and sums of gradients take about
0.2 ms."""

GAIN = 0.7
"""Blocks are worth it below this part of the whole (measured on a CPU; 1 would be break-even)."""


class Sizes(NamedTuple):
    """Of one call."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


class Lowered(NamedTuple):
    """The mask for one call of a dense kernel.

    Attributes:
        is_causal: the kernel applies the causal mask itself (then ``mask`` is None).
        mask: the boolean mask, as small as it can be and still broadcast to [batch, heads, query, key].
        why: in words.
    """

    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None
    why: str


def lower(mask: Mask | None, sizes: Sizes, device: torch.device, *, native_causal: bool) -> Lowered:
    """The least that means the same for these lengths.

    Args:
        mask: any mask; None = everything.
        sizes: of the call.
        device: where the boolean is wanted.
        native_causal: whether the kernel has a causal mask of its own.

    Raises:
        ShapeError: the mask was made for other sizes.
    """
    if mask is None:
        return Lowered(False, None, "no mask")
    return mask.remembered(
        "lowered", (sizes, device, native_causal), lambda: _lower(mask, sizes, device, native_causal)
    )


def _lower(mask: Mask, sizes: Sizes, device: torch.device, native_causal: bool) -> Lowered:
    conjuncts = mask.conjuncts
    batch, heads, q_len, kv_len = sizes
    parts = [part for part in conjuncts if not (q_len == 1 and _is_causal_at_end(part))]
    dropped = len(parts) < len(conjuncts)
    if not parts:
        why = "one query at the end may see every key" if dropped else "the mask allows everything"
        return Lowered(False, None, f"{why}, so no mask")
    if native_causal and _is_causal(parts, q_len, kv_len):
        return Lowered(True, None, "causal with as many queries as keys is the kernel's own is_causal")
    lowered = And(*parts).dense(q_len, kv_len, device, batch=batch, heads=heads)
    check_broadcast("mask", lowered, sizes)
    why = "the mask in its smallest boolean form"
    return Lowered(False, lowered, f"{why}, without the causal part: one query at the end" if dropped else why)


def _is_causal(parts: Sequence[Mask], q_len: int, kv_len: int) -> bool:
    """Whether this is the causal mask of a kernel, and nothing else."""
    return q_len == kv_len and all(isinstance(part, Causal) for part in parts)


def _is_causal_at_end(mask: Mask) -> bool:
    return isinstance(mask, Causal) and mask.align == "end"


def blocks_of(mask: Mask, sizes: Sizes, device: torch.device, *, native_causal: bool) -> tuple[Block, ...]:
    """The mask as blocks of queries with the keys that they may see; arguments as `lower`'s."""
    batch, heads, q_len, kv_len = sizes
    return mask.remembered(
        "blocks",
        (sizes, device, native_causal),
        lambda: plan_blocks(
            mask,
            batch=batch,
            heads=heads,
            q_len=q_len,
            kv_len=kv_len,
            device=device,
            triangles=native_causal,
        ),
    )


def blocks_pay(mask: Mask, sizes: Sizes, device: torch.device, *, native_causal: bool) -> bool:
    """Whether the blocks of this mask are much less work than the whole, from what the host knows of it."""
    if sizes.batch * sizes.heads * sizes.q_len * sizes.kv_len < BLOCK_COST:
        return False
    return mask.remembered("pays", (sizes, native_causal), lambda: _blocks_pay(mask, sizes, device, native_causal))


def _blocks_pay(mask: Mask, sizes: Sizes, device: torch.device, native_causal: bool) -> bool:
    batch, heads, q_len, kv_len = sizes
    worth = GAIN * batch * heads * q_len * kv_len
    if all(part.intervals(q_len, kv_len) is None for part in mask.conjuncts):
        return False
    if native_causal and _is_causal(mask.conjuncts, q_len, kv_len):
        return False  # the kernel leaves out what is not seen by itself
    intervals, _ = intervals_of(mask, batch, q_len, kv_len)
    groups = list(groups_of_rows(intervals, batch))
    least = heads * sum(len(rows) * _least_cells(low, high) for rows, low, high in groups)
    if least + BLOCK_COST * (len(groups) - 1) > worth:
        return False
    blocks = blocks_of(mask, sizes, device, native_causal=native_causal)
    return cells(blocks, heads) + BLOCK_COST * (len(blocks) - 1) <= worth


def _least_cells(low: np.ndarray, high: np.ndarray) -> int:
    """No block plan computes fewer scores than this."""
    if len(low) > BLOCK:
        return int((high - low).sum())
    seen = high > low
    return len(low) * int(high[seen].max() - low[seen].min()) if seen.any() else 0
