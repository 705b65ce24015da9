"""The shape of a BERT as settings, and the presets of its papers; no torch here.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"; the small shapes
are those of Turc et al. 2019, "Well-Read Students Learn Better". Each field stands under its own name in the files of
Hugging Face, too: see `models.bert.huggingface`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings
from multihead.models.config import TransformerConfig, check_heads, check_vocabulary


class BertConfig(Settings):
    """Everything that fixes the parameters of a BERT and what they compute."""

    training_only: ClassVar[tuple[str, ...]] = ("dropout", "attention_dropout")
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["bert"] = "bert"
    """Which network this is."""
    vocab: int = Field(ge=1)
    """Entries of the vocabulary, special symbols among them."""
    padding_id: int = Field(default=0, ge=0)
    """The id that fills short rows."""
    width: int = Field(default=768, ge=1)
    """D: the size of every state."""
    layers: int = Field(default=12, ge=1)
    """Layers of the encoder."""
    heads: int = Field(default=12, ge=1)
    """H: attention heads."""
    inner: int = Field(default=3072, ge=1)
    """Width of the hidden layer of the position-wise feed-forward network."""
    max_positions: int = Field(default=512, ge=1)
    """The most tokens that a row may have: each place has a trained vector."""
    segments: int = Field(default=2, ge=1)
    """Kinds of segments: the first and the second sentence of a pair."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the embeddings and from each sub-layer's output."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the attention weights; above 0 it costs the fused kernel on a processor."""
    norm_eps: float = Field(default=1e-12, gt=0)
    """Added to the variance in layer norm."""
    initial_deviation: float = Field(default=0.02, gt=0)
    """Every matrix and embedding begins as N(0, initial_deviation^2)."""

    @model_validator(mode="after")
    def _fits(self) -> BertConfig:
        check_heads(self.width, self.heads)
        check_vocabulary(self.vocab, self.padding_id)
        return self

    @property
    def layer(self) -> TransformerConfig:
        """One encoder layer in the terms of the Transformer: post-norm, GELU, nothing dropped inside the network."""
        return TransformerConfig(
            source_vocab=self.vocab,
            target_vocab=self.vocab,
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
        """What it is, in a line for people."""
        heads = f"{self.heads} {'head' if self.heads == 1 else 'heads'}"
        return f"BERT, {self.layers} layers, width {self.width}, inner {self.inner}, {heads}"


BERT_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 2, "heads": 2, "inner": 512},
    "mini": {"width": 256, "layers": 4, "heads": 4, "inner": 1024},
    "small": {"width": 512, "layers": 4, "heads": 8, "inner": 2048},
    "base": {"width": 768, "layers": 12, "heads": 12, "inner": 3072},
}
"""Named shapes: ``base`` is Devlin et al.'s, the others are Turc et al.'s (table 1)."""
