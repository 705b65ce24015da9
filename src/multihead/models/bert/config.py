"""Settings of BERT, and the presets of its papers.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"; the small
presets are those of Turc et al. 2019, "Well-Read Students Learn Better". `models.bert.huggingface` maps the fields to
their names in Hugging Face's files. Does not import torch.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import (
    MOST_ENTRIES,
    MOST_FACTOR,
    MOST_INNER,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Settings,
)
from multihead.models.config import check_vocabulary
from multihead.models.stack_config import StackConfig, check_heads


class BertConfig(Settings):
    """Settings that define a BERT's parameters and its computation."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout", "attention_dropout")
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["bert"] = "bert"
    """Kind of network."""
    vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the vocabulary, including special symbols."""
    padding_id: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Id of padding."""
    width: int = Field(default=768, ge=1, le=MOST_WIDTH)
    """D: size of every state."""
    layers: int = Field(default=12, ge=1, le=MOST_LAYERS)
    """Number of encoder layers."""
    heads: int = Field(default=12, ge=1, le=MOST_WIDTH)
    """H: number of attention heads."""
    inner: int = Field(default=3072, ge=1, le=MOST_INNER)
    """Hidden width of the position-wise feed-forward network."""
    max_positions: int = Field(default=512, ge=1, le=MOST_TOKENS)
    """Maximum number of tokens of a row: each position has a trained vector."""
    segments: int = Field(default=2, ge=1, le=MOST_WIDTH)
    """Number of segment types: the first and the second sentence of a pair."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings and of each sub-layer's output."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the attention weights; above 0 the fused kernel cannot be used on a CPU."""
    norm_eps: float = Field(default=1e-12, gt=0, le=1)
    """Epsilon added to the variance in layer norm."""
    initial_deviation: float = Field(default=0.02, gt=0, le=MOST_FACTOR)
    """Standard deviation of the initial values of matrices and embeddings."""

    @model_validator(mode="after")
    def _fits(self) -> BertConfig:
        check_heads(self.width, self.heads)
        check_vocabulary(self.vocab, self.padding_id)
        return self

    @property
    def layer(self) -> StackConfig:
        """Settings of the layers: post-norm, GELU, no dropout in the feed-forward network."""
        return StackConfig(
            padding_id=self.padding_id,
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            feed_forward="gelu",
            positions="learned",
            max_positions=self.max_positions,
            dropout=self.dropout,
            feed_forward_dropout=0.0,
            attention_dropout=self.attention_dropout,
            norm="post",
            norm_eps=self.norm_eps,
        )

    @property
    def summary(self) -> str:
        """One line for people."""
        heads = f"{self.heads} {'head' if self.heads == 1 else 'heads'}"
        return f"BERT, {self.layers} layers, width {self.width}, inner {self.inner}, {heads}"


BERT_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 2, "heads": 2, "inner": 512},
    "mini": {"width": 256, "layers": 4, "heads": 4, "inner": 1024},
    "small": {"width": 512, "layers": 4, "heads": 8, "inner": 2048},
    "base": {"width": 768, "layers": 12, "heads": 12, "inner": 3072},
}
"""Presets: ``base`` is from Devlin et al., the others are from Turc et al. (table 1)."""
