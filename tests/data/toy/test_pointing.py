"""Pointing problems: correct answers, inputs normalized to [0, 1] with the same answers, batches as defined."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from multihead.data.toy.pointing import PROBLEMS, Example, Hull, Problem, Sort, collate, collate_inputs, generator
from multihead.errors import ConfigurationError, InputError, ShapeError
from multihead.models.pointer.config import BEGIN, END, FIRST, PADDING

EVERY = [Sort(), Sort(ascending=True), Hull()]
FINITE = st.floats(allow_nan=False, allow_infinity=False)
GRID = st.integers(0, 2**24).map(lambda steps: steps / 2**24)


def column(numbers: Any) -> Any:
    return np.array(numbers, np.float64).reshape(-1, 1)


def same(ours: list[Example], theirs: list[Example]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a.inputs, b.inputs) and np.array_equal(a.answer, b.answer) for a, b in pairs)


# ------------------------------------------------------------------------------------------ answers


def test_the_example_of_the_page() -> None:
    assert Sort().solve(column([20, 5, 10])).tolist() == [0, 2, 1]
    assert Sort(ascending=True).solve(column([20, 5, 10])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("ascending", [False, True])
@settings(max_examples=100)
@given(numbers=st.lists(st.one_of(FINITE, st.sampled_from([0.0, -0.0, 1.0, 5e-324])), max_size=9))
def test_sorting_is_a_stable_permutation_into_order(ascending: bool, numbers: list[float]) -> None:
    answer = Sort(ascending).solve(column(numbers)).tolist()
    assert sorted(answer) == list(range(len(numbers)))
    for a, b in pairwise(answer):
        if numbers[a] == numbers[b]:
            assert a < b
        else:
            assert (numbers[a] < numbers[b]) == ascending


def test_a_hull_is_solved_and_covered() -> None:
    square = np.array([(1, 1), (4, 0), (4, 4), (0, 4), (0, 0)], np.float64)
    assert Hull().solve(square).tolist() == [1, 2, 3, 4]
    assert Hull.area_coverage(square, [1, 2, 3, 4]) == 1.0
    assert Hull.area_coverage(square, [1, 2, 4]) == 0.5
    assert Hull.area_coverage(square, [1, 3, 2, 4]) is None


# ------------------------------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize("problem", EVERY, ids=repr)
def test_what_is_drawn_is_in_range_normalised_and_solved(problem: Problem) -> None:
    drawn = problem.draw(generator(1, 2), 200, 2, 7)
    assert {len(inputs) for inputs, _ in drawn} == set(range(2, 8))
    for inputs, answer in drawn:
        assert inputs.dtype == np.float32
        assert inputs.shape[1] == problem.features
        assert np.array_equal(problem.normalized(inputs), inputs)
        assert np.array_equal(problem.solve(inputs), answer)
        lowest, highest = inputs.min(axis=0), inputs.max(axis=0)
        assert ((lowest == 0) & ((highest == 1) | (highest == 0))).all()


@pytest.mark.parametrize("problem", EVERY, ids=repr)
def test_what_is_drawn_is_a_function_of_seed_and_place(problem: Problem) -> None:
    def draw(*place: int) -> list[Example]:
        return problem.draw(generator(*place), 20, 3, 5)

    assert same(draw(1, 7), draw(1, 7))
    assert not any(same(draw(1, 7), draw(*other)) for other in ((1, 8), (2, 7), (1,), (1, 7, 0)))


def test_every_number_of_inputs_is_as_likely() -> None:
    sizes = [len(inputs) for inputs, _ in Hull().draw(generator(1), 3000, 3, 5)]
    for size in (3, 4, 5):  # a binomial's spread is 26
        assert abs(sizes.count(size) - 1000) < 5 * 26


def test_half_of_the_lists_are_whole_numbers_and_some_of_those_are_equal() -> None:
    drawn = [inputs[:, 0] for inputs, _ in Sort().draw(generator(1), 2000, 10, 10)]
    equal = sum(len(set(numbers.tolist())) < 10 for numbers in drawn)
    expected = 0.5 * (1 - math.prod(1 - k / 100 for k in range(10)))  # birthdays, in every second list
    assert abs(equal - 2000 * expected) < 5 * math.sqrt(2000 * expected)


def test_sorted_the_other_way_the_same_lists_are_drawn() -> None:
    down, up = (Sort(ascending).draw(generator(1), 50, 2, 6) for ascending in (False, True))
    for (a, forwards), (b, backwards) in zip(down, up, strict=True):
        assert np.array_equal(a, b)
        assert len(set(a[:, 0].tolist())) < len(a) or np.array_equal(forwards, backwards[::-1])


@pytest.mark.parametrize(("count", "smallest", "largest"), [(-1, 1, 2), (1, 0, 2), (1, 3, 2)])
def test_sizes_that_cannot_be_are_refused(count: int, smallest: int, largest: int) -> None:
    with pytest.raises(ConfigurationError, match=f"got {count} examples of {smallest} to {largest} inputs"):
        Sort().draw(generator(1), count, smallest, largest)
    assert Sort().draw(generator(1), 0, 1, 1) == []


def test_names_lead_to_problems() -> None:
    assert {name: kind().name for name, kind in PROBLEMS.items()} == {"sort": "sort", "hull": "hull"}


# ------------------------------------------------------------------------------------------ the unit interval


@settings(max_examples=300)
@given(
    st.lists(st.one_of(FINITE, st.integers(-50, 50).map(float), st.sampled_from([0.0, -0.0])), min_size=1, max_size=6)
)
@example([1.7976931348623157e308, -1.7976931348623157e308, 0.0])
@example([5e-324, 0.0, 1e-323])
@example([1e300, 1.0])
@example([7.0, 7.0])
@example([1.0, 1.0 + 2.0**-24, 0.0])
@example([1.0, 1.0 + 2.0**-26, 0.0])
@example([0.0, 1.0, -2.0, -(2.0**-24)])  # a third of a step apart, on both sides of a half
def test_order_and_equality_survive_or_there_is_an_error(numbers: list[float]) -> None:
    exact = [Fraction(number) for number in numbers]
    extent = max(exact) - min(exact)
    gaps = [abs(a - b) for a in exact for b in exact if a != b]
    try:
        found = Sort().normalized(column(numbers))[:, 0].tolist()
    except InputError:
        assert min(gaps) * 2**24 < extent * (1 + Fraction(1, 2**20))
        return
    for a, x in zip(exact, found, strict=True):
        for b, y in zip(exact, found, strict=True):
            assert (a < b) == (x < y)
        assert abs(Fraction(x) * extent - (a - min(exact))) <= extent * Fraction(1, 2**24)
    assert min(found) == 0
    assert max(found) == (1 if gaps else 0)


@settings(max_examples=50)
@given(st.lists(GRID, min_size=1, max_size=6), st.integers(-900, 900), st.integers(-3, 3))
def test_shifted_and_stretched_lists_are_the_same_problem(numbers: list[float], power: int, shift: int) -> None:
    first = column(numbers)
    assume(len(set(numbers)) < 2 or (max(numbers) - min(numbers)) > 0)
    moved = np.ldexp(first + shift, power)
    assert np.array_equal(Sort().normalized(moved), Sort().normalized(first))


@pytest.mark.parametrize("seed", range(5))
def test_a_normalised_hull_is_the_same_hull(seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 30, (8, 2)) * [1e-3, 4e7] + [5.0, -1e9]
    assert Hull().solve(Hull().normalized(points)).tolist() == Hull().solve(points).tolist()


def test_points_apart_on_one_axis_only_are_apart() -> None:
    points = np.array([(0, 0), (0, 1), (1, 1), (1, 1)], np.float64)
    assert Hull().normalized(points).tolist() == points.tolist()
    flat = np.array([(2, 0), (2, 1), (2, 4)], np.float64)
    assert Hull().normalized(flat).tolist() == [[0, 0], [0, 0.25], [0, 1]]
    with pytest.raises(InputError, match=r"\[0.0, 1e-09\] and \[0.0, 0.0\] differ by less than 1/16777216"):
        Hull().normalized(np.array([(0, 1e-9), (1, 1), (0, 0)], np.float64))


@pytest.mark.parametrize("problem", EVERY, ids=repr)
def test_inputs_that_cannot_be_are_refused(problem: Problem) -> None:
    for ask in (problem.solve, problem.normalized):
        with pytest.raises(ShapeError, match=rf"'{problem.name}' have the shape \[n, {problem.features}\]"):
            ask(np.zeros((3, 4)))
        for number in (np.nan, np.inf, -np.inf):
            inputs = np.zeros((3, problem.features))
            inputs[2, -1] = number
            with pytest.raises(InputError, match="input 2, counted from 0"):
                ask(inputs)


# ------------------------------------------------------------------------------------------ batches


def test_a_batch_is_its_examples() -> None:
    rows = [np.array([[1.0], [0.0], [0.5]], np.float32), np.array([[0.0]], np.float32)]
    batch = collate([Example(rows[0], np.array([0, 2, 1])), Example(rows[1], np.array([0]))])
    assert batch.source.tolist() == [[[1], [0], [0.5]], [[0], [0], [0]]]
    assert batch.source.dtype == torch.float32
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.target_input.tolist() == [[BEGIN, FIRST, FIRST + 2, FIRST + 1], [BEGIN, FIRST, PADDING, PADDING]]
    assert batch.target_output.tolist() == [[FIRST, FIRST + 2, FIRST + 1, END], [FIRST, END, PADDING, PADDING]]
    assert batch.target_lengths.tolist() == [4, 2]
    assert batch.target_tokens == 6
    assert batch.indices.tolist() == [0, 1]


@pytest.mark.parametrize("problem", EVERY, ids=repr)
def test_examples_can_be_read_back_from_a_batch(problem: Problem) -> None:
    drawn = problem.draw(generator(3), 20, 1, 6)
    batch = collate(drawn)
    source, lengths = collate_inputs([inputs for inputs, _ in drawn])
    assert torch.equal(batch.source, source)
    assert torch.equal(batch.source_lengths, lengths)
    for row, (inputs, answer) in enumerate(drawn):
        count = int(batch.target_lengths[row])
        assert np.array_equal(batch.source[row, : int(lengths[row])].numpy(), inputs)
        assert not batch.source[row, int(lengths[row]) :].any()
        assert (batch.target_input[row, 1:count] - FIRST).tolist() == answer.tolist()
        assert torch.equal(batch.target_output[row, : count - 1], batch.target_input[row, 1:count])
        assert not batch.target_output[row, count:].any()


def test_a_batch_of_nothing_is_refused() -> None:
    for make in (collate, collate_inputs):
        with pytest.raises(InputError, match="expected at least one"):
            make([])
