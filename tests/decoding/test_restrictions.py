"""Forbidden text never appears, given prefixes come first, and nothing else is lost: compared with enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.diverse import diverse_beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.lexical import lexical_beam_search
from multihead.decoding.restrictions import NoRepeat, Prefix, Restriction, Rows, Without
from multihead.decoding.sampling import sample
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

END, WORDS, LIMIT = 2, (3, 4, 5), 4
PREFIXES = [(3,), (), (4, 4, 5), (5, 3), ()]
Symbols = tuple[int, ...]


def repeats(sequence: Symbols, size: int) -> bool:
    grams = [sequence[i : i + size] for i in range(len(sequence) - size + 1)]
    return len(set(grams)) < len(grams)


def contains(sequence: Symbols, part: Sequence[int]) -> bool:
    return any(sequence[i : i + len(part)] == tuple(part) for i in range(len(sequence)))


UNWANTED = [(3, 4), (5,), (4, 4, 3), (4, END), (3, 3, 3, 3)]
CASES: dict[str, tuple[list[Restriction], Callable[[int, Symbols], bool]]] = {
    "unigrams": ([NoRepeat(1)], lambda _, y: not repeats(y, 1)),
    "bigrams": ([NoRepeat(2)], lambda _, y: not repeats(y, 2)),
    "words": ([Without(UNWANTED)], lambda _, y: not any(contains(y, part) for part in UNWANTED)),
    "nothing": ([Without([])], lambda _, y: True),
    "prefix": ([Prefix(PREFIXES)], lambda n, y: y[: len(PREFIXES[n])] == PREFIXES[n]),
    "all": (
        [NoRepeat(2), Without([(3, 4), (4, 5)]), Prefix([(3,), (), (4,), (5, 3), ()])],
        lambda n, y: (
            y[: len(p := [(3,), (), (4,), (5, 3), ()][n])] == p
            and not (repeats(y, 2) or contains(y, (3, 4)) or contains(y, (4, 5)))
        ),
    ),
}


def everything(table: Any, source: Symbols, allowed: Callable[[Symbols], bool]) -> list[tuple[Symbols, bool, float]]:
    """Every hypothesis that is allowed, best first."""
    finished = [(*words, END) for n in range(LIMIT) for words in itertools.product(WORDS, repeat=n)]
    found = []
    for y in filter(allowed, finished + list(itertools.product(WORDS, repeat=LIMIT))):
        total = sum(float(table(source, (1, *y[:t]))[symbol]) for t, symbol in enumerate(y))
        found.append((y[:-1] if y[-1] == END else y, y[-1] == END, total))
    return sorted(found, key=lambda h: (not h[1], -h[2]))


def plain(hypotheses: list[Hypothesis]) -> list[tuple[Symbols, bool, Any]]:
    return [(h.tokens, h.finished, pytest.approx(h.log_probability, abs=1e-9)) for h in hypotheses]


@pytest.mark.parametrize("case", CASES)
def test_a_wide_beam_finds_all_that_is_allowed_and_no_more(toys: Any, case: str) -> None:
    restrictions, allowed = CASES[case]
    table = toys.random(1)
    found = beam_search(
        toys.stepper(table),
        *toys.padded(toys.sources),
        SearchTask(toys.symbols, max_lengths=LIMIT, n_best=125, restrictions=restrictions),
        Search(beam=125, alpha=0.0),
    )
    for number, (source, hypotheses) in enumerate(zip(toys.sources, found, strict=True)):
        assert everything(table, source, lambda y, n=number: allowed(n, y)) == plain(hypotheses)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_narrow_search_keeps_them_in_any_batch(toys: Any, case: str, beam: int) -> None:
    """Rows are selected and repeated, and sentences leave; the text of each row stays with it."""
    restrictions, allowed = CASES[case]
    limits, n = [12, 5, 9, 12, 6], len(toys.sources)
    restrictions = [*restrictions, NoRepeat(3)] if case == "nothing" else restrictions
    arguments = toys.padded(toys.sources)
    keep: dict[str, Any] = {"max_lengths": limits, "restrictions": restrictions}
    for seed in range(3):
        table = toys.random(seed)
        searches = {
            "beam": beam_search(
                toys.stepper(table), *arguments, *toys.split(toys.symbols, **keep, beam=beam, n_best=beam)
            ),
            "sample": sample(
                toys.stepper(table),
                *arguments,
                *toys.split(toys.symbols, **keep, n_best=beam),
                seed=seed,
                keys=range(n),
            ),
            "greedy": [[h] for h in greedy_search(toys.stepper(table), *arguments, *toys.split(toys.symbols, **keep))],
        }
        for found in searches.values():
            for number, hypotheses in enumerate(found):
                assert hypotheses
                assert all(allowed(number, (*h.tokens, *[END] * h.finished)) for h in hypotheses)
        if beam == 1:
            assert searches["greedy"] == searches["beam"]


def test_the_given_tensor_stays_as_it_is(toys: Any) -> None:
    values = torch.log_softmax(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)), dim=1)
    rows = Rows(torch.tensor([[3, 3], [4, 3], [5, 5]]), torch.tensor([0, 0, 1]), values.clone())
    for restriction in (NoRepeat(1), NoRepeat(2), Without([(3, 3), (4,)]), Prefix([(5, 5, 4), ()])):
        before = values.clone()
        after = restriction.restrict(values, rows)
        assert torch.equal(values, before)
        assert not torch.equal(after, before)


def test_a_prefix_is_stronger_than_what_stands_before_it(toys: Any) -> None:
    restrictions = [Without([(3,)]), NoRepeat(1), Prefix([(3, 3, 3)] * 5)]
    arguments = toys.padded(toys.sources)
    found = beam_search(
        toys.stepper(toys.random(1)),
        *arguments,
        *toys.split(toys.symbols, max_lengths=9, beam=3, restrictions=restrictions, n_best=3),
    )
    for hypotheses in found:
        assert all(h.tokens[:3] == (3, 3, 3) and 3 not in h.tokens[3:] for h in hypotheses)


def test_where_nothing_is_left_the_search_says_so(toys: Any) -> None:
    everything = Without([(3,), (4,), (5,), (END,)])
    arguments = toys.padded(toys.sources)
    for search in (greedy_search, beam_search, sample):
        with pytest.raises(MultiheadError, match="restrictions of the search"):
            search(
                toys.stepper(toys.random(1)),
                *arguments,
                *toys.split(toys.symbols, max_lengths=5, restrictions=[everything]),
            )


@pytest.mark.parametrize(
    ("prefixes", "error", "words"),
    [
        ([()] * 4, ShapeError, "got 4 prefixes for 5 sentences"),
        ([(), (), (3, 3, 3), (), ()], ConfigurationError, "sentence 3: a prefix of 3 symbols .* raise the limit to 4"),
        ([(), (END,), (), (), ()], ConfigurationError, "sentence 2: .* without begin and end"),
        ([(1,), (), (), (), ()], ConfigurationError, "sentence 1: .* without begin and end"),
        ([(), (), (), (), (-3,)], ConfigurationError, "sentence 5: .* counted from 0"),
    ],
)
def test_a_prefix_must_fit(toys: Any, prefixes: list[Symbols], error: type[Exception], words: str) -> None:
    for search in (greedy_search, beam_search, sample):
        stepper = toys.stepper(toys.random(1))
        with pytest.raises(error, match=words):
            search(
                stepper,
                *toys.padded(toys.sources),
                *toys.split(toys.symbols, max_lengths=3, restrictions=[Prefix(prefixes)]),
            )
        assert stepper.log == []


def test_what_forbids_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 symbol, got 0"):
        NoRepeat(0)
    with pytest.raises(ConfigurationError, match="has no symbols"):
        Without([(3,), ()])


def test_what_a_model_says_of_dead_rows_is_not_looked_at(toys: Any) -> None:
    """The model returns NaN for any prefix but the only possible one."""
    beginning = (1, 4, 3)

    def frail(source: Any, prefix: Any) -> torch.Tensor:
        possible = prefix[:3] == beginning[: len(prefix)]
        row: torch.Tensor = toys.random(1)(source, prefix)
        return row if possible else torch.full_like(row, torch.nan)

    arguments = toys.padded(toys.sources)
    keep: dict[str, Any] = {"max_lengths": 6, "beam": 4, "n_best": 4, "restrictions": [Prefix([(4, 3)] * 5)]}
    expected = beam_search(toys.stepper(toys.random(1)), *arguments, *toys.split(toys.symbols, **keep))
    assert beam_search(toys.stepper(frail), *arguments, *toys.split(toys.symbols, **keep)) == expected
    phrased = lexical_beam_search(
        toys.stepper(toys.random(1)), *arguments, [[[(5,)]]] * 5, *toys.split(toys.symbols, **keep)
    )
    assert (
        lexical_beam_search(toys.stepper(frail), *arguments, [[[(5,)]]] * 5, *toys.split(toys.symbols, **keep))
        == phrased
    )
    diverse = diverse_beam_search(toys.stepper(toys.random(1)), *arguments, *toys.split(toys.symbols, **keep, groups=2))
    assert diverse_beam_search(toys.stepper(frail), *arguments, *toys.split(toys.symbols, **keep, groups=2)) == diverse
