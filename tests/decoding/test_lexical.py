"""Required phrases always appear, and no hypothesis with them is lost: automaton and search against enumeration."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.decoding.beam import beam_search
from multihead.decoding.lexical import automaton, fewest_symbols, lexical_beam_search, table_size
from multihead.decoding.restrictions import NoRepeat, Without
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

END, WORDS = 2, (3, 4, 5)
Sequences = list[list[tuple[int, ...]]]
PHRASES: list[Sequences] = [
    [[(3, 4)], [(4, 5)]],  # they may overlap
    [],
    [[(5,), (3, 3)], [(4,)]],  # alternatives
    [[(4, 4, 3)]],
    [[(3,)], [(3, 3)], [(3,)]],  # one in the other, one twice
]


def contains(y: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(y[i : i + len(part)] == part for i in range(len(y) - len(part) + 1))


def appeared(y: tuple[int, ...], phrases: Sequences) -> int:
    return sum(any(contains(y, part) for part in phrase) << n for n, phrase in enumerate(phrases))


some_phrases = st.lists(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2), max_size=3
)


@settings(max_examples=60)
@given(some_phrases, st.lists(st.sampled_from([*WORDS, 7]), max_size=8))
def test_a_state_knows_what_has_appeared_and_what_is_needed(phrases: Sequences, written: list[int]) -> None:
    made, state = automaton(phrases), 0
    everything = (1 << len(phrases)) - 1
    for end in range(len(written) + 1):
        y = tuple(written[:end])
        assert state % (everything + 1) == appeared(y, phrases)
        needed = int(made.needed[state])
        endings = itertools.product(WORDS, repeat=min(needed, 4))
        if needed <= 4:  # so many are enough, and one fewer is not
            assert any(appeared(y + more, phrases) == everything for more in endings)
        if needed > 0:
            fewer = itertools.product(WORDS, repeat=min(needed - 1, 4))
            assert not any(appeared(y + more, phrases) == everything for more in fewer)
        if end < len(written):
            places = {symbol: n for n, symbol in enumerate(made.alphabet, 1)}
            state = int(made.following[state, places.get(written[end], 0)])


@settings(max_examples=60)
@given(some_phrases, st.integers(0, 9))
def test_phrases_that_fit_one_after_the_other_need_no_automaton(phrases: Sequences, most: int) -> None:
    exact, found = int(automaton(phrases).needed[0]), fewest_symbols(phrases, most)
    assert exact <= found
    assert (found <= most) == (exact <= most)
    assert found == exact or found <= most
    assert automaton(phrases).following.numel() <= table_size(phrases)


@settings(max_examples=60)
@given(some_phrases, st.lists(st.sampled_from(WORDS), max_size=6), st.integers(0, 4))
def test_after_some_symbols_phrases_fit_where_an_ending_of_that_length_has_them(
    phrases: Sequences, before: list[int], most: int
) -> None:
    everything, endings = (1 << len(phrases)) - 1, itertools.product(WORDS, repeat=most)
    fit = any(appeared((*before, *more), phrases) == everything for more in endings)
    assert (fewest_symbols(phrases, most, before) <= most) == fit


def test_many_long_phrases_take_a_moment() -> None:
    phrases = [[tuple(range(10 * number, 10 * number + 5))] for number in range(10)]
    began = time.process_time()
    assert int(automaton(phrases).needed[0]) == 50
    assert time.process_time() - began < 5
    with pytest.raises(ConfigurationError, match="too many for one sentence"):
        fewest_symbols([*phrases, *phrases], 1000)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_all_that_contain_them(toys: Any, alpha: float) -> None:
    table, limit = toys.random(1), 4
    found = lexical_beam_search(
        toys.stepper(table),
        *toys.padded(toys.sources),
        PHRASES,
        SearchTask(toys.symbols, max_lengths=limit, n_best=600),
        Search(beam=600, alpha=alpha),
    )
    for source, phrases, hypotheses in zip(toys.sources, PHRASES, found, strict=True):
        finished = [(*words, END) for n in range(limit) for words in itertools.product(WORDS, repeat=n)]
        expected = []
        for y in finished + list(itertools.product(WORDS, repeat=limit)):
            if appeared(y[: limit - 1], phrases) == (1 << len(phrases)) - 1:
                total = sum(float(table(source, (1, *y[:t]))[symbol]) for t, symbol in enumerate(y))
                expected.append((y[-1] != END, -total / len(y) ** alpha, y))
        expected.sort()
        assert len(expected) > 3
        assert [(*h.tokens, *[END] * h.finished) for h in hypotheses] == [y for *_, y in expected]
        assert [h.score for h in hypotheses] == pytest.approx([-score for _, score, _ in expected], abs=1e-9)


@pytest.mark.parametrize("beam", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("spare", [1, 2, 6])
def test_they_always_appear(toys: Any, beam: int, spare: int) -> None:
    """In the narrowest beam and the tightest limit."""
    limits = [int(automaton(own).needed[0]) + spare for own in PHRASES]
    for seed in range(4):
        found = lexical_beam_search(
            toys.stepper(toys.random(seed)),
            *toys.padded(toys.sources),
            PHRASES,
            SearchTask(toys.symbols, max_lengths=limits, n_best=beam),
            Search(beam=beam),
        )
        for phrases, limit, hypotheses in zip(PHRASES, limits, found, strict=True):
            assert hypotheses
            for h in hypotheses:
                assert appeared(h.tokens, phrases) == (1 << len(phrases)) - 1
                assert len(h.tokens) + h.finished <= limit


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_without_phrases_it_is_beam_search(toys: Any, beam: int) -> None:
    shared: dict[str, Any] = {"max_lengths": [8, 5, 6, 2, 7], "min_lengths": [2, 0, 0, 1, 1], "beam": beam}
    shared |= {"n_best": beam, "alpha": 0.6, "restrictions": [NoRepeat(2)]}
    for seed in range(4):
        arguments = toys.padded(toys.sources)
        plain = beam_search(toys.stepper(toys.random(seed)), *arguments, *toys.split(toys.symbols, **shared))
        assert plain == lexical_beam_search(
            toys.stepper(toys.random(seed)), *arguments, [[]] * 5, *toys.split(toys.symbols, **shared)
        )


def test_what_a_search_finds_anyway_is_found_in_the_same_way(toys: Any) -> None:
    """A model that is certain writes 3 4 5 by itself; requiring "4 5" changes nothing."""
    stepper = toys.stepper(toys.spelled(lambda source: (3, 4, 5, 3)))
    found = lexical_beam_search(
        stepper,
        *toys.padded([(3,), (4,)]),
        [[[(4, 5)]], [[(5, 5)]]],
        SearchTask(toys.symbols, max_lengths=12),
        Search(beam=6),
    )
    assert found[0][0].tokens == (3, 4, 5, 3)
    assert contains(found[1][0].tokens, (5, 5))
    assert all(hypotheses[0].finished for hypotheses in found)


def test_forced_symbols_take_room_from_phrases(toys: Any) -> None:
    """A limit of four has room for the forced symbol, a phrase of two and the end; a limit of three is an error."""
    symbols, stepper = replace(toys.symbols, forced=(3,)), toys.stepper(toys.random(1))
    known = stepper, *toys.padded([(4,)]), [[[(4, 5)]]]
    ((found,),) = lexical_beam_search(*known, SearchTask(symbols, max_lengths=4), Search(beam=4))
    assert (found.tokens, found.finished) == ((3, 4, 5), True)
    with pytest.raises(ConfigurationError, match="need 3 symbols"):
        lexical_beam_search(*known, SearchTask(symbols, max_lengths=3), Search(beam=4))


@pytest.mark.parametrize("beam", [4, 5, 8])
def test_a_phrase_need_not_wait_for_the_limit(toys: Any, beam: int) -> None:
    """Each symbol that a certain model does not predict costs 9 at any position, so the phrase costs three of them.

    Until it is found, there are many more probable hypotheses that postpone the phrase.
    """
    for limit in (9, 12, 20):
        ((best,),) = lexical_beam_search(
            toys.stepper(toys.spelled(lambda source: (3, 3, 3, 3))),
            *toys.padded([(4,)]),
            [[[(5, 4, 5)]]],
            SearchTask(toys.symbols, max_lengths=limit),
            Search(beam=beam, alpha=0.0),
        )
        assert best.finished
        assert best.log_probability > -28


def test_rows_do_not_talk(toys: Any) -> None:
    table, limits = toys.random(3, torch.float32), (9, 3, 7, 8, 6)
    alone = [
        lexical_beam_search(
            toys.stepper(table),
            *toys.padded([s], 3),
            [own],
            SearchTask(toys.symbols, max_lengths=n, n_best=4),
            Search(beam=4),
        )[0]
        for s, n, own in zip(toys.sources, limits, PHRASES, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 1]):
        together = lexical_beam_search(
            toys.stepper(table),
            *toys.padded([toys.sources[i] for i in order]),
            [PHRASES[i] for i in order],
            SearchTask(toys.symbols, max_lengths=[limits[i] for i in order], n_best=4),
            Search(beam=4),
        )
        assert together == [alone[i] for i in order]


def test_what_cannot_be_met_is_said(toys: Any) -> None:
    arguments = toys.padded(toys.sources)
    wanted: list[tuple[Any, type[Exception], str]] = [
        ([[]] * 4, ShapeError, "phrases of 4 sentences for 5"),
        ([[], [], [[(3, 4)], [(4, 5), (5, 5, 5)]], [], []], ConfigurationError, "sentence 3: .* need 3 .* limit to 4"),
        ([[[(3,)], []], [], [], [], []], ConfigurationError, "phrase 2: expected one or more alternatives"),
        ([[[()]], [], [], [], []], ConfigurationError, "phrase 1: expected"),
        ([[], [[(3, 0)]], [], [], []], ConfigurationError, r"sentence 2: .* never chosen: \[0\]"),
        ([[], [[(END,)]], [], [], []], ConfigurationError, r"never chosen: \[2\]"),
        ([[[(-1,)]], [], [], [], []], ConfigurationError, "counted from 0, got -1"),
        ([[[(n, n + 1)] for n in range(3, 24)], [], [], [], []], ConfigurationError, "too many for one sentence"),
    ]
    for phrases, error, words in wanted:
        stepper = toys.stepper(toys.random(1))
        with pytest.raises(error, match=words):
            lexical_beam_search(stepper, *arguments, phrases, *toys.split(toys.symbols, max_lengths=3))
        assert stepper.log == []
    with pytest.raises(MultiheadError, match="restrictions of the search"):
        lexical_beam_search(
            toys.stepper(toys.random(1)),
            *arguments,
            [[[(3, 4)]]] * 5,
            *toys.split(toys.symbols, max_lengths=6, restrictions=[Without([(3,)])]),
        )
