"""Minimum Bayes risk is a weighted sum, and picks its maximum."""

from __future__ import annotations

import math

import pytest

from multihead.decoding.risk import expected_utility, least_risk
from multihead.errors import ConfigurationError, MultiheadError


def overlap(hypothesis: str, reference: str) -> float:
    """Not symmetric, so that a test detects exchanged arguments."""
    return len(set(hypothesis) & set(reference)) / max(len(set(hypothesis)), 1)


TEXTS = ["ab", "abc", "bcd", "ab", "xyz", "b"]


def test_the_expected_utility_is_the_sum_over_all_pairs() -> None:
    expected = [sum(overlap(h, r) for r in TEXTS) / len(TEXTS) for h in TEXTS]
    assert expected_utility(TEXTS, overlap) == pytest.approx(expected)
    assert least_risk(TEXTS, overlap) == max(range(len(TEXTS)), key=expected.__getitem__)
    others = ["xyz", "xa"]
    assert expected_utility(TEXTS, overlap, references=others) == pytest.approx(
        [(overlap(h, "xyz") + overlap(h, "xa")) / 2 for h in TEXTS]
    )
    assert least_risk(["b", "xq", "x"], overlap, references=others) == 2
    assert expected_utility([], overlap) == []


def test_weights_are_the_probabilities() -> None:
    """Drawn three times and once: as if its probability were three times that of the other."""
    drawn = expected_utility(["ab", "xb"], overlap, references=["ab", "xyz", "ab", "ab"])
    logs = [math.log(0.3) - 5000, math.log(0.1) - 5000]
    weighted = expected_utility(["ab", "xb"], overlap, references=["ab", "xyz"], log_probabilities=logs)
    assert weighted == pytest.approx(drawn)


def test_the_exact_match_finds_the_most_frequent_and_the_first_of_equals() -> None:
    assert least_risk(["a", "b", "c", "b"], lambda h, r: float(h == r)) == 1
    assert least_risk(["c", "a", "b"], lambda h, r: float(h == r)) == 0


def test_each_pair_is_asked_for_once() -> None:
    asked = []

    def noted(hypothesis: str, reference: str) -> float:
        asked.append((hypothesis, reference))
        return 1.0

    assert expected_utility(TEXTS, noted) == pytest.approx([1.0] * len(TEXTS))
    assert len(asked) == len(set(asked)) == 25


def test_what_cannot_be_weighed() -> None:
    with pytest.raises(ConfigurationError, match="at least one hypothesis"):
        least_risk([], overlap)
    with pytest.raises(ConfigurationError, match="at least one reference"):
        least_risk(["a"], overlap, references=[])
    for logs in ([0.0], [0.0, -math.inf], [0.0, math.nan]):
        with pytest.raises(ConfigurationError, match="log-probability for each of 2 references"):
            least_risk(["a", "b"], overlap, log_probabilities=logs)
    with pytest.raises(MultiheadError, match="utility of 'a' is nan"):
        least_risk(["a"], lambda h, r: math.nan)
