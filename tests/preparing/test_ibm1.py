"""IBM Model 1 equals its definition, and finds a planted dictionary."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from multihead.preparing.ibm1 import Model1, Words, intersection, learn, sample

PAIRS = [([0, 1], [0, 1, 2]), ([1], [2, 0]), ([2, 0, 0], [1]), ([1, 2], [3, 3])]
"""Words e and words f."""


def words_of(texts: list[list[int]]) -> Words:
    return Words(np.array([word for text in texts for word in text], np.int64), np.array([len(text) for text in texts]))


def brute_force(pairs: list[tuple[list[int], list[int]]], rounds: int) -> dict[tuple[int, int], float]:
    """Expectation maximization over all alignments a of each pair, each with its probability."""
    t = {(e, f): 1.0 for given, made in pairs for e in [-1, *given] for f in made}
    for _ in range(rounds):
        counts = dict.fromkeys(t, 0.0)
        for given, made in pairs:
            whole = [-1, *given]
            alignments = list(product(range(len(whole)), repeat=len(made)))
            chances = [np.prod([t[whole[i], f] for i, f in zip(a, made, strict=True)]) for a in alignments]
            for a, chance in zip(alignments, chances, strict=True):
                for i, f in zip(a, made, strict=True):
                    counts[whole[i], f] += chance / sum(chances)
        totals = {e: sum(count for (other, _), count in counts.items() if other == e) for e, _ in t}
        t = {(e, f): count / totals[e] for (e, f), count in counts.items()}
    return t


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_probabilities_are_those_of_the_sum_over_all_alignments(rounds: int) -> None:
    model = learn(words_of([e for e, _ in PAIRS]), words_of([f for _, f in PAIRS]), rounds)
    expected = brute_force(PAIRS, rounds)
    assert len(model.keys) == len(expected)
    for (e, f), value in expected.items():
        assert model.t(np.array([e + 1]), np.array([f]))[0] == pytest.approx(value)
    assert model.t(np.array([1]), np.array([3]))[0] == 0  # they never occurred together


def planted(pairs: int, seed: int = 1) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Sentences, their words exchanged and translated by a dictionary, and where each target word comes from."""
    draw = np.random.default_rng(seed)
    dictionary = draw.permutation(50)
    sources = [draw.choice(50, draw.integers(2, 9), replace=False).tolist() for _ in range(pairs)]
    orders = [draw.permutation(len(source)).tolist() for source in sources]
    targets = [[int(dictionary[source[i]]) for i in order] for source, order in zip(sources, orders, strict=True)]
    return sources, targets, orders


def test_a_planted_dictionary_is_found() -> None:
    sources, targets, orders = planted(400)
    source, target = words_of(sources), words_of(targets)
    forward, backward = learn(source, target), learn(target, source)
    rows, i, j = intersection(source, target, forward, backward)
    found = set(zip(rows.tolist(), i.tolist(), j.tolist(), strict=True))
    gold = {(row, place, n) for row, order in enumerate(orders) for n, place in enumerate(order)}
    assert len(found - gold) == 0
    assert len(found) > 0.99 * len(gold)
    assert sorted(found) == list(zip(rows.tolist(), i.tolist(), j.tolist(), strict=True))


def test_links_do_not_depend_on_the_pairs_beside() -> None:
    sources, targets, _ = planted(50)
    source, target = words_of(sources), words_of(targets)
    forward, backward = learn(source, target), learn(target, source)
    whole = np.stack(intersection(source, target, forward, backward), 1)
    parts = []
    for one in (np.arange(20), np.arange(20, 50)):
        rows, i, j = intersection(source.of(one), target.of(one), forward, backward)
        parts.append(np.stack((rows + one[0], i, j), 1))
    assert np.array_equal(whole, np.concatenate(parts))


def test_of_equals_the_one_nearest_to_the_diagonal_is_linked() -> None:
    twice = words_of([[5, 6, 5]])
    rows, i, j = intersection(twice, twice, learn(twice, twice), learn(twice, twice))
    assert list(zip(i.tolist(), j.tolist(), strict=True))[::2] == [(0, 0), (2, 2)]
    assert rows.tolist() == [0] * len(rows)


def test_unknown_words_have_no_links() -> None:
    model = learn(words_of([[1], [2]]), words_of([[1], [2]]))
    assert model.links(words_of([[0]]), words_of([[0]]))[0].tolist() == []
    assert isinstance(model, Model1)


def test_large_text_is_sampled_at_equal_distances() -> None:
    lengths = np.full(100, 10)
    text = Words(np.empty(0, np.int64), lengths)
    assert sample(text, text, 10_000).tolist() == list(range(100))
    assert sample(text, text, 2_500).tolist() == list(range(0, 100, 4))
