r"""The hierarchical attention network: words make sentences, sentences paragraphs, paragraphs a document.

    h_1 .. h_T = encoder(x_1 .. x_T)                                       a GRU in each direction, or self-attention
    u_t = tanh(W h_t + b),   a_t = softmax_t(u_t . u),   s = sum_t a_t h_t                           (`AttentionPool`)

at the level of words; then x is the s of the sentences, and so on, with parameters of its own at each level. Yang et
al. 2016, "Hierarchical Attention Networks for Document Classification" has two levels and GRUs. The weights a of all
levels are part of the result: their product is how much of a word is in the document. What its vector is used for is
left to others (`models.classifier.network`).
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
from multihead.models.config import TransformerConfig
from multihead.models.layers import EncoderLayer, SinusoidalPositions
from multihead.models.network import initialize


class RecurrentReader(nn.Module):
    """h_t = [forward state; backward state], each D/2 wide, of GRUs (Yang et al. 2016, 2.1 and 2.2).

    Args:
        config: of the network.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        between = config.dropout if config.layers > 1 else 0.0
        half = config.width // 2
        self.gru = nn.GRU(config.width, half, config.layers, batch_first=True, dropout=between, bidirectional=True)

    def forward(
        self, x: Float[Tensor, "rows time width"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """Reads each row up to its length, at least 1; zeros beyond."""
        packed, _ = self.gru(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))
        states: Tensor = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0]
        return states


class TransformerReader(nn.Module):
    """h = norm(EncoderLayer(... (x + p))), pre-norm, with sinusoidal positions p.

    Args:
        config: of the network.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__()
        sizes = TransformerConfig(
            source_vocab=config.vocab,
            target_vocab=config.vocab,
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
        """Reads each row up to its length; zeros beyond."""
        time, mask = x.size(1), Padding(lengths)
        states = x + self.positions(torch.arange(time, device=x.device), time).to(x.dtype)
        for layer in self.layers:
            states, _ = layer(states, mask)
        return zero_padding(self.norm(states), lengths)


class Level(nn.Module):
    """The parts of something become one vector: they are read, and then pooled.

    Args:
        config: of the network.
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
        """The vector of each row, which has one part at least, and the weights of its parts."""
        states = x if self.reader is None else self.reader(x, lengths)
        vectors, weights = self.pool(states, mask=Padding(lengths))
        return self.dropout(vectors), weights


class HierarchicalNetwork(nn.Module):
    """Documents of nested parts become vectors.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
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

        Only what is there is computed, so that empty sentences cost nothing but their ids.

        Args:
            tokens: ids: [batch, sentences, words] with two levels, one axis more for each further level.
            lengths: words of each sentence, [batch, sentences]; 0 where there is none, which may be on the right only.

        Raises:
            ShapeError: another number of axes than the settings have levels, lengths that do not fit, or something
                empty before something that is not.
        """
        self._check(tokens, lengths)
        counts, weights = lengths, list[Tensor]()
        below: Tensor | None = None
        for level in self.levels:
            outer, there = counts.shape, counts.flatten() > 0
            parts = self._embedded(tokens.flatten(0, -2)[there]) if below is None else below.flatten(0, -3)[there]
            vectors, shares = level(parts, counts.flatten()[there])
            below = _spread(vectors, there, outer)
            weights.insert(0, _spread(shares, there, outer))
            counts = (counts > 0).sum(-1) if counts.dim() > 1 else counts
        assert below is not None
        return Pooled(below, tuple(weights))

    def _embedded(self, tokens: Tensor) -> Tensor:
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
        there = lengths > 0
        while there.dim() > 1:
            if bool((there[..., 1:] & ~there[..., :-1]).any()):
                raise ShapeError("lengths: an empty part stands before one that is not; padding belongs on the right")
            there = there.any(-1)


def _spread(rows: Float[Tensor, "real ..."], there: Tensor, outer: torch.Size) -> Tensor:
    """The rows at their places, which have these axes; zeros elsewhere."""
    places = there.nonzero().squeeze(1)
    spread = rows.new_zeros(len(there), *rows.shape[1:]).index_copy(0, places, rows)
    return spread.view(*outer, *rows.shape[1:])
