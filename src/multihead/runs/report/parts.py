"""Train parts of a run's text, to measure what more data gains.

Each training is an ordinary run (`runs.translator`), and its outcome a line of ``trainings.jsonl``. So the work can be
stopped at any time, and the same command goes on. `runs.report.plan` says which trainings there are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.errors import ConfigurationError, Interrupted
from multihead.metrics.power_law import Gain, Training, estimate_gain
from multihead.planning.settings import RunConfig, read_begun_run
from multihead.preparing.derived import derive, nested_part
from multihead.preparing.prepared import PreparedText
from multihead.runs.best.plan import budget_of
from multihead.runs.curves import Log, read_log
from multihead.runs.report import plan
from multihead.runs.report.plan import Outcome, Part, ReportConfig
from multihead.runs.translator.train import train
from multihead.training.budget import Journal
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext
from multihead.training.progress import format_duration

_JOURNAL = "trainings.jsonl"


@dataclass(frozen=True)
class Point:
    """A training with some of the pairs."""

    pairs: int
    updates: int
    seed: int
    loss: float
    bleu: float
    """Of greedy search on the validation set."""


@dataclass(frozen=True)
class DataGain:
    """What was measured with parts of the text, and what follows from it."""

    points: tuple[Point, ...]
    length: float
    """How long the trainings were, in relation to those planned for so many pairs."""
    shortened: bool
    """Whether the time did not suffice for all planned updates."""
    estimate: Gain


def measure_gain(
    run: Path, folder: Path, decided: ReportConfig, config: RunConfig, text: PreparedText, context: RunContext
) -> DataGain | None:
    """Do the trainings that are left, and estimate what twice the data gains; None if there are none.

    Args:
        run: the run of which the parts are, for its own outcome.
        folder: the folder of the report.
        decided: which trainings there are.
        config: the decisions of the run.
        text: its text.
        context: how to report, and what stops the work.

    Raises:
        Interrupted: ``context.stop_signal`` returned a signal; the same call goes on.
    """
    if not decided.parts:
        return None
    journal, began = Journal(folder / _JOURNAL, context.say), context.started
    for index in range(len(decided.parts)):
        if journal.value(index + 1, "made") is not None:
            continue
        part, before = decided.parts[index], journal.spent
        budget = _budget(index, decided, journal, before + time.monotonic() - began)
        if (number := context.stop_signal()) is not None:
            raise Interrupted(number, "stopped between two trainings; run the same command again to continue")
        context.say(
            f"training {index + 1} of {len(decided.parts)}: {part.pairs:,} pairs, seed {part.seed}, "
            + (f"{part.updates:,} updates" if budget is None else format_duration(budget))
            + f" ({format_duration(before)} of {format_duration(decided.budget or 0.0)} are spent)"
        )
        outcome = _train(folder, part, budget, config, text, context, began)
        now = time.monotonic()
        spent = before + max(now - began, outcome["seconds"])
        journal.append({"step": index + 1, "spent": round(spent, 3), **outcome})
        began = now
    points = [
        Point(part.pairs, journal.value(i + 1, "made"), part.seed, *(journal.value(i + 1, n) for n in ("loss", "bleu")))
        for i, part in enumerate(decided.parts)
    ]
    shortened = any(journal.value(i, "budget") is not None for i in range(len(decided.parts)))
    if decided.whole and not shortened:
        own = decided.own or own_outcome(read_log(run), run)
        points.append(Point(config.data.pairs, own.updates, config.training.seed, own.loss, own.bleu))
    found = estimate_gain([Training(p.pairs, p.loss, p.bleu) for p in points], config.data.pairs)
    return DataGain(tuple(points), decided.length, shortened, found)


def _budget(index: int, decided: ReportConfig, journal: Journal, spent: float) -> float | None:
    """Seconds of a training, if they have to be limited; decided once, and kept in the journal."""
    known = journal.value(index, "limit")
    if known is None:
        assert decided.budget is not None
        possible = budget_of(plan.stages(decided.parts), index, decided.budget, spent)
        before = [
            {name: journal.value(i + 1, name) for name in ("made", "seconds", "validating")} for i in range(index)
        ]
        limited = _expected(before, decided.parts[index].updates) > possible
        entry = {"step": index, "spent": round(journal.spent, 3), "limit": limited}
        journal.append({**entry, "budget": round(possible, 3)} if limited else entry)
    value: float | None = journal.value(index, "budget")
    return value


def _expected(before: Sequence[Mapping[str, float | int]], updates: int) -> float:
    """Seconds of a training with so many updates: validations take as long as in those before it."""
    made, seconds, validating = (sum(one[name] for one in before) for name in ("made", "seconds", "validating"))
    return (seconds - validating) / made * updates + validating / len(before) if made else 0.0


def _train(
    folder: Path,
    part: Part,
    budget: float | None,
    config: RunConfig,
    text: PreparedText,
    context: RunContext,
    began: float,
) -> dict[str, Any]:
    """Train a part, or go on with it; returns what the journal keeps."""
    place = folder / "trainings" / part.name
    derive(text, place / "text", context, kept=nested_part(text, part.share, part.seed))
    train(
        say=context.say,
        stop_signal=context.stop_signal,
        use_threads=context.use_threads,
        started=began,
        data=place / "text",
        output=place / "run",
        **plan.training_settings(config, part, budget),
    )
    log = read_log(place / "run")
    kept = kept_record(log, place / "run")
    times = {
        "seconds": max(record["seconds"] or 0.0 for record in log),
        "validating": sum(record["took"] or 0.0 for record in log if record["kind"] == "validation"),
    }
    return {**times, "made": kept["last"], "loss": kept["loss"], "bleu": kept["bleu"]}


def kept_record(log: Log, folder: Path) -> dict[str, Any]:
    """The validation of the model that a run has kept, with its last update as ``last``.

    Raises:
        ConfigurationError: the run has not validated a model.
    """
    by = read_begun_run(folder).training.best_by
    judged = _judged(log, by)
    if not judged:
        raise ConfigurationError(f"{folder}: nothing was validated yet; wait for the first validation")
    best = max(judged, key=lambda record: (-record[by] if by == "loss" else record[by], -record["loss"]))
    return {**best, "last": max(record["step"] for record in log)}


def _judged(log: Log, by: str) -> list[dict[str, Any]]:
    """The validations by which a run may have kept a model."""
    return [
        record for record in log if record["kind"] == "validation" and None not in map(record.get, ("bleu", "loss", by))
    ]


def own_outcome(log: Log, folder: Path) -> Outcome:
    """What a run itself has reached; errors as `kept_record`."""
    kept = kept_record(log, folder)
    return Outcome(updates=kept["last"], loss=kept["loss"], bleu=kept["bleu"])


def require_finished(log: Log, training: TrainingConfig, folder: Path) -> None:
    """Check that a run has ended, by its updates or its patience: parts are planned by its length.

    Args:
        log: of the run.
        training: its settings.
        folder: its folder.

    Raises:
        ConfigurationError: it has not, or it has not validated a model.
    """
    best = kept_record(log, folder)
    after = [record["step"] for record in _judged(log, training.best_by)]
    plans = [record["updates"] for record in log if record["kind"] == "plan" and type(record.get("updates")) is int]
    planned = plans[-1] if plans else training.updates  # a budget changes the plan
    impatient = training.patience and sum(step > best["step"] for step in after) >= training.patience
    if max(after) < planned and not impatient:
        raise ConfigurationError(
            f"{folder}: after {best['last']:,} of {planned:,} updates, this run has not ended, and parts of its text "
            "are trained to be compared with a finished one: wait for its end, or go on with it by the command that "
            "began it; a report without budget (--budget) can be written at any time"
        )
