"""Samples have the requested distribution, and depend neither on the rest of the batch nor on its order."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from multihead.decoding.greedy import greedy_search
from multihead.decoding.sampling import Sharpening, epsilon, min_p, sample, top_k, top_p
from multihead.decoding.scoring import force
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

END = 2
DISTRIBUTION = torch.tensor([0.0, 0.0, 0.1, 0.4, 0.3, 0.2], dtype=torch.float64)


def fixed(source: Any, prefix: Any) -> torch.Tensor:
    return DISTRIBUTION.log()


def expected(toys: Any, table: Any, source: Any, limit: int, sharpening: Sharpening) -> dict[Any, float]:
    """The probability of every hypothesis under the rule, symbol by symbol, in plain arithmetic."""
    whole: dict[Any, float] = {}
    open_ones: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_ones:
        written, probability = open_ones.pop()
        row = table(source, (1, *written)).tolist()
        powers = {symbol: math.exp(row[symbol] / sharpening.temperature) for symbol in (2, 3, 4, 5)}
        total = sum(powers.values())
        q = {symbol: value / total for symbol, value in powers.items()}
        ordered = sorted(q, key=lambda symbol: -q[symbol])
        kept = ordered[: sharpening.top_k]
        if sharpening.top_p is not None:
            sums = [sum(q[s] for s in ordered[:n]) for n in range(len(ordered))]
            kept = [s for s in kept if sums[ordered.index(s)] < sharpening.top_p]
        least = max((sharpening.min_p or 0) * q[ordered[0]], sharpening.epsilon or 0)
        kept = [s for s in kept if q[s] >= least] or ordered[:1]
        rest = sum(q[s] for s in kept)
        for symbol in kept:
            now = (*written, symbol)
            if symbol == END or len(now) == limit:
                whole[now] = probability * q[symbol] / rest
            else:
                open_ones.append((now, probability * q[symbol] / rest))
    return whole


@pytest.mark.parametrize(
    "sharpening",
    [
        Sharpening(),
        Sharpening(temperature=0.5),
        Sharpening(temperature=3.0),
        Sharpening(top_k=2),
        Sharpening(top_p=0.75),
        Sharpening(min_p=0.3),
        Sharpening(epsilon=0.12),
        Sharpening(temperature=2.0, top_k=3, top_p=0.9, min_p=0.2, epsilon=0.05),
    ],
)
def test_frequencies_match_the_distribution(toys: Any, sharpening: Sharpening) -> None:
    """Pearson's chi-square over whole hypotheses of up to two symbols; beyond its mean by less than 4 deviations."""
    table, count = toys.random(4), 4000
    (drawn,) = sample(
        toys.stepper(table),
        *toys.padded([(3, 4)]),
        SearchTask(toys.symbols, max_lengths=2, n_best=count),
        seed=7,
        sharpening=sharpening,
    )
    frequencies = Counter((*h.tokens, *[END] * h.finished) for h in drawn)
    wanted = expected(toys, table, (3, 4), 2, sharpening)
    assert set(frequencies) <= set(wanted)
    square = sum((frequencies[y] - count * p) ** 2 / (count * p) for y, p in wanted.items())
    freedom = len(wanted) - 1
    assert square <= freedom + 4 * math.sqrt(2 * freedom)


def test_sentences_keys_and_seeds_are_independent(toys: Any) -> None:
    """One symbol each: pairs of keys, of seeds and of sample numbers all have the product distribution."""
    count = 1500
    sources = toys.padded([(3,)] * count)

    def first(seed: int, keys: range, number: int = 0) -> list[int]:
        found = sample(
            toys.stepper(fixed), *sources, SearchTask(toys.symbols, max_lengths=1, n_best=2), seed=seed, keys=keys
        )
        return [(*h[number].tokens, END)[0] for h in found]

    one = first(0, range(count))
    for other in (
        first(1, range(count)),
        first(0, range(count, 2 * count)),
        first(0, range(count), 1),
        first(-1, range(count)),
    ):
        pairs, square = Counter(zip(one, other, strict=True)), 0.0
        for a in range(2, 6):
            for b in range(2, 6):
                p = count * float(DISTRIBUTION[a] * DISTRIBUTION[b])
                square += (pairs[a, b] - p) ** 2 / p
        assert square <= 15 + 4 * math.sqrt(30)


@pytest.mark.parametrize("samples", [1, 3])
def test_neither_the_batch_nor_its_order_changes_a_sample(toys: Any, samples: int) -> None:
    table, limits, keys = toys.random(3, torch.float32), (8, 3, 5, 1, 9), (10**12, -3, 0, 7, 8)
    settings: dict[str, Any] = {"seed": 5, "sharpening": Sharpening(top_p=0.9)}
    alone = [
        sample(
            toys.stepper(table),
            *toys.padded([s], 3),
            SearchTask(toys.symbols, max_lengths=n, n_best=samples),
            keys=[k],
            **settings,
        )[0]
        for s, n, k in zip(toys.sources, limits, keys, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 1]):
        together = sample(
            toys.stepper(table),
            *toys.padded([toys.sources[i] for i in order]),
            SearchTask(toys.symbols, max_lengths=[limits[i] for i in order], n_best=samples),
            keys=[keys[i] for i in order],
            **settings,
        )
        assert together == [alone[i] for i in order]
    more = sample(
        toys.stepper(table),
        *toys.padded(toys.sources),
        SearchTask(toys.symbols, max_lengths=limits, n_best=samples + 4),
        keys=keys,
        **settings,
    )
    assert [hypotheses[:samples] for hypotheses in more] == alone
    assert more != sample(
        toys.stepper(table),
        *toys.padded(toys.sources),
        SearchTask(toys.symbols, max_lengths=limits, n_best=samples + 4),
        keys=keys,
        **{**settings, "seed": 6},
    )


def test_the_one_most_probable_symbol_is_greedy(toys: Any) -> None:
    arguments = toys.padded(toys.sources)
    lengths = {"max_lengths": [7, 3, 5, 1, 6], "min_lengths": [2, 1, 0, 0, 5]}
    for sharpening in (
        Sharpening(top_k=1),
        Sharpening(temperature=1e-4),
        Sharpening(top_p=1e-9),
        Sharpening(min_p=1.0),
    ):
        for seed in range(3):
            greedy = greedy_search(toys.stepper(toys.random(seed)), *arguments, *toys.split(toys.symbols, **lengths))
            drawn = sample(
                toys.stepper(toys.random(seed)),
                *arguments,
                *toys.split(toys.symbols, **lengths, n_best=2),
                seed=seed,
                sharpening=sharpening,
            )
            assert [hypotheses[0].tokens for hypotheses in drawn] == [h.tokens for h in greedy]
            assert [hypotheses[1] for hypotheses in drawn] == [hypotheses[0] for hypotheses in drawn]


def test_log_probabilities_are_the_models_own(toys: Any) -> None:
    table = toys.random(8)
    (found,) = sample(
        toys.stepper(table),
        *toys.padded([(5, 3)]),
        SearchTask(toys.symbols, max_lengths=5, n_best=8),
        sharpening=Sharpening(temperature=2.0, top_k=3),
    )
    forced = force(toys.stepper(table), *toys.padded([(5, 3)] * 8), [h.tokens for h in found], toys.symbols)
    for hypothesis, scores in zip(found, forced, strict=True):
        own = scores if hypothesis.finished else scores[:-1]
        assert hypothesis.log_probability == pytest.approx(sum(own), abs=1e-9)
        assert hypothesis.score == pytest.approx(sum(own) / len(own), abs=1e-9)


def test_lengths_and_rows_are_as_the_protocol_wants(toys: Any) -> None:
    stepper = toys.stepper(toys.random(2))
    found = sample(
        stepper,
        *toys.padded(toys.sources),
        SearchTask(toys.symbols, max_lengths=[9, 4, 6, 1, 9], min_lengths=[3, 3, 0, 0, 8], n_best=3),
    )
    for hypotheses, most, least in zip(found, [9, 4, 6, 1, 9], [3, 3, 0, 0, 8], strict=True):
        assert len(hypotheses) == 3
        assert all(least <= len(h.tokens) and len(h.tokens) + h.finished <= most for h in hypotheses)
        assert all(h.finished or len(h.tokens) == most for h in hypotheses)
    assert stepper.steps[0] == 5
    assert all(rows % 3 == 0 for rows in stepper.steps[1:])


def test_each_limit_keeps_what_its_definition_says() -> None:
    p = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64).log()
    assert top_k(p, 2).tolist() == [[False, True, True, False], [True, True, False, False]]
    assert top_k(p, 9).all()
    assert top_p(p, 0.69).tolist() == [[False, True, True, False], [True, True, True, False]]
    assert top_p(p, 0.71).tolist() == [[False, True, True, True], [True, True, True, False]]
    assert min_p(p, 0.6).tolist() == [[False, True, True, False], [True] * 4]
    assert epsilon(p, 0.15).tolist() == [[False, True, True, True], [True] * 4]
    assert epsilon(p, 0.9).tolist() == [[False, True, False, False], [True, False, False, False]]


def test_what_cannot_be_drawn(toys: Any) -> None:
    for name, value in (
        ("temperature", 0.0), ("temperature", math.nan), ("top_k", 0), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1),
        ("epsilon", 2.0),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"{name} must be"):
            Sharpening(**{name: value})
    stepper, arguments = toys.stepper(toys.random(1)), toys.padded(toys.sources)
    with pytest.raises(ConfigurationError, match="at least 1 sample"):
        sample(stepper, *arguments, *toys.split(toys.symbols, max_lengths=3, n_best=0))
    with pytest.raises(ShapeError, match="2 keys for 5 sentences"):
        sample(stepper, *arguments, *toys.split(toys.symbols, max_lengths=3), keys=[1, 2])
    nothing = torch.zeros(0, 4, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    assert sample(stepper, *nothing, SearchTask(toys.symbols, max_lengths=3)) == []
    assert stepper.log == []

    def broken(source: Any, prefix: Any) -> torch.Tensor:
        return torch.full((6,), torch.nan if source == (5, 3) else -1.0)

    with pytest.raises(MultiheadError, match="not a number"):
        sample(toys.stepper(broken), *arguments, *toys.split(toys.symbols, max_lengths=5))
