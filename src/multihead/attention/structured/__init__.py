"""Structured attention: marginals of chains, segments and trees.

They replace the softmax of attention (Kim et al. 2017, "Structured Attention Networks"). Reading order: partition (the
shared autograd operation) · chain · trees, which calls eisner and matrix_tree · layers.
"""

from multihead.attention.structured.chain import (
    chain_log_partition,
    chain_marginals,
    semi_markov_log_partition,
    semi_markov_marginals,
)
from multihead.attention.structured.layers import (
    SegmentationAlignment,
    SegmentationAttention,
    TreeAlignment,
    TreeAttention,
)
from multihead.attention.structured.trees import tree_log_partition, tree_marginals

__all__ = [
    "SegmentationAlignment",
    "SegmentationAttention",
    "TreeAlignment",
    "TreeAttention",
    "chain_log_partition",
    "chain_marginals",
    "semi_markov_log_partition",
    "semi_markov_marginals",
    "tree_log_partition",
    "tree_marginals",
]
