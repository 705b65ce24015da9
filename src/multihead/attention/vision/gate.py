"""What every attention for images has in common: a map that multiplies the features, and the checks of its input."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from multihead.errors import ConfigurationError, ShapeError


class ImageAttention(nn.Module, ABC):
    """y = x * gate(x), unless a module says that it does more.

    Args:
        channels: of the feature map.

    Raises:
        ConfigurationError: fewer than one channel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ConfigurationError(f"channels={channels}: at least one channel is needed")
        self.channels = channels

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """The features, weighted.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width], or has other channels.
        """
        return x * self.gate(x)

    def gate(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "b c h w"]:
        """The map that multiplies, with size 1 on every axis on which it does not depend.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width], or has other channels.
        """
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ShapeError(
                f"{type(self).__name__} was made for [batch, {self.channels}, height, width], got {list(x.shape)}"
            )
        return self._gate(x)

    @abstractmethod
    def _gate(self, x: Tensor) -> Tensor:
        """`gate` of features whose shape is right."""


def reduced(channels: int, reduction: int, least: int = 1) -> int:
    """The width of a bottleneck: channels / reduction, rounded down, and ``least`` at least.

    Raises:
        ConfigurationError: a reduction below 1.
    """
    if reduction < 1:
        raise ConfigurationError(f"reduction={reduction}: a bottleneck is channels / reduction wide, with 1 or more")
    return max(least, channels // reduction)


def check_odd(kernel_size: int) -> int:
    """The kernel size, if it has a middle.

    Raises:
        ConfigurationError: it is even, or below 1.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ConfigurationError(f"kernel_size={kernel_size}: an odd size is needed, such as 3 or 7")
    return kernel_size
