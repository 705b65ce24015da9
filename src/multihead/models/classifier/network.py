"""Document classifiers: an encoder, pooling, and a linear layer.

    p = softmax(W dropout(v) + b)                         (Yang et al. 2016, equation 11; Devlin et al. 2019, 4.1)

v comes from a hierarchical attention network (`models.classifier.hierarchical`), or from the states h_t of a BERT
(`models.bert.network`):

    v = tanh(W' h_0 + b')          pooled first state, as trained by next sentence prediction
    v = mean_t h_t                 for a BERT that was pre-trained without it
    v = sum_t a_t h_t              attention pooling (`AttentionPool`), whose weights are returned

Both can be trained (`training.splitting.Trainable`). `data.nested` reads documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention import Padding, zero_padding
from multihead.attention.pooling import AttentionPool
from multihead.kernels.linear import Loss, linear_cross_entropy
from multihead.kernels.random import Dropout
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import BertClassifierConfig, ClassifierConfig, HierarchicalConfig
from multihead.models.classifier.hierarchical import HierarchicalNetwork
from multihead.models.network import initialize


class Classified(NamedTuple):
    """Output of a classifier."""

    log_probabilities: Float[Tensor, "batch classes"]
    weights: tuple[Tensor, ...]
    """For each level of a hierarchical network, outermost first, as `Pooled.weights`; for a BERT those of attention
    pooling, if it has it."""


class Classifier(nn.Module, ABC):
    """An encoder with a linear layer to the classes.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.classes)
        initialize(self.output)

    @abstractmethod
    def encode(self, *read: Tensor) -> tuple[Float[Tensor, "batch width"], tuple[Tensor, ...]]:
        """The vector of each document, and the weights of each level, if any."""

    def forward(self, *read: Tensor) -> Classified:
        """The log-probability of each class, at least in float32.

        Args:
            *read: the input of the encoder (`data.nested.DocumentBatch.encoder_inputs`).
        """
        vectors, weights = self.encode(*read)
        logits = self.output(self.dropout(vectors))
        return Classified(logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), weights)

    def loss(self, *inputs: Tensor, smoothing: float) -> Loss:
        """The cross-entropy, summed over the documents.

        Args:
            *inputs: the arguments of `forward`, and the class of each document, [batch].
            smoothing: label smoothing: share of the probability that is spread over all classes.
        """
        *read, labels = inputs
        vectors = self.dropout(self.encode(*read)[0])
        return linear_cross_entropy(vectors, self.output.weight, labels, smoothing, self.output.bias)


class HierarchicalClassifier(Classifier):
    """A hierarchical attention network with a linear layer; its input is (tokens, lengths).

    Args:
        config: settings of the classifier.
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__(config)
        self.encoder = HierarchicalNetwork(config)

    def encode(self, *read: Tensor) -> tuple[Float[Tensor, "batch width"], tuple[Tensor, ...]]:
        vectors, weights = self.encoder(*read)
        return vectors, weights


class BertClassifier(Classifier):
    """A BERT with a linear layer and without the heads of pre-training; its input is (tokens, lengths, segments).

    The pooler is trained only with ``pool`` "first".

    Args:
        config: settings of the classifier.
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
        """The pooled vectors; with attention pooling also the weights, [batch, time]."""
        lengths, (states, pooled) = read[1], self.encoder.encode(*read)
        if self.by_first:
            return pooled, ()
        if self.pool is None:
            return zero_padding(states, lengths).sum(1) / lengths[:, None], ()
        vectors, weights = self.pool(states, mask=Padding(lengths))
        return vectors, (weights,)

    @torch.no_grad()
    def copy_encoder(self, pretrained: Bert) -> None:
        """Copy the weights of a pre-trained encoder of the same sizes."""
        weights = dict(pretrained.named_parameters())
        for name, parameter in self.encoder.named_parameters():
            parameter.copy_(weights[name])


def build_classifier(config: ClassifierConfig) -> Classifier:
    """The classifier that the settings describe."""
    return HierarchicalClassifier(config) if isinstance(config, HierarchicalConfig) else BertClassifier(config)
