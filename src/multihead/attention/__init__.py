"""Attention: the equation, masks that compose, heads, and the cache of a decoder.

Reading order: functional (what is computed) · masks (between whom) · backends (on which kernel) · multihead ·
cache.
"""

from multihead.attention.backends import Plan, choose, explain
from multihead.attention.cache import KeyValue
from multihead.attention.functional import attention, explicit_attention, masked_softmax
from multihead.attention.masks import And, Causal, Dense, Full, Mask, Not, Or, Padding, sequence_mask
from multihead.attention.multihead import MultiHeadAttention, PackedLinear

__all__ = [
    "And",
    "Causal",
    "Dense",
    "Full",
    "KeyValue",
    "Mask",
    "MultiHeadAttention",
    "Not",
    "Or",
    "PackedLinear",
    "Padding",
    "Plan",
    "attention",
    "choose",
    "explain",
    "explicit_attention",
    "masked_softmax",
    "sequence_mask",
]
