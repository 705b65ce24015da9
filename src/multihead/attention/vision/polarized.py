"""Polarized self-attention: high resolution along one axis, channels or places, while the other is folded away.

Liu et al. 2021, "Polarized Self-Attention: Towards High-quality Pixel-wise Regression".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, reduced
from multihead.errors import ConfigurationError


class _ChannelBranch(ImageAttention):
    """A_ch: sigma(LN(W_z(V softmax over places(q)))), [batch, channels, 1, 1]; q has 1 channel, V half of them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        half = reduced(channels, 2)
        self.query = nn.Conv2d(channels, 1, 1, bias=False)
        self.value = nn.Conv2d(channels, half, 1, bias=False)
        self.output = nn.Linear(half, channels, bias=False)
        self.norm = nn.LayerNorm(channels)

    def _gate(self, x: Tensor) -> Tensor:
        weights = self.query(x).flatten(2).softmax(-1)
        attended = (self.value(x).flatten(2) @ weights.transpose(1, 2)).squeeze(-1)
        return torch.sigmoid(self.norm(self.output(attended)))[:, :, None, None]


class _SpatialBranch(ImageAttention):
    """A_sp: sigma(softmax over channels(mean over places(W_q x)) . W_v x), [batch, 1, height, width]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        half = reduced(channels, 2)
        self.query = nn.Conv2d(channels, half, 1, bias=False)
        self.value = nn.Conv2d(channels, half, 1, bias=False)

    def _gate(self, x: Tensor) -> Tensor:
        weights = self.query(x).mean((2, 3)).softmax(-1)
        return torch.sigmoid((self.value(x) * weights[:, :, None, None]).sum(1, keepdim=True))


class PolarizedSelfAttention(ImageAttention):
    r"""PSA: a channel map from a softmax over places, a place map from a softmax over channels.

    .. math::
        A^{ch}(X) &= \sigma(\mathrm{LN}(W_z (W_v X \cdot \mathrm{softmax}_{HW}(W_q X)))) \\
        A^{sp}(X) &= \sigma(\mathrm{softmax}_{C}(\mathrm{mean}_{HW}(W'_q X)) \cdot W'_v X) \\
        \text{parallel: } Y &= A^{ch}(X) \odot X + A^{sp}(X) \odot X \\
        \text{sequential: } Y &= A^{sp}(Z) \odot Z, \quad Z = A^{ch}(X) \odot X

    (Liu et al. 2021, section 3, with the layer norm of its figure.) All W are 1 x 1 convolutions without biases; W_q
    gives one channel, the other inner ones half of the channels. :meth:`gate` is A_ch(X) + A_sp(X), between 0 and 2, in
    the parallel arrangement, and A_ch(X) * A_sp(Z) in the sequential one; [batch, channels, height, width]. The
    branches are ``channel`` and ``spatial``, with a ``gate`` each.

    The versions that are about disagree: in the authors' parallel code the spatial branch takes its softmax over places
    after the product and the channel branch has no layer norm; their sequential code takes a softmax of the values over
    places, and has a bottleneck. This is the paper.

    Args:
        channels: of the feature map.
        arrangement: ``"parallel"`` or ``"sequential"``.

    Raises:
        ConfigurationError: fewer than one channel, or another arrangement.
    """

    def __init__(self, channels: int, arrangement: Literal["parallel", "sequential"] = "parallel") -> None:
        super().__init__(channels)
        if arrangement not in ("parallel", "sequential"):
            raise ConfigurationError(f"arrangement={arrangement!r}: write 'parallel' or 'sequential'")
        self.arrangement = arrangement
        self.channel = _ChannelBranch(channels)
        self.spatial = _SpatialBranch(channels)

    def _gate(self, x: Tensor) -> Tensor:
        channel = self.channel.gate(x)
        if self.arrangement == "parallel":
            return channel + self.spatial.gate(x)
        return channel * self.spatial.gate(x * channel)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return self.arrangement
