"""Convex hulls and polygons in the plane, computed exactly.

Every float is an integer over a power of two, so points of any magnitude can be scaled to integers without rounding,
and Python's integers have any number of digits: no rounding error decides whether three points turn left. The points of
the problems are generated in `pointing`.
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
    """The corners of the convex hull, counter-clockwise from the lowest index (Vinyals et al. 2015, section 3.1).

    Points on an edge are not corners, and of coinciding points only the first can be one. Collinear points have two
    corners, or one if they all coincide. (The monotone chain of Andrew 1979, in n log n.)

    Args:
        points: [n, 2].

    Raises:
        ShapeError: the points are not [n, 2].
        InputError: a coordinate is not finite.
    """
    places = whole(points)
    first: dict[Point, int] = {}
    for index, place in enumerate(places):
        first.setdefault(place, index)
    rising = sorted(first)
    if len(rising) > 2:
        rising = _half_hull(rising)[:-1] + _half_hull(rising[::-1])[:-1]
    corners = [first[place] for place in rising]
    start = corners.index(min(corners)) if corners else 0
    return corners[start:] + corners[:start]


def coverage(points: Points, corners: Sequence[int]) -> float | None:
    """The share of the convex hull's area that a polygon of some of the points covers (Vinyals et al. 2015, 4.2).

    A simple polygon of points lies within their hull, so this is a ratio of areas; the orientation does not matter.

    Args:
        points: [n, 2].
        corners: indices of the polygon's points, in order; the last is joined to the first.

    Returns:
        A number in (0, 1], or None if the polygon is not simple (fewer than three corners, a repeated one, or edges
        that cross or touch) or the hull has no area.

    Raises:
        ShapeError: the points are not [n, 2].
        InputError: a coordinate is not finite, or a corner is not the index of a point.
    """
    places = whole(points)
    outside = [corner for corner in corners if not 0 <= corner < len(places)]
    if outside:
        raise InputError(
            f"corner {outside[0]} is not the index of one of {len(places)} points, which are counted from 0"
        )
    polygon = [places[corner] for corner in corners]
    covered, total = abs(double_area(polygon)), double_area([places[corner] for corner in convex_hull(points)])
    return covered / total if total and is_simple(polygon) else None


def is_simple(polygon: Sequence[Point]) -> bool:
    """Whether a closed polygon is simple: consecutive edges share only their corner, all others share nothing."""
    count = len(polygon)
    if count < 3 or len(set(polygon)) < count:
        return False
    edges = [(polygon[i], polygon[(i + 1) % count]) for i in range(count)]
    for i, j in combinations(range(count), 2):
        if j == i + 1 or (i == 0 and j == count - 1):
            before, after = (edges[i], edges[j]) if j == i + 1 else (edges[j], edges[i])
            if _folds_back(before[0], before[1], after[1]):
                return False
        elif _intersect(*edges[i], *edges[j]):
            return False
    return True


def double_area(polygon: Sequence[Point]) -> int:
    """Twice the signed area of a closed polygon, positive if it is counter-clockwise."""
    return sum(a[0] * b[1] - a[1] * b[0] for a, b in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True))


def turn(a: Point, b: Point, c: Point) -> int:
    """Twice the signed area of a triangle: positive if a, b, c turn left, negative if right, 0 if collinear."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def whole(points: Points) -> list[Point]:
    """The points, scaled by a power of two that makes all coordinates integers, without rounding.

    Raises:
        ShapeError: the points are not [n, 2].
        InputError: a coordinate is not finite.
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
    """Raise InputError if one of [n, F] numbers is not finite."""
    rows = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
    if len(rows):
        raise InputError(f"input {rows[0]}, counted from 0, is {inputs[rows[0]].tolist()}: expected finite numbers")


def _half_hull(rising: list[Point]) -> list[Point]:
    """The lower side of the hull of points sorted in ascending order; the upper side if descending."""
    chain: list[Point] = []
    for place in rising:
        while len(chain) > 1 and turn(chain[-2], chain[-1], place) <= 0:
            chain.pop()
        chain.append(place)
    return chain


def _folds_back(a: Point, b: Point, c: Point) -> bool:
    """Whether the edge from b to c goes back along the edge from a to b."""
    back = (b[0] - a[0]) * (c[0] - b[0]) + (b[1] - a[1]) * (c[1] - b[1]) < 0
    return back and turn(a, b, c) == 0


def _intersect(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments ab and cd share a point."""
    sides = [_sign(turn(a, b, c)), _sign(turn(a, b, d)), _sign(turn(c, d, a)), _sign(turn(c, d, b))]
    if not any(sides):  # all collinear: compare their ranges along both axes
        return all(max(min(a[k], b[k]), min(c[k], d[k])) <= min(max(a[k], b[k]), max(c[k], d[k])) for k in (0, 1))
    return sides[0] * sides[1] <= 0 and sides[2] * sides[3] <= 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
