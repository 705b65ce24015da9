"""A shortlist is the model's distribution within some symbols, for every search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Symbols
from multihead.decoding.shortlist import Shortlist, Shortlisted
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError

BY_SYMBOL = {3: [4], 4: [3, 5, 3], 5: []}
"""Candidates of the toys' words; all have the end symbol and the one before it."""


@pytest.fixture
def shortlist() -> Shortlist:
    rows = [BY_SYMBOL.get(symbol, []) for symbol in range(6)]
    starts = [sum(map(len, rows[:end])) for end in range(7)]
    return Shortlist([2, 1, 2], starts, [symbol for row in rows for symbol in row])


def test_a_source_has_what_all_have_and_what_its_symbols_have(shortlist: Shortlist) -> None:
    for source, expected in (((3,), [1, 2, 4]), ((4, 3), [1, 2, 3, 4, 5]), ((5, 5), [1, 2]), ((), [1, 2])):
        assert shortlist.of(source).tolist() == expected


def test_probabilities_are_the_models_within_it(toys: Any, shortlist: Shortlist) -> None:
    table = toys.random(1)
    model = Shortlisted(toys.stepper(table), shortlist, 6)
    assert isinstance(model, Stepper)
    state = model.start(*toys.padded(toys.sources, 2))
    assert isinstance(state, State)
    rows, following = model.step(torch.tensor([1] * 5), state)
    order = torch.tensor([4, 0, 0])
    chosen = following.select(order)
    joined = chosen.join(chosen)
    assert joined.rows == 6
    again, _ = model.step(torch.tensor([3] * 3), chosen)
    twice, _ = model.step(torch.tensor([3] * 6), joined)
    assert torch.equal(twice, torch.cat((again, again)))
    for found, places, prefix in ((rows, range(5), (1,)), (again, order.tolist(), (1, 3))):
        for row, place in zip(found, places, strict=True):
            source, symbols = toys.sources[place], torch.from_numpy(shortlist.of(toys.sources[place]))
            torch.testing.assert_close(row[symbols], table(source, prefix)[symbols].log_softmax(0))
            assert row.exp().sum() == pytest.approx(1.0)


def test_greedy_finds_what_is_found_with_the_others_forbidden(toys: Any, shortlist: Shortlist) -> None:
    for seed in range(6):
        table = toys.random(seed)
        for source in toys.sources:
            others = sorted({0, 1} | {symbol for symbol in range(6) if symbol not in shortlist.of(source)})
            forbidden = Symbols(1, 2, tuple(others))
            (one,) = greedy_search(
                Shortlisted(toys.stepper(table), shortlist, 6),
                *toys.padded([source]),
                SearchTask(toys.symbols, max_lengths=6),
            )
            (other,) = greedy_search(toys.stepper(table), *toys.padded([source]), SearchTask(forbidden, max_lengths=6))
            assert one.tokens == other.tokens


def test_with_every_symbol_nothing_changes(toys: Any) -> None:
    everything = Shortlist(range(6), [0] * 7, [])
    given = toys.padded(toys.sources)
    for seed in range(4):
        model = Shortlisted(toys.stepper(toys.random(seed)), everything, 6)
        found = beam_search(model, *given, *toys.split(toys.symbols, max_lengths=6, beam=3, n_best=3))
        expected = beam_search(
            toys.stepper(toys.random(seed)), *given, *toys.split(toys.symbols, max_lengths=6, beam=3, n_best=3)
        )
        for one, other in zip(found, expected, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]


def test_what_cannot_be_is_refused(toys: Any, shortlist: Shortlist) -> None:
    for starts, candidates in (([0, 2, 1], [3, 4]), ([1, 2], [3, 4]), ([0, 1], [3, 4]), ([], [])):
        for shape in ((-1,), (-1, 1)):  # a damaged file may have any
            with pytest.raises(ConfigurationError, match="grow from 0"):
                Shortlist([2], np.array(starts, dtype=np.int64).reshape(shape), candidates)
    with pytest.raises(ConfigurationError, match="counted from 0"):
        Shortlist([2, -1], [0], [])
    for source, target in ((7, 6), (6, 5)):
        with pytest.raises(ConfigurationError, match="for this model"):
            shortlist.check(source, target)
    shortlist.check(6, 6)
    given = toys.padded(toys.sources)
    with pytest.raises(ConfigurationError, match="ToyStepper does not say"):
        beam_search(
            Shortlisted(toys.stepper(toys.random(1)), shortlist, 6),
            *given,
            *toys.split(toys.symbols, max_lengths=3, coverage=1.0),
        )
