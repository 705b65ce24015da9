r"""A small convolutional image classifier with attention in every block.

    block      y = ReLU(S x + A(N(C_2 ReLU(N(C_1 x)))))
    network    logits = W mean_{HW}(block_3(block_2(block_1(ReLU(N(C_0 x))))))

C are 3 x 3 convolutions (C_1 halves height and width), N batch norms, S a 1 x 1 convolution with a norm, and A one of
the eight modules of `multihead.attention.vision`, or the identity. A is placed between the last norm of a residual
branch and the sum (Hu et al. 2018, figure 3; Woo et al. 2018, figure 3). The residual network follows He et al. 2016,
with one block per stage.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from multihead.attention.vision import (
    BAM,
    CBAM,
    ECA,
    CoordinateAttention,
    ImageAttention,
    PolarizedSelfAttention,
    ShuffleAttention,
    SpatialGroupEnhance,
    SqueezeExcitation,
)
from multihead.configuration import Settings
from multihead.errors import ShapeError
from multihead.kernels.linear import Loss, linear_cross_entropy

ImageAttentionName = Literal["none", "se", "eca", "cbam", "bam", "shuffle", "sge", "polarized", "coordinate"]


class ImageConfig(Settings):
    """The settings of an `ImageClassifier`."""

    architecture: Literal["image"] = "image"
    """Name of the architecture."""
    classes: int = Field(ge=2)
    """Number of classes."""
    channels: int = Field(default=3, ge=1)
    """Channels of an image: 3 for color, 1 for gray."""
    widths: tuple[int, ...] = Field(default=(8, 16, 32), min_length=1)
    """Channels of each block; every block halves height and width."""
    attention: ImageAttentionName = "none"
    """Attention module of each block (`multihead.attention.vision`)."""
    reduction: int = Field(default=4, ge=1)
    """For 'se', 'cbam', 'bam' and 'coordinate': bottlenecks have channels / reduction channels."""
    groups: int = Field(default=4, ge=1)
    """For 'shuffle' and 'sge': number of channel groups."""

    @model_validator(mode="after")
    def _check_widths(self) -> ImageConfig:
        step = {"shuffle": 2 * self.groups, "sge": self.groups}.get(self.attention, 1)
        for width in self.widths:
            if width < 1 or width % step:
                raise ValueError(
                    f"all widths must be a multiple of {step} for attention = '{self.attention}' in {self.groups} "
                    f"groups, got {width}: take {(max(width, 0) // step + 1) * step}"
                )
        return self


class Classified(NamedTuple):
    """The result of a forward pass."""

    logits: Float[Tensor, "batch classes"]
    maps: tuple[Float[Tensor, "b c h w"], ...]
    """`ImageAttention.gate` of each block, if requested; empty without attention."""


class Block(nn.Module):
    """A residual block: two convolutions and attention; halves height and width.

    Args:
        before: number of input channels.
        width: number of output channels.
        config: the settings of the attention module.
    """

    def __init__(self, before: int, width: int, config: ImageConfig) -> None:
        super().__init__()
        self.first = _convolution(before, width, stride=2)
        self.second = _convolution(width, width)
        self.shortcut = _convolution(before, width, kernel=1, stride=2)
        self.attention = _attention(width, config)

    def forward(
        self, x: Float[Tensor, "batch before height width"], need_map: bool = False
    ) -> tuple[Float[Tensor, "batch after h w"], Float[Tensor, "b c p q"] | None]:
        """The output, and the gate of the attention module if requested."""
        features: Tensor = self.second(F.relu(self.first(x)))
        gate = self.attention.gate(features) if need_map and self.attention is not None else None
        weighted = features if self.attention is None else self.attention(features)
        return F.relu(self.shortcut(x) + weighted), gate


class ImageClassifier(nn.Module):
    """The image classifier.

    Args:
        config: the settings; parameters are drawn from PyTorch's default generator.
    """

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.widths[0], *config.widths)
        self.stem = _convolution(config.channels, widths[0])
        self.blocks = nn.ModuleList(Block(before, width, config) for before, width in pairwise(widths))
        self.output = nn.Linear(widths[-1], config.classes, bias=False)

    @property
    def attention(self) -> tuple[ImageAttention, ...]:
        """The attention modules, one per block; empty without attention."""
        modules = (block.attention for block in self.blocks)
        return tuple(module for module in modules if isinstance(module, ImageAttention))

    def forward(self, images: Float[Tensor, "batch channels height width"], *, need_maps: bool = False) -> Classified:
        """The logits of the classes, and the attention maps.

        Args:
            images: images of any height and width.
            need_maps: also return the gate of each block.

        Raises:
            ShapeError: the images are not [batch, channels, height, width] with the right number of channels.
        """
        hidden, maps = self._blocks(images, need_maps)
        return Classified(self.output(hidden), maps)

    def loss(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
        *,
        smoothing: float,
    ) -> Loss:
        """Label-smoothed cross-entropy, summed over the images."""
        hidden, _ = self._blocks(images, need_maps=False)
        return linear_cross_entropy(hidden, self.output.weight, labels, smoothing)

    def _blocks(self, images: Tensor, need_maps: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The features of the last block averaged over places, and the maps."""
        if images.dim() != 4 or images.shape[1] != self.config.channels:
            raise ShapeError(
                f"this network expects images [batch, {self.config.channels}, height, width], got {list(images.shape)}"
            )
        x, maps = F.relu(self.stem(images)), []
        for block in self.blocks:
            x, gate = block(x, need_maps)
            maps += [] if gate is None else [gate]
        return x.mean((2, 3)), tuple(maps)


def multiply_adds(module: nn.Module, *inputs: Any) -> int:
    """The number of multiply-adds in ``module(*inputs)``, for convolutions and matrix products.

    Elementwise operations (norms, activations, products with a map) and plain sums are not counted, as is usual in the
    tables of vision papers, although they take time too. Batch norm statistics do not change.

    Args:
        module: the module; it runs once in evaluation mode without gradients.
        inputs: the arguments of the call.
    """
    training = module.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module.eval()(*inputs)
    finally:
        module.train(training)
    # A multiply-add is two operations.
    return int(counter.get_total_flops()) // 2


def _attention(width: int, config: ImageConfig) -> ImageAttention | None:
    """The attention module selected by the settings."""
    match config.attention:
        case "none":
            return None
        case "se":
            return SqueezeExcitation(width, config.reduction)
        case "eca":
            return ECA(width)
        case "cbam":
            return CBAM(width, config.reduction)
        case "bam":
            return BAM(width, config.reduction)
        case "shuffle":
            return ShuffleAttention(width, config.groups)
        case "sge":
            return SpatialGroupEnhance(width, config.groups)
        case "polarized":
            return PolarizedSelfAttention(width)
        case "coordinate":
            return CoordinateAttention(width, config.reduction)


def _convolution(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution that preserves height and width (divided by ``stride``), and a batch norm."""
    convolution = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))
