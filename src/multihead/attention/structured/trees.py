r"""Marginals of dependency trees, projective or not.

    p(tree) = exp(sum of arc(h, m) over its arcs) / Z

over all trees with ROOT = 0 and words 1..n (projective trees: Kim et al. 2017, section 3.2; non-projective trees:
Liu & Lapata 2018). `eisner` and `matrix_tree` sum over the trees. This module turns a call into their potentials:
forbidden arcs, padding, and a scale that keeps float32 precise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attention.backends.call import at_least_float32
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
        arc: the score of head h (row) for modifier m (column), nodes = 1 + words. Column 0 and the diagonal are
            ignored. -inf forbids an arc.
        projective: True: trees without crossing arcs (Eisner's algorithm); False: all trees (matrix-tree theorem).
        multiroot: True: ROOT may have several modifiers; False: exactly one.
        lengths: number of words of each sentence, without ROOT (default: all); later words are padding.

    Returns:
        Marginals whose columns sum to 1, since each word has one head; with a single root, so does row 0. 0 for padding
        and for a sentence without a possible tree. They can be differentiated any number of times.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    return _solve(arc, _present(arc, lengths), projective, multiroot)[1]


def tree_log_partition(
    arc: Float[Tensor, "batch nodes nodes"],
    *,
    projective: bool = True,
    multiroot: bool = False,
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """log Z of dependency trees: the log-probability of a tree is its score minus log Z.

    0 for a sentence without words, -inf for a sentence without a possible tree. Its gradient is the marginals.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    return _solve(arc, _present(arc, lengths), projective, multiroot)[0]


def marginals_of_present(
    arc: Float[Tensor, "batch nodes nodes"],
    present: Bool[Tensor, "batch words"],
    *,
    projective: bool,
    multiroot: bool,
) -> Float[Tensor, "batch nodes nodes"]:
    """Marginals of trees in which any word may be missing; its neighbors are then adjacent."""
    return _solve(arc, present, projective, multiroot)[1]


def _present(arc: Tensor, lengths: Tensor | None) -> Tensor | None:
    if arc.dim() != 3 or arc.shape[1] != arc.shape[2] or arc.shape[1] == 0:
        raise ShapeError(
            f"arc has shape {list(arc.shape)}, expected [batch, 1 + words, 1 + words]: head by modifier, with ROOT at 0"
        )
    if lengths is None:
        return None
    if lengths.shape != arc.shape[:1]:
        raise ShapeError(
            f"lengths has shape {list(lengths.shape)}, expected one length for each of {len(arc)} sentences, not "
            "counting ROOT"
        )
    return sequence_mask(lengths.to(arc.device), arc.shape[1] - 1)


def _solve(arc: Tensor, present: Tensor | None, projective: bool, multiroot: bool) -> tuple[Tensor, Tensor]:
    batch, nodes, _ = arc.shape
    if batch == 0 or nodes == 1:
        return arc.new_zeros(batch), arc * 0
    dtype, arc = arc.dtype, at_least_float32(arc)  # float16 has no IMPOSSIBLE
    arcs, forced = _forbid(arc.permute(1, 2, 0).contiguous(), present)
    # Each word has one head, so subtracting a constant from all of its heads changes no marginal and keeps more digits.
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
    log_z = torch.where(possible, log_z + largest.sum(0), -torch.inf)
    return log_z.to(dtype), marginals.permute(2, 0, 1).to(dtype)


def _forbid(arcs: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Arcs [head, modifier, batch] without the impossible ones, and the mask of arcs forced on missing words.

    The head of a missing word is its left neighbor, whose head is its own left neighbor, up to a word that is present.
    Such leaves cross no arc and change neither the sums nor the marginals of the other words. Missing words before the
    first present word take their right neighbor instead, since a missing word must not be the root.
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
    """An order of the nodes with a possible root as word 1 (two words are swapped), and whether any tree is possible.

    A word can be the root if all others are reachable from it, by the transitive closure of the possible arcs.
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
    """Apply an order of nodes [nodes, batch] to both axes; applying a swap twice restores the original order."""
    arcs = arcs.gather(0, order.unsqueeze(1).expand_as(arcs))
    return arcs.gather(1, order.unsqueeze(0).expand_as(arcs))
