"""BERT: a bidirectional encoder with the two heads of pre-training.

Devlin et al. 2019, section 3: masked language modeling and next sentence prediction. The encoder's layers are the
Transformer's (`models.layers`); this module adds embeddings, pooler and heads. `data.bert.batches` masks words,
`runs.bert.train` trains, and `models.bert.huggingface` reads and writes Hugging Face's files. `Bert.encode` runs the
encoder alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from multihead.attention import Padding
from multihead.attention.multihead import PackedLinear
from multihead.errors import ShapeError
from multihead.kernels.linear import Linear, Loss, linear_cross_entropy
from multihead.kernels.random import Dropout
from multihead.models.bert.config import BertConfig
from multihead.models.layers import EncoderLayer, LayerNorm


class Encoded(NamedTuple):
    """Output of the encoder."""

    states: Float[Tensor, "batch time width"]
    """h_t of each token; undefined in the padding."""
    pooled: Float[Tensor, "batch width"]
    """tanh(W h_0 + b): a vector for the row, computed from its first token, [CLS]."""


class Predictions(NamedTuple):
    """Output of the two heads of pre-training."""

    words: Float[Tensor, "batch time vocab"]
    """Logits of the token at each position."""
    follows: Float[Tensor, "batch 2"]
    """Logits of next sentence prediction: 0 = the second sentence follows the first, 1 = it does not."""


class BertEmbedding(nn.Module):
    """x_t = dropout( norm( E[token_t] + P[t] + S[segment_t] ) )   (figure 2)

    Args:
        config: settings of the model.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, tokens: Int[Tensor, "batch time"], segments: Int[Tensor, "batch time"] | None
    ) -> Float[Tensor, "batch time width"]:
        """Embed whole rows; without ``segments`` all tokens are in the first segment.

        Raises:
            ShapeError: a row is longer than the number of positions.
        """
        time, positions = tokens.size(1), self.positions.weight
        if time > len(positions):
            raise ShapeError(
                f"rows of {time} tokens, but this model has {len(positions)} positions: cut what is longer, or train "
                "a model with larger max_positions"
            )
        kinds = self.segments.weight[0] if segments is None else self.segments(segments)
        embedded: Tensor = self.dropout(self.norm(self.tokens(tokens) + positions[:time] + kinds))
        return embedded


class WordHead(nn.Module):
    """z_t = E norm( GELU(W h_t + b) ) + c: the logits of the token at position t, with the token embedding E.

    Args:
        config: settings of the model.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Linear(config.width, config.width)
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, states: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        """norm( GELU(W h_t + b) ), without the product with E."""
        transformed: Tensor = self.norm(F.gelu(self.transform(states)))
        return transformed


class Bert(nn.Module):
    """The encoder with its pooler and the heads of pre-training.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = BertEmbedding(config)
        layer = config.layer
        self.encoder = nn.ModuleList(EncoderLayer(layer) for _ in range(config.layers))
        self.pooler = Linear(config.width, config.width)
        self.words = WordHead(config)
        self.follows = nn.Linear(config.width, 2)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """Matrices and embeddings N(0, initial_deviation^2), biases zero, norms one and zero (section A.2's code)."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | PackedLinear):
                nn.init.normal_(module.weight, std=self.config.initial_deviation)
            if isinstance(module, nn.Linear | PackedLinear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def encode(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"],
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Encoded:
        """The state of each token, and a vector for each row.

        Args:
            tokens: ids, the first of each row [CLS]; padded on the right.
            lengths: real ids in each row.
            segments: 0 for the first sentence, 1 for the second; None = 0 everywhere.

        Raises:
            ShapeError: a row is longer than the number of positions.
        """
        states, mask = self.embedding(tokens, segments), Padding(lengths)
        for layer in self.encoder:
            states, _ = layer(states, mask)
        return Encoded(states, self.pooler(states[:, 0]).tanh())

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"],
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Predictions:
        """The logits of both heads at all positions; arguments and errors as in `encode`."""
        states, pooled = self.encode(tokens, lengths, segments)
        return Predictions(self.word_logits(states), self.follows(pooled))

    def word_logits(self, states: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes vocab"]:
        """Logits of the token at the position of each state."""
        return F.linear(self.words(states), self.embedding.tokens.weight, self.words.bias)

    def loss(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"],
        segments: Int[Tensor, "batch time"],
        chosen: Bool[Tensor, "batch time"],
        originals: Int[Tensor, "batch time"],
        follows: Int[Tensor, " batch"],
        *,
        smoothing: float,
    ) -> Loss:
        r"""The loss of pre-training, summed over the chosen words.

            total = sum over rows r of  ( sum over chosen t of  - log p(original_t) )  -  m_r log p(follows_r)

        where m_r is the number of chosen words in row r. Divided by the number of chosen words in all rows, it is the
        mean loss of a word plus the mean loss of a row, as in the paper (A.2), with longer rows weighted more. The
        share of a row does not depend on other rows, so a batch can be split. Hits and the loss without smoothing are
        those of the words alone, whose perplexity is reported.

        Args:
            tokens: corrupted ids (`data.bert.batches`).
            lengths: as in `encode`.
            segments: as in `encode`.
            chosen: positions whose token is to be predicted.
            originals: the tokens there; ignored elsewhere.
            follows: 1 = the second sentence follows the first, 0 = it does not, -1 = not to be predicted.
            smoothing: label smoothing of the words' loss.
        """
        states, pooled = self.encode(tokens, lengths, segments)
        transformed = self.words(states[chosen])  # [words, width]
        weight, bias = self.embedding.tokens.weight, self.words.bias
        found = linear_cross_entropy(transformed, weight, originals[chosen], smoothing, bias)
        labels = torch.where(follows < 0, -1, 1 - follows)
        pairs = F.cross_entropy(self.follows(pooled).float(), labels, ignore_index=-1, reduction="none")
        return found._replace(total=found.total + (pairs * chosen.sum(1)).sum())
