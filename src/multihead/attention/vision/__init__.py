"""Attention for images: which channels and which places of a feature map matter.

Every module takes x [batch, channels, height, width], gives the same shape, and shows the map it multiplies with:
``module.gate(x)``. Channels: :class:`SqueezeExcitation`, :class:`ECA`. Places, in groups of channels:
:class:`SpatialGroupEnhance`. Both: :class:`CBAM`, :class:`BAM`, :class:`ShuffleAttention`,
:class:`PolarizedSelfAttention`, :class:`CoordinateAttention`.
"""

from multihead.attention.vision.branches import BAM, CBAM
from multihead.attention.vision.channel import ECA, SqueezeExcitation
from multihead.attention.vision.coordinate import CoordinateAttention
from multihead.attention.vision.gate import ImageAttention
from multihead.attention.vision.grouped import ShuffleAttention, SpatialGroupEnhance
from multihead.attention.vision.polarized import PolarizedSelfAttention

__all__ = [
    "BAM",
    "CBAM",
    "ECA",
    "CoordinateAttention",
    "ImageAttention",
    "PolarizedSelfAttention",
    "ShuffleAttention",
    "SpatialGroupEnhance",
    "SqueezeExcitation",
]
