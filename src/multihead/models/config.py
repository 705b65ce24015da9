"""The shape of a Transformer as settings, the presets of the literature, and how a model is searched; no torch here.

What a field does stands under it; which of them suit a corpus is decided in `workflows.planning`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings, nearest
from multihead.errors import ConfigurationError


class TransformerConfig(Settings):
    """Everything that fixes the parameters of a Transformer and what they compute (Vaswani et al. 2017)."""

    architecture: Literal["transformer"] = "transformer"
    """Which network this is."""
    source_vocab: int = Field(ge=1)
    """Entries of the source vocabulary."""
    target_vocab: int = Field(ge=1)
    """Entries of the target vocabulary."""
    padding_id: int = Field(default=0, ge=0)
    """The id that fills short rows; its embedding is zero and stays zero."""
    width: int = Field(default=512, ge=2)
    """D: the size of every state."""
    heads: int = Field(default=8, ge=1)
    """H: attention heads; each is D / H wide."""
    inner: int = Field(default=2048, ge=1)
    """Width of the hidden layer of the position-wise feed-forward network."""
    encoder_layers: int = Field(default=6, ge=1)
    """Layers of the encoder."""
    decoder_layers: int = Field(default=6, ge=1)
    """Layers of the decoder."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the embeddings, from each sub-layer's output and inside the feed-forward network."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropped from the attention weights; above 0 it costs the fused kernel."""
    norm: Literal["post", "pre"] = "post"
    """Where layer norm stands: after the residual sum (the paper) or before each sub-layer."""
    final_norm: bool | None = None
    """A last norm after encoder and decoder; by default where the norm is 'pre', which needs it."""
    norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the variance in layer norm."""
    tie_embeddings: bool = True
    """Source and target share one embedding (needs one vocabulary)."""
    tie_output: bool = True
    """The output projection is the target embedding."""

    @model_validator(mode="after")
    def _fits(self) -> TransformerConfig:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width {self.width} and {self.heads} heads")
        if self.width % 2:
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}")
        if self.tie_embeddings and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"tie_embeddings needs one vocabulary, got {self.source_vocab} source "
                f"and {self.target_vocab} target entries"
            )
        if self.padding_id >= min(self.source_vocab, self.target_vocab):
            raise ValueError(
                f"padding_id must be an entry of both vocabularies, got {self.padding_id} with {self.source_vocab} "
                f"source and {self.target_vocab} target entries"
            )
        return self

    @property
    def has_final_norm(self) -> bool:
        """Whether encoder and decoder end in a norm."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class GenerationConfig(Settings):
    """How a model is searched."""

    beam: int = Field(default=5, ge=1)
    """Hypotheses a sentence; 1 is greedy search."""
    alpha: float = Field(default=1.0, ge=0)
    """Length penalty: a hypothesis y is ranked by log p(y | x) / |y|^alpha."""
    length_factor: float = Field(default=3.0, gt=0)
    """A translation has at most ``length_factor * source tokens + length_margin`` tokens."""
    length_margin: int = Field(default=20, ge=1)
    """See ``length_factor``."""

    def limit(self, source_tokens: int) -> int:
        """The most tokens, end symbol included, that a translation of so many may have."""
        return int(self.length_factor * source_tokens) + self.length_margin


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "inner": 256, "encoder_layers": 4, "decoder_layers": 4},
    "small": {"width": 256, "heads": 4, "inner": 512, "encoder_layers": 3, "decoder_layers": 3},
    "base": {"width": 512, "heads": 8, "inner": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"width": 1024, "heads": 16, "inner": 4096, "encoder_layers": 6, "decoder_layers": 6},
}
"""Named sizes. ``base`` and ``big`` are the paper's (table 3); ``tiny`` is Wu et al. (2021), ACL, for Multi30k."""


def preset(name: str) -> dict[str, Any]:
    """The sizes that a preset stands for.

    Raises:
        ConfigurationError: there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigurationError(f"there is no preset '{name}'{nearest(name, list(PRESETS))}")
    return dict(PRESETS[name])
