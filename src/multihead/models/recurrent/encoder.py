r"""The recurrent encoder: embeddings, bidirectional layers, attention.

    h_n = [forward state; backward state],  each D/2 wide                    (Bahdanau et al. 2015, 3.2)
    h_n <- tanh(W_a [h_n; sum_m a_nm h_m])                                   (optional self-attention)

Without recurrent layers h_n = dropout(sqrt(D) E[x_n] + p_n) with sinusoidal positions p, so the decoder attends to a
word and its position and nothing else. The self-attention is softmax attention, or the marginals of dependency trees
(Kim et al. 2017, 4.4), where each word is joined with its head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from multihead.attention import Additive, Attention, Padding, zero_padding
from multihead.attention.structured.layers import TreeAttention
from multihead.kernels.random import Dropout, packed_at
from multihead.models.config import RecurrentConfig
from multihead.models.layers import SinusoidalPositions
from multihead.models.recurrent.cells import run_layers


class WordEmbedding(nn.Module):
    """x_t = dropout(sqrt(D) E[token_t]), without positions: the recurrence encodes the order.

    Args:
        table: the embedding E, which may be shared.
        dropout: probability of dropout.
    """

    def __init__(self, table: nn.Embedding, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(table.embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        embedded: Tensor = self.table(tokens)
        dropped: Tensor = self.dropout(embedded * self.scale)
        return dropped


class Encoded(NamedTuple):
    """The encoded sources."""

    states: Float[Tensor, "batch source width"]
    """h; zero in the padding."""
    summary: Float[Tensor, "batch summary"]
    """Input of the decoder's initial state: the last state of the backward layer, which has read the whole source (D/2
    wide); without layers the mean of the embeddings (D wide)."""
    weights: tuple[Float[Tensor, "batch 1 source heads"], ...]
    """Weights of the self-attention, on request."""


class RecurrentEncoder(nn.Module):
    """Bidirectional layers and an optional self-attention.

    Args:
        words: embedding of the source.
        config: settings of the model.
    """

    def __init__(self, words: WordEmbedding, config: RecurrentConfig) -> None:
        super().__init__()
        width, kind = config.width, nn.GRU if config.cell == "gru" else nn.LSTM
        self.words = words
        self.layers = nn.ModuleList(
            kind(width, width // 2, batch_first=True, bidirectional=True) for _ in range(config.encoder_layers)
        )
        self.positions = None if config.encoder_layers else SinusoidalPositions(width)
        self.summary_width = width // 2 if config.encoder_layers else width
        self.dropout = Dropout(config.dropout)
        self.attention: SoftSelfAttention | TreeAttention | None = None
        if config.encoder_attention != "none":
            self.attention = SoftSelfAttention(width) if config.encoder_attention == "softmax" else TreeAttention(width)
            self.join = nn.Linear(2 * width, width)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Encoded:
        """Encode whole sentences; padding has no effect."""
        x = self.words(source)
        states, summary = self._run_layers(x, lengths) if len(self.layers) else self._add_positions(x, lengths)
        if self.attention is None:
            return Encoded(states, summary, ())
        heads, weights = self.attention(states, lengths=lengths, need_weights=need_weights)
        joined = zero_padding(self.join(torch.cat((states, heads), -1)).tanh(), lengths)
        return Encoded(joined, summary, () if weights is None else (weights[:, None],))

    def _run_layers(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States [batch, source, D] and summary [batch, D / 2]; packed: each backward pass starts at its last word."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        final: Tensor | tuple[Tensor, ...] = ()
        for index, layer in enumerate(self.layers):
            if index and self.dropout.probability:
                with packed_at(*_places(packed)):
                    packed = packed._replace(data=self.dropout(packed.data))
            packed, final = run_layers(layer, packed)
        last = final if isinstance(final, Tensor) else final[0]  # [2 directions, batch, D / 2]
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return states, last[1]

    def _add_positions(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Without layers: embeddings plus positions [batch, source, D], and their mean [batch, D]."""
        assert self.positions is not None
        length = x.shape[1]
        positioned = x + self.positions(torch.arange(length, device=x.device), length).to(x.dtype)
        states = zero_padding(positioned, lengths)
        return states, states.sum(1) / lengths[:, None]


def _places(packed: PackedSequence) -> tuple[Int64[Tensor, " packed"], Int64[Tensor, " packed"]]:
    """The row and the position of each packed word: words stand position by position, those of long rows first."""
    assert packed.sorted_indices is not None
    sizes = packed.batch_sizes  # rows that have each position
    positions = torch.arange(len(sizes)).repeat_interleave(sizes)
    ranks = torch.arange(len(positions)) - (sizes.cumsum(0) - sizes)[positions]
    device = packed.data.device
    return packed.sorted_indices[ranks.to(device)], positions.to(device)


class SoftSelfAttention(nn.Module):
    """Softmax self-attention with additive scores: `TreeAttention` without the trees.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(Additive(width, width, width))

    def forward(
        self,
        x: Float[Tensor, "batch source width"],
        *,
        lengths: Int[Tensor, " batch"],
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch source width"], Float[Tensor, "batch source source"] | None]:
        """The context of each state, and the weights on request."""
        mask = Padding(lengths, q_lengths=lengths)
        output, weights = self.attention(x, x, mask=mask, need_weights=need_weights)
        return output, weights
