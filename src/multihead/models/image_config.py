"""The shape of a small image classifier as settings; no torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings

ImageAttentionName = Literal["none", "se", "eca", "cbam", "bam", "shuffle", "sge", "polarized", "coordinate"]


class ImageConfig(Settings):
    """Everything that fixes the parameters of an image classifier and what they compute."""

    architecture: Literal["image"] = "image"
    """Which network this is."""
    classes: int = Field(ge=2)
    """What an image can show."""
    channels: int = Field(default=3, ge=1)
    """Numbers of a pixel: 3 of a colour, 1 of a grey."""
    widths: tuple[int, ...] = Field(default=(8, 16, 32), min_length=1)
    """Channels of each block; from one to the next, height and width are halved."""
    attention: ImageAttentionName = "none"
    """What weights the features of each block (`attention.vision`)."""
    reduction: int = Field(default=4, ge=1)
    """Of 'se', 'cbam', 'bam' and 'coordinate': their bottlenecks are channels / reduction wide."""
    groups: int = Field(default=4, ge=1)
    """Of 'shuffle' and 'sge': groups of channels."""

    @model_validator(mode="after")
    def _fits(self) -> ImageConfig:
        step = {"shuffle": 2 * self.groups, "sge": self.groups}.get(self.attention, 1)
        for width in self.widths:
            if width < 1 or width % step:
                raise ValueError(
                    f"every one of widths must be a multiple of {step} for attention = '{self.attention}' in "
                    f"{self.groups} groups, got {width}: take {(max(width, 0) // step + 1) * step}"
                )
        return self
