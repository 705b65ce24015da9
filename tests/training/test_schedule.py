"""The learning rate against its formulas: a function of the step and the settings, and of nothing else."""

import itertools
import math

import pytest

from multihead.training.config import TrainingConfig
from multihead.training.schedule import learning_rate


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


def test_inverse_square_root():
    found = rates(settings("inverse_sqrt"), range(1, 1001))
    assert found[99] == max(found) == 2e-3
    assert found[:100] == pytest.approx([2e-3 * step / 100 for step in range(1, 101)])
    assert found[399] == pytest.approx(2e-3 / 2)
    assert found[899] == pytest.approx(2e-3 / 3)


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt", "noam"])
@pytest.mark.parametrize("warmup", [0, 1, 999, 1000, 5000])
def test_no_warmup_makes_a_rate_that_cannot_be_used(schedule, warmup):
    found = rates(settings(schedule, warmup=warmup), range(1, 1001))
    assert all(0 < rate <= 2e-3 for rate in found)


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt", "noam"])
def test_asking_in_another_order_changes_nothing(schedule):
    config = settings(schedule)
    forwards = rates(config, range(1, 50))
    assert rates(config, reversed(range(1, 50))) == forwards[::-1]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "noam"])
def test_the_length_of_the_run_only_matters_where_it_is_in_the_formula(schedule):
    assert rates(settings(schedule, updates=10), [5, 500]) == rates(settings(schedule, updates=10_000), [5, 500])
