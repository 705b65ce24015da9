"""Hulls and polygons: equal to brute force, exact where rounding would decide, independent of the order."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.data.toy.planar import convex_hull, coverage, double_area, is_simple, whole
from multihead.errors import InputError, ShapeError

Place = tuple[Fraction, Fraction]
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.integers(0, 3).map(float)  # so few places that many points share one, or a line
NEAR = st.integers(0, 20).map(lambda steps: 0.5 + steps * 2.0**-53)  # where a product of differences is rounded


def sets(numbers: Any, least: int = 0) -> Any:
    return st.lists(st.tuples(numbers, numbers), min_size=least, max_size=8)


def array(points: Any) -> Any:
    return np.array(points, np.float64).reshape(-1, 2)


def exact(point: Any) -> Place:
    return Fraction(float(point[0])), Fraction(float(point[1]))


def turn(a: Place, b: Place, c: Place) -> Fraction:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def within_segment(p: Place, a: Place, b: Place) -> bool:
    between = all(min(a[k], b[k]) <= p[k] <= max(a[k], b[k]) for k in (0, 1))
    return between and turn(a, b, p) == 0


def is_corner(p: Place, others: list[Place]) -> bool:
    """A corner by definition: in no segment and in no triangle of other points."""
    if any(within_segment(p, a, b) for a, b in itertools.combinations(others, 2)):
        return False
    for a, b, c in itertools.combinations(others, 3):
        sides = [turn(a, b, p), turn(b, c, p), turn(c, a, p)]
        if turn(a, b, c) and (min(sides) >= 0 or max(sides) <= 0):
            return False
    return True


@settings(max_examples=150)
@given(st.one_of(sets(SMALL), sets(NEAR), sets(FLOATS)))
@example([(0.5, 0.5), (12.0, 12.0), (24.0, 24.0000000000000036)])
def test_the_hull_is_what_no_triangle_of_others_covers(points: list[tuple[float, float]]) -> None:
    hull = convex_hull(array(points))
    places = [exact(point) for point in points]
    distinct = set(places)
    corners = {place for place in distinct if is_corner(place, list(distinct - {place}))}
    assert {places[index] for index in hull} == corners
    assert len(hull) == len(corners)
    assert all(places.index(places[index]) == index for index in hull)  # the first of those in the same place
    assert hull[:1] == [min(hull)] if hull else not points
    if len(hull) > 2:
        following = [*hull[1:], *hull[:1]], [*hull[2:], *hull[:2]]
        assert all(turn(places[a], places[b], places[c]) > 0 for a, b, c in zip(hull, *following, strict=True))


def test_rounding_decides_nothing() -> None:
    """A point so close to a line that its cross product in float64 is exactly 0."""
    ulp = 2.0**-53
    points = [(0.5, 0.5 + ulp), (12.0, 12.0), (24.0, 24.0)]
    a, b, c = points
    assert (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) == 0.0
    assert convex_hull(array(points)) == [0, 1, 2]
    assert convex_hull(array([(0.5, 0.5), b, c])) == [0, 2]


def test_in_what_order_the_points_come_changes_their_indices_alone() -> None:
    choose = np.random.default_rng(1)
    points = choose.random((12, 2))
    hull = convex_hull(points)
    for _ in range(5):
        order = choose.permutation(12)
        other = convex_hull(points[order])
        there = [int(order[index]) for index in other]
        assert sorted(there) == sorted(hull)
        start = there.index(hull[0])
        assert there[start:] + there[:start] == hull
        assert other[0] == min(other)


@pytest.mark.parametrize("power", [-1060, -30, 0, 30, 1000])
def test_hulls_do_not_depend_on_the_size_of_the_numbers(power: int) -> None:
    points = np.random.default_rng(power + 2000).integers(0, 64, (9, 2)).astype(np.float64)
    assert convex_hull(np.ldexp(points, power)) == convex_hull(points)
    assert convex_hull(np.ldexp(points, power).astype(np.float64) * [1.0, 0.5]) == convex_hull(points * [1.0, 0.5])


@settings(max_examples=100)
@given(st.one_of(sets(SMALL, 1), sets(FLOATS, 1)))
def test_whole_numbers_are_the_points_times_one_power_of_two(points: list[tuple[float, float]]) -> None:
    numbers = whole(array(points))
    pairs = [
        (Fraction(m), Fraction(v)) for a, b in zip(numbers, points, strict=True) for m, v in zip(a, b, strict=True)
    ]
    factors = {m / v for m, v in pairs if v}
    assert len(factors) <= 1
    assert all(m == 0 for m, v in pairs if v == 0)
    assert all(factor.numerator & (factor.numerator - 1) == 0 == factor.denominator - 1 for factor in factors)


# ------------------------------------------------------------------------------------------ polygons


def circle(count: int, seed: int) -> list[tuple[int, int]]:
    """Integer points in convex position, no three collinear, counter-clockwise: (t, t^2) of ascending t."""
    steps = sorted(random.Random(seed).sample(range(-50, 50), count))
    return [(t, t * t) for t in steps]


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_of_all_orders_of_a_convex_polygon_those_around_it_are_simple(count: int) -> None:
    polygon = circle(count, count)
    around = [[*range(k, count), *range(k)] for k in range(count)]
    around += [order[::-1] for order in around]
    for order in itertools.permutations(range(count)):
        assert is_simple([polygon[index] for index in order]) == (list(order) in around)


def test_with_a_point_within_a_triangle_all_orders_are_simple() -> None:
    points = [(0, 0), (9, 0), (0, 9), (2, 3)]
    assert all(is_simple(order) for order in itertools.permutations(points))


@pytest.mark.parametrize(
    "polygon",
    [
        [],
        [(0, 0)],
        [(0, 0), (1, 0)],
        [(0, 0), (2, 0), (2, 2), (0, 0)],  # a corner twice
        [(0, 0), (1, 1), (2, 2)],  # there and back
        [(0, 0), (4, 0), (2, 0), (2, 3)],  # an edge runs back over the one before it
        [(4, 0), (2, 0), (2, 3), (0, 0)],  # the same, where the last corner meets the first
        [(0, 0), (4, 0), (4, 4), (2, 0), (0, 4)],  # a corner touches an edge
        [(0, 0), (6, 0), (6, 1), (4, 0), (2, 0), (0, 1)],  # two edges on one line share a stretch
    ],
)
def test_what_is_no_simple_polygon(polygon: list[tuple[int, int]]) -> None:
    assert not is_simple(polygon)


def test_a_corner_may_lie_on_the_line_of_its_neighbours_and_edges_on_a_line_apart() -> None:
    assert is_simple([(0, 0), (2, 0), (4, 0), (4, 4)])
    assert is_simple([(0, 0), (2, 0), (2, 1), (4, 1), (4, 0), (6, 0), (6, 3), (0, 3)])


def test_area_is_the_sum_of_triangles_and_has_the_sign_of_the_direction() -> None:
    polygon = circle(6, 1)
    fan = [turn(exact(polygon[0]), exact(polygon[k]), exact(polygon[k + 1])) for k in range(1, 5)]
    assert double_area(polygon) == sum(fan)
    assert double_area(polygon[::-1]) == -sum(fan)
    assert double_area([(0, 0), (3, 0), (3, 2), (0, 2)]) == 12
    assert double_area([]) == 0


def test_coverage_is_area_over_area() -> None:
    square = array([(0, 0), (4, 0), (4, 4), (0, 4), (1, 2)])
    assert coverage(square, [0, 1, 2, 3]) == 1.0
    assert coverage(square, [2, 1, 0, 3]) == 1.0  # the other way round
    assert coverage(square, [0, 1, 2]) == 0.5
    assert coverage(square, [0, 1, 2, 3, 4]) == (16 - 2) / 16  # a dent
    assert coverage(square, [0, 2, 1, 3]) is None  # crosses itself
    assert coverage(square, [0, 1, 2, 3, 0]) is None
    assert coverage(square, [0, 1]) is None
    assert coverage(array([(0, 0), (1, 1), (2, 2)]), [0, 1, 2]) is None  # the hull has no area


@pytest.mark.parametrize("seed", range(5))
def test_no_polygon_covers_more_than_the_hull_and_dropping_corners_covers_less(seed: int) -> None:
    choose = np.random.default_rng(seed)
    points = choose.random((8, 2))
    hull = convex_hull(points)
    assert coverage(points, hull) == 1.0
    shares = [
        coverage(points, list(order)) for order in itertools.islice(itertools.permutations(range(8), 5), 0, None, 13)
    ]
    found = [share for share in shares if share is not None]
    assert found
    assert None in shares
    assert 0 < min(found) <= max(found) <= 1
    for index in range(len(hull)):
        fewer = coverage(points, hull[:index] + hull[index + 1 :]) if len(hull) > 3 else 0.0
        assert fewer is not None
        assert fewer < 1


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ShapeError, match=r"\[n, 2\], got \[3, 3\]"):
        convex_hull(np.zeros((3, 3)))
    with pytest.raises(InputError, match=r"input 1, counted from 0, is \[nan, 0.0\]"):
        convex_hull(array([(0, 0), (np.nan, 0)]))
    for corner in (-1, 3):
        with pytest.raises(InputError, match=f"corner {corner} is not the index of one of 3 points"):
            coverage(array([(0, 0), (1, 0), (0, 1)]), [0, 1, corner])
