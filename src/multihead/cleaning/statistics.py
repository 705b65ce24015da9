"""What a cleaning found: counts, distributions and examples.

Collected while the corpus is written, in constant memory: histograms of what each filter measured, a few examples of
each reason, and the kept pairs that came closest to each threshold. Examples are drawn by a hash of their line, so they
are spread over the corpus and the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.cleaning.filters import Verdicts
from multihead.cleaning.settings import FILTERS, REASONS, CleanSettings, FilterName

BINS = 48
"""Bars of a histogram."""
EXAMPLES = 8
"""Examples of each reason."""
BORDERLINE = 5
"""Kept pairs that are shown for each filter."""

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


class Example(NamedTuple):
    """A pair for the report."""

    line: int
    score: float | None
    detail: str
    source: str
    target: str


@dataclass
class Histogram:
    """How often each value was measured."""

    low: float
    high: float
    kept: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    removed: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, values: npt.NDArray[np.float32], removed: npt.NDArray[np.bool_]) -> None:
        """Count values; those outside go to the first or the last bar."""
        known = ~np.isnan(values)
        places = ((values[known] - self.low) / (self.high - self.low) * BINS).clip(0, BINS - 1).astype(np.int64)
        chosen = removed[known]
        self.removed += np.bincount(places[chosen], minlength=BINS)
        self.kept += np.bincount(places[~chosen], minlength=BINS)


Explain = Callable[[int], Example]
"""Makes an example of a row of the chunk."""


class Statistics:
    """Everything that the report shows.

    Args:
        settings: the thresholds.
    """

    def __init__(self, settings: CleanSettings) -> None:
        self.settings = settings
        self.counts = dict.fromkeys(REASONS, 0)
        """Candidates by reason; "" are kept ones."""
        self.idle: dict[str, str] = {}
        """Filters that were not applied, though not switched off, and why."""
        self.histograms = {name: Histogram(*_range(name, settings.threshold(name))) for name in _SHOWN}
        """What each filter measured on the pairs that reached it, apart from the duplicates."""
        self._examples: dict[str, list[tuple[int, Example]]] = {reason: [] for reason in REASONS[1:]}
        self._borderline: dict[str, list[tuple[float, Example]]] = {name: [] for name in _SHOWN}

    @property
    def read(self) -> int:
        """All candidates."""
        return sum(self.counts.values())

    @property
    def kept(self) -> int:
        """Pairs that were kept."""
        return self.counts[""]

    @property
    def removed(self) -> int:
        """Candidates that were removed."""
        return self.read - self.kept

    def examples(self, reason: str) -> list[Example]:
        """Some removed candidates, in line order."""
        return sorted((one for _, one in self._examples[reason]), key=lambda one: one.line)

    def borderline(self, name: str) -> list[Example]:
        """The kept pairs whose values are closest to the threshold, closest first."""
        return [one for _, one in self._borderline[name]]

    def add(self, verdicts: Verdicts, example: Explain) -> None:
        """Count the next candidates, their duplicates marked.

        Args:
            verdicts: on consecutive candidates.
            example: makes an example from a position among them.
        """
        counts = np.bincount(verdicts["reason"], minlength=len(REASONS)).tolist()
        for number, reason in enumerate(REASONS):
            self.counts[reason] += counts[number]
            if number and counts[number]:
                self._draw(self._examples[reason], verdicts, np.flatnonzero(verdicts["reason"] == number), example)
        for name in _SHOWN:
            values = verdicts["values"][:, FILTERS.index(name)]
            self.histograms[name].add(values, verdicts["reason"] == REASONS.index(name))
            self._add_borderline(name, np.where(verdicts["reason"] == 0, values, np.float32(math.nan)), example)

    def _draw(
        self, known: list[tuple[int, Example]], verdicts: Verdicts, places: npt.NDArray[np.intp], example: Explain
    ) -> None:
        """Keep the examples with the smallest hashes of their lines."""
        hashes = verdicts["line"][places].astype(np.uint64) * _ODD
        order = np.argsort(hashes, kind="stable")[:EXAMPLES]
        worst = known[-1][0] if len(known) == EXAMPLES else 1 << 64
        found = zip(hashes[order].tolist(), places[order].tolist(), strict=True)
        known += [(number, example(place)) for number, place in found if number < worst]
        known.sort(key=lambda one: one[0])
        del known[EXAMPLES:]

    def _add_borderline(self, name: FilterName, values: npt.NDArray[np.float32], example: Explain) -> None:
        known = self._borderline[name]
        least = known[-1][0] if len(known) == BORDERLINE else _FLOORS.get(name, 0.0)
        places = np.flatnonzero(values > least)
        for place in places[np.argsort(-values[places], kind="stable")][:BORDERLINE].tolist():
            value = float(values[place])
            known.append((value, example(place)._replace(score=value, detail="")))
        known.sort(key=lambda one: -one[0])
        del known[BORDERLINE:]


_SHOWN: tuple[FilterName, ...] = tuple(
    name for name in FILTERS if name not in ("duplicate", "near-duplicate", "similar")
)
_FLOORS: dict[FilterName, float] = {"length": 1.0, "ratio": 1.0, "swapped": -1.0}
"""Values up to which nothing is odd; 0 elsewhere."""


def _range(name: FilterName, threshold: float) -> tuple[float, float]:
    """The ends of a histogram."""
    if name == "length":
        return 0.0, 2 * threshold
    if name == "ratio":
        return 1.0, max(2 * threshold, 2.0)
    if name == "swapped":
        return -4.0, max(2 * threshold, 2.0)
    return 0.0, max(2 * threshold, 1.0) if name == "alignment" else 1.0
