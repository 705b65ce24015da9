"""Settings of pointer networks, and the symbols that they read and write.

Does not import torch. The vocabulary of a pointer network depends on its input: input n of a row (counted from 0) is
the symbol ``FIRST + n``. Three special symbols precede the inputs, as in the vocabulary of a translator.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from multihead.configuration import MOST_INNER, MOST_LAYERS, MOST_WIDTH, Settings
from multihead.models.stack_config import check_heads

PADDING, BEGIN, END, FIRST = 0, 1, 2, 3
"""Symbols of padding, of the beginning and the end of a target, and of the first input."""


class PointerConfig(Settings):
    """Settings that define a pointer network's parameters and its computation (Vinyals et al. 2015)."""

    architecture: Literal["pointer"] = "pointer"
    """Kind of network."""
    features: int = Field(default=1, ge=1, le=MOST_WIDTH)
    """F: number of features of an input: 1 for a list of numbers, 2 for points of the plane."""
    encoder: Literal["recurrent", "bidirectional", "transformer"] = "recurrent"
    """A forward LSTM (the paper), a bidirectional LSTM, or a Transformer encoder."""
    positions: bool = False
    """Whether the Transformer encoder adds sinusoidal positions; without them the order of the inputs has no effect."""
    width: int = Field(default=128, ge=2, le=MOST_WIDTH)
    """D: size of every state; each direction of a bidirectional encoder has D / 2."""
    layers: int = Field(default=1, ge=1, le=MOST_LAYERS)
    """Number of encoder layers; the decoder is one LSTM cell."""
    heads: int = Field(default=4, ge=1, le=MOST_WIDTH)
    """H: number of heads of the Transformer encoder."""
    inner: int = Field(default=256, ge=1, le=MOST_INNER)
    """Hidden width of the Transformer encoder's feed-forward network."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the embedded inputs and between encoder layers."""
    no_repeats: bool = False
    """Whether an input can be chosen only once, in training and in search (Bello et al. 2017)."""

    @model_validator(mode="after")
    def _fits(self) -> PointerConfig:
        if self.encoder == "bidirectional" and self.width % 2:
            raise ValueError(
                f"width must be even for a bidirectional encoder, got {self.width}: take {self.width + 1}, half of "
                "it for each direction"
            )
        if self.encoder == "transformer":
            check_heads(self.width, self.heads)
        if self.positions and self.encoder != "transformer":
            raise ValueError(
                f"positions are for encoder = 'transformer', got '{self.encoder}', which reads the inputs in their "
                "order anyway"
            )
        if self.positions and self.width % 2:
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}: take {self.width + 1}")
        return self

    @property
    def padding_id(self) -> int:
        """Symbol of padding."""
        return PADDING
