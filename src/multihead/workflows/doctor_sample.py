"""What `doctor_text` keeps of a corpus for the checks of tokens: characters, counted, and pairs from all over it."""

from __future__ import annotations

import numpy as np

from multihead.data.side_by_side import Chunk

SAMPLE = 40_000
"""Pairs that are kept,"""
LONGEST = 10_000
"""and characters of each side: of a book on one line its subwords would fill the memory."""


class Sample:
    """Every n-th pair, n doubling as the corpus goes on: from half of `most` to `most` pairs, evenly spread.

    Args:
        most: pairs that are kept.
    """

    def __init__(self, most: int = SAMPLE) -> None:
        self.lines: list[int] = []
        self.sources: list[str] = []
        self.targets: list[str] = []
        self._most, self._every, self._seen = most, 1, 0

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, chunk: Chunk) -> None:
        """Takes what is due of some more pairs."""
        lines = chunk.lines.tolist()
        due = range(-self._seen % self._every, len(lines), self._every)
        self._seen += len(lines)
        self.lines += [lines[place] for place in due]
        self.sources += [_beginning(chunk.sources[place]) for place in due]
        self.targets += [_beginning(chunk.targets[place]) for place in due]
        while len(self) > self._most:  # what is left are multiples of the doubled step, as what comes will be
            self._every *= 2
            for kept in (self.lines, self.sources, self.targets):
                del kept[1::2]

    def side(self, side: int) -> list[str]:
        """Sources or targets."""
        return self.targets if side else self.sources


def _beginning(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST].strip()


class Characters:
    """How often each character stands on each side, and on which line first."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, 0x110000), np.int64)
        self.first: tuple[dict[int, int], dict[int, int]] = {}, {}

    def add(self, chunk: Chunk) -> None:
        """Some more pairs."""
        for side, texts in enumerate((chunk.sources, chunk.targets)):
            codes = np.frombuffer("".join(texts).encode("utf-32-le", "replace"), np.uint32)
            counts = np.bincount(codes)
            there = np.flatnonzero(counts)
            new = [code for code in there.tolist() if code not in self.first[side]]
            self.counts[side, : len(counts)] += counts
            if new:
                ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
                wanted = np.isin(codes, np.array(new, np.uint32))
                places = np.flatnonzero(wanted)
                found, first = np.unique(codes[places], return_index=True)
                rows = np.searchsorted(ends, places[first], side="right")
                self.first[side].update(zip(found.tolist(), chunk.lines[rows].tolist(), strict=True))
