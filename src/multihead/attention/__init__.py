"""Attention: the equation, masks that compose, biases, kernels to choose from, heads, and the cache of a decoder.

Reading order: functional (what is computed) · masks (between whom) · biases, rotary (where) · backends (on which
kernel) · multihead · cache. Then scores, alignment and composition, for every other way to score and to choose;
pooling, key_value and pointer, made of them; drop_in, in PyTorch's place. `attention.structured` (chains and trees)
and `attention.vision` (images) are packages of their own.
"""

from multihead.attention.alignment import (
    Alignment,
    Argmax,
    Gumbel,
    MovingBaseline,
    Sample,
    Softmax,
    StraightThrough,
    reinforce_loss,
)
from multihead.attention.backends import Plan, choose, explain
from multihead.attention.biases import ALiBi, Bias, RelativeBias
from multihead.attention.cache import KeyValue
from multihead.attention.composition import Attention
from multihead.attention.flex import block_mask
from multihead.attention.functional import attention, explicit_attention, masked_softmax
from multihead.attention.key_value import KeyValueAttention
from multihead.attention.masks import (
    And,
    Causal,
    Dense,
    Document,
    EndToEnd,
    Full,
    Mask,
    MaskFunction,
    Not,
    Or,
    Padding,
    PrefixLM,
    SlidingWindow,
    TorchMasks,
    from_torch,
    generate_square_subsequent_mask,
    sequence_mask,
    to_torch,
    zero_padding,
)
from multihead.attention.multihead import MultiHeadAttention, PackedLinear, join_heads, split_heads
from multihead.attention.pointer import PointerAttention, masked_log_softmax
from multihead.attention.pooling import AttentionPool, HierarchicalAttention, LearnedQuery, Pooled
from multihead.attention.rotary import rotary
from multihead.attention.scores import Additive, Bilinear, Dot, LowRankBilinear, ScaledDot, Score
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.attention.variable_length import sequence_offsets

__all__ = [
    "ALiBi",
    "Additive",
    "Alignment",
    "And",
    "Argmax",
    "Attention",
    "AttentionPool",
    "Bias",
    "Bilinear",
    "Causal",
    "Dense",
    "Document",
    "Dot",
    "EndToEnd",
    "Full",
    "Gumbel",
    "HierarchicalAttention",
    "KeyValue",
    "KeyValueAttention",
    "LearnedQuery",
    "LowRankBilinear",
    "Mask",
    "MaskFunction",
    "MovingBaseline",
    "MultiHeadAttention",
    "MultiheadAttention",
    "Not",
    "Or",
    "PackedLinear",
    "Padding",
    "Plan",
    "PointerAttention",
    "Pooled",
    "PrefixLM",
    "RelativeBias",
    "Sample",
    "ScaledDot",
    "Score",
    "SlidingWindow",
    "Softmax",
    "StraightThrough",
    "TorchMasks",
    "attention",
    "block_mask",
    "choose",
    "explain",
    "explicit_attention",
    "from_torch",
    "generate_square_subsequent_mask",
    "join_heads",
    "masked_log_softmax",
    "masked_softmax",
    "multi_head_attention_forward",
    "reinforce_loss",
    "rotary",
    "sequence_mask",
    "sequence_offsets",
    "split_heads",
    "to_torch",
    "zero_padding",
]
