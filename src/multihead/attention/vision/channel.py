"""Attention over channels: one weight a channel, from the channel's mean over the image.

Hu, Shen, Sun 2018, "Squeeze-and-Excitation Networks"; Wang et al. 2020, "ECA-Net". Modules that look at places too are
elsewhere in this package.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, check_odd, reduced


class SqueezeExcitation(ImageAttention):
    r"""SE: channel means through a bottleneck of two fully connected layers.

    .. math::
        z_c = \frac{1}{HW} \sum_{ij} x_{cij}, \qquad s = \sigma(W_2\, \mathrm{ReLU}(W_1 z)), \qquad y_c = s_c\, x_c

    (Hu et al. 2018, section 3.) :meth:`gate` is s, [batch, channels, 1, 1].

    The equations have no biases; torchvision's and timm's layers do (``bias=True``), written as 1 x 1 convolutions, and
    timm rounds the bottleneck to a multiple of 8.

    Args:
        channels: of the feature map.
        reduction: the paper's r; the bottleneck is channels / r wide, at least 1.
        bias: whether the two layers add one.

    Raises:
        ConfigurationError: fewer than one channel, or a reduction below 1.
    """

    def __init__(self, channels: int, reduction: int = 16, *, bias: bool = False) -> None:
        super().__init__(channels)
        hidden = reduced(channels, reduction)
        self.reduce = nn.Linear(channels, hidden, bias=bias)
        self.expand = nn.Linear(hidden, channels, bias=bias)

    def _gate(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))
        return torch.sigmoid(self.expand(F.relu(self.reduce(means))))[:, :, None, None]


class ECA(ImageAttention):
    r"""Efficient channel attention: each channel's weight from the means of its neighbours, no bottleneck.

    .. math::
        \omega = \sigma(\mathrm{Conv1d}_k(z)), \qquad y_c = \omega_c\, x_c

    where z are the channel means and the k numbers of the filter are all the parameters (Wang et al. 2020, section 3).
    :meth:`gate` is omega, [batch, channels, 1, 1]. By default k is the odd number next to (log2(channels) + 1) / 2 (the
    larger one where two are): 3 for 8 to 64 channels, 5 for 128 to 1024.

    The paper and the authors' code have no bias. timm makes k at least 3, which matters below 8 channels.

    Args:
        channels: of the feature map.
        kernel_size: k, odd; None = from the channels.

    Raises:
        ConfigurationError: fewer than one channel, or an even kernel size.
    """

    def __init__(self, channels: int, kernel_size: int | None = None) -> None:
        super().__init__(channels)
        if kernel_size is None:
            kernel_size = 2 * int((math.log2(channels) + 1) / 4) + 1
        self.convolution = nn.Conv1d(1, 1, check_odd(kernel_size), padding=kernel_size // 2, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))[:, None]
        return torch.sigmoid(self.convolution(means)).transpose(1, 2)[..., None]
