"""Which of two languages a line is in, learned from the two sides of a corpus themselves.

Naive Bayes on the bytes of the text, three at a time (Cavnar & Trenkle 1994 for the idea of telling languages by
n-grams; the decision is Bayes'):

    score(line) = sum_g log p_source(g) - log p_target(g),    g all runs of three bytes, begin and end marked

Above 0 a line is more like the source side. Lines on the wrong side do little harm while they are few: what is common
on one side outweighs them. Which language it is, is not known here; see `language_hints`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from multihead.data.order import Array

_BITS = 16
_SIZE = 1 << _BITS
_LIMIT = 4.0
"""No three bytes say more than this, in nats: a rare name is no language."""

Codes = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.float64]


class Likeness:
    """What the two sides look like."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _SIZE), np.int64)
        self._table: Scores | None = None

    def learn(self, sources: list[str], targets: list[str]) -> None:
        """Some more lines of both sides; none of them empty, none with LF."""
        for side, texts in enumerate((sources, targets)):
            self._counts[side] += np.bincount(_codes(texts)[0], minlength=_SIZE)
        self._table = None

    def score(self, texts: list[str]) -> Scores:
        """log p(line | source side) - log p(line | target side) of each, in nats for a run of three bytes, the mean."""
        if self._table is None:
            logs = np.log((self._counts + 0.5) / (self._counts + 0.5).sum(1, keepdims=True))
            self._table = (logs[0] - logs[1]).clip(-_LIMIT, _LIMIT)
        codes, starts = _codes(texts)
        sizes = np.diff(starts, append=len(codes))
        return np.add.reduceat(self._table[codes], starts) / sizes


def _codes(texts: list[str]) -> tuple[Codes, Array]:
    """The runs of all lines in a row, each as a number below `_SIZE`, and where each line's begin."""
    text = "\n\n" + "\n\n".join(texts) + "\n\n"
    raw = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    wide = raw.astype(np.uint32)
    runs = (wide[:-2] << 16) | (wide[1:-1] << 8) | wide[2:]
    codes = ((runs * np.uint32(2654435761)) >> np.uint32(32 - _BITS)).astype(np.uint32)
    ends = raw == 10
    return codes, np.flatnonzero(ends[:-1] & ends[1:])[:-1].astype(np.int64)
