"""The learning-rate schedules against their formulas."""

import itertools
import math

import pytest

from multihead.training.config import TrainingConfig
from multihead.training.optimizer import learning_rate


def settings(schedule, **changes):
    return TrainingConfig(**{"updates": 1000, "learning_rate": 2e-3, "warmup": 100, "schedule": schedule, **changes})


def rates(config, steps, width=512):
    return [learning_rate(config, step, width) for step in steps]


@pytest.mark.parametrize("width", [32, 512, 1024])
@pytest.mark.parametrize("warmup", [1, 7, 4000])
def test_noam_is_the_equation_of_the_paper(width, warmup):
    config = settings("noam", learning_rate=1.0, warmup=warmup)
    for step in (1, 2, warmup, warmup + 1, 10 * warmup, 100_000):
        assert learning_rate(config, step, width) == pytest.approx(
            1 / math.sqrt(width) * min(1 / math.sqrt(step), step / warmup**1.5), rel=1e-12
        )


def test_noam_peaks_at_the_end_of_its_warmup():
    found = rates(settings("noam"), range(1, 1001))
    assert max(found) == found[99] == pytest.approx(2e-3 / math.sqrt(512 * 100))


def test_linear_rises_to_its_peak_and_falls_to_zero_after_the_last_update():
    config = settings("linear")
    found = rates(config, range(1, 1002))
    assert found[99] == max(found) == 2e-3
    assert found[-1] == 0.0  # update 1001, which never is
    assert found[-2] > 0
    rising, falling = found[:100], found[99:]
    for part in (rising, falling):
        steps = [after - before for before, after in itertools.pairwise(part)]
        assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    assert rising[0] == pytest.approx(2e-3 / 100)


def test_a_trapezoid_is_high_until_its_last_quarter():
    found = rates(settings("trapezoid"), range(1, 1002))
    assert found[:100] == pytest.approx([2e-3 * step / 100 for step in range(1, 101)])
    assert found[99:750] == [2e-3] * 651
    assert found[-1] == 0.0  # update 1001, which never is
    falling = [before - after for before, after in itertools.pairwise(found[750:])]
    assert falling == pytest.approx([2e-3 / 250] * len(falling), rel=1e-6)


def test_inverse_square_root():
    found = rates(settings("inverse_sqrt"), range(1, 1001))
    assert found[99] == max(found) == 2e-3
    assert found[:100] == pytest.approx([2e-3 * step / 100 for step in range(1, 101)])
    assert found[399] == pytest.approx(2e-3 / 2)
    assert found[899] == pytest.approx(2e-3 / 3)


def test_cosine_is_half_a_period():
    """Half of the peak at the middle of the decay, symmetric around it, flat at both ends."""
    found = rates(settings("cosine", updates=1100), range(1, 1102))
    assert found[99] == max(found) == 2e-3
    falling = found[99:]  # updates 100 to 1101
    assert len(falling) == 1002
    assert falling[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(after < before for before, after in itertools.pairwise(falling))
    assert [a + b for a, b in zip(falling, reversed(falling), strict=True)] == pytest.approx([2e-3] * 1002)
    third = 100 + 1001 / 3  # cos(pi / 3) = 1/2: three quarters of the peak are left
    assert learning_rate(settings("cosine", updates=1100), round(third), 512) == pytest.approx(1.5e-3, rel=1e-2)


def test_constant_is_constant():
    found = rates(settings("constant"), range(1, 1001))
    assert set(found[99:]) == {2e-3}
    assert found[:100] == pytest.approx([2e-3 * step / 100 for step in range(1, 101)])


@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize(("lr_mul", "warmup"), [(2.0, 4000), (0.5, 128_000)])
def test_noam_with_lr_mul_is_that_of_the_documents(width, lr_mul, warmup):
    """002: ``lr = lr_mul * _get_lr_scale()``, the scale being d_model^-0.5 min(n^-0.5, n warmup^-1.5)."""

    def documents(step):
        scale = (width**-0.5) * min(step ** (-0.5), step * warmup ** (-1.5))
        return lr_mul * scale

    config = settings("noam", learning_rate=lr_mul, warmup=warmup)
    for step in (1, 17, warmup - 1, warmup, warmup + 1, 3 * warmup):
        assert learning_rate(config, step, width) == pytest.approx(documents(step), rel=1e-12)


@pytest.mark.parametrize("width", [128, 512])
def test_noam_is_the_inverse_square_root_with_another_name_for_its_peak(width):
    noam = settings("noam", learning_rate=1.0)
    other = settings("inverse_sqrt", learning_rate=1 / math.sqrt(width * 100))
    assert rates(noam, range(1, 500), width) == pytest.approx(rates(other, range(1, 500), width), rel=1e-12)


ALL = ["linear", "cosine", "inverse_sqrt", "noam", "constant"]


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("warmup", [1, 2, 100, 999])
def test_continuous_at_the_end_of_the_warmup(schedule, warmup):
    """Both branches of the formula meet there."""
    found = rates(settings(schedule, warmup=warmup, updates=2000), range(1, 2001))
    peak = found[warmup - 1]
    assert peak == max(found)
    assert found[warmup] >= peak * (1 - max(0.75 / warmup, 1 / (2001 - warmup))) - 1e-12
    if warmup > 1:
        assert found[warmup - 2] == pytest.approx(peak * (1 - 1 / warmup))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_nothing_is_left_after_the_last_update(schedule):
    config = settings(schedule)
    assert learning_rate(config, 1001, 512) == pytest.approx(0.0, abs=1e-15)
    assert 0 < learning_rate(config, 1000, 512) < 3e-3 * 2e-3


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("warmup", [0, 1, 999, 1000, 5000])
def test_no_warmup_makes_a_rate_that_cannot_be_used(schedule, warmup):
    found = rates(settings(schedule, warmup=warmup), range(1, 1001))
    assert all(0 < rate <= 2e-3 for rate in found)


@pytest.mark.parametrize("schedule", ALL)
def test_asking_in_another_order_changes_nothing(schedule):
    config = settings(schedule)
    forwards = rates(config, range(1, 50))
    assert rates(config, reversed(range(1, 50))) == forwards[::-1]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "noam", "constant"])
def test_the_length_of_the_run_only_matters_where_it_is_in_the_formula(schedule):
    assert rates(settings(schedule, updates=10), [5, 500]) == rates(settings(schedule, updates=10_000), [5, 500])
