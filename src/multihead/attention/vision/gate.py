"""Base class of image attention: a gate that multiplies the features."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from multihead.errors import ConfigurationError, ShapeError


class ImageAttention(nn.Module, ABC):
    """y = x * gate(x); subclasses that compute something else override `forward`.

    Args:
        channels: number of channels of the feature map.

    Raises:
        ConfigurationError: ``channels`` is below 1.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ConfigurationError(f"channels={channels}: expected at least one channel")
        self.channels = channels

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """The weighted features.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width] with the right number of channels.
        """
        return x * self.gate(x)

    def gate(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "b c h w"]:
        """The map that multiplies x, with size 1 on every axis along which it is constant.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width] with the right number of channels.
        """
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ShapeError(
                f"{type(self).__name__} expects [batch, {self.channels}, height, width], got {list(x.shape)}"
            )
        return self._gate(x)

    @abstractmethod
    def _gate(self, x: Tensor) -> Tensor:
        """`gate` without the shape check."""


def reduced(channels: int, reduction: int, least: int = 1) -> int:
    """The width of a bottleneck: channels / reduction rounded down, but at least ``least``.

    Raises:
        ConfigurationError: the reduction is below 1.
    """
    if reduction < 1:
        raise ConfigurationError(
            f"reduction={reduction}: expected at least 1 (a bottleneck is channels / reduction wide)"
        )
    return max(least, channels // reduction)


def check_odd(kernel_size: int) -> int:
    """Return the kernel size if it is odd.

    Raises:
        ConfigurationError: the kernel size is even or below 1.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ConfigurationError(f"kernel_size={kernel_size}: expected an odd size, such as 3 or 7")
    return kernel_size
