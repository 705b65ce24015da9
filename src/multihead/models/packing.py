"""The words of a padded batch end to end in one row: what a network learns from, without the padding.

Every position alike is what norms, products and feed-forward networks do, so padding costs them as much as words. In
one row there is none but a rest behind the last word, which keeps the lengths of rows few (`ROUND`): libraries prepare
code for each size of a product. Attention keeps the sentences apart (`EndToEnd`), and dropout draws for each word what
it draws in the padded batch (`kernels.random.placed`), so loss and gradients are those of the batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from multihead.kernels import random

ROUND = 128
"""Rows have a multiple of so many positions."""


class Packed(NamedTuple):
    """The words of a batch, row after row."""

    tokens: Int64[Tensor, " packed"]
    """Their ids; behind them padding."""
    rows: Int64[Tensor, " packed"]
    """Where each stood: in this row of the batch,"""
    positions: Int64[Tensor, " packed"]
    """at this position."""
    lengths: Int64[Tensor, " batch"]
    """Words in each row."""
    words: int
    """In all."""

    def placed(self) -> AbstractContextManager[None]:
        """Inside, dropout draws for these tokens."""
        return random.placed(self.rows, self.positions)


def pack(tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"], padding_id: int) -> Packed:
    """The first ``lengths[b]`` tokens of each row."""
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    rows, positions = real.nonzero().unbind(1)
    words = len(rows)
    rest = -words % ROUND
    found = torch.cat((tokens[real], tokens.new_full((rest,), padding_id)))
    nowhere = rows.new_zeros(rest)
    return Packed(found, torch.cat((rows, nowhere)), torch.cat((positions, nowhere)), lengths.long(), words)
