"""Structured attention: marginals of chains, segments and dependency trees in place of a softmax (Kim et al. 2017).

Reading order: partition (what all have in common) · chain · semi_markov · trees, which rests on eisner and
matrix_tree · layers.
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
