"""What lengths alone tell of aligned text: pairs of which one side is far too long, stretches that have slipped, and
whether the sides have anything to do with each other.

Lengths are counted in characters. A translation is about ``c`` times as long as its source, and how far it is from
that grows with the root of the length (Gale & Church 1993, "A program for aligning sentences in bilingual corpora"):

    z = (target - c source) / sqrt((target + c source) / 2),    c = sum target / sum source

Nothing here reads text or knows which lines are meant.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.float64]


_DEVIATIONS = 6.0
_TIMES = 2.0
_ROOM = 10.0
"""Characters that a side may have more, whatever its length: short lines are no evidence."""
_BLOCK = 500
_FEWEST = 100
"""Pairs, without which nothing is said."""
_SPREAD = 0.2
"""The deviation of the logarithms of lengths, without which they cannot go together."""


class Slip(NamedTuple):
    """A stretch of pairs, places counted from 0, in which the target of place i is found at place i + offset."""

    start: int
    stop: int
    offset: int


def unequal(source: Lengths, target: Lengths) -> npt.NDArray[np.bool_]:
    """Which pairs have sides of lengths that do not go together.

    Such a pair is more than 6 deviations from the others (by their median, 1.4826 times their median distance from it
    being one deviation), and one side is more than twice as long as it should be, 10 characters aside.
    """
    if len(source) < _FEWEST:
        return np.zeros(len(source), np.bool_)
    expected = source * (target.sum() / source.sum())
    z = (target - expected) / np.sqrt((target + expected) / 2)
    middle = np.median(z)
    deviation = max(1.4826 * float(np.median(np.abs(z - middle))), 0.5)
    times = (target + _ROOM) / (expected + _ROOM)
    return (np.abs(z - middle) > _DEVIATIONS * deviation) & ((times > _TIMES) | (times < 1 / _TIMES))  # type: ignore[no-any-return]


def slips(source: Lengths, target: Lengths, reach: int = 5) -> list[Slip]:
    """Stretches where the lines of one side stand next to others than their own.

    In aligned text long lines stand beside long ones. Where the logarithms of the lengths go together at an offset
    (correlation above 0.5), and not where they stand (below 0.3), lines are missing or too many.

    Args:
        source: lengths, in the order of the lines; positive.
        target: likewise.
        reach: the largest offset that is tried.
    """
    logs = np.log(source), np.log(target)
    found: list[Slip] = []
    starts = list(range(0, max(len(source) - _FEWEST, 0) + 1, _BLOCK)) if len(source) >= _FEWEST else []
    for place, start in enumerate(starts):
        stop = starts[place + 1] if place + 1 < len(starts) else len(source)
        offset = _offset(*logs, start, stop, reach)
        if offset == 0:
            continue
        if found and found[-1].stop == start and found[-1].offset == offset:
            start = found.pop().start
        found.append(Slip(start, stop, offset))
    return found


def agreement(source: Lengths, target: Lengths) -> float | None:
    """The correlation of the logarithms of the lengths: how far long lines stand beside long ones.

    None where that says nothing: of fewer than 500 pairs, or where the lines of a side are all about as long.
    """
    x, y = np.log(source), np.log(target)
    if len(x) < _BLOCK or min(float(x.std()), float(y.std())) < _SPREAD:
        return None
    return _correlation(x, y)


def _offset(source: Lengths, target: Lengths, start: int, stop: int, reach: int) -> int:
    """By how much the block has slipped."""
    at_home = _correlation(source[start:stop], target[start:stop])
    if at_home >= 0.3:
        return 0
    best, offset = 0.5, 0
    for shift in (sign * distance for distance in range(1, reach + 1) for sign in (1, -1)):
        first, last = max(start, -shift), min(stop, len(target) - shift)
        if last - first < _FEWEST // 2:
            continue
        value = _correlation(source[first:last], target[first + shift : last + shift])
        if value > max(best, at_home + 0.35):
            best, offset = value, shift
    return offset


def _correlation(x: Lengths, y: Lengths) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else 0.0
