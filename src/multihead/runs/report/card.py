"""The card of a report, as Markdown and as JSON data.

The file says everything in words and tables; the picture of the curves lies next to it. Text of users is escaped, so
that it is never markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multihead.judging.errors import KINDS, Band, ErrorKind, Errors, Example
from multihead.runs.curves import Log
from multihead.runs.report.parts import DataGain
from multihead.text.vocabulary import visible
from multihead.training.progress import format_duration

PICTURE = "curves.svg"
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&$])")
_LEVEL, _MOST_LEVELS = 5, 4
_SHOWN_KINDS = 5
"""Kinds of errors that have examples; all are in the table."""


@dataclass(frozen=True)
class Report:
    """What a run has learned."""

    run: str
    pairs: int
    logs: Mapping[str, Log]
    """The records of the run, then those that it is compared with (`runs.curves.read_curves`)."""
    gain: DataGain | None
    """None if it was not asked for."""
    errors: Errors
    text: str
    """Which text the errors are of."""
    picture: bool
    """Whether there is a picture of the curves."""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "run": self.run,
            "pairs": self.pairs,
            "curves": {name: judged(log) for name, log in self.logs.items()},
            "gain": None if self.gain is None else {**asdict(self.gain), "sentence": str(self.gain.estimate)},
            "errors": {"text": self.text, **self.errors.as_dict()},
        }

    def summary(self) -> list[str]:
        """The report in a few sentences."""
        (name, log), *_ = self.logs.items()
        best = max(judged(log), key=lambda record: record["bleu"] or 0.0, default=None)
        lines = [] if best is None else [f"{name}: {_outcome(best)} on the validation set"]
        if self.gain is not None:
            lines.append(str(self.gain.estimate))
        kinds = "; ".join(
            f"{KINDS[kind.name]} ({_times(kind.cases)}, {kind.gain:+.1f} BLEU if repaired)"
            for kind in self.errors.kinds[:3]
        )
        return [*lines, f"most frequent errors: {kinds}" if kinds else "no errors were found"]

    def __str__(self) -> str:
        parts = [f"# What {escape(self.run)} has learned", "\n".join(f"* {escape(line)}" for line in self.summary())]
        parts += [*self._curves(), *_gain_section(self.gain, self.pairs), *_error_sections(self.errors, self.text)]
        return "\n\n".join(parts) + "\n"

    def _curves(self) -> list[str]:
        parts = [
            "## Learning curves",
            *([f"![loss and BLEU over updates and over time]({PICTURE})"] if self.picture else []),
        ]
        curves = {name: judged(log) for name, log in self.logs.items()}
        best = max((r["bleu"] or 0.0 for r in next(iter(curves.values()))), default=0.0)
        top = int(best // _LEVEL) * _LEVEL
        levels = [level for level in range(top - (_MOST_LEVELS - 1) * _LEVEL, top + 1, _LEVEL) if level > 0]
        head = ["", "updates", "time", "validation loss", "BLEU", *(f"time to BLEU {level}" for level in levels)]
        rows = []
        for name, records in curves.items():
            last = records[-1] if records else {}
            row = [name, _number(last.get("updates"), ",.0f"), _time(last.get("seconds"))]
            row += [_number(_extreme(min, records, "loss"), ".3f"), _number(_extreme(max, records, "bleu"), ".2f")]
            rows.append([*row, *(_time(time_to(records, level)) for level in levels)])
        note = (
            "The lowest loss and the highest BLEU of each curve, and the time of its first validation with at least so "
            "much BLEU. Losses can be compared between curves with the same subwords only."
        )
        return [*parts, table([head, *rows]), note]


def judged(log: Log) -> list[dict[str, Any]]:
    """The validations of a curve: updates, seconds, loss and BLEU, None where unknown."""
    return [
        {"updates": r.get("step"), "seconds": r.get("seconds"), "loss": r.get("loss"), "bleu": r.get("bleu")}
        for r in log
        if r["kind"] == "validation"
    ]


def time_to(records: Iterable[Mapping[str, Any]], level: float | int) -> float | None:
    """Seconds to the first validation with at least so much BLEU."""
    return next((r["seconds"] for r in records if r["bleu"] is not None and r["bleu"] >= level), None)


def _extreme(choose: Any, records: Sequence[Mapping[str, Any]], key: str) -> float | None:
    found: float | None = choose((r[key] for r in records if r[key] is not None), default=None)
    return found


def _outcome(record: Mapping[str, Any]) -> str:
    when = [] if record["updates"] is None else [f"{record['updates']:,.0f} updates"]
    when += [] if record["seconds"] is None else [format_duration(record["seconds"])]
    loss = "" if record["loss"] is None else f", a loss of {record['loss']:.3f}"
    return f"BLEU {record['bleu'] or 0.0:.2f}{loss} after {' and '.join(when)}"


# --------------------------------------------------------------------------- more data


def _gain_section(gain: DataGain | None, pairs: int) -> list[str]:
    if gain is None:
        return ["## More data", "Not measured: with `--budget`, parts of the text are trained to estimate its gain."]
    head = ["pairs", "updates", "seed", "validation loss", "BLEU"]
    rows = [[f"{p.pairs:,}", f"{p.updates:,}", str(p.seed), f"{p.loss:.3f}", f"{p.bleu:.2f}"] for p in gain.points]
    found = gain.estimate
    how = [
        "Models of the same settings, trained with nested parts of the same text; BLEU is that of greedy search on the "
        "validation set."
    ]
    if found.refusal is None:
        power, follows = found.explained
        low, high = found.loss_interval
        how.append(
            f"The loss falls with the power {found.exponent:.3f} of the pairs, which explains {power:.1%} of its "
            f"variance, and BLEU follows the loss ({follows:.1%}). Twice the pairs: {found.loss:+.3f} loss ({low:.3f} "
            f"to {high:.3f}). Intervals are 95%, from the scatter of {len(gain.points)} trainings, and suppose that "
            "both go on as they are; losses flatten in the end, so the estimate is rather too high."
        )
    if gain.length < 1:
        how.append(
            f"The trainings were {gain.length:.0%} as long as is planned for so many pairs, so the run itself is not "
            "among them. Longer ones may gain more from more data; a larger budget measures them."
        )
    if gain.shortened:
        how.append("Some trainings were cut short, because this machine was slower than expected.")
    return ["## More data", f"**{escape(str(found))}** (from {pairs:,} pairs)", table([head, *rows]), " ".join(how)]


# --------------------------------------------------------------------------- errors


def _error_sections(errors: Errors, text: str) -> list[str]:
    parts = ["## The most frequent errors", f"BLEU {errors.bleu:.2f} on the {errors.lines:,} lines of {escape(text)}."]
    if errors.kinds:
        rows = [[kind.name, KINDS[kind.name], f"{kind.cases:,}", f"{kind.gain:+.2f}"] for kind in errors.kinds]
        parts.append(table([["error", "what it is", "cases", "BLEU if repaired"], *rows]))
        parts.append(
            "What differs from the reference is counted as an error, though it may be another word for the same thing."
        )
    for kind in errors.kinds[:_SHOWN_KINDS]:
        parts += _kind_section(kind)
    parts.append("### Where they are")
    if errors.frequencies:
        parts.append(
            _band_table(errors.frequencies, "words by frequency in the training text", "words", "lost", "{:.1%}")
        )
    parts.append(_band_table(errors.lengths, "sentences by length", "sentences", "BLEU", "{:.2f}"))
    found = errors.statistics
    parts.append(
        f"The translations have {found.length_ratio:.3f} times the words of the references; {len(found.loops):,} lines "
        f"loop, {len(found.empty):,} are empty, and {len(found.copies):,} are copies of their source."
    )
    return parts


def _kind_section(kind: ErrorKind) -> list[str]:
    words = "; ".join(f"{escape(_described(wanted, written))} ({count:,})" for wanted, written, count in kind.words)
    return [
        f"### {kind.name.capitalize()}: {KINDS[kind.name]}",
        f"Most frequent: {words}.",
        *map(_example, kind.examples),
    ]


def _described(wanted: str, written: str) -> str:
    if not wanted:
        return f"“{written}” added"
    return f"“{wanted}” missing" if not written else f"“{written}” for “{wanted}”"


def _example(one: Example) -> str:
    rows = [("source", one.source), ("reference", one.reference), ("translation", one.translation)]
    lines = "\n".join(f"* {name}: {escape(text)}" for name, text in rows)
    return f"Line {one.line:,}, {escape(_described(one.wanted, one.written))}:\n\n{lines}"


def _band_table(bands: Sequence[Band], title: str, counted: str, value: str, form: str) -> str:
    return table([[title, counted, value], *([one.name, f"{one.count:,}", form.format(one.value)] for one in bands)])


# --------------------------------------------------------------------------- Markdown


def escape(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return _MARKUP.sub(r"\\\1", visible(text))


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _number(value: float | int | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)
