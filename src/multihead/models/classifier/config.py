"""The shape of a classifier as settings; no torch here.

Two kinds: a hierarchical attention network, which is made for documents, and a BERT with a layer on top.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings
from multihead.models.bert.config import BertConfig
from multihead.models.config import check_heads, check_vocabulary


class HierarchicalConfig(Settings):
    """Everything that fixes the parameters of a hierarchical attention network (Yang et al. 2016)."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout",)
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["hierarchical"] = "hierarchical"
    """Which network this is."""
    vocab: int = Field(ge=1)
    """Entries of the vocabulary."""
    classes: int = Field(ge=2)
    """How many classes it tells apart."""
    padding_id: int = Field(default=0, ge=0)
    """The id that fills short rows; its embedding is zero and stays zero."""
    depth: int = Field(default=2, ge=1)
    """Levels: 1 = words make the document, 2 = words make sentences and these the document, 3 = paragraphs between."""
    encoder: Literal["gru", "transformer", "none"] = "gru"
    """What reads the parts of a level before they are pooled: a GRU in each direction (the paper), self-attention, or
    nothing."""
    width: int = Field(default=128, ge=2)
    """D: the size of every vector; each direction of a GRU has D / 2."""
    layers: int = Field(default=1, ge=1)
    """Layers of the encoder of each level."""
    heads: int = Field(default=4, ge=1)
    """H: heads of a Transformer's self-attention."""
    inner: int = Field(default=256, ge=1)
    """Width of the hidden layer of its feed-forward network."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the embeddings, from what each level hands on, and within a Transformer."""

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
        """What it is, in a line for people."""
        inside = "no encoders" if self.encoder == "none" else f"{self.layers} {self.encoder} a level"
        return f"hierarchical attention network, depth {self.depth}, {inside}, width {self.width}"


class BertClassifierConfig(Settings):
    """A BERT encoder, pooled to one vector, and a layer from there to the classes (Devlin et al. 2019, 4.1)."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout",)
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["bert-classifier"] = "bert-classifier"
    """Which network this is."""
    encoder: BertConfig
    """The encoder."""
    classes: int = Field(ge=2)
    """How many classes it tells apart."""
    pool: Literal["first", "mean", "attention"] = "first"
    """What stands for the document: the pooled state of [CLS] (the paper), the mean of all states, or a weighted one by
    attention pooling."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the pooled vector."""

    @property
    def width(self) -> int:
        """D: the size of every state."""
        return self.encoder.width

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{self.encoder.summary}, pooled by {self.pool}"


ClassifierConfig = HierarchicalConfig | BertClassifierConfig
"""The settings of any classifier."""
