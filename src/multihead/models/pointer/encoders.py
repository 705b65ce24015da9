"""What reads the inputs of a pointer network: LSTMs, as in the paper, or self-attention.

Each gives a state e_n for every input and the state (h, c) that the decoder starts from. Pointing and decoding are
`models.pointer.network`'s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multihead.attention import Padding, zero_padding
from multihead.errors import ShapeError
from multihead.kernels.random import Dropout
from multihead.models.config import TransformerConfig
from multihead.models.layers import EncoderLayer, SinusoidalPositions
from multihead.models.pointer.config import PointerConfig
from multihead.models.recurrent.cells import Held


class Encoded(NamedTuple):
    """The inputs as a decoder sees them."""

    states: Float[Tensor, "batch inputs width"]
    """e_n; zero in the padding."""
    last: Held
    """(h, c) of the decoder before its first step."""


class RecurrentEncoder(nn.Module):
    """e_n = LSTM(x_n, e_{n-1}); the decoder starts where the encoder ends   (Vinyals et al. 2015, section 2.3).

    With ``encoder`` 'bidirectional' e_n = [forwards; backwards], and so is the last state: each direction's own last.

    Args:
        config: of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        both = config.encoder == "bidirectional"
        between = config.dropout if config.layers > 1 else 0.0
        size = config.width // 2 if both else config.width
        self.lstm = nn.LSTM(config.width, size, config.layers, batch_first=True, dropout=between, bidirectional=both)

    def forward(self, x: Float[Tensor, "batch inputs width"], lengths: Int[Tensor, " batch"]) -> Encoded:
        """Reads the embedded inputs of every row, up to its length.

        Raises:
            ShapeError: a row has no inputs, or more than there are.
        """
        on_host = lengths.cpu()
        outside = ((on_host < 1) | (on_host > x.size(1))).nonzero()
        if len(outside):
            row = int(outside[0])
            raise ShapeError(
                f"row {row} has the length {int(on_host[row])} in a batch of {x.size(1)} inputs; expected 1 to "
                f"{x.size(1)}: an empty row has nothing to point at"
            )
        packed = pack_padded_sequence(x, on_host, batch_first=True, enforce_sorted=False)
        states, held = self.lstm(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        directions = 2 if self.lstm.bidirectional else 1
        last = tuple(torch.cat(tuple(part[-directions:]), dim=-1) for part in held)  # of the topmost layer
        return Encoded(padded, last)


class TransformerEncoder(nn.Module):
    """e = norm(EncoderLayer(... (x + p))), pre-norm; the decoder starts from [tanh(h); c] = V mean_n e_n + b.

    Without the positions p nothing depends on the order of the inputs but their place in the result: e of a permuted
    set is e permuted, and the mean is the same.

    Args:
        config: of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        sizes = TransformerConfig(
            source_vocab=1,
            target_vocab=1,
            width=config.width,
            heads=config.heads,
            inner=config.inner,
            positions="learned",  # of an embedding of tokens, which is not made here
            dropout=config.dropout,
            norm="pre",
        )
        self.positions = SinusoidalPositions(config.width) if config.positions else None
        self.layers = nn.ModuleList(EncoderLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=sizes.norm_eps)
        self.start = nn.Linear(config.width, 2 * config.width)

    def forward(self, x: Float[Tensor, "batch inputs width"], lengths: Int[Tensor, " batch"]) -> Encoded:
        """Reads the embedded inputs of every row, up to its length."""
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.size(1), device=x.device), x.size(1)).to(x.dtype)
        mask = Padding(lengths)
        for layer in self.layers:
            x, _ = layer(x, mask)
        states = zero_padding(self.norm(x), lengths)
        mean = states.sum(1) / lengths.clamp(min=1)[:, None]
        hidden, cell = self.start(mean).chunk(2, dim=-1)
        return Encoded(states, (hidden.tanh(), cell))


class InputEmbedding(nn.Module):
    """dropout(A x_n + a): real numbers become vectors.

    Args:
        config: of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.features, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, inputs: Float[Tensor, "batch inputs features"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch inputs width"]:
        """The vectors; whatever stands in the padding is read as zeros.

        Raises:
            ShapeError: the inputs have another number of features.
        """
        if inputs.dim() != 3 or inputs.size(2) != self.linear.in_features:
            raise ShapeError(
                f"the inputs have shape {list(inputs.shape)}, but this network reads [batch, inputs, "
                f"{self.linear.in_features}]"
            )
        real = zero_padding(inputs, lengths).to(self.linear.weight.dtype)
        embedded: Tensor = self.dropout(self.linear(real))
        return embedded
