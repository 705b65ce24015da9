"""Properties of greedy search, of greedy and beam search alike, of forced decoding, and of the protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.greedy import greedy_search
from multihead.decoding.sampling import sample
from multihead.decoding.scoring import force
from multihead.decoding.search import Search, Symbols
from multihead.decoding.shortlist import Shortlist, Shortlisted
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

SEARCHES = [greedy_search, beam_search]


def test_the_toys_satisfy_the_protocol(toys: Any) -> None:
    stepper = toys.stepper(toys.random(1))
    assert isinstance(stepper, Stepper)
    assert isinstance(stepper.start(*toys.padded(toys.sources)), State)


@pytest.mark.parametrize("minimums", [[0] * 5, [7, 0, 2, 0, 1]])
def test_greedy_takes_the_most_probable_symbol_each_time(toys: Any, minimums: list[int]) -> None:
    for seed in range(5):
        table, limits = toys.random(seed), [8, 3, 5, 1, 2]
        arguments = toys.padded(toys.sources)
        found = greedy_search(
            toys.stepper(table), *arguments, *toys.split(toys.symbols, max_lengths=limits, min_lengths=minimums)
        )
        for source, limit, least, hypothesis in zip(toys.sources, limits, minimums, found, strict=True):
            symbols, total = [1], 0.0
            while len(symbols) <= limit and symbols[-1] != 2:
                row = table(source, tuple(symbols))[2:]
                row[0] = row[0] if len(symbols) > least else -torch.inf
                symbols.append(2 + int(row.argmax()))
                total += float(row.max())
            assert hypothesis.finished == (symbols[-1] == 2)
            assert hypothesis.tokens == tuple(symbols[1:-1] if hypothesis.finished else symbols[1:])
            assert hypothesis.log_probability == pytest.approx(total)
            assert hypothesis.score == pytest.approx(total / (len(symbols) - 1))


def test_greedy_rows_do_not_talk(toys: Any) -> None:
    table, limits = toys.random(4, torch.float32), (6, 3, 5, 1, 4)
    alone = [
        greedy_search(toys.stepper(table), *toys.padded([source], 2), SearchTask(toys.symbols, max_lengths=limit))[0]
        for source, limit in zip(toys.sources, limits, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [3, 4, 0, 2, 1], [1, 1]):
        sources = toys.padded([toys.sources[i] for i in order])
        limit = torch.tensor([limits[i] for i in order])
        together = greedy_search(toys.stepper(table), *sources, SearchTask(toys.symbols, max_lengths=limit))
        assert together == [alone[i] for i in order]


def test_greedy_finished_sentences_leave_the_batch(toys: Any) -> None:
    stepper = toys.stepper(toys.spelled(lambda source: source))
    sources = [(3,), (4, 5, 3, 4), (5, 4)]
    found = greedy_search(stepper, *toys.padded(sources), SearchTask(toys.symbols, max_lengths=9))
    assert [h.tokens for h in found] == sources
    assert all(h.finished for h in found)
    assert stepper.steps == [3, 3, 2, 1, 1]
    assert [rows for event, rows in stepper.log if event == "select"] == [2, 1]


def test_greedy_marks_what_its_limit_cuts(toys: Any) -> None:
    stepper = toys.stepper(toys.spelled(lambda source: (3, 4, 5, 3)))
    limits = [1, 2, 3, 4, 5]
    found = greedy_search(stepper, *toys.padded(toys.sources), SearchTask(toys.symbols, max_lengths=limits))
    assert [h.tokens for h in found] == [(3, 4, 5, 3)[:limit] for limit in limits]
    assert [h.finished for h in found] == [False, False, False, False, True]
    assert stepper.steps == [5, 4, 3, 2, 1]


def test_greedy_never_takes_a_forbidden_symbol(toys: Any) -> None:
    def tempting(source: Any, prefix: Any) -> torch.Tensor:
        return toys.random(5)(source, prefix) + torch.tensor([50.0, 50, 0, 0, 0, 50])

    symbols = Symbols(begin=1, end=2, forbidden=(0, 1, 5))
    found = greedy_search(toys.stepper(tempting), *toys.padded(toys.sources), SearchTask(symbols, max_lengths=6))
    tokens = {token for hypothesis in found for token in hypothesis.tokens}
    assert tokens
    assert tokens <= {3, 4}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_batch_of_nothing_gives_nothing(toys: Any, search: Callable[..., Any]) -> None:
    source, lengths = torch.zeros(0, 4, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    stepper = toys.stepper(toys.random(1))
    assert search(stepper, source, lengths, *toys.split(toys.symbols, max_lengths=3)) == []
    assert force(stepper, source, lengths, [], toys.symbols) == []
    assert stepper.log == []


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("symbol", [2, 3, 5])
def test_nan_is_an_error(toys: Any, search: Callable[..., Any], symbol: int) -> None:
    def broken(source: Any, prefix: Any) -> torch.Tensor:
        row = toys.spelled(lambda source: source)(source, prefix)
        if source == (5, 3) and len(prefix) == 2:
            row[symbol] = torch.nan
        return row

    with pytest.raises(MultiheadError, match="not a number"):
        search(toys.stepper(broken), *toys.padded(toys.sources), *toys.split(toys.symbols, max_lengths=5))


@pytest.mark.parametrize("search", SEARCHES)
def test_nan_of_a_forbidden_symbol_does_no_harm(toys: Any, search: Callable[..., Any]) -> None:
    def odd(source: Any, prefix: Any) -> torch.Tensor:
        return toys.random(1)(source, prefix).index_fill(0, torch.tensor([0, 1]), torch.nan)

    arguments = toys.padded(toys.sources)
    expected = search(toys.stepper(toys.random(1)), *arguments, *toys.split(toys.symbols, max_lengths=5))
    assert search(toys.stepper(odd), *arguments, *toys.split(toys.symbols, max_lengths=5)) == expected


@pytest.mark.parametrize("search", SEARCHES)
def test_a_minimum_that_no_limit_allows_is_refused_before_a_step(toys: Any, search: Callable[..., Any]) -> None:
    stepper = toys.stepper(toys.random(1))
    with pytest.raises(ConfigurationError, match="raise the limit to 4"):
        search(
            stepper, *toys.padded(toys.sources), *toys.split(toys.symbols, max_lengths=[9, 9, 3, 9, 9], min_lengths=3)
        )
    assert stepper.log == []


@pytest.mark.parametrize("search", [*SEARCHES, sample])
def test_a_penalty_beyond_all_numbers_is_an_error(toys: Any, search: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"an alpha of 1000\.0 is too large for hypotheses of [0-9]+ symbols"):
        search(
            toys.stepper(toys.random(1)),
            *toys.padded(toys.sources),
            *toys.split(toys.symbols, max_lengths=6, min_lengths=4, alpha=1000.0),
        )


def test_lengths_are_found_without_restrictions(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """These import torch, which the compiled search does without, and so for symbols that every target begins with."""
    monkeypatch.setitem(sys.modules, "multihead.decoding.restrictions", None)
    symbols = replace(toys.symbols, forced=(3, 4))
    assert SearchTask(symbols, max_lengths=[3, 5]).length_lists(Search(no_repeat=2), [1, 1]) == ([3, 5], [0, 0])
    with pytest.raises(ConfigurationError, match=r"begins with 2 fixed symbols, .* raise the limit to 3"):
        SearchTask(symbols, max_lengths=[5, 2]).length_lists(Search(), [1, 1])


@pytest.mark.parametrize("search", SEARCHES)
def test_no_way_on_is_an_error(toys: Any, search: Callable[..., Any]) -> None:
    def stuck(source: Any, prefix: Any) -> torch.Tensor:
        return torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf, -torch.inf])

    with pytest.raises(MultiheadError, match="every permitted symbol the probability 0"):
        search(toys.stepper(stuck), *toys.padded(toys.sources), *toys.split(toys.symbols, max_lengths=5))


@pytest.mark.parametrize("search", SEARCHES)
def test_searches_need_no_gradients(toys: Any, search: Callable[..., Any]) -> None:
    weight = torch.ones((), requires_grad=True)
    seen = []

    def trained(source: Any, prefix: Any) -> torch.Tensor:
        seen.append(toys.random(1)(source, prefix) * weight)
        return seen[-1]

    search(toys.stepper(trained), *toys.padded(toys.sources), *toys.split(toys.symbols, max_lengths=3))
    assert not any(row.requires_grad for row in seen)


def endless(toys: Any, seed: int) -> Any:
    """A toy whose greedy hypotheses do not end."""

    def table(source: Any, prefix: Any) -> torch.Tensor:
        return toys.random(seed)(source, prefix).index_fill(0, torch.tensor([2]), -100.0)

    return toys.stepper(table)


STEPPERS: dict[str, Callable[[Any], Any]] = {
    "toy": lambda toys: endless(toys, 6),
    "ensemble": lambda toys: Ensemble([endless(toys, 6), endless(toys, 7)]),
    "shortlisted": lambda toys: Shortlisted(
        endless(toys, 6), Shortlist([2], [0, 0, 0, 0, 2, 4, 6], [3, 4, 3, 5, 4, 5]), 6
    ),
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", STEPPERS)
def test_rows_that_join_go_on_as_if_alone(toys: Any, name: str, first: int) -> None:
    """Two sentences, one of them two steps ahead, stepped together: the contract of ``join``."""
    stepper, sources = STEPPERS[name](toys), [(3, 4), (5,)]
    task = SearchTask(toys.symbols, max_lengths=6)
    alone = [greedy_search(stepper, *toys.padded([source]), task)[0].tokens for source in sources]
    assert [len(tokens) for tokens in alone] == [6, 6]
    written: list[list[int]] = [[1], [1]]

    def step(state: Any, rows: list[int]) -> Any:
        scores, state = stepper.step(torch.tensor([written[row][-1] for row in rows]), state)
        for row, symbol in zip(rows, (2 + scores[:, 2:].argmax(dim=1)).tolist(), strict=True):
            written[row].append(symbol)
        return state

    early, late = (stepper.start(*toys.padded([source])) for source in sources)
    early = step(step(early, [0]), [0])
    state, rows = (early.join(late), [0, 1]) if first == 0 else (late.join(early), [1, 0])
    assert state.rows == 2
    for _ in range(4):
        state = step(state, rows)
    assert [tuple(symbols[1:]) for symbols in written] == [alone[0], alone[1][:4]]


def test_forced_scores_are_the_models(toys: Any) -> None:
    table = toys.random(9)
    sources, targets = [(3, 4), (5,), (4,)], [(3, 5, 0), (), (4,)]
    stepper = toys.stepper(table)
    scores = force(stepper, *toys.padded(sources), targets, toys.symbols)
    for source, target, row in zip(sources, targets, scores, strict=True):
        whole = (1, *target, 2)
        assert row == [float(table(source, whole[:t])[whole[t]]) for t in range(1, len(whole))]
    assert stepper.steps == [3, 2, 1, 1]


def test_forced_decoding_wants_one_target_a_source(toys: Any) -> None:
    with pytest.raises(ShapeError, match="got 1 targets for 5 sources"):
        force(toys.stepper(toys.random(1)), *toys.padded(toys.sources), [(3,)], toys.symbols)


def test_forced_nan_is_an_error(toys: Any) -> None:
    def broken(source: Any, prefix: Any) -> torch.Tensor:
        return torch.full((6,), torch.nan)

    with pytest.raises(MultiheadError, match="not a number"):
        force(toys.stepper(broken), *toys.padded([(3,)]), [(3,)], toys.symbols)


@pytest.mark.parametrize(("begin", "end", "forbidden"), [(1, 2, (0, 2)), (-1, 2, (0,)), (1, 2, (-3,))])
def test_symbols_that_cannot_work_are_refused(begin: int, end: int, forbidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError):
        Symbols(begin, end, forbidden)
