"""Self-attention's projections without the padding: the words of a batch as one list of rows.

Where a mask says of every sentence how many words it has, as keys and as queries, what is projected at the padding
is neither read nor returned: keys and values there are hidden, and the output there is W^O's of zeros. So the words
are packed, projected, and spread again for the attention in between; results and gradients are those of projecting
everything. Only with lengths that the host knows (``Padding([5, 3], q_lengths=[5, 3])``): nothing is read from a
device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention.masks import Mask, Padding

WORTH = 40
"""Packing moves every position a few times and spares the padding's products, which grow with the width. It is worth
it where the width times the share of padding is at least this (measured on a CPU; 25 would be break-even)."""

LEAST = 256
"""Positions below which a batch is not worth packing."""


@dataclass(frozen=True)
class Packing:
    """Where the words of a batch stand among its positions, rows and time as one axis.

    Attributes:
        batch: sentences.
        length: positions of each.
        words: the positions of the words, and one position of padding at the end, which stands for all of them.
        back: for each position, its place in ``words``.
    """

    batch: int
    length: int
    words: Int[Tensor, " rows"]
    back: Int[Tensor, " positions"]

    def pack(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "words width"]:
        """The words alone."""
        return x.flatten(0, 1).index_select(0, self.words[:-1])

    def spread(self, rows: Float[Tensor, "words width"]) -> Float[Tensor, "batch length width"]:
        """The words in their places, zeros at the padding."""
        everywhere = rows.new_zeros(self.batch * self.length, rows.shape[-1])
        return everywhere.index_add_(0, self.words[:-1], rows).view(self.batch, self.length, -1)

    def pack_with_padding(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "rows width"]:
        """The words, and one position of padding behind them."""
        return x.flatten(0, 1).index_select(0, self.words)

    def spread_with_padding(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "batch length width"]:
        """The words in their places, and the last row everywhere else."""
        return rows.index_select(0, self.back).view(self.batch, self.length, -1)


def packing_of(mask: Mask | None, x: Float[Tensor, "batch length width"]) -> Packing | None:
    """The packing for self-attention of ``x`` with this mask; None where it cannot be or does not pay.

    On a CPU only, where it was measured, and not while a compiler traces: it would tie its code to the lengths.
    """
    if mask is None or x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    batch, length = x.shape[:2]
    if batch * length < LEAST:
        return None
    lengths = _word_counts(mask, batch, length)
    if lengths is None or (batch * length - sum(lengths)) * x.shape[-1] < WORTH * batch * length:
        return None
    return mask.remembered("packing", (batch, length), lambda: _packing(lengths, length))


def _word_counts(mask: Mask, batch: int, length: int) -> list[int] | None:
    """Of each sentence, the positions from which on it is padding for queries and keys alike."""
    known = [part for part in mask.conjuncts if isinstance(part, Padding)]
    counts = [
        [min(max(pair), length) for pair in zip(part.host_lengths, part.host_q_lengths, strict=True)]
        for part in known
        if part.host_lengths is not None and part.host_q_lengths is not None and len(part.host_lengths) == batch
    ]
    return [min(of_sentence) for of_sentence in zip(*counts, strict=True)] if counts else None


def _packing(lengths: list[int], length: int) -> Packing:
    batch = len(lengths)
    is_word = torch.arange(length) < torch.tensor(lengths)[:, None]
    places = is_word.flatten().nonzero().squeeze(1)
    padding = (~is_word).flatten().nonzero()[0]
    back = torch.full((batch * length,), len(places))
    back[places] = torch.arange(len(places))
    return Packing(batch, length, torch.cat((places, padding)), back)
