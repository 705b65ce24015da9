"""Searches in pieces find what a single search finds, in the same order, and report progress."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.interop.pieces import PIECE, in_pieces


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=3 * PIECE))
def test_results_are_in_the_order_of_the_sources(sources: list[list[int]]) -> None:
    sizes = []

    def search(some: list[list[int]]) -> list[list[int]]:
        sizes.append(len(some))
        assert [*map(len, some)] == sorted(map(len, some), reverse=True)
        return [[*row, -1] for row in some]

    assert in_pieces(search, sources, "a program", pytest.fail) == [[*row, -1] for row in sources]
    assert sum(sizes) == len(sources)
    assert max(sizes, default=0) <= PIECE


def test_progress_is_said_from_time_to_time_and_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 10.0)  # a piece takes ten seconds
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    said: list[str] = []
    in_pieces(lambda some: some, ["text"] * (4 * PIECE + 1), "a program, greedy", said.append)
    assert said == [
        f"a program, greedy: {2 * PIECE} of {4 * PIECE + 1} lines, about 20 s left",
        f"a program, greedy: {4 * PIECE} of {4 * PIECE + 1} lines, about 0 s left",
    ]
