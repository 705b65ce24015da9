"""Coordinate attention: one map along the height and one along the width, so that places keep their coordinates.

Hou, Zhou, Feng 2021, "Coordinate Attention for Efficient Mobile Network Design".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention.vision.gate import ImageAttention, reduced


class CoordinateAttention(ImageAttention):
    r"""Means of rows and of columns through a shared bottleneck; a weight for each row and for each column.

    .. math::
        z^h_c(h) &= \mathrm{mean}_w\, x_c(h, w), \qquad z^w_c(w) = \mathrm{mean}_h\, x_c(h, w) \\
        f &= \delta(\mathrm{BN}(F_1([z^h; z^w]))), \qquad g^h = \sigma(F_h(f^h)), \quad g^w = \sigma(F_w(f^w)) \\
        y_c(h, w) &= x_c(h, w)\, g^h_c(h)\, g^w_c(w)

    where F_1, F_h and F_w are 1 x 1 convolutions and delta is the hard swish (Hou et al. 2021, section 3).
    :meth:`gate` is g^h * g^w, [batch, channels, height, width].

    As in the authors' code the bottleneck has channels / reduction channels, at least 8. F_1 has no bias here, because
    the norm after it takes it away; theirs has. timm's has none anywhere and another reduction.

    Args:
        channels: of the feature map.
        reduction: the paper's r.

    Raises:
        ConfigurationError: fewer than one channel, or a reduction below 1.
    """

    def __init__(self, channels: int, reduction: int = 32) -> None:
        super().__init__(channels)
        hidden = reduced(channels, reduction, least=8)
        self.shared = nn.Conv1d(channels, hidden, 1, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.rows = nn.Conv1d(hidden, channels, 1)
        self.columns = nn.Conv1d(hidden, channels, 1)

    def _gate(self, x: Tensor) -> Tensor:
        strips = torch.cat([x.mean(3), x.mean(2)], dim=2)
        mixed = F.hardswish(self.norm(self.shared(strips)))
        rows, columns = mixed.split_with_sizes(x.shape[2:], dim=2)
        return torch.sigmoid(self.rows(rows))[:, :, :, None] * torch.sigmoid(self.columns(columns))[:, :, None, :]
