"""Settings of decoder-only language models. Does not import torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from multihead.configuration import MOST_ENTRIES, nearest
from multihead.errors import ConfigurationError
from multihead.models.config import PRESETS, check_vocabulary
from multihead.models.stack_config import StackConfig


class DecoderConfig(StackConfig):
    """Settings that define the parameters and the computation of a decoder-only language model."""

    architecture: Literal["decoder"] = "decoder"
    """Kind of network."""
    vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the vocabulary."""
    norm: Literal["post", "pre"] = "pre"
    """Layer norm after the residual sum or before each sub-layer."""

    @model_validator(mode="after")
    def _fits(self) -> DecoderConfig:
        check_vocabulary(self.vocab, self.padding_id)
        return self

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
