"""Attention over channels and over places, in two branches: CBAM one after the other, BAM side by side.

Woo et al. 2018, "CBAM: Convolutional Block Attention Module"; Park et al. 2018, "BAM: Bottleneck Attention Module".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, check_odd, reduced
from multihead.errors import ConfigurationError, ShapeError


class _ChannelBranch(ImageAttention):
    """CBAM's M_c: sigma(MLP(mean over places) + MLP(maximum over places)), [batch, channels, 1, 1]."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__(channels)
        hidden = reduced(channels, reduction)
        self.reduce = nn.Linear(channels, hidden, bias=False)
        self.expand = nn.Linear(hidden, channels, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        # The second layer is linear: it may be applied to the sum.
        hidden = F.relu(self.reduce(x.mean((2, 3)))) + F.relu(self.reduce(x.amax((2, 3))))
        return torch.sigmoid(self.expand(hidden))[:, :, None, None]


class _SpatialBranch(ImageAttention):
    """CBAM's M_s: sigma(convolution([mean over channels; maximum over channels])), [batch, 1, height, width]."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(channels)
        self.convolution = nn.Conv2d(2, 1, check_odd(kernel_size), padding=kernel_size // 2, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.convolution(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)))


class CBAM(ImageAttention):
    r"""Channels first, then places of what they leave.

    .. math::
        M_c(F) &= \sigma(\mathrm{MLP}(\mathrm{mean}_{HW} F) + \mathrm{MLP}(\max_{HW} F)), &
        F' &= M_c(F) \otimes F \\
        M_s(F') &= \sigma(f^{7 \times 7}([\mathrm{mean}_C F'; \max_C F'])), & F'' &= M_s(F') \otimes F'

    (Woo et al. 2018, section 3.) :meth:`gate` is M_c(F) * M_s(F'), [batch, channels, height, width]; the two
    factors are ``channel.gate(x)`` and ``spatial.gate(channel(x))``.

    As in the equations there are no biases, and f is a convolution. The authors' code gives the MLP biases, normalises
    what f gives (batch norm; timm too), and hands it [max; mean]. Some re-implementations add x to the result.

    Args:
        channels: of the feature map.
        reduction: the MLP's bottleneck is channels / reduction wide, at least 1.
        kernel_size: of f, odd.

    Raises:
        ConfigurationError: fewer than one channel, a reduction below 1, or an even kernel size.
    """

    def __init__(self, channels: int, reduction: int = 16, kernel_size: int = 7) -> None:
        super().__init__(channels)
        self.channel = _ChannelBranch(channels, reduction)
        self.spatial = _SpatialBranch(channels, kernel_size)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """F''.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width], or has other channels.
        """
        refined: Tensor = self.spatial(self.channel(x))
        return refined

    def _gate(self, x: Tensor) -> Tensor:
        channel = self.channel.gate(x)
        return channel * self.spatial.gate(x * channel)


class BAM(ImageAttention):
    r"""Channels and places at once, added before the sigmoid; the input stays in the result.

    .. math::
        M(F) &= \sigma(M_c(F) + M_s(F)), \qquad F' = F + F \otimes M(F) \\
        M_c(F) &= \mathrm{BN}(W_1\, \mathrm{ReLU}(W_0\, \mathrm{mean}_{HW} F + b_0) + b_1) \\
        M_s(F) &= \mathrm{BN}(f_3^{1 \times 1}(f_2^{3 \times 3}(f_1^{3 \times 3}(f_0^{1 \times 1}(F)))))

    with a ReLU after f_0, f_1 and f_2, and f_1 and f_2 dilated, so that they see far (Park et al. 2018, section 3).
    :meth:`gate` is M(F), [batch, channels, height, width], between 0 and 1; the factor is **1 + gate**.

    The paper adds the branches, the authors' code multiplies them. It also normalises after every layer, where the
    paper does so at the end of each branch. The ReLUs are the code's; the paper's equations do not write them. Padding
    equals the dilation here, so any height and width will do.

    Args:
        channels: of the feature map.
        reduction: both bottlenecks are channels / reduction wide, at least 1.
        dilation: of f_1 and f_2.

    Raises:
        ConfigurationError: fewer than one channel, or a reduction or dilation below 1.
    """

    def __init__(self, channels: int, reduction: int = 16, dilation: int = 4) -> None:
        super().__init__(channels)
        if dilation < 1:
            raise ConfigurationError(f"dilation={dilation}: the distance of neighbours in a filter is 1 or more")
        hidden = reduced(channels, reduction)
        self.channel = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.BatchNorm1d(channels)
        )
        self.spatial = nn.Sequential(
            nn.Conv2d(channels, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation),
            nn.ReLU(),
            nn.Conv2d(hidden, 1, 1),
            nn.BatchNorm2d(1),
        )

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """F'.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width], has other channels, or is a single image
                while training: its channel means cannot be normalised over the batch.
        """
        return x + x * self.gate(x)

    def _gate(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] == 1:
            raise ShapeError(
                f"BAM normalises over the batch, and {list(x.shape)} is one image: train with two or more, "
                "or call eval() first"
            )
        return torch.sigmoid(self.channel(x.mean((2, 3)))[:, :, None, None] + self.spatial(x))
