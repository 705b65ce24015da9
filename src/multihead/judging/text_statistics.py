"""What translations look like as text: how long they are, whether they repeat themselves, whether they are copies.

Words, loops and repetition are those of `judging.guard_signs`, which judges single translations by them; here they
are counted over a test set and stand beside those of the references, which repeat a little, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from multihead.judging.guard_signs import SIGNS, loop, repetition, words_in


@dataclass(frozen=True)
class TextStatistics:
    """Of the lines of one text."""

    lines: int
    words: int
    """Runs of letters or digits; single characters where scripts write no spaces."""
    length_ratio: float
    """Words, divided by those of the references."""
    repetition: float
    """Share of the three-word sequences that occurred before in their line: the mean over the lines."""
    loops: tuple[int, ...]
    """Lines (from 1) in which more than one word is said again at once."""
    empty: tuple[int, ...]
    """Lines without a word where the reference has some."""
    copies: tuple[int, ...]
    """Lines equal to their source where the reference is not; none if no source is given."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def text_statistics(
    lines: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
) -> TextStatistics:
    """Counts.

    Args:
        lines: translations, or the references themselves.
        references: the right translations, line by line.
        sources: what was translated.
    """
    words = [words_in(line) for line in lines]
    wanted = [words_in(reference) for reference in references]
    total, right = sum(map(len, words)), sum(map(len, wanted))
    copied = (
        [line == source != reference for line, source, reference in zip(lines, sources, references, strict=True)]
        if sources is not None
        else []
    )
    return TextStatistics(
        lines=len(lines),
        words=total,
        length_ratio=total / right if right else 1.0,
        repetition=fmean(map(repetition, words)),
        loops=_numbers(loop(own) > SIGNS["loop"].ordinary for own in words),
        empty=_numbers(bool(reference and not own) for own, reference in zip(words, wanted, strict=True)),
        copies=_numbers(copied),
    )


def _numbers(flags: Iterable[bool]) -> tuple[int, ...]:
    return tuple(number for number, flag in enumerate(flags, start=1) if flag)
