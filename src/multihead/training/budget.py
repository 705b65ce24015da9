"""Holding a budget: measure the pace, and plan the rest of a run anew.

A budget is the time of a run from its start to its end: reading and preparing the text, updates, validations,
checkpoints, and writing the best model. The times of all starts add up; pauses between a stop and the next start do not
count. Time that a killed process spent counts as far as the journal knows it, which is up to its last line.

After certain updates (`Plan.check`, about every fiftieth of the budget, more often near the end) the first process
knows the time that is spent and the seconds of an update, of a validation and of saving, and decides (`choose`)

* the number of updates: the current one, if it ends the run between 97% and 100% of the budget; otherwise that which
  ends it at 98.5%;
* the interval of validations: all that follow take at most a tenth of the time that is left. If a single one takes
  more, it is made after the last update, and translates a part of the sentences that takes a tenth of the budget.

Until the first validation, and when the last one is long ago, a small part of one is timed (`Pacer.decide`).

Decisions depend on the clock, and weights on the decisions. So every decision is appended to ``plan.jsonl`` and forced
to the disk before the next update, and a run that resumes at an earlier checkpoint reads it there instead of deciding
again: the same decisions give the same weights. A line carries its own hash; what a damaged line decided is decided
again, and the run says so.

    plan.jsonl    one line per check: update, seconds spent, decision, measurements; and a line per checkpoint
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from multihead.configuration import MOST_UPDATES
from multihead.files import force, fsync, write_errors, write_text
from multihead.training.checkpoint import RunState
from multihead.training.config import TrainingConfig
from multihead.training.plan import PARTS, Decision, Plan, last_validation, validations
from multihead.training.progress import format_duration

JOURNAL = "plan.jsonl"
_TARGET, _TOLERANCE = 0.985, 0.015
"""Where in the budget a run is planned to end, and how far from there it may be expected without a new plan."""
_VALIDATING = 0.1
"""Maximum share of the remaining time that validations take; a single one translates fewer sentences to keep to it."""
_CHECK = 0.02
"""Share of the budget between checks."""
_FRESH = 0.15
"""Share of the budget after which the cost of a validation is measured again ..."""
_CHANGE = 1.25
"""... or if updates have become slower or faster by this factor ..."""
_SMALL = 0.01
"""... unless it is a smaller share of the budget."""
_UNCOUNTED = 2
"""Updates after a start that do not count: they compile, and fill caches."""
_UNSAVED = 0.06
"""Share of the budget after which a checkpoint is written though no validation is due."""
_SAVING = 0.05
"""Maximum share of the time that such checkpoints, and parts of validations that are timed, take."""
_SHORTEST, _LONGEST = 0.9, 0.99999
"""Limits of the decay of the moving average."""
_FORGETTING = 0.7
"""A checkpoint is expected to take at least this share of what the one before was expected to take."""


@dataclass(frozen=True)
class Costs:
    """What a run has taken, and what its parts take, in seconds."""

    spent: float
    """Time of the run so far, of all its starts."""
    update: float
    """An update, including its share of the log."""
    validation: float = 0.0
    """A validation; 0 while that is unknown."""
    saving: float = 0.0
    """Writing the last checkpoint and the best model, which the end of the run waits for."""


def choose(config: TrainingConfig, plan: Plan, step: int, validated_at: int, costs: Costs) -> Decision:
    """Decide the rest of a run, after update ``step``.

    Args:
        config: the settings of the run; it has a budget.
        plan: the current plan.
        step: the last update.
        validated_at: the last update after which the model was validated.
        costs: what was measured.
    """
    assert config.budget is not None
    target, part = _TARGET * config.budget, 1
    left = target - costs.spent - costs.saving
    if "validate_every" in config.replanned:
        count = _count_validations(config, plan, step, validated_at, costs)
        if count == 1 and validated_at == 0 and "sentences" in config.replanned:
            part = min(max(math.ceil(costs.validation / (_VALIDATING * config.budget)), 1), PARTS)
            costs = replace(costs, validation=costs.validation / part)
        updates = step + max(int((left - count * costs.validation) / costs.update), 0)
    else:
        count = validations(plan, step, validated_at)
        each = costs.update + costs.validation / plan.validate_every
        updates = step + max(int((left - costs.validation) / each), 0)
    updates = min(updates, MOST_UPDATES)
    kept = (plan.updates - step) * costs.update + count * costs.validation
    if abs(kept - left) <= _TOLERANCE * config.budget:
        updates = plan.updates
    decision = plan.model_copy(update={"updates": updates})
    every = plan.validate_every
    if "validate_every" in config.replanned and validations(decision, step, validated_at) != count:
        every = max(-(-(updates - last_validation(plan, step, validated_at)) // count), 1)
    interval = min(_CHECK * config.budget, (left - count * costs.validation) / 4) / costs.update
    check = min(step + max(round(interval), 1), max(updates, step + 1))
    average = plan.average if updates == plan.updates else _average(config, updates)
    return Decision(updates=updates, validate_every=every, average=average, part=part, check=check)


def _average(config: TrainingConfig, updates: int) -> float:
    """The decay with which the average remembers the same share of so many updates."""
    if "average" not in config.replanned or not config.average:
        return config.average
    least, most = min(config.average, _SHORTEST), max(config.average, _LONGEST)
    return min(max(1 - (1 - config.average) * config.updates / updates, least), most)


def _count_validations(config: TrainingConfig, plan: Plan, step: int, validated_at: int, costs: Costs) -> int:
    """How many validations are to follow: as many per update as the settings say, if that is affordable.

    The current number stays if it is close, so that measurements do not move the interval all the time.
    """
    assert config.budget is not None
    planned = validations(plan, step, validated_at)
    usual = max(round(config.validate_every * plan.updates / config.updates), 1)
    wanted = -(-(plan.updates - last_validation(plan, step, validated_at)) // usual)
    affordable = wanted
    if costs.validation > 0:
        affordable = int(_VALIDATING * (config.budget - costs.spent) / costs.validation)
    count = max(min(wanted, affordable), 1)
    return planned if 0.75 * count <= planned <= max(affordable, 1) else count


class Pacer:
    """Measures the pace of a run and decides its plan, in the first process.

    Args:
        folder: the run folder.
        config: the settings of the run; it has a budget.
        say: called with a line of output.
        started: when this start began, by ``clock``.
        clock: seconds.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainingConfig,
        say: Callable[[str], None],
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.budget is not None
        self.clock, self._config, self._say, self._started = clock, config, say, started
        self._budget, self._before = config.budget, 0.0
        self._journal = Journal(folder / JOURNAL, say)
        self._costs: Costs | None = None
        self._validated_at, self._update_then, self._rehearsal = -math.inf, 0.0, 0.0
        """When the cost of a validation was measured, the seconds of an update then, and those of the measurement."""
        self._saved_at = started
        self._window, self._updates = clock(), -_UNCOUNTED

    @property
    def spent(self) -> float:
        """Seconds of the budget that are gone."""
        return self._before + self.clock() - self._started

    @property
    def left(self) -> float:
        """Seconds until the planned end."""
        return max(_TARGET * self._budget - self.spent, 0.0)

    def begin(self, state: RunState) -> None:
        """Take up a run at its state: read what former starts have spent."""
        assert state.plan is not None
        self._before, self._costs = self._journal.spent, self._journal.costs
        if state.step > self._journal.last_step:
            self._before = max(self._before, self._budget * state.step / state.plan.updates)
            self._say(
                f"{self._journal.path}: ends before update {state.step}, so the time that is spent is not known; "
                f"{format_duration(self._before)} are assumed"
            )
        self.note(state.step)
        self._window = self.clock()

    def note(self, step: int) -> None:
        """Record the time that is spent until now."""
        self._journal.append({"step": step, "spent": round(self.spent, 3)})

    def end(self, state: RunState) -> None:
        """The run has ended: everything is written."""
        self.note(state.step)
        self._say(f"{format_duration(self.spent)} of the budget of {format_duration(self._budget)} are spent")

    def updated(self) -> None:
        """An update was made."""
        self._updates += 1
        if self._updates == 0:
            self._window = self.clock()

    def saved(self, seconds: float) -> None:
        """The run waited so long for a checkpoint."""
        self._window += seconds
        self._saved_at = self.clock()

    def validated(self, seconds: float) -> None:
        """A validation took so long."""
        self._window += seconds
        self._knows_validation(seconds)

    def save_due(self) -> bool:
        """Whether a checkpoint is to be written, though no validation is due."""
        saving = 0.0 if self._costs is None else self._costs.saving
        return self.clock() - self._saved_at > max(_UNSAVED * self._budget, saving / _SAVING)

    def decide(self, state: RunState, saving: float, rehearse: Callable[[], float]) -> Decision:
        """Measure, and decide the rest of the run after the update of ``state``, or read what was decided there.

        Args:
            state: progress of the run; its plan has a check after this update.
            saving: seconds that the last checkpoint took to write; 0 if there was none.
            rehearse: estimates the seconds of a validation by doing a part of it; 0 = unknown.

        Returns:
            The decision, which is on the disk.
        """
        assert state.plan is not None
        plan, decision = state.plan, self._journal.decision(state.step)
        self._measure(saving)
        if decision is None:
            decision = self._decide(plan, state, rehearse)
            self._journal.discard_after(state.step)
        costs = {} if self._costs is None else {name: round(value, 6) for name, value in asdict(self._costs).items()}
        self._journal.append({"step": state.step, **costs, "spent": round(self.spent, 3), **decision.model_dump()})
        if decision.updates != plan.updates:
            self._say(
                f"after update {state.step}: {decision.updates} updates are planned instead of {plan.updates}, to end "
                f"within {format_duration(self._budget)}: {format_duration(self.spent)} are spent{self._describe()}"
            )
        self._window, self._updates = self.clock(), min(self._updates, 0)
        return decision

    def _decide(self, plan: Plan, state: RunState, rehearse: Callable[[], float]) -> Decision:
        if self._costs is None:  # nothing is measured yet
            soon = min(state.step + 1, plan.updates)
            return Decision(**{**_decided(plan), "check": soon})
        if self._rehearsal_due(self._costs):
            started = self.clock()
            validation = rehearse() or self._costs.validation
            self._rehearsal = self.clock() - started
            self._knows_validation(validation)
        self._costs = replace(self._costs, spent=self.spent)
        return choose(self._config, plan, state.step, state.validated_at, self._costs)

    def _rehearsal_due(self, costs: Costs) -> bool:
        """Whether the cost of a validation matters and is not known well."""
        if costs.validation and costs.validation < _SMALL * self._budget:
            return False
        change = costs.update / self._update_then if self._update_then else math.inf
        old = self.spent - self._validated_at > max(_FRESH * self._budget, self._rehearsal / _SAVING)
        return old or not 1 / _CHANGE < change < _CHANGE

    def _knows_validation(self, seconds: float) -> None:
        self._validated_at = self.spent
        if self._costs is not None:
            self._costs = replace(self._costs, validation=seconds)
            self._update_then = self._costs.update

    def _measure(self, saving: float) -> None:
        """Update the costs by what was measured since the last check: the longer that took, the more it counts.

        A validation is as much faster or slower as an update has become.
        """
        if self._updates <= 0:
            return
        seconds = max(self.clock() - self._window, 1e-9)
        old = self._costs or Costs(self.spent, seconds / self._updates)
        kept = math.exp(-seconds / (_CHECK * self._budget))
        update = kept * old.update + (1 - kept) * seconds / self._updates
        validation = old.validation * update / old.update
        self._costs = Costs(self.spent, update, validation, max(saving, _FORGETTING * old.saving))

    def _describe(self) -> str:
        if self._costs is None:
            return ""
        return f", an update takes {self._costs.update:.2f} s, a validation {self._costs.validation:.1f} s"


def _decided(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in Decision.model_fields}


class Journal:
    """The decisions of a run and the time it has spent: lines of JSON, each with its own hash.

    Args:
        path: the file; it need not exist.
        say: called with a sentence for each damaged line.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n") if path.exists() else [""]
        for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
            entry = _read_line(line)
            if entry is None:
                say(f"{path}: line {number} is damaged; what it decided is decided again")
            else:
                self._entries.append(entry)
        if "".join(map(_line, self._entries)) != "\n".join(lines):
            self._rewrite()

    @property
    def spent(self) -> float:
        """Seconds that all starts have spent."""
        return max((entry["spent"] for entry in self._entries), default=0.0)

    @property
    def last_step(self) -> int:
        """The last update that the journal knows; 0 if it is empty."""
        return max((entry["step"] for entry in self._entries), default=0)

    @property
    def costs(self) -> Costs | None:
        """The last measurements."""
        names = Costs.__dataclass_fields__
        found = (entry for entry in reversed(self._entries) if "update" in entry)
        return next((Costs(**{name: entry[name] for name in names}) for entry in found), None)

    def decision(self, step: int) -> Decision | None:
        """What was decided after update ``step``."""
        for entry in self._entries:
            if entry["step"] == step and "updates" in entry:
                return Decision(**{name: entry[name] for name in Decision.model_fields if name in entry})
        return None

    def value(self, step: int, name: str) -> Any:
        """What a line about ``step`` says of ``name``; ``None`` if there is no such line."""
        return next((entry[name] for entry in self._entries if entry["step"] == step and name in entry), None)

    def append(self, entry: dict[str, Any]) -> None:
        """Add a line; it is on the disk when this returns."""
        self._entries.append(entry)
        with write_errors(self.path), self.path.open("ab") as stream:
            stream.write(_line(entry).encode())
            stream.flush()
            force(stream.fileno())
        if len(self._entries) == 1:
            fsync(self.path.parent)

    def discard_after(self, step: int) -> None:
        """Remove decisions about later updates: they belong to another course of the run."""
        kept = [entry for entry in self._entries if entry["step"] <= step or "updates" not in entry]
        if len(kept) < len(self._entries):
            self._entries = kept
            self._rewrite()

    def _rewrite(self) -> None:
        write_text(self.path, "".join(map(_line, self._entries)))


def _line(entry: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(entry).encode()).hexdigest()
    return json.dumps({**entry, "sha256": digest}) + "\n"


def _read_line(line: str) -> dict[str, Any] | None:
    """The entry of a line; None if it is not as it was written."""
    try:
        entry = json.loads(line)
        del entry["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return entry if _line(entry) == line + "\n" else None
