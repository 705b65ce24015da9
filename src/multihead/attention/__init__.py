"""Attention: the equation, masks, biases, backends, heads and caches.

Reading order: `functional`, `backends.explicit` (the equation), `masks`, `biases`, `rotary` and `relative` (positions),
the other `backends`, `multihead`, `cache`. Then `scores`, `alignment` and `composition`, for other ways to score and to
select; `pooling`, `key_value` and `pointer`, built from them; `sparse`, `sinks`, `linear_attention`, `differential`,
`latent` and `paged`, other kinds of attention (docs/attention-kinds.md); `torch_compatible`, a drop-in replacement for
PyTorch's module. The packages `structured` (chains and trees) and `vision` (images) are imported by name.
"""

from multihead.attention.alignment import (
    Alignment,
    Argmax,
    Entmax15,
    Gumbel,
    MovingBaseline,
    Sample,
    Sigmoid,
    Softmax,
    Sparsemax,
    StraightThrough,
    reinforce_loss,
)
from multihead.attention.backends.call import Plan
from multihead.attention.backends.explicit import explicit_attention, masked_softmax
from multihead.attention.backends.flex import block_mask
from multihead.attention.backends.varlen import sequence_offsets
from multihead.attention.biases import ALiBi, Bias, RelativeBias
from multihead.attention.cache import KeyValue
from multihead.attention.composition import Attention
from multihead.attention.differential import DifferentialAttention
from multihead.attention.functional import attention, choose, explain
from multihead.attention.key_value import KeyValueAttention
from multihead.attention.latent import LatentAttention, LatentCache
from multihead.attention.linear_attention import (
    LinearState,
    elu_plus_one,
    linear_attention,
    linear_attention_step,
)
from multihead.attention.masks import (
    And,
    Causal,
    Dense,
    Document,
    EndToEnd,
    FirstKeys,
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
from multihead.attention.paged import PagedKeyValue, PagePool
from multihead.attention.pointer import PointerAttention, masked_log_softmax
from multihead.attention.pooling import AttentionPool, HierarchicalAttention, LearnedQuery, Pooled
from multihead.attention.relative import RelativePositions, relative_attention
from multihead.attention.rotary import rotary
from multihead.attention.scores import Additive, Bilinear, Dot, LowRankBilinear, ScaledDot, Score, SoftCap
from multihead.attention.sinks import Registers, sink_attention
from multihead.attention.sparse import entmax15, sparsemax
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.attention.weights import attention_weights, received_attention

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
    "DifferentialAttention",
    "Document",
    "Dot",
    "EndToEnd",
    "Entmax15",
    "FirstKeys",
    "Full",
    "Gumbel",
    "HierarchicalAttention",
    "KeyValue",
    "KeyValueAttention",
    "LatentAttention",
    "LatentCache",
    "LearnedQuery",
    "LinearState",
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
    "PagePool",
    "PagedKeyValue",
    "Plan",
    "PointerAttention",
    "Pooled",
    "PrefixLM",
    "Registers",
    "RelativeBias",
    "RelativePositions",
    "Sample",
    "ScaledDot",
    "Score",
    "Sigmoid",
    "SlidingWindow",
    "SoftCap",
    "Softmax",
    "Sparsemax",
    "StraightThrough",
    "TorchMasks",
    "attention",
    "attention_weights",
    "block_mask",
    "choose",
    "elu_plus_one",
    "entmax15",
    "explain",
    "explicit_attention",
    "from_torch",
    "generate_square_subsequent_mask",
    "join_heads",
    "linear_attention",
    "linear_attention_step",
    "masked_log_softmax",
    "masked_softmax",
    "multi_head_attention_forward",
    "received_attention",
    "reinforce_loss",
    "relative_attention",
    "rotary",
    "sequence_mask",
    "sequence_offsets",
    "sink_attention",
    "sparsemax",
    "split_heads",
    "to_torch",
    "zero_padding",
]
