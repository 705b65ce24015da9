"""Attention one block of queries after the other, each with the only keys that it may see.

The block-sparse path that trains on every device: a few calls of the fused kernel instead of one, and none of the
work that a window or the borders of documents make superfluous. The blocks come from
:mod:`multihead.attention.blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attention.biases import Bias
from multihead.attention.blocks import Block
from multihead.attention.fused import fused_attention

Piece = tuple[range, range]
"""Rows and positions."""


def blockwise_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    blocks: Sequence[Block],
    *,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "batch heads query value_dim"]:
    """:func:`multihead.attention.attention`'s equation, for a mask in ``blocks``; with a bias, none ``is_causal``."""
    offset = key.shape[2] - query.shape[2]
    queries = cut(query, [(block.rows, block.queries) for block in blocks])
    seen = [(block.rows, block.keys) for block in blocks]
    outputs = []
    for block, q, k, v in zip(blocks, queries, cut(key, seen), cut(value, seen), strict=True):
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
        for _, group in groupby(zip(blocks, outputs, strict=True), key=lambda pair: pair[0].rows)
    ]
    return in_rows[0] if len(in_rows) == 1 else torch.cat(in_rows)


def cut(tensor: Float[Tensor, "batch heads length dim"], pieces: Sequence[Piece]) -> tuple[Tensor, ...]:
    """The pieces, which may overlap: views, whose gradients are summed in one buffer.

    (Slices would do, but each one's gradient is as large as the whole tensor.)
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
