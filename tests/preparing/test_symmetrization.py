"""grow-diag-final-and is its definition, by loops over all words."""

from __future__ import annotations

import numpy as np
import pytest

from multihead.preparing.ibm1 import Words, grown, intersection, learn
from multihead.preparing.symmetrization import Link, grow_diag_final_and


def textbook(forward: set[Link], backward: set[Link], source: int, target: int) -> set[Link]:
    """The pseudo-code of Koehn's "Statistical Machine Translation", figure 4.14, with (source, target) links."""
    alignment, union = forward & backward, forward | backward

    def aligned(axis: int, place: int) -> bool:
        return any(link[axis] == place for link in alignment)

    neighbours = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]  # of (target, source)
    while True:
        before = len(alignment)
        for j in range(target):
            for i in range(source):
                if (i, j) in alignment:
                    for off_j, off_i in neighbours:
                        new = i + off_i, j + off_j
                        if (not aligned(0, new[0]) or not aligned(1, new[1])) and new in union:
                            alignment.add(new)
        if len(alignment) == before:
            break
    for one in (forward, backward):
        for j in range(target):
            for i in range(source):
                if not aligned(0, i) and not aligned(1, j) and (i, j) in one:
                    alignment.add((i, j))
    return alignment


def test_the_links_are_those_of_the_definition() -> None:
    draw, beyond, fewer = np.random.default_rng(1), 0, 0
    for _ in range(400):
        source, target = map(int, draw.integers(1, 8, 2))
        forward = {(int(draw.integers(source)), j) for j in range(target) if draw.random() < 0.8}
        backward = {(i, int(draw.integers(target))) for i in range(source) if draw.random() < 0.8}
        near = {(min(j, source - 1), j) for j in range(target) if draw.random() < 0.5}
        forward, backward = forward | near, backward | near
        found = grow_diag_final_and(forward, backward)
        assert found == sorted(textbook(forward, backward, source, target))
        beyond += len(found) > len(forward & backward)
        fewer += len(found) < len(forward | backward)
    assert min(beyond, fewer) > 100


def test_a_known_case() -> None:
    """Neighbours are added one after the other; then distant links, although they are not neighbours of a link."""
    forward = [(0, 0), (1, 1), (3, 3), (0, 1)]
    backward = [(0, 0), (2, 1), (4, 4)]
    assert grow_diag_final_and(forward, backward) == [(0, 0), (0, 1), (1, 1), (2, 1), (3, 3), (4, 4)]
    assert grow_diag_final_and([], []) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_links_of_a_text_are_those_of_each_pair(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 7, (2, 60))
    source, target = (Words(draw.integers(0, 9, own.sum()), own) for own in lengths)
    forward, backward = learn(source, target), learn(target, source)
    rows, i, j = grown(source, target, forward, backward)
    kept = set(zip(*(column.tolist() for column in intersection(source, target, forward, backward)), strict=True))
    found = list(zip(rows.tolist(), i.tolist(), j.tolist(), strict=True))
    assert kept < set(found)
    one = set(zip(*(column.tolist() for column in forward.links(source, target)), strict=True))
    other = {(pair, i, j) for pair, j, i in zip(*(c.tolist() for c in backward.links(target, source)), strict=True)}
    expected = [
        (pair, *link)
        for pair in range(60)
        for link in grow_diag_final_and(
            [(i, j) for row, i, j in one if row == pair], [(i, j) for row, i, j in other if row == pair]
        )
    ]
    assert found == expected
