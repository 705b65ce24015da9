"""The plan of a run with a budget: length, validations, learning rate.

A run with a budget begins with an estimate of the number of updates, T0, for which its schedule is defined
(`training.optimizer`). While it goes on, the number is decided anew from time to time (`training.budget`). The rest of
a falling schedule is then stretched or compressed to end with the run: after a decision at update s for T updates,

    rate(t) = level * schedule(v(t)),    v(t) = v(s) + (T0 + 1 - v(s)) (t - s) / (T + 1 - s)        for t > s

so the rate has no jump, never rises after the warm-up, and reaches the end of the schedule right after update T. With
T = T0 throughout, v(t) = t: the schedule is that of a run with a given number of updates.

The warm-up is not stretched. If the run becomes shorter than two warm-ups, the rate rises for half of the run and falls
from there: ``level`` is the share of the peak that it reaches. Schedules without an end (inverse_sqrt, noam, constant)
stay as they are.

A `Plan` is part of the state of a run, and a function of the decisions alone; time is measured in `training.budget`.
"""

from __future__ import annotations

from pydantic import Field

from multihead.configuration import Settings
from multihead.training.config import TrainingConfig

FALLING = ("linear", "cosine", "trapezoid")
"""Schedules that end with the run."""
_FIRST_CHECK = 50
"""The pace is first measured after this part of the estimated updates."""
_FEWEST = 5
"""... or after so many updates, if a quarter of the run is not shorter."""
PARTS = 8
"""At least one in so many sentences is translated at a validation."""


class Decision(Settings):
    """What is decided about the rest of a run."""

    updates: int = Field(ge=1)
    """Updates of the whole run."""
    validate_every: int = Field(ge=1)
    """Updates between validations, counted from the last one; the last update is validated, too."""
    average: float = Field(ge=0, lt=1)
    """Decay of the moving average of the weights."""
    part: int = Field(default=1, ge=1)
    """One in so many sentences is translated at the last validation, if that is the only one."""
    check: int = Field(ge=1)
    """The update after which the next decision is made."""


class Plan(Decision):
    """The decision that holds, and how the schedule is stretched to it."""

    start: int
    """The update s after which the schedule is stretched."""
    virtual: float
    """v(s), the place in the schedule of T0 updates."""
    level: float = 1.0
    """Factor of the rate after ``start``; below 1 only if the warm-up was cut short."""


def first_plan(config: TrainingConfig) -> Plan:
    """The plan of a run that begins: its settings."""
    peak = _peak(config)
    return Plan(
        updates=config.updates,
        validate_every=config.validate_every,
        average=config.average,
        part=PARTS if "sentences" in config.replanned and config.updates <= _FEWEST else 1,  # nothing can be measured
        check=max(config.updates // _FIRST_CHECK, min(_FEWEST, -(-config.updates // 4))),
        start=peak,
        virtual=peak,
    )


def follow(config: TrainingConfig, plan: Plan, step: int, decision: Decision) -> Plan:
    """The plan after a decision at update ``step``."""
    values = {name: getattr(decision, name) for name in Decision.model_fields}
    if decision.updates != plan.updates:
        if step < plan.start:  # the rate still rises
            peak = _peak(config)
            start = min(peak, max(step, (decision.updates + 1) // 2))
            values |= {"start": start, "virtual": peak, "level": start / peak}
        else:
            level, virtual = place(config, plan, step)
            values |= {"start": step, "virtual": virtual, "level": level}
    return plan.model_copy(update=values)


def place(config: TrainingConfig, plan: Plan, step: int) -> tuple[float, float]:
    """Where update ``step`` is in the schedule of ``config.updates`` updates: ``level`` and v(step)."""
    if config.schedule not in FALLING or step < plan.start:
        return 1.0, float(step)
    rest = (config.updates + 1 - plan.virtual) * (step - plan.start) / (plan.updates + 1 - plan.start)
    return plan.level, plan.virtual + rest


def validations(plan: Decision, step: int, validated_at: int) -> int:
    """How many validations follow update ``step``, including that of the last update.

    Args:
        plan: the length of the run and the interval.
        step: the update after which they are counted; one that is due is counted.
        validated_at: the last update after which the model was validated.
    """
    last = last_validation(plan, step, validated_at)
    return max(-(-(plan.updates - last) // plan.validate_every), 1)


def last_validation(plan: Decision, step: int, validated_at: int) -> int:
    """The update that the next interval is counted from, at most one interval ago."""
    return max(validated_at, step - plan.validate_every, 0)


def validation_due(plan: Decision, step: int, validated_at: int) -> bool:
    """Whether the model is to be validated after update ``step``."""
    if step <= validated_at:
        return False
    return validated_at < 0 or step == plan.updates or step - validated_at >= plan.validate_every


def _peak(config: TrainingConfig) -> int:
    """The update with the highest rate in a schedule of ``config.updates`` updates."""
    return min(max(config.warmup, 1), config.updates)
