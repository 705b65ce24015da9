"""Which class is it of: an encoder that makes one vector of a document, and a layer from there to the classes.

    p = softmax(W dropout(v) + b)                         (Yang et al. 2016, equation 11; Devlin et al. 2019, 4.1)

v comes from a hierarchical attention network (`models.classifier.hierarchical`), or from the states h_t of a BERT
(`models.bert.network`):

    v = tanh(W' h_0 + b')          its pooled first state, as next-sentence prediction has trained it
    v = mean_t h_t                 where nothing has
    v = sum_t a_t h_t              by attention pooling (`AttentionPool`), whose weights are told

Both satisfy what training asks for (`training.loss.Trainable`). Reading documents is for `data.nested`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention import Padding, zero_padding
from multihead.attention.pooling import AttentionPool
from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy
from multihead.kernels.random import Dropout
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import BertClassifierConfig, ClassifierConfig, HierarchicalConfig
from multihead.models.classifier.hierarchical import HierarchicalNetwork
from multihead.models.network import initialize


class Classified(NamedTuple):
    """What a classifier says of some documents."""

    log_probabilities: Float[Tensor, "batch classes"]
    weights: tuple[Tensor, ...]
    """Of each level of a hierarchical network, outermost first, as `Pooled.weights`; of a BERT those of its attention
    pooling, if it has one."""


class Classifier(nn.Module, ABC):
    """An encoder with a layer to the classes.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.classes)
        initialize(self.output)

    @abstractmethod
    def encode(self, *read: Tensor) -> tuple[Float[Tensor, "batch width"], tuple[Tensor, ...]]:
        """The vector of each document, and the weights of each level where there are any."""

    def forward(self, *read: Tensor) -> Classified:
        """The log-probability of each class, in single precision at least.

        Args:
            *read: a batch as the encoder reads it (`data.nested.DocumentBatch.encoder_inputs`).
        """
        vectors, weights = self.encode(*read)
        logits = self.output(self.dropout(vectors))
        return Classified(logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), weights)

    def loss(self, *inputs: Tensor, smoothing: float) -> Loss:
        """The cross-entropy, summed over the documents.

        Args:
            *inputs: what `forward` reads, and the class of each document, [batch].
            smoothing: the share of a class's probability that is spread over all.
        """
        *read, labels = inputs
        vectors = self.dropout(self.encode(*read)[0])
        # The bias is one more column, which meets a one.
        weight = torch.cat((self.output.weight, self.output.bias[:, None]), dim=1)
        return linear_cross_entropy(F.pad(vectors, (0, 1), value=1.0), weight, labels, smoothing)


class HierarchicalClassifier(Classifier):
    """A hierarchical attention network that tells classes apart; reads (tokens, lengths).

    Args:
        config: its sizes.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__(config)
        self.encoder = HierarchicalNetwork(config)

    def encode(self, *read: Tensor) -> tuple[Float[Tensor, "batch width"], tuple[Tensor, ...]]:
        """The documents, and the weights of each level."""
        vectors, weights = self.encoder(*read)
        return vectors, weights


class BertClassifier(Classifier):
    """A BERT that tells classes apart; reads (tokens, lengths, segments). The heads of pre-training are left out.

    Without "first" the pooler is there and does not learn.

    Args:
        config: its sizes.
    """

    def __init__(self, config: BertClassifierConfig) -> None:
        super().__init__(config)
        self.encoder = Bert(config.encoder)
        del self.encoder.words, self.encoder.follows
        self.encoder.pooler.requires_grad_(config.pool == "first")
        self.pool = AttentionPool(config.width) if config.pool == "attention" else None
        self.by_first = config.pool == "first"
        nn.init.normal_(self.output.weight, std=config.encoder.initial_deviation)

    def encode(self, *read: Tensor) -> tuple[Float[Tensor, "batch width"], tuple[Tensor, ...]]:
        """The pooled vectors; of attention pooling also the weights, [batch, time]."""
        lengths, (states, pooled) = read[1], self.encoder.encode(*read)
        if self.by_first:
            return pooled, ()
        if self.pool is None:
            return zero_padding(states, lengths).sum(1) / lengths[:, None], ()
        vectors, weights = self.pool(states, mask=Padding(lengths))
        return vectors, (weights,)

    @torch.no_grad()
    def take_encoder(self, given: Bert) -> None:
        """Takes over the weights of a pre-trained encoder of the same sizes."""
        theirs = dict(given.named_parameters())
        for name, parameter in self.encoder.named_parameters():
            parameter.copy_(theirs[name])


def build_classifier(config: ClassifierConfig) -> Classifier:
    """The classifier that the settings describe."""
    return HierarchicalClassifier(config) if isinstance(config, HierarchicalConfig) else BertClassifier(config)
