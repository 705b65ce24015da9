"""Plans: a schedule that is stretched has no jump, never rises again, and ends with the run."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from multihead.training.config import TrainingConfig
from multihead.training.optimizer import learning_rate
from multihead.training.plan import (
    FALLING,
    Decision,
    first_plan,
    follow,
    last_validation,
    place,
    validation_due,
    validations,
)

SCHEDULES = [*FALLING, "inverse_sqrt", "noam", "constant"]


def settings(**changes):
    return TrainingConfig(
        **{"updates": 1000, "learning_rate": 2e-3, "warmup": 100, "budget": 60.0, "average": 0.9, **changes}
    )


def decision(plan, updates):
    return Decision(updates=updates, validate_every=plan.validate_every, average=plan.average, check=updates)


def rates(config, decisions, width=64):
    """The rate of every update of a run, and what it would be after its end; ``decisions`` are lengths by update."""
    plan, found, step = first_plan(config), [], 0
    while True:
        if step in decisions:
            plan = follow(config, plan, step, decision(plan, max(decisions[step], step)))
        step += 1
        level, virtual = place(config, plan, step)
        found.append(level * learning_rate(config, virtual, width))
        if step > plan.updates:
            return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("updates", "warmup"), [(1000, 100), (1000, 0), (7, 400), (1, 1), (50, 50)])
def test_without_another_length_the_schedule_is_that_of_a_given_number_of_updates(schedule, updates, warmup):
    config = settings(schedule=schedule, updates=updates, warmup=warmup)
    expected = [learning_rate(config, step, 64) for step in range(1, updates + 2)]
    assert rates(config, {}) == expected
    assert rates(config, dict.fromkeys(range(0, updates, 3), updates)) == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_up_to_a_new_length_the_schedule_is_the_old_one(schedule):
    config = settings(schedule=schedule)
    assert rates(config, {400: 700})[:400] == rates(config, {})[:400]


def test_after_a_new_length_a_linear_schedule_falls_along_the_line_to_its_end():
    found = rates(settings(), {400: 700, 600: 900})
    for s, end in ((400, 700), (600, 900)):
        start = found[s - 1]
        for t in range(s + 1, 601 if s == 400 else 901):
            assert found[t - 1] == pytest.approx(start * (end + 1 - t) / (end + 1 - s))
    assert len(found) == 901
    assert found[-1] == 0.0


lengths = st.dictionaries(st.integers(0, 90), st.integers(1, 160), max_size=5)


@examples(max_examples=40)
@given(lengths, st.sampled_from(SCHEDULES), st.integers(1, 100), st.integers(1, 100))
def test_a_rate_never_rises_after_the_warmup_and_ends_where_the_schedule_ends(decisions, schedule, warmup, falling):
    config = settings(schedule=schedule, updates=warmup + falling, warmup=warmup)
    found = rates(config, decisions)
    top = found.index(max(found))
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(found[top:]))
    slope = found[0]  # the warm-up's, which is not exceeded
    rising = found[: top + 1]
    assert all(after - before <= slope * (1 + 1e-9) for before, after in itertools.pairwise(rising))
    assert max(found) <= max(rates(config, {})) * (1 + 1e-12)
    if schedule in FALLING:
        assert found[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(rate >= 0 for rate in found)


@examples(max_examples=40)
@given(lengths, st.integers(0, 90))
def test_a_schedule_without_an_end_does_not_depend_on_the_length(decisions, warmup):
    config = settings(schedule="inverse_sqrt", warmup=warmup)
    found = rates(config, decisions)
    assert found == [learning_rate(config, step, 64) for step in range(1, len(found) + 1)]


@examples(max_examples=40)
@given(
    *(st.integers(1, 120), st.integers(1, 120), st.integers(1, 50)),
    st.dictionaries(st.integers(1, 120), st.integers(1, 50), max_size=4),
)
def test_validations_are_counted_as_they_come(updates, start, every, changes):
    """From any update on, and after any intervals."""
    plan, validated_at, found = first_plan(settings(updates=updates, validate_every=every)), 0, []
    counts = {}
    for step in range(1, updates + 1):
        if step in changes and step < start:
            plan = plan.model_copy(update={"validate_every": changes[step]})
        if step == min(start, updates):
            counts[step] = validations(plan, step, validated_at)
            assert step - last_validation(plan, step, validated_at) <= plan.validate_every
        if validation_due(plan, step, validated_at):
            validated_at = step
            found.append(step)
    ((step, count),) = counts.items()
    assert sum(place >= step for place in found) == count
    assert found[-1] == updates


def test_a_given_model_is_validated_before_the_first_update():
    plan = first_plan(settings())
    assert validation_due(plan, 0, -1)
    assert not validation_due(plan, 0, 0)


@pytest.mark.parametrize(("replanned", "updates", "part"), [(("sentences",), 3, 8), (("sentences",), 9, 1), ((), 3, 1)])
def test_a_run_too_short_to_measure_a_validation_translates_few_sentences(replanned, updates, part):
    assert first_plan(settings(updates=updates, replanned=replanned)).part == part
