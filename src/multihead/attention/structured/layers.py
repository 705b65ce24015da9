r"""Structured attention layers: marginals of chains and trees as weights.

Kim et al. 2017, "Structured Attention Networks". `SegmentationAlignment` and `TreeAlignment` are alignments for
`multihead.attention.composition.Attention` with any score; `SegmentationAttention` and `TreeAttention` are complete
layers. `chain` and `trees` have the marginals as functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from multihead.attention.alignment import Alignment
from multihead.attention.composition import Attention
from multihead.attention.masks import Padding
from multihead.attention.scores import Additive, Bilinear, Score
from multihead.attention.structured import chain, trees
from multihead.errors import ShapeError


class SegmentationAlignment(Alignment):
    r"""A binary chain over the keys for every query: each key is selected or not, depending on its neighbors.

    .. math::
        a_n = p(z_n = 1), \quad p(z) \propto \exp\Big(\sum_n s_n z_n + \sum_n t(z_n, z_{n+1})\Big)

    (Kim et al. 2017, section 3.1). ``transition`` is t, [from, to]; it is initialized to 0, where a_n = sigmoid(s_n).
    Masked keys are not in the chain, so their neighbors become adjacent. The weights sum to the expected number of
    selected keys, not to 1.

    Args:
        normalize: divide the weights by their sum.
    """

    def __init__(self, normalize: bool = False) -> None:
        super().__init__()
        self.normalize = normalize
        self.transition = nn.Parameter(torch.zeros(2, 2))

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """The probability that each key is selected."""
        unary = torch.stack((torch.zeros_like(scores), scores), -1).flatten(0, 1)
        transition = self.transition.to(scores.dtype)
        if mask is None:
            chosen = chain.chain_marginals(unary, transition)[..., 1]
        else:
            present = mask.expand(scores.shape).flatten(0, 1)
            chosen = chain.marginals_of_present(unary, transition, present)[..., 1]
        weights = chosen.view(scores.shape)
        if not self.normalize:
            return weights
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1)

    def extra_repr(self) -> str:
        return "normalize=True" if self.normalize else ""


class TreeAlignment(Alignment):
    """Dependency trees: each query is a word that attends to its head; key 0 is ROOT and key i is word i.

    The weights are the marginals of `multihead.attention.structured.trees.tree_marginals`, modifier by head, and each
    row sums to 1. There is one key more than queries. Masked arcs are in no tree. A word is missing, as in padding, if
    its row or its column of the mask is empty.

    Args:
        projective: True: trees without crossing arcs; False: all trees.
        multiroot: whether ROOT may have several modifiers.
    """

    def __init__(self, projective: bool = True, multiroot: bool = False) -> None:
        super().__init__()
        self.projective, self.multiroot = projective, multiroot

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """The probability of each head of each word.

        Raises:
            ShapeError: there is not one key more than queries.
        """
        _, words, nodes = scores.shape
        if nodes != words + 1:
            raise ShapeError(
                f"the scores have shape {list(scores.shape)}, but a tree needs one key more than queries: ROOT, "
                "then the words"
            )
        if mask is not None:
            mask = mask.expand(scores.shape)
            scores = scores.masked_fill(~mask, -torch.inf)
        arcs = F.pad(scores.transpose(1, 2), (1, 0))
        if mask is None:
            marginals = trees.tree_marginals(arcs, projective=self.projective, multiroot=self.multiroot)
        else:
            present = mask.any(2) & mask[:, :, 1:].any(1)
            marginals = trees.marginals_of_present(arcs, present, projective=self.projective, multiroot=self.multiroot)
        return marginals[:, :, 1:].transpose(1, 2)

    def extra_repr(self) -> str:
        return f"projective={self.projective}, multiroot={self.multiroot}"


class SegmentationAttention(Attention):
    """Attention that selects runs of keys: a bilinear score and `SegmentationAlignment` (Kim et al. 2017, section 4.2).

    Args:
        query_dim: width of the queries.
        key_dim: width of the keys.
        normalize: divide the weights by their sum.
    """

    def __init__(self, query_dim: int, key_dim: int, normalize: bool = False) -> None:
        super().__init__(Bilinear(query_dim, key_dim), SegmentationAlignment(normalize))


class TreeAttention(nn.Module):
    r"""Self-attention of every word to its head in a dependency tree.

    .. math::
        c_m = \sum_{h=0}^n p(h \to m) x_h

    with x_0 = ``root``, a parameter (Kim et al. 2017, section 4.4; the vector for ROOT as in Liu & Lapata 2018).

    Args:
        dim: width of the word vectors.
        projective: True: trees without crossing arcs; False: all trees.
        multiroot: whether ROOT may have several modifiers.
        score: score of a modifier (query) and a head (key); default: additive, as in Kim et al.
    """

    def __init__(self, dim: int, projective: bool = True, multiroot: bool = False, score: Score | None = None) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(dim))
        self.attention = Attention(
            Additive(dim, dim, dim) if score is None else score, TreeAlignment(projective, multiroot)
        )

    def forward(
        self,
        x: Float[Tensor, "batch words dim"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch words dim"], Float[Tensor, "batch words heads"] | None]:
        """The expected head vector of each word, and the probability of each head.

        Args:
            x: the word vectors.
            lengths: number of words of each sentence (default: all). Padding gets zeros and changes no other word.
            need_weights: also return the probabilities, [batch, words, 1 + words]; column 0 is ROOT.

        Raises:
            ShapeError: the lengths do not match the words.
        """
        nodes = torch.cat((self.root.to(x.dtype).expand(len(x), 1, -1), x), 1)
        mask = None if lengths is None else Padding(lengths + 1, q_lengths=lengths)
        output, weights = self.attention(x, nodes, mask=mask, need_weights=need_weights)
        return output, weights
