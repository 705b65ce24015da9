"""Attention with a channel branch and a spatial branch: CBAM, BAM, PSA.

Woo et al. 2018, "CBAM: Convolutional Block Attention Module"; Park et al. 2018, "BAM: Bottleneck Attention Module";
Liu et al. 2021, "Polarized Self-Attention: Towards High-quality Pixel-wise Regression".
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, check_odd, reduced
from multihead.errors import ConfigurationError, ShapeError


class _CBAMChannel(ImageAttention):
    """CBAM's M_c: sigma(MLP(mean over places) + MLP(maximum over places)), [batch, channels, 1, 1]."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__(channels)
        hidden = reduced(channels, reduction)
        self.reduce = nn.Linear(channels, hidden, bias=False)
        self.expand = nn.Linear(hidden, channels, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        # MLP(mean) + MLP(max): the second layer is linear, so it is applied once, to the sum.
        hidden = F.relu(self.reduce(x.mean((2, 3)))) + F.relu(self.reduce(x.amax((2, 3))))
        return torch.sigmoid(self.expand(hidden))[:, :, None, None]


class _CBAMSpatial(ImageAttention):
    """CBAM's M_s: sigma(convolution([mean over channels; maximum over channels])), [batch, 1, height, width]."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(channels)
        self.convolution = nn.Conv2d(2, 1, check_odd(kernel_size), padding=kernel_size // 2, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.convolution(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)))


class CBAM(ImageAttention):
    r"""Convolutional block attention module (CBAM): channel attention, then spatial attention.

    .. math::
        M_c(F) &= \sigma(\mathrm{MLP}(\mathrm{mean}_{HW} F) + \mathrm{MLP}(\max_{HW} F)), &
        F' &= M_c(F) \otimes F \\
        M_s(F') &= \sigma(f^{7 \times 7}([\mathrm{mean}_C F'; \max_C F'])), & F'' &= M_s(F') \otimes F'

    (Woo et al. 2018, section 3.) :meth:`gate` is M_c(F) * M_s(F'), [batch, channels, height, width]; the two
    factors are ``channel.gate(x)`` and ``spatial.gate(channel(x))``.

    As in the equations, there are no biases and f is a plain convolution. In the authors' code the MLP has biases, f
    reads [max; mean] and is followed by batch norm (as in timm). Some re-implementations add x to the result.

    Args:
        channels: number of channels of the feature map.
        reduction: the bottleneck of the MLP has channels / reduction units, at least 1.
        kernel_size: kernel size of f, odd.

    Raises:
        ConfigurationError: ``channels`` or ``reduction`` is below 1, or the kernel size is even.
    """

    def __init__(self, channels: int, reduction: int = 16, kernel_size: int = 7) -> None:
        super().__init__(channels)
        self.channel = _CBAMChannel(channels, reduction)
        self.spatial = _CBAMSpatial(channels, kernel_size)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """F'', the features weighted by channel and by place.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width] with the right number of channels.
        """
        refined: Tensor = self.spatial(self.channel(x))
        return refined

    def _gate(self, x: Tensor) -> Tensor:
        channel = self.channel.gate(x)
        return channel * self.spatial.gate(x * channel)


class BAM(ImageAttention):
    r"""Bottleneck attention module (BAM): both branches are added before the sigmoid, and the input is added after it.

    .. math::
        M(F) &= \sigma(M_c(F) + M_s(F)), \qquad F' = F + F \otimes M(F) \\
        M_c(F) &= \mathrm{BN}(W_1\, \mathrm{ReLU}(W_0\, \mathrm{mean}_{HW} F + b_0) + b_1) \\
        M_s(F) &= \mathrm{BN}(f_3^{1 \times 1}(f_2^{3 \times 3}(f_1^{3 \times 3}(f_0^{1 \times 1}(F)))))

    with a ReLU after f_0, f_1 and f_2. f_1 and f_2 are dilated for a large receptive field (Park et al. 2018,
    section 3). :meth:`gate` is M(F), [batch, channels, height, width], between 0 and 1; x is multiplied by
    **1 + gate**.

    The branches are added, as in the paper; the authors' code multiplies them. Batch norm ends each branch, as in the
    paper; the authors' code has it after every layer. The ReLUs are from the code; the paper's equations omit them.
    The padding equals the dilation, so every height and width works.

    Args:
        channels: number of channels of the feature map.
        reduction: both bottlenecks have channels / reduction units, at least 1.
        dilation: dilation of f_1 and f_2.

    Raises:
        ConfigurationError: ``channels``, ``reduction`` or ``dilation`` is below 1.
    """

    def __init__(self, channels: int, reduction: int = 16, dilation: int = 4) -> None:
        super().__init__(channels)
        if dilation < 1:
            raise ConfigurationError(f"dilation={dilation}: expected at least 1")
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
        """F', the features plus the weighted features.

        Raises:
            ShapeError: ``x`` is not [batch, channels, height, width] with the right number of channels, or is a
                single image while training: its channel means cannot be normalized over the batch.
        """
        return x + x * self.gate(x)

    def _gate(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] == 1:
            raise ShapeError(
                f"BAM normalizes over the batch, and {list(x.shape)} is one image: train with two or more, "
                "or call eval() first"
            )
        return torch.sigmoid(self.channel(x.mean((2, 3)))[:, :, None, None] + self.spatial(x))


class _PolarizedChannel(ImageAttention):
    """PSA's A_ch: sigma(LN(W_z(V softmax over places(q)))), [batch, channels, 1, 1]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        half = reduced(channels, 2)
        self.query = nn.Conv2d(channels, 1, 1, bias=False)
        self.value = nn.Conv2d(channels, half, 1, bias=False)
        self.output = nn.Linear(half, channels, bias=False)
        self.norm = nn.LayerNorm(channels)

    def _gate(self, x: Tensor) -> Tensor:
        weights = self.query(x).flatten(2).softmax(-1)  # [batch, 1, height * width]
        attended = (self.value(x).flatten(2) @ weights.transpose(1, 2)).squeeze(-1)  # [batch, channels / 2]
        return torch.sigmoid(self.norm(self.output(attended)))[:, :, None, None]


class _PolarizedSpatial(ImageAttention):
    """PSA's A_sp: sigma(softmax over channels(mean over places(W_q x)) . W_v x), [batch, 1, height, width]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        half = reduced(channels, 2)
        self.query = nn.Conv2d(channels, half, 1, bias=False)
        self.value = nn.Conv2d(channels, half, 1, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        weights = self.query(x).mean((2, 3)).softmax(-1)  # [batch, channels / 2]
        return torch.sigmoid((self.value(x) * weights[:, :, None, None]).sum(1, keepdim=True))


class PolarizedSelfAttention(ImageAttention):
    r"""Polarized self-attention (PSA): a softmax over places weights channels, one over channels weights places.

    .. math::
        A^{ch}(X) &= \sigma(\mathrm{LN}(W_z (W_v X \cdot \mathrm{softmax}_{HW}(W_q X)))) \\
        A^{sp}(X) &= \sigma(\mathrm{softmax}_{C}(\mathrm{mean}_{HW}(W'_q X)) \cdot W'_v X) \\
        \text{parallel: } Y &= A^{ch}(X) \odot X + A^{sp}(X) \odot X \\
        \text{sequential: } Y &= A^{sp}(Z) \odot Z, \quad Z = A^{ch}(X) \odot X

    (Liu et al. 2021, section 3, with the layer norm of its figure.) All W are 1 x 1 convolutions without biases. W_q
    has one output channel, W_v, W'_q and W'_v half of the channels. :meth:`gate` is A_ch(X) + A_sp(X), between 0 and 2,
    in the parallel arrangement, and A_ch(X) * A_sp(Z) in the sequential one, [batch, channels, height, width]. The
    branches are ``channel`` and ``spatial``; each has its own ``gate``.

    This follows the paper; published code differs. In the authors' parallel code the spatial branch takes its softmax
    over places after the product, and the channel branch has no layer norm. Their sequential code takes a softmax of
    the values over places and has a bottleneck.

    Args:
        channels: number of channels of the feature map.
        arrangement: ``"parallel"`` or ``"sequential"``.

    Raises:
        ConfigurationError: ``channels`` is below 1, or the arrangement is unknown.
    """

    def __init__(self, channels: int, arrangement: Literal["parallel", "sequential"] = "parallel") -> None:
        super().__init__(channels)
        if arrangement not in ("parallel", "sequential"):
            raise ConfigurationError(f"arrangement={arrangement!r}: expected 'parallel' or 'sequential'")
        self.arrangement = arrangement
        self.channel = _PolarizedChannel(channels)
        self.spatial = _PolarizedSpatial(channels)

    def _gate(self, x: Tensor) -> Tensor:
        channel = self.channel.gate(x)
        if self.arrangement == "parallel":
            return channel + self.spatial.gate(x)
        return channel * self.spatial.gate(x * channel)

    def extra_repr(self) -> str:
        return self.arrangement
