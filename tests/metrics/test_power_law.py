"""The gain of more text: a planted law is found, exactly without noise and within its interval with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.metrics.power_law import Training, estimate_gain

SIZES = (3600, 7200, 14_500, 29_000)


def planted(b: float, noise: float = 0.0, seed: int = 0, sizes: tuple[int, ...] = SIZES) -> list[Training]:
    """Losses 20 n^-b and BLEU 70 - 20 L, both with noise."""
    random = np.random.default_rng(seed)
    losses = [20 * n**-b * math.exp(noise * random.standard_normal()) for n in sizes]
    return [
        Training(n, L, 70 - 20 * L + 20 * noise * random.standard_normal()) for n, L in zip(sizes, losses, strict=True)
    ]


def true_gain(b: float, factor: float) -> tuple[float, float]:
    fall = 20 * 29_000**-b * (factor**-b - 1)
    return fall, -20 * fall


@settings(max_examples=20)
@given(st.floats(0.05, 0.5), st.floats(1.5, 4))
def test_a_planted_power_law_is_found_exactly(b: float, factor: float) -> None:
    found = estimate_gain(planted(b), 29_000, factor)
    loss, bleu = true_gain(b, factor)
    assert found.refusal is None
    assert found.exponent == pytest.approx(b, rel=1e-6)
    assert (found.loss, found.bleu) == pytest.approx((loss, bleu), rel=1e-6)
    for interval, value in ((found.loss_interval, loss), (found.bleu_interval, bleu)):
        assert interval == pytest.approx((value, value), rel=1e-4)


@pytest.mark.parametrize("repeats", [1, 2])
def test_with_noise_it_lies_within_its_interval(repeats: int) -> None:
    """95 of 100 intervals contain the truth; 88 of 100 are within three deviations of that."""
    trials = [estimate_gain(planted(0.2, 0.01, seed, SIZES * repeats), 29_000) for seed in range(100)]
    loss, bleu = true_gain(0.2, 2.0)
    for name, value in (("loss_interval", loss), ("bleu_interval", bleu)):
        inside = [low <= value <= high for low, high in (getattr(trial, name) for trial in trials)]
        assert sum(inside) >= 88


def test_more_trainings_narrow_the_interval_and_twice_the_noise_widens_it() -> None:
    def width(noise: float, repeats: int) -> float:
        found = [estimate_gain(planted(0.2, noise, seed, SIZES * repeats), 29_000) for seed in range(20)]
        return float(np.median([one.bleu_interval[1] - one.bleu_interval[0] for one in found]))

    assert width(0.01, 3) < width(0.01, 1)
    assert width(0.02, 1) == pytest.approx(2 * width(0.01, 1), rel=0.2)


@pytest.mark.parametrize(
    ("trainings", "said"),
    [
        ([], "there are 0"),
        (planted(0.2, 0.01, 1, (100, 200, 100, 200)), "there are 2"),
        (planted(-0.1), "the loss did not fall"),
        (planted(0.05, 0.3, 2), "not on a power law"),
        ([Training(n, 20 * n**-0.2, 30.0 + n % 7) for n in SIZES], "BLEU does not follow the loss"),
        ([Training(n, 20 * n**-0.2, 20 * n**-0.2) for n in SIZES], "BLEU did not rise as the loss fell"),
        ([Training(n, 20 * n**-0.2, 0.0) for n in SIZES], "the BLEU of all trainings is 0.0"),
        ([Training(n, 5 - 1e-11 * n, n / 1000) for n in SIZES], "all losses are the same"),
        ([Training(n, 0.0, 100.0) for n in SIZES], "a loss is 0"),
    ],
)
def test_what_cannot_be_estimated_says_why(trainings: list[Training], said: str) -> None:
    found = estimate_gain(trainings, 29_000)
    assert found.refusal is not None
    assert said in found.refusal
    assert str(found) == f"twice the data: no estimate, because {found.refusal}"
    assert found.bleu == 0.0


def test_the_sentence_has_the_number_and_its_interval() -> None:
    found = estimate_gain(planted(0.2, 0.005, 4), 29_000)
    low, high = found.bleu_interval
    assert low > 0
    assert str(found) == f"twice the data: about {found.bleu:+.1f} BLEU ({low:.1f} to {high:.1f})"
    unsure = estimate_gain(planted(0.1, 0.02, 9, SIZES[1:]), 29_000)
    assert unsure.refusal is None
    assert unsure.bleu_interval[0] < 0
    assert "chance alone could explain it" in str(unsure)
