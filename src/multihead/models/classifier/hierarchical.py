r"""Hierarchical attention networks, which pool words to documents.

    h_1 .. h_T = encoder(x_1 .. x_T)                                             bidirectional GRU or Transformer
    u_t = tanh(W h_t + b),   a_t = softmax_t(u_t . u),   s = sum_t a_t h_t                           (`AttentionPool`)

at the level of words. At the next level, x are the vectors s of the sentences, and so on; each level has its own
parameters. Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", use two levels and GRUs.
The weights a of all levels are returned: their product is the weight of a word in the document.
`models.classifier.network` adds the layer to the classes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multihead.attention import Padding, zero_padding
from multihead.attention.pooling import AttentionPool, Pooled
from multihead.errors import ShapeError
from multihead.kernels.random import Dropout
from multihead.models.classifier.config import HierarchicalConfig
from multihead.models.layers import EncoderLayer, SinusoidalPositions
from multihead.models.network import initialize
from multihead.models.stack_config import StackConfig


class RecurrentReader(nn.Module):
    """h_t = [forward state; backward state], each D/2 wide, of GRUs (Yang et al. 2016, 2.1 and 2.2).

    Args:
        config: settings of the network.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        between = config.dropout if config.layers > 1 else 0.0
        half = config.width // 2
        self.gru = nn.GRU(config.width, half, config.layers, batch_first=True, dropout=between, bidirectional=True)

    def forward(
        self, x: Float[Tensor, "rows time width"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """Encode each row up to its length, which is at least 1; zeros beyond."""
        packed, _ = self.gru(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))
        states: Tensor = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0]
        return states


class TransformerReader(nn.Module):
    """h = norm(EncoderLayer(... (x + p))), pre-norm, with sinusoidal positions p.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        sizes = StackConfig(
            width=config.width,
            heads=config.heads,
            inner=config.inner,
            dropout=config.dropout,
            norm="pre",
        )
        self.positions = SinusoidalPositions(config.width)
        self.layers = nn.ModuleList(EncoderLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=sizes.norm_eps)

    def forward(
        self, x: Float[Tensor, "rows time width"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """Encode each row up to its length; zeros beyond."""
        time, mask = x.size(1), Padding(lengths)
        states = x + self.positions(torch.arange(time, device=x.device), time).to(x.dtype)
        for layer in self.layers:
            states, _ = layer(states, mask)
        return zero_padding(self.norm(states), lengths)


class Level(nn.Module):
    """One level: encodes the parts of each row and pools them to one vector.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        readers = {"gru": RecurrentReader, "transformer": TransformerReader}
        self.reader = readers[config.encoder](config) if config.encoder in readers else None
        self.pool = AttentionPool(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "rows parts width"], lengths: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows parts"]]:
        """The vector of each row, which has at least one part, and the weights of its parts."""
        states = x if self.reader is None else self.reader(x, lengths)
        vectors, weights = self.pool(states, mask=Padding(lengths))
        return self.dropout(vectors), weights


class HierarchicalNetwork(nn.Module):
    """Encodes documents of nested parts as vectors.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width, padding_idx=config.padding_id)
        self.scale = config.width**0.5
        self.dropout = Dropout(config.dropout)
        self.levels = nn.ModuleList(Level(config) for _ in range(config.depth))
        initialize(self)

    def forward(self, tokens: Int[Tensor, "*outer words"], lengths: Int[Tensor, "*outer"]) -> Pooled:
        """The vector of each document, and the weights of all levels, outermost first.

        Only sentences with words are computed.

        Args:
            tokens: ids: [batch, sentences, words] with two levels, one axis more for each further level.
            lengths: words of each sentence, [batch, sentences]; 0 = padding, which must be on the right.

        Raises:
            ShapeError: the number of axes does not match the number of levels, the lengths do not fit, or padding
                precedes a sentence.
        """
        self._check(tokens, lengths)
        counts, weights = lengths, list[Tensor]()
        below: Tensor | None = None
        for level in self.levels:
            # counts: number of parts of each row, [batch, ...]; only rows with parts are computed
            outer, present = counts.shape, counts.flatten() > 0
            parts = self._embed(tokens.flatten(0, -2)[present]) if below is None else below.flatten(0, -3)[present]
            vectors, row_weights = level(parts, counts.flatten()[present])
            below = _scatter_rows(vectors, present, outer)
            weights.insert(0, _scatter_rows(row_weights, present, outer))
            counts = (counts > 0).sum(-1) if counts.dim() > 1 else counts
        assert below is not None
        return Pooled(below, tuple(weights))

    def _embed(self, tokens: Tensor) -> Tensor:
        """x_t = dropout(sqrt(D) E[token_t])."""
        embedded: Tensor = self.dropout(self.embedding(tokens) * self.scale)
        return embedded

    def _check(self, tokens: Tensor, lengths: Tensor) -> None:
        axes = self.config.depth + 1
        if tokens.dim() != axes or lengths.shape != tokens.shape[:-1]:
            raise ShapeError(
                f"tokens {list(tokens.shape)} with lengths {list(lengths.shape)}, but with depth={axes - 1} tokens "
                f"must have {axes} axes and lengths all of them but the last"
            )
        present = lengths > 0
        while present.dim() > 1:
            if bool((present[..., 1:] & ~present[..., :-1]).any()):
                raise ShapeError("lengths: an empty part stands before one that is not; padding belongs on the right")
            present = present.any(-1)


def _scatter_rows(rows: Float[Tensor, "real ..."], present: Tensor, outer: torch.Size) -> Tensor:
    """The rows at the positions where ``present`` is true, zeros elsewhere, with the axes ``outer``."""
    indices = present.nonzero().squeeze(1)
    scattered = rows.new_zeros(len(present), *rows.shape[1:]).index_copy(0, indices, rows)
    return scattered.view(*outer, *rows.shape[1:])
