"""Attention for images: weights for channels and places of feature maps.

Every module maps x [batch, channels, height, width] to the same shape, and ``module.gate(x)`` returns the map that
multiplies x. Channels: :class:`SqueezeExcitation`, :class:`ECA`. Places, in groups of channels:
:class:`SpatialGroupEnhance`. Both: :class:`CBAM`, :class:`BAM`, :class:`ShuffleAttention`,
:class:`PolarizedSelfAttention`, :class:`CoordinateAttention`.
"""

from multihead.attention.vision.branches import BAM, CBAM, PolarizedSelfAttention
from multihead.attention.vision.channel import ECA, CoordinateAttention, SqueezeExcitation
from multihead.attention.vision.gate import ImageAttention
from multihead.attention.vision.grouped import ShuffleAttention, SpatialGroupEnhance

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
