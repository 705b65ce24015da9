r"""The source becomes what the decoder asks: word vectors, read in both directions, and on request one another.

    h_n = [forward state; backward state],  each D/2 wide                    (Bahdanau et al. 2015, 3.2)
    h_n <- tanh(W_a [h_n; sum_m a_nm h_m])                                   (a self-attention, on request)

Without recurrent layers h_n = dropout(sqrt(D) E[x_n] + p_n), p being sinusoidal positions: what is attended to is then
a word and its place and nothing else. The self-attention is soft, or the marginals of dependency trees
(Kim et al. 2017, 4.4), where what is joined is the word's head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multihead.attention import Additive, Attention, Padding, zero_padding
from multihead.attention.structured.layers import TreeAttention
from multihead.kernels.random import Dropout
from multihead.models.config import RecurrentConfig
from multihead.models.layers import SinusoidalPositions


class WordEmbedding(nn.Module):
    """x_t = dropout(sqrt(D) E[token_t]): order is the recurrence's business.

    Args:
        table: E, which may be shared with others.
        dropout: how much is dropped.
    """

    def __init__(self, table: nn.Embedding, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(table.embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        """The vectors of tokens, whatever their layout."""
        embedded: Tensor = self.table(tokens)
        dropped: Tensor = self.dropout(embedded * self.scale)
        return dropped


class Encoded(NamedTuple):
    """What the decoder is given of the sources."""

    states: Float[Tensor, "batch source width"]
    """What it asks; zero beyond the length."""
    summary: Float[Tensor, "batch summary"]
    """What it starts from: the backward layer's last state, which has seen all of the source (D/2 wide); without
    layers the mean of the word vectors (D wide)."""
    weights: tuple[Float[Tensor, "batch 1 source heads"], ...]
    """Of the self-attention, on request."""


class RecurrentEncoder(nn.Module):
    """Bidirectional layers and a self-attention, as many as the settings say.

    Args:
        words: the source's word vectors.
        config: of the model.
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
        """Reads whole sentences; what stands in the padding reaches nothing."""
        x = self.words(source)
        states, summary = self._read(x, lengths) if len(self.layers) else self._place(x, lengths)
        if self.attention is None:
            return Encoded(states, summary, ())
        heads, weights = self.attention(states, lengths=lengths, need_weights=need_weights)
        joined = zero_padding(self.join(torch.cat((states, heads), -1)).tanh(), lengths)
        return Encoded(joined, summary, () if weights is None else (weights[:, None],))

    def _read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Through the recurrent layers: packed, so that the backward direction begins at each row's last word."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        held: Tensor | tuple[Tensor, ...] = ()
        for index, layer in enumerate(self.layers):
            if index:
                packed = packed._replace(data=self.dropout(packed.data))
            packed, held = layer(packed)
        last = held if isinstance(held, Tensor) else held[0]
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return states, last[1]

    def _place(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """With positions instead."""
        assert self.positions is not None
        length = x.shape[1]
        placed = x + self.positions(torch.arange(length, device=x.device), length).to(x.dtype)
        states = zero_padding(placed, lengths)
        return states, states.sum(1) / lengths[:, None]


class SoftSelfAttention(nn.Module):
    """Soft self-attention with additive scores, as `TreeAttention` has them: the same question without the trees.

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
        """What each state attended to, and its weights on request."""
        mask = Padding(lengths, q_lengths=lengths)
        output, weights = self.attention(x, x, mask=mask, need_weights=need_weights)
        return output, weights
