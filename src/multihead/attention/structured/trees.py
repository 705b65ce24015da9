r"""Dependency trees: the probability of every arc.

    p(tree) = exp(sum of arc(h, m) over its arcs) / Z

over all trees with ROOT = 0 above words 1..n (Kim et al. 2017, section 3.2: projective trees; Liu & Lapata 2018:
non-projective ones). Which recursion sums over them is `eisner`'s and `matrix_tree`'s; here a call becomes potentials:
what is forbidden, what is padding, and which scale keeps float32 precise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attention.masks import sequence_mask
from multihead.attention.structured.eisner import Eisner
from multihead.attention.structured.matrix_tree import Elimination
from multihead.attention.structured.partition import IMPOSSIBLE, log_partition
from multihead.errors import ShapeError


def tree_marginals(
    arc: Float[Tensor, "batch nodes nodes"],
    *,
    projective: bool = True,
    multiroot: bool = False,
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch nodes nodes"]:
    r"""The probability of each arc of a dependency tree over words 1..n with ROOT at 0.

    .. math::
        p(h \to m), \quad p(\mathrm{tree}) \propto \exp\Big(\sum_{(h, m) \in \mathrm{tree}} \mathrm{arc}_{h, m}\Big)

    Args:
        arc: the score of head h (row) for modifier m (column), nodes = 1 + words. Column 0 and the diagonal are not
            read. -inf forbids an arc.
        projective: trees without crossing arcs (Eisner's algorithm), or all trees (matrix-tree theorem).
        multiroot: whether ROOT may have several modifiers, or exactly one.
        lengths: how many words each sentence has, ROOT not counted; what is beyond is not there (default: all).

    Returns:
        Marginals whose columns sum to 1 (each word has one head), and whose row 0 does with one root. 0 for words that
        are not there, and for a sentence that has no possible tree. They can be differentiated any number of times.

    Raises:
        ShapeError: the tensors do not fit together.
    """
    return _solve(arc, _present(arc, lengths), projective, multiroot)[1]


def tree_log_partition(
    arc: Float[Tensor, "batch nodes nodes"],
    *,
    projective: bool = True,
    multiroot: bool = False,
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """log Z of the same trees: the score of a tree minus this is its log-probability.

    0 for a sentence without words, -inf where no tree is possible. Its gradient are the marginals.

    Raises:
        ShapeError: the tensors do not fit together.
    """
    return _solve(arc, _present(arc, lengths), projective, multiroot)[0]


def marginals_of_present(
    arc: Float[Tensor, "batch nodes nodes"],
    present: Bool[Tensor, "batch words"],
    *,
    projective: bool,
    multiroot: bool,
) -> Float[Tensor, "batch nodes nodes"]:
    """The same where any word may be missing: those left of it and right of it are then neighbours."""
    return _solve(arc, present, projective, multiroot)[1]


def _present(arc: Tensor, lengths: Tensor | None) -> Tensor | None:
    if arc.dim() != 3 or arc.shape[1] != arc.shape[2] or arc.shape[1] == 0:
        raise ShapeError(
            f"arc has shape {list(arc.shape)}, but it must be [batch, 1 + words, 1 + words]: head by modifier, with "
            "ROOT at 0"
        )
    if lengths is None:
        return None
    if lengths.shape != arc.shape[:1]:
        raise ShapeError(
            f"lengths has shape {list(lengths.shape)}, but there are {len(arc)} sentences: one length each, "
            "without ROOT"
        )
    return sequence_mask(lengths.to(arc.device), arc.shape[1] - 1)


def _solve(arc: Tensor, present: Tensor | None, projective: bool, multiroot: bool) -> tuple[Tensor, Tensor]:
    batch, nodes, _ = arc.shape
    if batch == 0 or nodes == 1:
        return arc.new_zeros(batch), arc * 0
    arcs, forced = _forbid(arc.permute(1, 2, 0).contiguous(), present)
    # Each word has one head, so a constant on all of them changes no marginal; float32 keeps more digits without it.
    largest = arcs.detach().amax(0)
    largest = largest.masked_fill(largest < IMPOSSIBLE / 2, 0)
    arcs = arcs - largest
    if forced is not None:
        arcs = arcs.masked_fill(forced, 0)
    if projective or multiroot:
        log_z, marginals = log_partition((Eisner if projective else Elimination)(multiroot), arcs)
        possible = log_z > IMPOSSIBLE / 2
    else:
        order, possible = _root_first(arcs.detach())
        log_z, marginals = log_partition(Elimination(multiroot), _reorder(arcs, order))
        marginals = _reorder(marginals, order)
    marginals = marginals.masked_fill(~possible if forced is None else ~possible | forced, 0)
    return torch.where(possible, log_z + largest.sum(0), -torch.inf), marginals.permute(2, 0, 1)


def _forbid(arcs: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Arcs [head, modifier, batch] without those that cannot be, and the ones that missing words hang by.

    A missing word hangs by its neighbour on the left, and that by its own, up to a word that is there: a leaf between
    two words is in nobody's way, so sums and marginals of the others are what they are without it. Only before the
    first word it is the neighbour on the right, because a missing word must not be the root.
    """
    place = torch.arange(len(arcs), device=arcs.device)
    head, modifier = place[:, None, None], place[None, :, None]
    forbidden, forced = (head == modifier) | (modifier == 0), None
    if present is not None:
        missing = F.pad(~present.T, (0, 0, 1, 0))  # ROOT is there
        words = present.T.cumsum(0)
        before_first = F.pad((words == 0) & (words[-1] > 0), (0, 0, 1, 0))
        forced = missing & (head == modifier + torch.where(before_first, 1, -1))
        forbidden = forbidden | missing | missing.unsqueeze(1)
    return arcs.clamp(min=IMPOSSIBLE).masked_fill(forbidden, IMPOSSIBLE), forced


def _root_first(arcs: Tensor) -> tuple[Tensor, Tensor]:
    """An order of the nodes in which word 1 can be a root (two words change places), and whether there is a tree.

    A word can be a root if all others can be reached from it: the transitive closure of the arcs that are possible.
    """
    possible = arcs.permute(2, 0, 1) > IMPOSSIBLE / 2
    nodes = len(arcs)
    reach = (possible[:, 1:, 1:] | torch.eye(nodes - 1, dtype=torch.bool, device=arcs.device)).float()
    for _ in range((nodes - 1).bit_length()):
        reach = (reach @ reach).clamp(max=1)
    roots = (reach > 0).all(2)
    chosen = roots.int().argmax(1) + 1
    order = torch.arange(nodes, device=arcs.device)[:, None].repeat(1, len(chosen))
    order[1] = chosen
    order.scatter_(0, chosen[None], 1)
    return order, (roots & possible[:, 0, 1:]).any(1)


def _reorder(arcs: Tensor, order: Tensor) -> Tensor:
    """Nodes in another order, [nodes, batch]; twice the same exchange of two is the old order again."""
    arcs = arcs.gather(0, order.unsqueeze(1).expand_as(arcs))
    return arcs.gather(1, order.unsqueeze(0).expand_as(arcs))
