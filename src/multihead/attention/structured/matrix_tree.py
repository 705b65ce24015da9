r"""Non-projective dependency trees: the matrix-tree theorem.

Z, the sum over all trees of the product of their arc weights w(h, m) = exp s(h, m), is the determinant of

    L(m, m) = sum_h w(h, m),    L(h, m) = -w(h, m)        for words h, m; the sum is over all heads, ROOT = 0 included

(Tutte 1984; Koo et al. 2007, McDonald & Satta 2007, Smith & Smith 2007). An LU factorization loses Z to rounding when
the best heads form a cycle: diagonal and off-diagonal entries then cancel to within exp(-d), where d is the score by
which the cycle wins. But each column of L sums to the weight of ROOT, so the elimination can avoid subtractions
(Grassmann, Taksar & Heyman 1985). It eliminates the last word m,

    d_m = sum_h w(h, m),    w(h, k) <- w(h, k) + w(h, m) w(m, k) / d_m    for all remaining h and k,

then the last remaining word, and so on. Z is the product of all d_m. Since it adds only positive numbers, the result in
log space is accurate for any scores. A pass back through the eliminations gives the marginals. Per sentence: time n^3
in n steps, and n^3 / 3 numbers of memory.

With exactly one root word, the weights of ROOT enter to first order only (Koo et al. 2007, section 3.2): d_m leaves
ROOT out, except for word 1, whose head is then ROOT. So word 1 must be a possible root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.attention.structured.partition import Family, Trace, log_sum


class Elimination(Family):
    """Sums over all trees; potentials [nodes (head), nodes (modifier), batch], node 0 = ROOT, without a head.

    Args:
        multiroot: whether ROOT may have several modifiers. If False, word 1 must be the root of some tree.
    """

    def __init__(self, multiroot: bool) -> None:
        self.first = 0 if multiroot else 1  # the first head that counts in d_m

    def plain(self, potentials: Tensor) -> Tensor:
        """log Z by the elimination above, with a new matrix for each word. The diagonal is not used."""
        arcs, log_z = potentials, torch.zeros_like(potentials[0, 0])
        for word in range(len(potentials) - 1, 1, -1):
            to_word, from_word = arcs[:word, word], arcs[word, :word]
            total = to_word[self.first :].logsumexp(0)
            log_z = log_z + total
            around = to_word.unsqueeze(1) + (from_word - total)
            arcs = torch.stack((arcs[:word, :word], around)).logsumexp(0)
        return log_z + arcs[0, 1]

    def sums(self, potentials: Tensor) -> tuple[Tensor, Tensor, Trace]:
        """Eliminate the words, keep their heads and the share of each arc through them; then go back."""
        arcs = potentials.clone(memory_format=torch.contiguous_format)
        log_z, trace = torch.zeros_like(arcs[0, 0]), []
        for word in range(len(arcs) - 1, 1, -1):
            to_word, left = arcs[:word, word], arcs[:word, :word]
            total, heads = log_sum(to_word[self.first :], 0)
            around = to_word.unsqueeze(1) + (arcs[word, :word] - total)
            trace += [F.pad(heads, (0, 0, self.first, 0)), torch.sigmoid(around - left)]
            torch.logaddexp(left, around, out=left)
            log_z += total
        marginals = torch.zeros_like(arcs)
        marginals[0, 1] = 1
        for word, heads, through in _backwards(trace):
            left = marginals[:word, :word]
            _put_back(marginals, word, heads, left * through)
        return log_z + arcs[0, 1], marginals, tuple(trace)

    def tangent(self, trace: Trace, direction: Tensor) -> Tensor:
        """The same two passes for the derivatives of their intermediate results."""
        moved = direction.clone(memory_format=torch.contiguous_format)
        changes = []
        for word, heads, through in reversed(list(_backwards(trace))):
            to_word, left = moved[:word, word], moved[:word, :word]
            relative = to_word - (heads * to_word).sum(0)
            change = (relative.unsqueeze(1) + moved[word, :word]).sub_(left)
            left.addcmul_(through, change)
            changes += [heads * relative, change]
        marginals, result = torch.zeros_like(moved), torch.zeros_like(moved)
        marginals[0, 1] = 1
        for (word, heads, through), (_, turned, change) in zip(_backwards(trace), _backwards(changes), strict=True):
            flow = marginals[:word, :word] * through
            # d(marginal * share) = share * (d marginal + marginal * (1 - share) * relative change)
            moving = (1 - through).mul_(change).mul_(marginals[:word, :word]).add_(result[:word, :word]).mul_(through)
            result[:word, :word] -= moving
            into, out_of = moving.sum(1), moving.sum(0)
            left = 1 - flow.sum((0, 1))
            result[word, :word] = out_of
            result[:word, word] = into + turned * left - heads * out_of.sum(0)
            _put_back(marginals, word, heads, flow)
        return result


def _backwards(trace: Sequence[Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The trace of each word, beginning with the word eliminated last: (word, its heads, the shares of the arcs)."""
    for word, start in enumerate(range(len(trace) - 2, -2, -2), start=2):
        yield word, trace[start], trace[start + 1]


def _put_back(marginals: Tensor, word: int, heads: Tensor, flow: Tensor) -> None:
    """Update the marginals to those before ``word`` was eliminated; ``flow`` [head, modifier] ran through the word.

    Flow out of the word equals flow into it. The word has one head; ``heads`` distributes the rest of its probability.
    """
    marginals[:word, :word] -= flow
    out_of = flow.sum(0)
    marginals[word, :word] = out_of
    marginals[:word, word] = flow.sum(1) + heads * (1 - out_of.sum(0))
