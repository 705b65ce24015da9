"""Word links of two directions: their intersection, grown in their union

    grow-diag-final-and(F, B), of the best links F of each target word and B of each source word:

    A = F & B
    repeat until nothing is added, for each link (i, j) of A by j, then i, and each of its 8 neighbours (i', j'):
        add (i', j') if it is in F | B, and i' or j' has no link
    for each (i, j) of F by j, then i, and then of B:
        add (i, j) if neither i nor j has a link

(Koehn, Och & Marcu 2003, "Statistical phrase-based translation", section 3.1; Koehn et al. 2005, "Edinburgh system
description for the 2005 IWSLT speech translation evaluation", section 2.2, for final-and.) A link that is added is
visited in the same round if it comes later, as in the loops over all words of the definition. So more words have links
than in the intersection, and fewer wrong ones than in the union.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

Link = tuple[int, int]
"""Places of the source word and of the target word."""

_NEIGHBOURS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))


def grow_diag_final_and(forward: Iterable[Link], backward: Iterable[Link]) -> list[Link]:
    """The links of a sentence pair, sorted.

    Args:
        forward: the best links of its target words.
        backward: those of its source words.
    """
    one, other = ({(j, i) for i, j in links} for links in (forward, backward))
    union, kept = one | other, one & other
    linked = {i for _, i in kept}, {j for j, _ in kept}
    grown = True
    while grown:
        grown, order, place = False, sorted(kept), 0
        while place < len(order):
            j, i = order[place]
            for off_i, off_j in _NEIGHBOURS:
                new = j + off_j, i + off_i
                if new in union and new not in kept and (new[1] not in linked[0] or new[0] not in linked[1]):
                    _add(new, kept, linked)
                    insort(order, new)
                    place += new < (j, i)
                    grown = True
            place += 1
    for links in (one, other):
        for new in sorted(links):
            if new[1] not in linked[0] and new[0] not in linked[1]:
                _add(new, kept, linked)
    return sorted((i, j) for j, i in kept)


def _add(link: Link, kept: set[Link], linked: tuple[set[int], set[int]]) -> None:
    kept.add(link)
    linked[0].add(link[1])
    linked[1].add(link[0])
