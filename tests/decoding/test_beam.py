"""Beam search: theorems (exhaustive search, greedy search, a plain reference) and the guarantees of its docstring."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.ranking import Ahead, Exact, Patience
from multihead.decoding.scoring import force
from multihead.decoding.search import Search, patience_count, power, wu
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, ShapeError

END, WORDS = 2, (3, 4, 5)

BY_HAND: dict[Any, Any] = {power: lambda n, alpha: n**alpha, wu: lambda n, alpha: ((5 + n) / 6) ** alpha}
"""The length penalties, written independently."""


def log_probability(table: Any, source: tuple[int, ...], sequence: tuple[int, ...]) -> float:
    return sum(float(table(source, (1, *sequence[:t]))[symbol]) for t, symbol in enumerate(sequence))


def exhaustive(
    table: Any, source: tuple[int, ...], limit: int, alpha: float, least: int = 0, penalty: Any = power
) -> list[Hypothesis]:
    """Every hypothesis within the limits: finished ones first, each kind by score."""
    finished = [(*words, END) for n in range(least, limit) for words in itertools.product(WORDS, repeat=n)]
    hypotheses = []
    for sequence in finished + list(itertools.product(WORDS, repeat=limit)):
        total, done = log_probability(table, source, sequence), sequence[-1] == END
        tokens = sequence[:-1] if done else sequence
        hypotheses.append(Hypothesis(tokens, total, total / BY_HAND[penalty](len(sequence), alpha), done))
    return sorted(hypotheses, key=lambda h: (not h.finished, -h.score))


def reference(
    table: Any,
    source: tuple[int, ...],
    limit: int,
    beam: int,
    alpha: float,
    n_best: int,
    least: int = 0,
    stop: Any = None,
    penalty: Any = power,
) -> list[Hypothesis]:
    """The rule of beam.py written with lists, for one sentence, up to the limit.

    ``stop(scores, leading, step)`` may end it earlier. It gets the scores of the finished hypotheses, best first, and
    the best log-probability of an unfinished one.
    """
    live, finished, unfinished = [(0.0, ())], [], []
    for step in range(1, limit + 1):
        candidates = [
            (total + float(table(source, (1, *words))[symbol]), (*words, symbol))
            for total, words in live
            for symbol in (END, *WORDS)
            if symbol != END or len(words) >= least
        ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam]
        finished += [c for c in candidates[:beam] if c[1][-1] == END]
        live = [c for c in candidates if c[1][-1] != END][:beam]
        scores = sorted((t / BY_HAND[penalty](len(words), alpha) for t, words in finished), reverse=True)
        if stop is not None and (not live or stop(scores, live[0][0], step)):
            break
        if step == limit:
            unfinished = live
    made = [Hypothesis(s[:-1], t, t / BY_HAND[penalty](len(s), alpha), True) for t, s in finished]
    made += [Hypothesis(s, t, t / BY_HAND[penalty](len(s), alpha), False) for t, s in unfinished]
    return sorted(made, key=lambda h: (not h.finished, -h.score))


def assert_same(got: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [(h.tokens, h.finished) for h in got] == [(h.tokens, h.finished) for h in expected]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-9)
        assert ours.score == pytest.approx(theirs.score, abs=1e-9)


@pytest.mark.parametrize(("penalty", "alpha"), [(power, 0.0), (power, 0.7), (power, 1.0), (power, 2.0), (wu, 1.0)])
def test_a_wide_beam_is_exhaustive_search(toys: Any, penalty: Any, alpha: float) -> None:
    table, sources, limit = toys.random(1), toys.sources[:3], 4
    found = beam_search(
        toys.stepper(table),
        *toys.padded(sources),
        SearchTask(toys.symbols, max_lengths=limit, penalty=penalty, n_best=125),
        Search(beam=125, alpha=alpha),
    )
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) == 1 + 3 + 9 + 27 + 81
        assert_same(hypotheses, exhaustive(table, source, limit, alpha, penalty=penalty))


@pytest.mark.parametrize("alpha", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("n_best", [1, 4, 39])
def test_a_wide_beam_is_exhaustive_search_of_each_sentences_own_lengths(toys: Any, alpha: float, n_best: int) -> None:
    table, sources, limits, minimums = toys.random(2), toys.sources[:4], [3, 2, 3, 1], [2, 0, 1, 0]
    found = beam_search(
        toys.stepper(table),
        *toys.padded(sources),
        SearchTask(toys.symbols, max_lengths=limits, min_lengths=torch.tensor(minimums), n_best=n_best),
        Search(beam=40, alpha=alpha),
    )
    for source, limit, least, hypotheses in zip(sources, limits, minimums, found, strict=True):
        assert_same(hypotheses, exhaustive(table, source, limit, alpha, least)[:n_best])


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("all_of_them", [True, False])
@pytest.mark.parametrize("minimums", [[0, 0, 0, 0, 0], [0, 4, 2, 0, 1]])
def test_equals_the_plain_reference(toys: Any, beam: int, seed: int, all_of_them: bool, minimums: list[int]) -> None:
    n_best = beam if all_of_them else 1
    table, limits = toys.random(seed), [1, 6, 3, 5, 2]
    found = beam_search(
        toys.stepper(table),
        *toys.padded(toys.sources),
        SearchTask(toys.symbols, max_lengths=limits, min_lengths=minimums, n_best=n_best, stop=Exact()),
        Search(beam=beam, alpha=0.7),
    )
    for source, limit, least, hypotheses in zip(toys.sources, limits, minimums, found, strict=True):
        assert_same(hypotheses, reference(table, source, limit, beam, 0.7, n_best, least)[:n_best])


@pytest.mark.parametrize(("penalty", "alpha"), [(power, 0.0), (power, 0.7), (power, 2.0), (wu, 0.8), (wu, 1.5)])
@pytest.mark.parametrize("levels", [0, 3])  # 3: many scores tie
def test_stopping_early_loses_nothing(toys: Any, penalty: Any, alpha: float, levels: int) -> None:
    """Searching up to the limit finds the same hypotheses, for every penalty; and the search does stop early."""
    stopped = 0
    for seed, (beam, n_best, least) in enumerate([(2, 1, 0), (3, 3, 0), (4, 1, 3), (4, 4, 3)]):
        table = ending(toys.random(seed, levels=levels))
        stepper = toys.stepper(table)
        found = beam_search(
            stepper,
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=[11, 9, 12, 10, 8], min_lengths=least, penalty=penalty, n_best=n_best),
            Search(beam=beam, alpha=alpha),
        )
        for source, limit, hypotheses in zip(toys.sources, (11, 9, 12, 10, 8), found, strict=True):
            everything = reference(table, source, limit, beam, alpha, n_best, least, penalty=penalty)
            assert_same(hypotheses, everything[:n_best])
        stopped += sum(stepper.steps) < 5 + (11 + 9 + 12 + 10 + 8 - 5) * beam
    assert stopped >= 2


def ending(table: Any) -> Any:
    """A model that is certain of the end after three words, and of nothing after five."""

    def turned(source: Any, prefix: Any) -> torch.Tensor:
        row: torch.Tensor = table(source, prefix)
        late = len(prefix) > 5
        return row - torch.tensor([0.0, 0, 0 if len(prefix) > 3 else 4, *[6 * late + 2 * (len(prefix) > 3)] * 3])

    return turned


@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_rule_for_stopping_is_the_same_in_lists(toys: Any, beam: int, all_of_them: bool) -> None:
    n_best = beam if all_of_them else 1
    rules: list[tuple[Any, Any]] = [
        (Ahead(), lambda scores, leading, step: len(scores) >= beam and scores[n_best - 1] >= leading / step**0.7),
        (Patience(), lambda scores, leading, step: len(scores) >= beam),
        (Patience(0.5), lambda scores, leading, step: len(scores) >= max(0.5 * beam, n_best)),
        (Patience(2.5), lambda scores, leading, step: len(scores) >= 2.5 * beam),
    ]
    for rule, told in rules:
        rows = []
        for seed in range(4):
            table = toys.random(seed)
            stepper = toys.stepper(table)
            found = beam_search(
                stepper,
                *toys.padded(toys.sources),
                SearchTask(toys.symbols, max_lengths=9, n_best=n_best, stop=rule),
                Search(beam=beam, alpha=0.7),
            )
            for source, hypotheses in zip(toys.sources, found, strict=True):
                assert_same(hypotheses, reference(table, source, 9, beam, 0.7, n_best, stop=told)[:n_best])
            rows.append(sum(stepper.steps))
        assert min(rows) < 5 + 8 * 5 * beam


@pytest.mark.parametrize("rule", [Exact(), Ahead()])
def test_both_careful_rules_agree_where_length_gains_nothing(toys: Any, rule: Any) -> None:
    for seed in range(5):
        found = beam_search(
            toys.stepper(toys.random(seed)),
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=9, n_best=3, stop=rule),
            Search(beam=3, alpha=0.0),
        )
        for source, hypotheses in zip(toys.sources, found, strict=True):
            assert_same(hypotheses, reference(toys.random(seed), source, 9, 3, 0.0, 3)[:3])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_the_n_best_are_distinct_and_in_order_and_the_first_is_the_only_one(toys: Any, alpha: float) -> None:
    for seed in range(6):
        arguments = toys.padded(toys.sources)
        settings = {"max_lengths": 12, "min_lengths": 2, "beam": 5, "alpha": alpha}
        several = beam_search(
            toys.stepper(toys.random(seed)), *arguments, *toys.split(toys.symbols, **settings, n_best=5)
        )
        only = beam_search(toys.stepper(toys.random(seed)), *arguments, *toys.split(toys.symbols, **settings))
        for hypotheses, (one,) in zip(several, only, strict=True):
            assert len({(h.tokens, h.finished) for h in hypotheses}) == len(hypotheses) == 5
            assert hypotheses == sorted(hypotheses, key=lambda h: (not h.finished, -h.score))
            assert all(len(h.tokens) >= 2 for h in hypotheses)
            assert hypotheses[0] == one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [0, 2])  # 2: almost everything ties
def test_a_beam_of_one_is_greedy(toys: Any, dtype: torch.dtype, levels: int) -> None:
    for seed in range(10):
        table = toys.random(seed, dtype, levels)
        arguments = toys.padded(toys.sources)
        greedy = greedy_search(toys.stepper(table), *arguments, *toys.split(toys.symbols, max_lengths=[7, 2, 5, 1, 7]))
        beams = beam_search(
            toys.stepper(table), *arguments, *toys.split(toys.symbols, max_lengths=[7, 2, 5, 1, 7], beam=1)
        )
        assert [[hypothesis] for hypothesis in greedy] == beams
        lengths = {"max_lengths": [7, 2, 5, 1, 7], "min_lengths": [3, 1, 0, 0, 6]}
        longer = greedy_search(toys.stepper(table), *arguments, *toys.split(toys.symbols, **lengths))
        assert [[hypothesis] for hypothesis in longer] == beam_search(
            toys.stepper(table), *arguments, *toys.split(toys.symbols, **lengths, beam=1)
        )


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("beam", [2, 5])
def test_rows_do_not_talk(toys: Any, beam: int, levels: int) -> None:
    table, limits = toys.random(3, torch.float32, levels), (6, 3, 5, 1, 4)
    settings = {"beam": beam, "n_best": 2}
    alone = [
        beam_search(toys.stepper(table), *toys.padded([s], 3), *toys.split(toys.symbols, max_lengths=n, **settings))[0]
        for s, n in zip(toys.sources, limits, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 1]):
        together = beam_search(
            toys.stepper(table),
            *toys.padded([toys.sources[i] for i in order]),
            *toys.split(toys.symbols, max_lengths=torch.tensor([limits[i] for i in order]), **settings),
        )
        assert together == [alone[i] for i in order]


def test_ties_go_to_the_lowest_candidate(toys: Any) -> None:
    def level(source: Any, prefix: Any) -> torch.Tensor:
        return torch.full((6,), -1.0)

    (found,) = beam_search(
        toys.stepper(level),
        *toys.padded([(3,)]),
        SearchTask(toys.symbols, max_lengths=3, n_best=3),
        Search(beam=3, alpha=0.0),
    )
    assert [h.tokens for h in found] == [(), (3,), (3, 3)]


def test_forbidden_symbols_never_come_out(toys: Any) -> None:
    def tempting(source: Any, prefix: Any) -> torch.Tensor:
        return toys.random(5)(source, prefix) + torch.tensor([50.0, 50, 0, 0, 0, 50])

    symbols = type(toys.symbols)(begin=1, end=2, forbidden=(0, 1, 5))
    found = beam_search(
        toys.stepper(tempting),
        *toys.padded(toys.sources),
        SearchTask(symbols, max_lengths=5, n_best=40),
        Search(beam=40),
    )
    tokens = {token for hypotheses in found for h in hypotheses for token in h.tokens}
    assert tokens == {3, 4}


def test_finished_sentences_leave_the_batch(toys: Any) -> None:
    stepper = toys.stepper(toys.spelled(lambda source: source))
    sources = [(3,), (4, 5, 3, 4), (5, 4)]
    (first, second, third) = beam_search(
        stepper, *toys.padded(sources), SearchTask(toys.symbols, max_lengths=[9, 5, 9], n_best=1), Search(beam=3)
    )
    assert [h.tokens for h in (*first, *second, *third)] == sources
    rows = stepper.steps
    assert rows[0] == 3  # one row per sentence until hypotheses differ
    assert rows[1] == 9
    assert all(after <= before for before, after in itertools.pairwise(rows[1:]))
    assert rows[-1] in (3, 6)
    assert set(rows[1:]) <= {9, 6, 3}


def test_sentences_stay_grouped_and_equally_wide(toys: Any) -> None:
    seen = []

    class Watching(toys.stepper):
        def step(self, tokens: torch.Tensor, state: Any) -> Any:
            seen.append([source for source, _ in itertools.groupby(state.sources)])
            widths = {len(list(group)) for _, group in itertools.groupby(state.sources)}
            assert widths in ({1}, {4})
            return super().step(tokens, state)

    beam_search(
        Watching(toys.random(2)), *toys.padded(toys.sources), SearchTask(toys.symbols, max_lengths=6), Search(beam=4)
    )
    assert all(len(set(groups)) == len(groups) for groups in seen)
    assert len(seen[-1]) < len(seen[0])


def test_limits_are_kept_and_what_they_cut_is_marked(toys: Any) -> None:
    stepper = toys.stepper(toys.spelled(lambda source: (3, 4, 5, 3)))
    limits = [1, 2, 3, 4, 5]
    found = beam_search(
        stepper, *toys.padded(toys.sources), SearchTask(toys.symbols, max_lengths=limits), Search(beam=1)
    )
    for limit, (best,) in zip(limits, found, strict=True):
        assert best.finished == (limit == 5)
        assert best.tokens == (3, 4, 5, 3)[:limit]
        assert best.score == pytest.approx(-0.01, abs=1e-6)
    assert len(stepper.steps) == 5


def test_a_finished_hypothesis_comes_before_a_better_unfinished_one(toys: Any) -> None:
    def reluctant(source: Any, prefix: Any) -> torch.Tensor:
        return torch.tensor([-99.0, -99, -8, -1, -9, -9])

    arguments = toys.padded([(3,)])
    (found,) = beam_search(
        toys.stepper(reluctant), *arguments, *toys.split(toys.symbols, max_lengths=2, beam=4, n_best=3, alpha=0.0)
    )
    assert [(h.tokens, h.finished) for h in found] == [((), True), ((3,), True), ((3, 3), False)]
    assert found[2].score > found[0].score


def test_log_probabilities_are_those_of_forced_decoding(toys: Any) -> None:
    table = toys.random(8, torch.float32)
    for source in toys.sources:
        (found,) = beam_search(
            toys.stepper(table),
            *toys.padded([source]),
            SearchTask(toys.symbols, max_lengths=3, n_best=6),
            Search(beam=6, alpha=0.5),
        )
        repeated = toys.padded([source] * len(found))
        forced = force(toys.stepper(table), *repeated, [h.tokens for h in found], toys.symbols)
        for hypothesis, scores in zip(found, forced, strict=True):
            own = scores if hypothesis.finished else scores[:-1]
            assert hypothesis.log_probability == pytest.approx(sum(own), abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(own) / math.sqrt(len(own)), abs=1e-5)


def test_fewer_hypotheses_than_asked_for_where_fewer_exist(toys: Any) -> None:
    symbols = type(toys.symbols)(begin=1, end=2, forbidden=(0, 1, 3, 4, 5))
    stepper = toys.stepper(toys.random(1))
    found = beam_search(
        stepper, *toys.padded(toys.sources), SearchTask(symbols, max_lengths=9, n_best=3), Search(beam=3)
    )
    assert [[h.tokens for h in hypotheses] for hypotheses in found] == [[()]] * 5
    assert stepper.steps == [5]  # no hypothesis is left to extend


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beam": 0, "max_lengths": 3}, "beam: .* greater than or equal to 1, got 0"),
        ({"beam": 2, "n_best": 3, "max_lengths": 3}, "n_best must be from 1 to the beam of 2, got 3"),
        ({"alpha": -1.0, "max_lengths": 3}, "alpha: .* greater than or equal to 0, got -1.0"),
        ({"alpha": math.nan, "max_lengths": 3}, "alpha: .* finite number, got nan"),
        ({"alpha": 1000.0, "max_lengths": 9}, "alpha of 1000.0 is too large"),
        ({"max_lengths": [3, 0, 3, 3, 3]}, "at least 1, got 0"),
        ({"max_lengths": 3, "min_lengths": [0, 0, -1, 0, 0]}, "cannot be negative, got -1"),
        ({"max_lengths": [5, 5, 4, 5, 5], "min_lengths": 4}, "minimum of 4 symbols .* limit of 4: lower .* to 3"),
    ],
)
def test_settings_outside_their_range_are_refused(toys: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        beam_search(toys.stepper(toys.random(1)), *toys.padded(toys.sources), *toys.split(toys.symbols, **settings))


def test_limits_must_fit_the_batch(toys: Any) -> None:
    with pytest.raises(ShapeError, match=r"shape \(2,\) for 5 sentences"):
        beam_search(
            toys.stepper(toys.random(1)), *toys.padded(toys.sources), SearchTask(toys.symbols, max_lengths=[3, 3])
        )
    with pytest.raises(ShapeError, match=r"minimum lengths of shape \(1,\) for 5 sentences"):
        beam_search(
            toys.stepper(toys.random(1)),
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=3, min_lengths=[1]),
        )


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_a_sure_model_is_not_cut_short_by_hopeless_ends(toys: Any, beam: int) -> None:
    def sure(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        """Word 3 six times, then the end: each -0.01, everything else -9."""
        values = torch.full((5,), -9.0, dtype=torch.float64)
        values[3 if len(prefix) <= 6 else END] = -0.01
        return values

    arguments = toys.padded([(3,)])
    (found,) = beam_search(toys.stepper(sure), *arguments, SearchTask(toys.symbols, max_lengths=20), Search(beam=beam))
    assert found[0].tokens == (3,) * 6
    assert found[0].finished


def test_patience_is_a_positive_number() -> None:
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="patience must be a number above 0"):
            Patience(factor)


def test_patience_waits_for_the_product_of_the_decimal_number_and_the_beam() -> None:
    for beam in range(1, 65):
        for tenths in range(1, 40):
            assert patience_count(tenths / 10, beam) == -(-tenths * beam // 10)


def test_the_penalty_of_wu_is_equation_14() -> None:
    assert wu(1, 0.6) == 1.0
    assert wu(7, 1.0) == 2.0
    assert wu(19, 0.5) == 2.0
