"""Diverse beam search: equal to beam search without diversity and to a plain reference; and groups do differ."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.diverse import diverse_beam_search
from multihead.decoding.ranking import Exact
from multihead.decoding.restrictions import NoRepeat
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError

END, WORDS = 2, (3, 4, 5)


def reference(table: Any, source: Any, limit: int, each: int, groups: int, strength: float) -> list[list[Any]]:
    """All finished and last unfinished hypotheses of each group, to the limit, best first by mean log-probability."""
    live: list[list[Any]] = [[(0.0, ())] for _ in range(groups)]
    found: list[list[Any]] = [[] for _ in range(groups)]
    for step in range(1, limit + 1):
        chosen: Counter[int] = Counter()
        for group in range(groups):
            candidates = [
                (total + float(table(source, (1, *words))[symbol]), (*words, symbol))
                for total, words in live[group]
                for symbol in (END, *WORDS)
            ]
            candidates.sort(key=lambda c: -(c[0] - strength * chosen[c[1][-1]]))
            candidates = candidates[: 2 * each]
            ended = [c for c in candidates[:each] if c[1][-1] == END]
            live[group] = [c for c in candidates if c[1][-1] != END][:each]
            found[group] += ended
            chosen.update(words[-1] for _, words in ended + live[group])
            if step == limit:
                found[group] += live[group]
    return [sorted(f, key=lambda c: (c[1][-1] != END, -c[0] / len(c[1]))) for f in found]


@pytest.mark.parametrize(("each", "groups", "strength"), [(1, 3, 0.5), (2, 2, 0.5), (2, 3, 1.3), (3, 2, 0.0)])
def test_equals_the_algorithm_in_lists(toys: Any, each: int, groups: int, strength: float) -> None:
    limits = [6, 4, 5, 1, 7]
    for seed in range(4):
        table = toys.random(seed)
        found = diverse_beam_search(
            toys.stepper(table),
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=limits, n_best=each * groups, stop=Exact()),
            Search(beam=each * groups, groups=groups, diversity=strength),
        )
        for source, limit, hypotheses in zip(toys.sources, limits, found, strict=True):
            told = [group[:each] for group in reference(table, source, limit, each, groups, strength)]
            ranks = [sorted(filter(None, rank), key=lambda c: (c[1][-1] != END, -c[0] / len(c[1])))
                     for rank in itertools.zip_longest(*told)]  # fmt: skip
            expected = list(dict.fromkeys(words for rank in ranks for _, words in rank))
            assert [(*h.tokens, *[END] * h.finished) for h in hypotheses] == expected
            totals = {words: total for group in told for total, words in group}
            for h, words in zip(hypotheses, expected, strict=True):
                assert h.log_probability == pytest.approx(totals[words], abs=1e-9)


@pytest.mark.parametrize(("groups", "strength"), [(1, 0.7), (2, 0.0)])
def test_without_diversity_it_is_beam_search(toys: Any, groups: int, strength: float) -> None:
    for seed in range(4):
        arguments = toys.padded(toys.sources)
        shared: dict[str, Any] = {"max_lengths": [8, 5, 6, 2, 7], "min_lengths": [2, 0, 0, 1, 1], "alpha": 0.6}
        shared["restrictions"] = [NoRepeat(2)]
        plain = beam_search(
            toys.stepper(toys.random(seed)), *arguments, *toys.split(toys.symbols, **shared, beam=3, n_best=3)
        )
        diverse = diverse_beam_search(
            toys.stepper(toys.random(seed)),
            *arguments,
            *toys.split(toys.symbols, **shared, beam=3 * groups, groups=groups, diversity=strength, n_best=3 * groups),
        )
        assert diverse == plain


def test_fewer_are_the_first_of_more(toys: Any) -> None:
    """Groups that agree do not leave fewer than are wanted, where there are more."""
    agreeing = 0
    for seed in range(4):
        found = [
            diverse_beam_search(
                toys.stepper(toys.random(seed)),
                *toys.padded(toys.sources),
                SearchTask(toys.symbols, max_lengths=[6, 4, 5, 2, 7], n_best=n, stop=Exact()),
                Search(beam=6, groups=2, diversity=0.1),
            )
            for n in (1, 2, 3, 6)
        ]
        for *fewer, whole in zip(*found, strict=True):
            for n, some in zip((1, 2, 3), fewer, strict=True):
                assert some == whole[:n]
            agreeing += len(whole) < 6
    assert agreeing


def test_groups_that_pay_enough_begin_differently(toys: Any) -> None:
    for seed in range(4):
        found = diverse_beam_search(
            toys.stepper(toys.random(seed)),
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=6, min_lengths=1, n_best=3),
            Search(beam=3, groups=3, diversity=1e6),
        )
        assert all(len({h.tokens[0] for h in hypotheses}) == 3 for hypotheses in found)


def test_rows_do_not_talk_and_stand_together(toys: Any) -> None:
    table, limits = toys.random(3, torch.float32), (6, 3, 5, 1, 4)
    settings: dict[str, Any] = {"beam": 4, "groups": 2, "diversity": 0.5, "n_best": 4}
    alone = [
        diverse_beam_search(
            toys.stepper(table), *toys.padded([s], 3), *toys.split(toys.symbols, max_lengths=n, **settings)
        )[0]
        for s, n in zip(toys.sources, limits, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 1]):
        stepper = toys.stepper(table)
        together = diverse_beam_search(
            stepper,
            *toys.padded([toys.sources[i] for i in order]),
            *toys.split(toys.symbols, max_lengths=[limits[i] for i in order], **settings),
        )
        assert together == [alone[i] for i in order]
        assert stepper.steps[0] == len(order)
        assert all(rows % 4 == 0 for rows in stepper.steps[1:])


def test_what_cannot_be_asked(toys: Any) -> None:
    nothing = torch.zeros(0, 4, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    stepper = toys.stepper(toys.random(1))
    assert (
        diverse_beam_search(stepper, *nothing, SearchTask(toys.symbols, max_lengths=3), Search(beam=6, groups=3)) == []
    )
    settings: list[tuple[dict[str, Any], str]] = [
        ({"beam": 4, "groups": 3}, "groups must divide the beam, got 3 groups and a beam of 4"),
        ({"beam": 4, "groups": 0}, "groups: .* got 0"),
        ({"beam": 4, "groups": 2, "diversity": -1.0}, "diversity: .* got -1.0"),
        ({"beam": 4, "groups": 2, "n_best": 5}, "n_best must be from 1 to the beam of 4, got 5"),
    ]
    for given, words in settings:
        with pytest.raises(ConfigurationError, match=words):
            diverse_beam_search(stepper, *toys.padded(toys.sources), *toys.split(toys.symbols, max_lengths=3, **given))
