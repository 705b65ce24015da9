"""Settings of document classifiers.

There are two kinds: a hierarchical attention network, and a BERT with a layer on top. Does not import torch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import MOST_ENTRIES, MOST_INNER, MOST_LAYERS, MOST_WIDTH, Settings
from multihead.models.bert.config import BertConfig
from multihead.models.config import check_vocabulary
from multihead.models.stack_config import check_heads


class HierarchicalConfig(Settings):
    """Settings that define a hierarchical attention network (Yang et al. 2016)."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout",)
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["hierarchical"] = "hierarchical"
    """Kind of network."""
    vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the vocabulary."""
    classes: int = Field(ge=2, le=MOST_ENTRIES)
    """Number of classes."""
    padding_id: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Id of padding; its embedding is zero and is not trained."""
    depth: int = Field(default=2, ge=1, le=3)
    """Number of levels: 1 = words, 2 = words and sentences, 3 = words, sentences and paragraphs."""
    encoder: Literal["gru", "transformer", "none"] = "gru"
    """Encoder of each level, before pooling: a bidirectional GRU (the paper), a Transformer encoder, or none."""
    width: int = Field(default=128, ge=2, le=MOST_WIDTH)
    """D: size of every vector; each direction of a GRU has D / 2."""
    layers: int = Field(default=1, ge=1, le=MOST_LAYERS)
    """Number of layers of each encoder."""
    heads: int = Field(default=4, ge=1, le=MOST_WIDTH)
    """H: number of heads of a Transformer encoder."""
    inner: int = Field(default=256, ge=1, le=MOST_INNER)
    """Hidden width of its feed-forward network."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings, of each level's output and within a Transformer encoder."""

    @model_validator(mode="after")
    def _fits(self) -> HierarchicalConfig:
        if self.encoder != "none" and self.width % 2:
            raise ValueError(
                f"width must be even for encoder = '{self.encoder}', got {self.width}: take {self.width + 1}"
            )
        if self.encoder == "transformer":
            check_heads(self.width, self.heads)
        check_vocabulary(self.vocab, self.padding_id)
        return self

    @property
    def summary(self) -> str:
        """One line for people."""
        inside = "no encoders" if self.encoder == "none" else f"{self.layers} {self.encoder} a level"
        return f"hierarchical attention network, depth {self.depth}, {inside}, width {self.width}"


class BertClassifierConfig(Settings):
    """Settings of a BERT encoder with pooling and a linear layer to the classes (Devlin et al. 2019, 4.1)."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout",)
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["bert-classifier"] = "bert-classifier"
    """Kind of network."""
    encoder: BertConfig
    """Settings of the encoder."""
    classes: int = Field(ge=2, le=MOST_ENTRIES)
    """Number of classes."""
    pool: Literal["first", "mean", "attention"] = "first"
    """Pooling: the pooled state of [CLS] (the paper), the mean of all states, or attention pooling."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the pooled vector."""

    @property
    def width(self) -> int:
        """D: size of every state."""
        return self.encoder.width

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.encoder.summary}, pooled by {self.pool}"


ClassifierConfig = HierarchicalConfig | BertClassifierConfig
"""Settings of a classifier."""
