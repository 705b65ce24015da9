"""What a comparison of systems found, for people and for programs; how it is found is `workflows.compare`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multihead.attention.drawing import display_width
from multihead.metrics.significance import LEVEL, Measure, Measured
from multihead.metrics.suspicion import Suspicion
from multihead.metrics.tables import table
from multihead.text.tokenizer import visible
from multihead.workflows.text_statistics import TextStatistics


@dataclass(frozen=True)
class System:
    """One set of translations."""

    name: str
    outputs: list[str]
    cut: list[int]
    """Lines (from 1) whose translation reached the length limit; none of a file."""
    statistics: TextStatistics
    remarks: list[Suspicion]
    """What the translations look like, where that is not as people write."""


@dataclass(frozen=True)
class SentencePair:
    """A sentence that two systems translate differently well."""

    line: int
    source: str | None
    reference: str
    outputs: tuple[str, str]
    """The first system's, and the other's."""
    scores: tuple[float, float]
    """chrF of each."""


@dataclass(frozen=True)
class Contrast:
    """A system beside the first one, sentence by sentence."""

    equal: int
    """Lines that read the same."""
    better: int
    """Lines with a higher chrF than the first system's."""
    worse: int
    sentences: list[SentencePair]
    """Those whose chrF differs most, the largest difference first."""


@dataclass(frozen=True)
class Comparison:
    """Systems on one test set; what the others are compared with comes first."""

    systems: list[System]
    measured: Measured
    contrasts: list[Contrast]
    """One for each system but the first."""
    references: TextStatistics
    remarks: list[Suspicion]
    """What the references look like, where that is not as people write."""
    language: str | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the translations, but for those of the sentences that differ most."""
        systems = [
            {
                "name": system.name,
                "measures": [measure.as_dict() for measure in measures],
                "statistics": system.statistics.as_dict(),
                "cut": system.cut,
                "remarks": [remark.as_dict() for remark in system.remarks],
            }
            for system, measures in zip(self.systems, self.measured.systems, strict=True)
        ]
        for row, contrast in zip(systems[1:], self.contrasts, strict=True):
            row["against_first"] = asdict(contrast)
        return {
            "lines": self.references.lines,
            "language": self.language,
            "test": self.measured.test,
            "trials": self.measured.trials,
            "resamples": self.measured.resamples,
            "seed": self.measured.seed,
            "systems": systems,
            "references": {
                "statistics": self.references.as_dict(),
                "remarks": [remark.as_dict() for remark in self.remarks],
            },
        }

    def __str__(self) -> str:
        names = [system.name for system in self.systems]
        parts = [_scores(names, column) for column in zip(*self.measured.systems, strict=True)]
        parts += [self.measured.how, self._statistics()]
        told = (_sentences(names[0], *one) for one in zip(names[1:], self.contrasts, strict=True))
        return "\n\n".join([*parts, *filter(None, told)])

    def _statistics(self) -> str:
        head = ["", "words", "of references'", "repetition", "loops", "empty", "copies", "cut", "equal to first"]
        rows = [[*head, "better", "worse"]]
        rows.append(["references", *_counts(self.references), *[""] * 4])
        for place, system in enumerate(self.systems):
            contrast = self.contrasts[place - 1] if place else None
            beside = [f"{n:,}" for n in (contrast.equal, contrast.better, contrast.worse)] if contrast else [""] * 3
            rows.append([system.name, *_counts(system.statistics), f"{len(system.cut):,}", *beside])
        return table(rows)


def _scores(names: Sequence[str], measures: Sequence[Measure]) -> str:
    """One score of all systems, under its signature."""
    first = measures[0]
    rows = []
    for name, one in zip(names, measures, strict=True):
        row = [f"  {name}", f"{one.score:.2f}", f"[{one.low:.2f}, {one.high:.2f}]"]
        if one.p is None:
            rows.append([*row, "", "", ""])
            continue
        verdict = f"significant at {LEVEL}" if one.significant else f"not significant at {LEVEL}"
        rows.append([*row, f"{one.score - first.score:+.2f}", f"p = {one.p:.4f}", verdict])
    return f"{first.name}  {first.signature}\n{table(rows)}"


def _counts(text: TextStatistics) -> list[str]:
    lines = [f"{len(numbers):,}" for numbers in (text.loops, text.empty, text.copies)]
    return [f"{text.words:,}", f"{text.length_ratio:.3f}", f"{text.repetition:.2%}", *lines]


def _sentences(first: str, other: str, contrast: Contrast) -> str:
    """Those that differ most; nothing if none was asked for."""
    if not contrast.better + contrast.worse:
        return f"{first} and {other}: no sentence has another chrF"
    if not contrast.sentences:
        return ""
    parts = [f"{first} and {other}: the sentences whose chrF differs most"]
    for one in contrast.sentences:
        mine, theirs = one.outputs
        told = [("source", one.source), ("reference", one.reference), (first, mine), (other, theirs)]
        width = max(display_width(name) for name, _ in told)
        rows = [f"line {one.line}: {one.scores[0]:.1f} and {one.scores[1]:.1f}"]
        rows += [
            f"  {name}{' ' * (width - display_width(name))}  {visible(text)}" for name, text in told if text is not None
        ]
        parts.append("\n".join(rows))
    return "\n".join(parts)
