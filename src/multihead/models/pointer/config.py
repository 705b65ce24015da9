"""The shape of a pointer network as settings, and the symbols that it reads and writes; no torch here.

The vocabulary of a pointer network is brought by its input: input n of a row (counted from 0) is the symbol
``FIRST + n``. Three symbols stand before the inputs, as in the vocabulary of a translator.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings
from multihead.models.config import check_heads

PADDING, BEGIN, END, FIRST = 0, 1, 2, 3
"""What fills short rows, what every target starts from, what ends it, and the symbol of the first input."""


class PointerConfig(Settings):
    """Everything that fixes the parameters of a pointer network and what they compute (Vinyals et al. 2015)."""

    architecture: Literal["pointer"] = "pointer"
    """Which network this is."""
    features: int = Field(default=1, ge=1)
    """F: how many numbers an input has: 1 in a list to be sorted, 2 in a set of points of the plane."""
    encoder: Literal["recurrent", "bidirectional", "transformer"] = "recurrent"
    """An LSTM from the first input to the last (the paper), one in each direction, or self-attention."""
    positions: bool = False
    """The Transformer adds sinusoidal positions to the inputs; without them their order makes no difference."""
    width: int = Field(default=128, ge=2)
    """D: the size of every state; each direction of a bidirectional encoder has D / 2."""
    layers: int = Field(default=1, ge=1)
    """Layers of the encoder; the decoder is one LSTM cell."""
    heads: int = Field(default=4, ge=1)
    """H: heads of the Transformer's self-attention."""
    inner: int = Field(default=256, ge=1)
    """Width of the hidden layer of the Transformer's feed-forward network."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropped from the embedded inputs and between the layers of the encoder."""
    no_repeats: bool = False
    """An input that was chosen is not chosen again, in training and in search (Bello et al. 2017)."""

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
        """The symbol that fills short targets."""
        return PADDING
