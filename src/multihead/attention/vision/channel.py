"""Attention from channel means: SE, ECA and coordinate attention.

Hu et al. 2018, "Squeeze-and-Excitation Networks"; Wang et al. 2020, "ECA-Net"; Hou et al. 2021, "Coordinate Attention
for Efficient Mobile Network Design". SE and ECA weight whole channels; coordinate attention weights the rows and
columns of each channel.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, check_odd, reduced


class SqueezeExcitation(ImageAttention):
    r"""Squeeze-and-excitation (SE): channel means through a bottleneck of two fully connected layers.

    .. math::
        z_c = \frac{1}{HW} \sum_{ij} x_{cij}, \qquad s = \sigma(W_2\, \mathrm{ReLU}(W_1 z)), \qquad y_c = s_c\, x_c

    (Hu et al. 2018, section 3.) :meth:`gate` is s, [batch, channels, 1, 1].

    The equations have no biases. torchvision and timm add them (``bias=True``) and write the layers as 1 x 1
    convolutions; timm also rounds the bottleneck to a multiple of 8.

    Args:
        channels: number of channels of the feature map.
        reduction: the paper's r; the bottleneck has channels / r units, at least 1.
        bias: whether the two layers have biases.

    Raises:
        ConfigurationError: ``channels`` or ``reduction`` is below 1.
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
    r"""Efficient channel attention (ECA): a convolution over neighboring channel means, without a bottleneck.

    .. math::
        \omega = \sigma(\mathrm{Conv1d}_k(z)), \qquad y_c = \omega_c\, x_c

    where z are the channel means; the k weights of the filter are the only parameters (Wang et al. 2020, section 3).
    :meth:`gate` is omega, [batch, channels, 1, 1]. By default k is the odd number nearest to (log2(channels) + 1) / 2,
    the larger one on a tie: 3 for 8 to 64 channels, 5 for 128 to 1024.

    The paper and the authors' code have no bias. timm uses k >= 3, which makes a difference below 8 channels.

    Args:
        channels: number of channels of the feature map.
        kernel_size: k, odd; None derives it from ``channels``.

    Raises:
        ConfigurationError: ``channels`` is below 1, or the kernel size is even.
    """

    def __init__(self, channels: int, kernel_size: int | None = None) -> None:
        super().__init__(channels)
        if kernel_size is None:
            kernel_size = 2 * int((math.log2(channels) + 1) / 4) + 1
        self.convolution = nn.Conv1d(1, 1, check_odd(kernel_size), padding=kernel_size // 2, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))[:, None]
        return torch.sigmoid(self.convolution(means)).transpose(1, 2)[..., None]


class CoordinateAttention(ImageAttention):
    r"""Coordinate attention: means of rows and columns through a shared bottleneck give row and column weights.

    .. math::
        z^h_c(h) &= \mathrm{mean}_w\, x_c(h, w), \qquad z^w_c(w) = \mathrm{mean}_h\, x_c(h, w) \\
        f &= \delta(\mathrm{BN}(F_1([z^h; z^w]))), \qquad g^h = \sigma(F_h(f^h)), \quad g^w = \sigma(F_w(f^w)) \\
        y_c(h, w) &= x_c(h, w)\, g^h_c(h)\, g^w_c(w)

    where F_1, F_h and F_w are 1 x 1 convolutions and delta is the hard swish (Hou et al. 2021, section 3).
    :meth:`gate` is g^h * g^w, [batch, channels, height, width].

    As in the authors' code, the bottleneck has channels / reduction channels, at least 8. Their F_1 has a bias; here it
    has none, since the norm after it removes any bias. timm uses no biases at all and a different reduction.

    Args:
        channels: number of channels of the feature map.
        reduction: the paper's r.

    Raises:
        ConfigurationError: ``channels`` or ``reduction`` is below 1.
    """

    def __init__(self, channels: int, reduction: int = 32) -> None:
        super().__init__(channels)
        hidden = reduced(channels, reduction, least=8)
        self.shared = nn.Conv1d(channels, hidden, 1, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.rows = nn.Conv1d(hidden, channels, 1)
        self.columns = nn.Conv1d(hidden, channels, 1)

    def _gate(self, x: Tensor) -> Tensor:
        strips = torch.cat([x.mean(3), x.mean(2)], dim=2)  # [batch, channels, height + width]
        mixed = F.hardswish(self.norm(self.shared(strips)))
        rows, columns = mixed.split_with_sizes(x.shape[2:], dim=2)
        return torch.sigmoid(self.rows(rows))[:, :, :, None] * torch.sigmoid(self.columns(columns))[:, :, None, :]
