"""Attention block by block, without the keys that the mask hides.

Each block of queries is computed with the only keys that any of them may see: a few calls of the fused kernel instead
of one, and none of the work that a window or the borders of documents make superfluous. It is the block-sparse backend
that trains on every device. Blocks are planned from what the host knows of a mask
(:mod:`multihead.attention.masks.intervals`): sizes of windows, borders of documents, lengths given as plain numbers.
Nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.backends.call import Backend, Call, Kernel, Plan, Sizes, compute_dtype, refuse_weights_and_cap
from multihead.attention.backends.sdpa import fused_attention, is_causal, why_unfused
from multihead.attention.biases import Bias
from multihead.attention.masks import And, Full, Mask
from multihead.attention.masks.intervals import Positions, Stretch, equal_rows, hull, stretches

BLOCK = 128
"""Queries of a block where nothing says where to cut; shorter pieces are put together."""

BLOCK_COST = 20_000
"""What each block after the first costs beside its scores, in scores: calls, slices and sums of gradients take about
0.2 ms."""

GAIN = 0.7
"""Blocks pay below this part of the scores of one call (measured on a CPU; 1 would be break-even)."""

Piece = tuple[range, range]
"""Rows and positions."""


@dataclass(frozen=True)
class Block:
    """Some queries of some sentences, and the keys that any of them may see.

    Attributes:
        rows: the sentences.
        queries: positions of the queries.
        keys: positions of the keys.
        is_causal: query i of the block sees its first i + 1 keys (then there are as many, and ``mask`` is None).
        mask: which of the keys each query sees; None = all of them.
    """

    rows: range
    queries: range
    keys: range
    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None


@dataclass(frozen=True)
class BlockwisePlan(Plan):
    """One call of the fused function for each block.

    Attributes:
        blocks: they cover every query of every sentence once, in order.
    """

    blocks: tuple[Block, ...] = field(repr=False)

    @property
    def details(self) -> str:
        if not self.blocks:
            return ""
        return f" in {len(self.blocks)} {'block' if len(self.blocks) == 1 else 'blocks'}"

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,
    ) -> tuple[Tensor, Tensor | None]:
        offset = key.shape[2] - query.shape[2]
        queries = cut(query, [(block.rows, block.queries) for block in self.blocks])
        seen = [(block.rows, block.keys) for block in self.blocks]
        outputs = []
        for block, q, k, v in zip(self.blocks, queries, cut(key, seen), cut(value, seen), strict=True):
            output = fused_attention(
                q,
                k,
                v,
                is_causal=block.is_causal,
                mask=block.mask,
                bias=None if bias is None else _bias_of(bias, block, offset, q),
                scale=scale,
                dropout_p=dropout_p,
            )
            outputs.append(output)
        in_rows = [
            torch.cat([output for _, output in group], dim=2)
            for _, group in groupby(zip(self.blocks, outputs, strict=True), key=lambda pair: pair[0].rows)
        ]
        return in_rows[0] if len(in_rows) == 1 else torch.cat(in_rows), None


class Blockwise(Backend):
    """The fused function block by block."""

    name: Kernel = "blockwise"

    def refuse(self, call: Call) -> str | None:
        return refuse_weights_and_cap(call)

    def pays(self, call: Call) -> bool:
        """Whether the blocks are much less work than one call, from what the host knows of the mask.

        On a CPU only: on CUDA blocks have not been measured. Not under a compiler either, which would unroll the
        blocks and specialize its code to them.
        """
        mask, sizes = call.mask, call.sizes
        if mask is None or call.query.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        if sizes.batch * sizes.heads * sizes.q_len * sizes.kv_len < BLOCK_COST:
            return False
        native_causal = call.bias is None
        device = call.query.device
        return mask.cached("pays", (sizes, native_causal), lambda: _pays(mask, sizes, device, native_causal))

    def plan(self, call: Call, why: str) -> BlockwisePlan:
        dtype, why_dtype = compute_dtype(call)
        mask = Full() if call.mask is None else call.mask
        blocks = _remembered_blocks(mask, call.sizes, call.query.device, call.bias is None)
        return BlockwisePlan(self.name, dtype, (why, *why_dtype, *why_unfused(call)), blocks)


def _pays(mask: Mask, sizes: Sizes, device: torch.device, native_causal: bool) -> bool:
    batch, heads, q_len, kv_len = sizes
    limit = GAIN * batch * heads * q_len * kv_len
    if all(part.intervals(q_len, kv_len) is None for part in mask.conjuncts):
        return False
    if native_causal and is_causal(mask.conjuncts, sizes):
        return False  # the kernel skips the hidden keys by itself
    intervals, _ = mask.known_intervals(batch, q_len, kv_len)
    groups = list(equal_rows(intervals, batch))
    least = heads * sum(len(rows) * _least_cells(low, high) for rows, low, high in groups)
    if least + BLOCK_COST * (len(groups) - 1) > limit:
        return False
    blocks = _remembered_blocks(mask, sizes, device, native_causal)
    return count_cells(blocks, heads) + BLOCK_COST * (len(blocks) - 1) <= limit


def _least_cells(low: Positions, high: Positions) -> int:
    """A lower bound on the scores of any block plan."""
    if len(low) > BLOCK:
        return int((high - low).sum())
    return len(low) * len(hull(low, high))


def count_cells(blocks: tuple[Block, ...], heads: int) -> int:
    """How many scores the blocks compute; a triangle counts half."""
    return sum(
        heads * len(block.rows) * len(block.queries) * len(block.keys) // (2 if block.is_causal else 1)
        for block in blocks
    )


def _remembered_blocks(mask: Mask, sizes: Sizes, device: torch.device, native_causal: bool) -> tuple[Block, ...]:
    return mask.cached(
        "blocks",
        (sizes, device, native_causal),
        lambda: plan_blocks(mask, sizes, device, triangles=native_causal),
    )


def plan_blocks(mask: Mask, sizes: Sizes, device: torch.device, *, triangles: bool = True) -> tuple[Block, ...]:
    """Blocks that cover every query of every sentence once, in order.

    Args:
        mask: any mask.
        sizes: of the scores.
        device: where the masks of the blocks lie.
        triangles: whether blocks may be ``is_causal``.

    Raises:
        ShapeError: the mask was made for other lengths.
    """
    batch, heads, q_len, kv_len = sizes
    intervals, unknown = mask.known_intervals(batch, q_len, kv_len)
    planner = _Planner(And(*unknown) if unknown else None, heads, q_len, kv_len, device, triangles and not unknown)
    return tuple(block for rows, low, high in equal_rows(intervals, batch) for block in planner.blocks(rows, low, high))


class _Planner:
    """Cuts the queries into blocks, and writes out what is left of the mask in each."""

    def __init__(
        self, unknown: Mask | None, heads: int, q_len: int, kv_len: int, device: torch.device, triangles: bool
    ) -> None:
        self.unknown, self.heads, self.device = unknown, heads, device
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
        # The kernel needs at least one key; if no query sees any, the mask hides that one.
        keys = hull(low, high) or range(min(1, self.kv_len))
        if pattern == "triangle":
            return Block(rows, queries, keys, True, None)
        if pattern == "same" and len(queries) and high[0] > low[0]:
            mask = None
        else:
            mask = self.write(low - keys.start, high - keys.start, len(keys))
        if self.unknown is not None:
            rest = self.unknown.part(rows, self.heads, queries, keys, self.q_len, self.kv_len, self.device)
            mask = rest if mask is None else mask & rest
        return Block(rows, queries, keys, False, mask)

    def write(self, low: Positions, high: Positions, count: int) -> Tensor:
        """The intervals as booleans [1, 1, queries, count]; the blocks of a band share one tensor."""
        name = (low.tobytes(), high.tobytes(), count)
        if name not in self.written:
            place = np.arange(count)
            allowed = (place >= low[:, None]) & (place < high[:, None])
            self.written[name] = torch.from_numpy(allowed)[None, None].to(self.device)
        return self.written[name]


def _pieces(neighbors: list[range]) -> Iterator[range]:
    """Join neighboring ranges until they have `BLOCK` queries, and cut them into equal parts of about as many."""
    start = neighbors[0].start
    for queries in neighbors:
        length = queries.stop - start
        if length < BLOCK and queries is not neighbors[-1]:
            continue
        parts = max(1, round(length / BLOCK))
        edges = [start + length * part // parts for part in range(parts + 1)]
        yield from (range(a, b) for a, b in pairwise(edges))
        start = queries.stop


def cut(tensor: Float[Tensor, "batch heads length dim"], pieces: Sequence[Piece]) -> tuple[Tensor, ...]:
    """The pieces of a tensor, which may overlap: views, whose gradients are summed in one buffer.

    (Slices would do, but the gradient of each is as large as the whole tensor.)
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _Cut.apply(tensor, tuple(pieces))  # type: ignore[no-any-return, no-untyped-call]
    return tuple(_slice(tensor, piece) for piece in pieces)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(tensor: Tensor, pieces: tuple[Piece, ...]) -> tuple[Tensor, ...]:
        return tuple(_slice(tensor, piece) for piece in pieces)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.shape, ctx.pieces = inputs[0].shape, inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(ctx.shape)
        for gradient, piece in zip(gradients, ctx.pieces, strict=True):
            _slice(total, piece).add_(gradient)
        return total, None


def _slice(tensor: Tensor, piece: Piece) -> Tensor:
    rows, positions = piece
    mine = tensor if len(rows) == tensor.shape[0] else tensor[rows.start : rows.stop]
    return mine[:, :, positions.start : positions.stop]


def _bias_of(bias: Tensor | Bias, block: Block, offset: int, query: Tensor) -> Tensor:
    """The part of the bias for one block, [1 or rows, 1 or heads, 1 or queries, 1 or keys]."""
    if isinstance(bias, Bias):
        return bias.part(block.queries, block.keys, offset, query.dtype, query.device)
    four = bias[None, None] if bias.dim() == 2 else bias
    spans = (block.rows, range(four.shape[1]), block.queries, block.keys)
    return four[
        tuple(
            slice(span.start, span.stop) if size != 1 else slice(None)
            for span, size in zip(spans, four.shape, strict=True)
        )
    ]
