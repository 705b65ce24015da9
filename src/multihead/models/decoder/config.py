"""Settings of decoder-only language models.

They are those of a Transformer's decoder; what each means in the layers is in `models.config.TransformerConfig`. Does
not import torch.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import MOST_ENTRIES, MOST_INNER, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Settings, nearest
from multihead.errors import ConfigurationError
from multihead.models.config import PRESETS, Activation, Positions, TransformerConfig, check_vocabulary

_ONE_TEXT = ("architecture", "vocab")
"""Fields that `TransformerConfig` lacks, or has with another value."""


class DecoderConfig(Settings):
    """Settings that define the parameters and the computation of a decoder-only language model."""

    training_only: ClassVar[tuple[str, ...]] = TransformerConfig.training_only
    """Fields that affect neither the weights nor the output of a trained model."""

    architecture: Literal["decoder"] = "decoder"
    """Kind of network."""
    vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the vocabulary."""
    padding_id: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Id of padding, which is never predicted in training."""
    width: int = Field(default=512, ge=2, le=MOST_WIDTH)
    """D: size of every state."""
    heads: int = Field(default=8, ge=1, le=MOST_WIDTH)
    """H: number of attention heads."""
    kv_heads: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Heads of keys and values, each shared by H / kv_heads query heads; default H."""
    key_dim: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Width of the queries and keys of a head; default D / H."""
    value_dim: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Width of the values of a head; default D / H."""
    attention_bias: bool = True
    """Whether the projections of attention have biases."""
    inner: int = Field(default=2048, ge=1, le=MOST_INNER)
    """Hidden width of the position-wise feed-forward network."""
    feed_forward: Activation = "relu"
    """Activation of the feed-forward network; the last four are gated."""
    feed_forward_bias: bool = True
    """Whether the matrices of the feed-forward network have biases."""
    decoder_layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of layers."""
    positions: Positions = "sinusoidal"
    """Position encoding."""
    sinusoid: Literal["interleaved", "halves", "marian", "fairseq"] = "interleaved"
    """Layout of sinusoidal positions."""
    max_positions: int = Field(default=512, ge=1, le=MOST_TOKENS)
    """Number of learned positions."""
    relative_buckets: int = Field(default=32, ge=4, le=1 << 16)
    """Number of relative biases of a head."""
    relative_distance: int | None = Field(default=None, ge=1, le=1 << 16)
    """Distance from which on all relative biases, or Shaw's vectors, are the same; default 128, of Shaw's 16."""
    embedding_scale: Literal["embedding", "projection", "none"] = "embedding"
    """Scale the embeddings by sqrt(D), the input of the output projection by 1 / sqrt(D), or neither."""
    embedding_norm: bool = False
    """Whether a norm follows the embeddings."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings, of each sub-layer's output and of the feed-forward network's hidden layer."""
    embedding_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the sum of embedding and position; default ``dropout``."""
    residual_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of each sub-layer's output; default ``dropout``."""
    feed_forward_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the hidden layer of the feed-forward network; default ``dropout``."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention weights; above 0 the fused kernel cannot be used."""
    norm: Literal["post", "pre"] = "pre"
    """Norm after the residual sum or before each sub-layer."""
    block: Literal["sequential", "parallel"] = "sequential"
    """Whether the parts of a layer follow each other, or all read one normed input."""
    final_norm: bool | None = None
    """Whether a norm follows the layers; default: with pre-norm only, which needs it."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """Layer norm or RMS norm."""
    query_key_norm: Literal["none", "layer", "rms"] = "none"
    """Norm of the queries and keys of every head before the score."""
    norm_eps: float = Field(default=1e-6, gt=0, le=1)
    """Epsilon of the norms."""
    tie_output: bool = True
    """Whether the output projection is the embedding."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    initialization: Literal["normal", "xavier"] = "normal"
    """Initial values of the embeddings."""

    @model_validator(mode="after")
    def _fits(self) -> DecoderConfig:
        check_vocabulary(self.vocab, self.padding_id)
        _ = self.layer  # checks the sizes
        return self

    @property
    def layer(self) -> TransformerConfig:
        """Settings of a layer as a Transformer's; the layer has no attention to a source."""
        common = {name: getattr(self, name) for name in type(self).model_fields if name not in _ONE_TEXT}
        return TransformerConfig(source_vocab=self.vocab, target_vocab=self.vocab, **common)

    @property
    def summary(self) -> str:
        """One line for people."""
        heads = f"{self.heads} {'head' if self.heads == 1 else 'heads'}"
        return (
            f"decoder-only language model, {self.decoder_layers} layers, width {self.width}, inner {self.inner}, "
            f"{heads}, {self.norm}-norm"
        )


DECODER_PRESETS: dict[str, dict[str, Any]] = {
    name: {field: PRESETS[name][field] for field in ("width", "heads", "inner", "decoder_layers")}
    for name in ("tiny", "small", "base", "big")
}
"""Presets: the decoders of the Transformer's."""


def decoder_preset(name: str) -> dict[str, Any]:
    """The sizes that a preset sets.

    Raises:
        ConfigurationError: there is no such preset.
    """
    if name not in DECODER_PRESETS:
        raise ConfigurationError(f"the decoder model has no preset '{name}'{nearest(name, list(DECODER_PRESETS))}")
    return dict(DECODER_PRESETS[name])
