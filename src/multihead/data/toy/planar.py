"""Convex hulls and polygons in the plane, exactly: no rounding decides whether three points turn left.

Every float is a whole number over a power of two, so points of any size become whole numbers without an error, and
Python's have as many digits as they need. Which points a network is given is said in `data.toy.pointing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.errors import InputError, ShapeError

Points = npt.NDArray[np.floating[Any]]
Point = tuple[int, int]

_GRID = 2.0**24
_EXACT = 2.0**53


def convex_hull(points: Points) -> list[int]:
    """The corners of the convex hull: counter-clockwise, the lowest index first (Vinyals et al. 2015, section 3.1).

    Points on an edge are no corners, and of points in the same place only the first can be one. Points on one line
    have two corners, or one if they are all in one place. (The monotone chain of Andrew 1979, n log n.)

    Args:
        points: [n, 2].

    Raises:
        ShapeError: not [n, 2].
        InputError: a coordinate is not a finite number.
    """
    places = whole(points)
    first: dict[Point, int] = {}
    for index, place in enumerate(places):
        first.setdefault(place, index)
    rising = sorted(first)
    if len(rising) > 2:
        rising = _half(rising)[:-1] + _half(rising[::-1])[:-1]
    corners = [first[place] for place in rising]
    start = corners.index(min(corners)) if corners else 0
    return corners[start:] + corners[:start]


def coverage(points: Points, corners: Sequence[int]) -> float | None:
    """The share of the convex hull's area that a polygon of some of the points covers (Vinyals et al. 2015, 4.2).

    A simple polygon between the points lies within their hull, so that it is area over area; which way round it goes
    makes no difference.

    Args:
        points: [n, 2].
        corners: which points, in order; the last is joined to the first.

    Returns:
        A number in (0, 1], or None where the corners make no simple polygon (fewer than three, one twice, or edges
        that cross or touch), or where the hull itself has no area.

    Raises:
        ShapeError: the points are not [n, 2].
        InputError: a coordinate is not a finite number, or a corner is not one of the points.
    """
    places = whole(points)
    outside = [corner for corner in corners if not 0 <= corner < len(places)]
    if outside:
        raise InputError(f"corner {outside[0]} is none of {len(places)} points, which are counted from 0")
    polygon = [places[corner] for corner in corners]
    covered, total = abs(double_area(polygon)), double_area([places[corner] for corner in convex_hull(points)])
    return covered / total if total and is_simple(polygon) else None


def is_simple(polygon: Sequence[Point]) -> bool:
    """Whether a closed polygon of at least three corners has no two edges that share more than a corner in common.

    Edges that follow one another share one corner and no other point; all others share nothing.
    """
    count = len(polygon)
    if count < 3 or len(set(polygon)) < count:
        return False
    edges = [(polygon[i], polygon[(i + 1) % count]) for i in range(count)]
    for i, j in combinations(range(count), 2):
        if j == i + 1 or (i == 0 and j == count - 1):
            before, after = (edges[i], edges[j]) if j == i + 1 else (edges[j], edges[i])
            if _folds_back(before[0], before[1], after[1]):
                return False
        elif _meet(*edges[i], *edges[j]):
            return False
    return True


def double_area(polygon: Sequence[Point]) -> int:
    """Twice the signed area of a closed polygon: positive where it goes counter-clockwise."""
    return sum(a[0] * b[1] - a[1] * b[0] for a, b in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True))


def turn(a: Point, b: Point, c: Point) -> int:
    """Positive where a, b, c turn left, negative where they turn right, 0 on one line: twice the triangle's area."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def whole(points: Points) -> list[Point]:
    """The points times one power of two that makes all coordinates whole numbers; nothing is rounded.

    Raises:
        ShapeError: not [n, 2].
        InputError: a coordinate is not a finite number.
    """
    if points.ndim != 2 or points.shape[1] != 2:
        raise ShapeError(f"points have the shape [n, 2], got {list(points.shape)}")
    refuse_infinite(points)
    precise = points.astype(np.float64)
    if np.abs(precise).max(initial=0.0) < _EXACT / _GRID and ((scaled := precise * _GRID) == np.rint(scaled)).all():
        return [(x, y) for x, y in scaled.astype(np.int64).tolist()]
    ratios = [[value.as_integer_ratio() for value in row] for row in precise.tolist()]
    common = max(denominator for row in ratios for _, denominator in row)
    return [(a * (common // b), c * (common // d)) for (a, b), (c, d) in ratios]


def refuse_infinite(inputs: npt.NDArray[np.floating[Any]]) -> None:
    """Raises InputError if one of [n, F] numbers is not finite."""
    rows = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
    if len(rows):
        raise InputError(f"input {rows[0]}, counted from 0, is {inputs[rows[0]].tolist()}: expected finite numbers")


def _half(rising: list[Point]) -> list[Point]:
    """The side of the hull that is on the right when one goes along points that are sorted."""
    chain: list[Point] = []
    for place in rising:
        while len(chain) > 1 and turn(chain[-2], chain[-1], place) <= 0:
            chain.pop()
        chain.append(place)
    return chain


def _folds_back(a: Point, b: Point, c: Point) -> bool:
    """Whether from b one goes back along the edge from a."""
    back = (b[0] - a[0]) * (c[0] - b[0]) + (b[1] - a[1]) * (c[1] - b[1]) < 0
    return back and turn(a, b, c) == 0


def _meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments ab and cd have a point in common."""
    sides = [_sign(turn(a, b, c)), _sign(turn(a, b, d)), _sign(turn(c, d, a)), _sign(turn(c, d, b))]
    if not any(sides):  # all on one line: their ranges overlap or not, along either axis
        return all(max(min(a[k], b[k]), min(c[k], d[k])) <= min(max(a[k], b[k]), max(c[k], d[k])) for k in (0, 1))
    return sides[0] * sides[1] <= 0 and sides[2] * sides[3] <= 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
