"""Attention in groups of channels: shuffle attention and SGE.

Zhang, Yang 2021, "SA-Net: Shuffle Attention for Deep Convolutional Neural Networks"; Li, Hu, Yang 2019, "Spatial
Group-wise Enhance".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention
from multihead.errors import ConfigurationError


class ShuffleAttention(ImageAttention):
    r"""Shuffle attention: half of each group is weighted by channel, half by place; then channels are shuffled.

    .. math::
        x'_{k1} = \sigma(W_1\, \mathrm{mean}_{HW}(x_{k1}) + b_1) \cdot x_{k1}, \qquad
        x'_{k2} = \sigma(W_2\, \mathrm{GN}(x_{k2}) + b_2) \cdot x_{k2}

    for each of ``groups`` groups k with the halves x_k1 and x_k2. W and b have one number per channel of a half and are
    shared by the groups (Zhang and Yang 2021, section 3). GN standardizes each channel over its places, with its own
    scale and shift: 3 channels / groups parameters in all. :meth:`gate` is the map before the shuffle, [batch,
    channels, height, width], and y = shuffle(x * gate(x)). The shuffle interleaves the two halves of all channels:
    channel c of the first half moves to 2 c.

    As in the authors' code, W starts at 0 and b at 1, so the gate is 0.731 everywhere at first.

    Args:
        channels: number of channels of the feature map.
        groups: the paper's G (64 in the authors' code).

    Raises:
        ConfigurationError: ``channels`` is not a multiple of 2 * ``groups``.
    """

    def __init__(self, channels: int, groups: int = 64) -> None:
        super().__init__(channels)
        _check_groups(channels, groups, parts=2)
        self.groups = groups
        half = channels // (2 * groups)
        self.channel_weight = nn.Parameter(torch.zeros(half, 1, 1))
        self.channel_bias = nn.Parameter(torch.ones(half, 1, 1))
        self.spatial_weight = nn.Parameter(torch.zeros(half, 1, 1))
        self.spatial_bias = nn.Parameter(torch.ones(half, 1, 1))
        self.norm_weight = nn.Parameter(torch.ones(half, 1, 1))
        self.norm_bias = nn.Parameter(torch.zeros(half, 1, 1))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """The weighted features with their channels shuffled.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width] with the right number of channels.
        """
        weighted = x * self.gate(x)
        batch, channels, height, width = x.shape
        halves = weighted.reshape(batch, 2, channels // 2, height, width)
        return halves.transpose(1, 2).reshape(x.shape)

    def _gate(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        first, second = x.reshape(batch * self.groups, channels // self.groups, height, width).chunk(2, dim=1)
        means = first.mean((2, 3), keepdim=True)
        # GN with one channel per group normalizes each channel by itself.
        standardized = F.layer_norm(second, (height, width)) * self.norm_weight + self.norm_bias
        channel = torch.sigmoid(self.channel_weight * means + self.channel_bias)
        spatial = torch.sigmoid(self.spatial_weight * standardized + self.spatial_bias)
        return torch.cat([channel.expand_as(first), spatial], dim=1).view(x.shape)


class SpatialGroupEnhance(ImageAttention):
    r"""Spatial group-wise enhance (SGE): places are weighted by their similarity to the mean of their group.

    .. math::
        g = \mathrm{mean}_i\, x_i, \qquad c_i = g \cdot x_i, \qquad
        \hat{c}_i = \frac{c_i - \mu_c}{\sigma_c + \epsilon}, \qquad
        y_i = x_i\, \sigma(\gamma \hat{c}_i + \beta)

    where x_i is the feature vector of one group at place i, mu and sigma are the mean and standard deviation of c over
    the places, and gamma and beta are one number per group: 2 G parameters (Li et al. 2019, section 3). :meth:`gate` is
    the sigmoid, [batch, channels, height, width], equal in all channels of a group.

    sigma divides by the number of places, as in the paper; the authors' code divides by one less, which is NaN for a
    single place. As in that code, gamma starts at 0 and beta at 1, so the gate is 0.731 everywhere at first
    (re-implementations that start with beta = 0 halve the features).

    Args:
        channels: number of channels of the feature map.
        groups: the paper's G.
        eps: epsilon in the denominator.

    Raises:
        ConfigurationError: ``channels`` is not a multiple of ``groups``.
    """

    def __init__(self, channels: int, groups: int = 8, eps: float = 1e-5) -> None:
        super().__init__(channels)
        _check_groups(channels, groups, parts=1)
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.zeros(groups, 1, 1))
        self.bias = nn.Parameter(torch.ones(groups, 1, 1))

    def _gate(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        grouped = x.reshape(batch, self.groups, channels // self.groups, height, width)
        similarity = (grouped * grouped.mean((3, 4), keepdim=True)).sum(2)
        centered = similarity - similarity.mean((2, 3), keepdim=True)
        standardized = centered / (similarity.std((2, 3), correction=0, keepdim=True) + self.eps)
        maps = torch.sigmoid(self.weight * standardized + self.bias)
        return maps.repeat_interleave(channels // self.groups, dim=1)


def _check_groups(channels: int, groups: int, parts: int) -> None:
    size = groups * parts
    if groups < 1 or channels % size:
        needed = "groups" if parts == 1 else f"{parts} * groups"
        possible = [number for number in range(1, channels // parts + 1) if channels % (number * parts) == 0]
        raise ConfigurationError(
            f"channels={channels} is not a multiple of {needed} = {size}: groups may be "
            f"{', '.join(map(str, possible)) if possible else 'no number, because the channels are odd'}"
        )
