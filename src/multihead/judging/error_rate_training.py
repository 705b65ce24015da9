"""Weights that maximize corpus BLEU: minimum error rate training.

(Och 2003, "Minimum error rate training in statistical machine translation".) Along a line w + g d, the sum of the
features of each candidate is a linear function of g, and the chosen candidate of a sentence is the upper envelope of
its candidates: it changes at a few points. So corpus BLEU is constant between the points of all sentences, and
`line_search` finds its maximum on the line exactly. `maximize` searches line after line, along the axes and random
directions, from several starts. Nothing depends on the clock: equal inputs have equal results.

`judging.tune` makes the tables; `translating.choosing` defines features and choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multihead.metrics.bleu_counts import COLUMNS, Counts, bleu_of, expecting
from multihead.translating.choosing import Features, weighted

Places = npt.NDArray[np.int64]

_FARTHEST = 16.0
"""Steps along a line reach so far; weights have a sum of magnitudes of 1."""
_LINES, _ROUNDS = 8, 50
"""Random directions of a round beside the axes, and the maximum number of rounds."""
_NARROW = 1e-9
"""Intervals below this width are skipped: rounding could choose another candidate there."""


@dataclass(frozen=True, eq=False)
class Table:
    """The candidates of all sentences, padded to equal numbers.

    Attributes:
        features: [sentence, candidate, feature].
        counts: [sentence, candidate, `COLUMNS`]: what each adds to corpus BLEU.
        present: [sentence, candidate]: False for padding, which stands last.
    """

    features: Features
    counts: Counts
    present: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, features: Sequence[Features], counts: Sequence[Counts]) -> Table:
        """The table of sentences with different numbers of candidates."""
        sizes = [len(each) for each in features]
        shape = len(features), max(sizes, default=0)
        present = np.arange(shape[1]) < np.array(sizes, np.int64)[:, None]
        values = np.zeros((*shape, features[0].shape[1] if features else 0))
        added = np.zeros((*shape, COLUMNS), np.int64)
        values[present], added[present] = np.concatenate(features), np.concatenate(counts)
        return cls(values, added, present)

    def select(self, sentences: slice | Places) -> Table:
        """Some of the sentences."""
        return Table(self.features[sentences], self.counts[sentences], self.present[sentences])

    def expecting(self, words: Places) -> Table:
        """The same candidates, with the words of each sentence [sentence] in place of those of its reference."""
        return Table(self.features, expecting(self.counts, words[:, None]), self.present)

    def chosen(self, weights: Features) -> Places:
        """The candidate of each sentence that the weights choose, the first of equals."""
        sums = np.where(self.present, weighted(self.features, weights), -np.inf)
        return np.asarray(sums.argmax(1), np.int64)

    def picked(self, places: Places) -> Counts:
        """[sentence, `COLUMNS`]: the counts of one candidate of each sentence."""
        return np.asarray(self.counts[np.arange(len(places)), places])

    def bleu(self, weights: Features) -> float:
        """Corpus BLEU of the candidates that the weights choose."""
        return float(bleu_of(self.picked(self.chosen(weights)).sum(0)))


def line_search(table: Table, start: Features, direction: Features, low: float, high: float) -> float:
    """The g in [low, high] at which start + g direction has the highest corpus BLEU.

    It is the middle of the best interval; of equally good ones of the interval nearest to 0, and 0 if that is inside.
    """
    points, steps, base = _changes(table, start, direction, low, high)
    order = points.argsort(kind="stable")
    sums = base + np.concatenate([np.zeros((1, COLUMNS), np.int64), steps[order].cumsum(0)])
    edges = np.concatenate([[low], points[order], [high]])
    left, right = edges[:-1], edges[1:]
    scores = np.where(right - left > _NARROW, bleu_of(sums), -1.0)
    best = (scores == scores.max()).nonzero()[0]
    distance = np.maximum(np.maximum(left[best], -right[best]), 0)
    place = best[distance.argmin()]
    return 0.0 if left[place] < 0 < right[place] else float(left[place] + right[place]) / 2


def _changes(
    table: Table, start: Features, direction: Features, low: float, high: float
) -> tuple[Features, Counts, Counts]:
    """Where choices change between low and high, what each change adds to the counts, and the counts at low.

    All sentences walk along their envelopes at once: from the candidate that is best at a point to the one whose line
    crosses its line next; of several that cross there, to the steepest.
    """
    rows = np.arange(len(table.features))
    heights = np.where(table.present, weighted(table.features, start), -np.inf)
    slopes = np.where(table.present, weighted(table.features, direction), -np.inf)
    sums = np.where(table.present, heights + low * np.where(table.present, slopes, 0), -np.inf)
    leading = np.where(sums == sums.max(1, keepdims=True), slopes, -np.inf)
    now, at = leading.argmax(1), np.full(len(rows), low)
    base = table.picked(now).sum(0)
    points: list[Features] = [np.zeros(0)]
    steps: list[Counts] = [np.zeros((0, COLUMNS), np.int64)]
    while len(rows):
        gaps = slopes[rows] - slopes[rows, now][:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            crossings = (heights[rows, now][:, None] - heights[rows]) / gaps
        crossings = np.where(gaps > 0, np.maximum(crossings, at[:, None]), np.inf)
        nearest = crossings.min(1)
        on = nearest < high
        rows, now, at, crossings, gaps = rows[on], now[on], nearest[on], crossings[on], gaps[on]
        following = np.where(crossings == at[:, None], gaps, -np.inf).argmax(1)
        points.append(at)
        steps.append(table.counts[rows, following] - table.counts[rows, now])
        now = following
    return np.concatenate(points), np.concatenate(steps), base


def maximize(table: Table, starts: Sequence[Features], free: Sequence[int], signed: Sequence[int] = ()) -> Features:
    """Weights, with magnitudes that sum to 1, whose corpus BLEU is at least that of every start.

    Args:
        table: the candidates.
        starts: weights to start from, one or more.
        free: the features whose weights are sought; the others keep the weights of the start, usually 0.
        signed: those of them whose weights may be negative.
    """
    best, highest = starts[0], -1.0
    for start in starts:
        found = _climb(table, start / np.abs(start).sum(), free, signed)
        score = table.bleu(found)
        if score > highest:
            best, highest = found, score
    return best


def _climb(table: Table, weights: Features, free: Sequence[int], signed: Sequence[int]) -> Features:
    """Search along lines until a round finds nothing better."""
    draw, axes = np.random.default_rng(0), np.eye(len(weights))[list(free)]
    score = table.bleu(weights)
    for _ in range(_ROUNDS):
        before = score
        for direction in (*axes, *(draw.normal(size=(_LINES, len(free))) @ axes)):
            low, high = _allowed(weights, direction, signed)
            step = line_search(table, weights, direction, low, high) if low < high else 0.0
            moved = weights + step * direction
            moved = moved / np.abs(moved).sum() if moved.any() else weights
            if (found := table.bleu(moved)) > score:
                weights, score = moved, found
        if score == before:
            break
    return weights


def _allowed(weights: Features, direction: Features, signed: Sequence[int]) -> tuple[float, float]:
    """How far a step can go without a negative weight where none may be."""
    low, high = -_FARTHEST, _FARTHEST
    for place, (weight, slope) in enumerate(zip(weights.tolist(), direction.tolist(), strict=True)):
        if slope and place not in signed:
            bound = -weight / slope
            low, high = (max(low, bound), high) if slope > 0 else (low, min(high, bound))
    return low, high
