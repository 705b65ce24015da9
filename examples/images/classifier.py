r"""A small convolutional classifier with attention in every block: what the modules of `attention.vision` are for.

    block      y = ReLU(S x + A(N(C_2 ReLU(N(C_1 x)))))
    network    logits = W mean_{HW}(block_3(block_2(block_1(ReLU(N(C_0 x))))))

C are 3 x 3 convolutions (C_1 halves height and width), N batch norms, S a 1 x 1 convolution with a norm, and A one of
the eight modules, or nothing. It stands where its papers put it, between the last norm of a residual branch and the sum
(Hu et al. 2018, figure 3; Woo et al. 2018, figure 3; the residual network is He et al. 2016's, with one block a stage).
Training and data are left to others.
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
from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy

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


class Classified(NamedTuple):
    """What a whole pass gives."""

    logits: Float[Tensor, "batch classes"]
    maps: tuple[Float[Tensor, "b c h w"], ...]
    """`ImageAttention.gate` of each block, on request; empty without attention."""


class Block(nn.Module):
    """Two convolutions, attention, and the input beside them; half as high and half as wide.

    Args:
        before: channels that come in.
        width: channels that go out.
        config: which attention.
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
        """The result; and what the features were multiplied with, on request and if there is attention."""
        features: Tensor = self.second(F.relu(self.first(x)))
        found = self.attention.gate(features) if need_map and self.attention is not None else None
        weighted = features if self.attention is None else self.attention(features)
        return F.relu(self.shortcut(x) + weighted), found


class ImageClassifier(nn.Module):
    """Images to classes.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
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
        """The modules, one a block; none without attention."""
        found = (block.attention for block in self.blocks)
        return tuple(module for module in found if isinstance(module, ImageAttention))

    def forward(self, images: Float[Tensor, "batch channels height width"], *, need_maps: bool = False) -> Classified:
        """Logits of the classes, and the maps of attention.

        Args:
            images: of any height and width.
            need_maps: also return what each block's features were multiplied with.

        Raises:
            ShapeError: not [batch, channels, height, width], or other channels.
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
        """Label-smoothed cross-entropy of the right class, summed over the images."""
        hidden, _ = self._blocks(images, need_maps=False)
        return linear_cross_entropy(hidden, self.output.weight, labels, smoothing)

    def _blocks(self, images: Tensor, need_maps: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The means of the last block's features over all places; and the maps."""
        if images.dim() != 4 or images.shape[1] != self.config.channels:
            raise ShapeError(
                f"this network was made for images [batch, {self.config.channels}, height, width], got "
                f"{list(images.shape)}"
            )
        x, maps = F.relu(self.stem(images)), []
        for block in self.blocks:
            x, found = block(x, need_maps)
            maps += [] if found is None else [found]
        return x.mean((2, 3)), tuple(maps)


def multiply_adds(module: nn.Module, *inputs: Any) -> int:
    """How many products are multiplied and added up by ``module(*inputs)``: convolutions and matrix products.

    What is done to each number by itself (norms, activations, a map times features) and sums without products are not
    counted, as is usual in tables of vision papers; they take time all the same. Batch norms are not trained by it.

    Args:
        module: any module; it is run once, as in evaluation and without gradients.
        inputs: what it is called with.
    """
    training = module.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module.eval()(*inputs)
    finally:
        module.train(training)
    # Two operations each: a multiplication and an addition.
    return int(counter.get_total_flops()) // 2


def _attention(width: int, config: ImageConfig) -> ImageAttention | None:
    """The module that the settings name, for so many channels."""
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
    """A convolution that keeps height and width (over ``stride``), and its batch norm, which makes a bias idle."""
    convolution = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))
