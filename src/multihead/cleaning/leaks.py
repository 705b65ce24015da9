"""Find held-out pairs (test sets) in a corpus, exactly or nearly.

A line leaks if both of its sides, normalized, are those of held-out pairs, or one side of at least 5 words is: then its
value is 1. Otherwise the value is the share of a held-out pair's word pairs (bigrams) that the line contains, of the
side that has fewer, for the held-out pair where it is highest:

    value = max_h min(|B(x_h) & B(x)| / |B(x_h)|, |B(y_h) & B(y)| / |B(y_h)|)

So it also finds a test sentence with another word in it, and one within a longer line. Candidates h come from an index
of word trigrams of the held-out sources. It holds only the rarest ones of each, as many as are needed to meet every
line that shares a third of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from multihead.cleaning.measures import normalize
from multihead.judging.guard_signs import split_words

_LONG = 5
"""Words of a side that alone is enough: shorter ones recur by chance."""
_SHORTEST = 5
"""Words of a held-out source that is searched for nearly."""
_SHARED = 1 / 3
"""Share of the trigrams that a line must have to become a candidate."""

Words = tuple[str, ...]


class HeldOutLine(NamedTuple):
    """A held-out pair, ready to be compared."""

    where: str
    """File and line, for people."""
    source: frozenset[Words]
    """The bigrams of the source."""
    target: frozenset[Words]


@dataclass
class HeldOutIndex:
    """The pairs that must not be in a corpus; small enough to be held in memory, and sent to other processes."""

    lines: list[HeldOutLine] = field(default_factory=list)
    _sides: tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]] = field(default_factory=lambda: ({}, {}))
    """Per side: normalized text -> index of its first line, number of words."""
    _sources: list[Words] = field(default_factory=list)
    _rare: dict[Words, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, where: str, source: str, target: str) -> None:
        """Add a held-out pair; all are added before the first `find`."""
        words = tuple(split_words(source)), tuple(split_words(target))
        self.lines.append(HeldOutLine(where, *(frozenset(_ngrams(side, 2)) for side in words)))
        self._sources.append(words[0])
        for known, text, side in zip(self._sides, (source, target), words, strict=True):
            known.setdefault(normalize(text), (len(self.lines) - 1, len(side)))

    def seal(self) -> None:
        """Build the index of trigrams; called once, before the index is sent to other processes."""
        every = [list(dict.fromkeys(_ngrams(words, 3))) for words in self._sources]
        counts = Counter(gram for grams in every for gram in grams)
        self._rare = {}
        for number, (words, grams) in enumerate(zip(self._sources, every, strict=True)):
            if len(words) >= _SHORTEST:
                needed = len(grams) - math.ceil(_SHARED * len(grams)) + 1
                for gram in sorted(grams, key=lambda gram: (counts[gram], gram))[:needed]:
                    self._rare.setdefault(gram, []).append(number)

    def find(self, source: str, target: str, normal: tuple[str, str] | None = None) -> tuple[float, int | None]:
        """The value of a line, and the index of the held-out pair that it resembles; None if there is none.

        Args:
            source, target: the sides of the line.
            normal: both normalized, if they are at hand.
        """
        normal = normal or (normalize(source), normalize(target))
        found = [known.get(text) for known, text in zip(self._sides, normal, strict=True)]
        if found[0] is not None and found[1] is not None:
            return 1.0, found[0][0]
        for one in found:
            if one is not None and one[1] >= _LONG:
                return 1.0, one[0]
        return self._find_near(source, target)

    def _find_near(self, source: str, target: str) -> tuple[float, int | None]:
        if self._rare is None:
            self.seal()
        assert self._rare is not None
        words = split_words(source)
        candidates = {number for gram in self._rare.keys() & set(_ngrams(words, 3)) for number in self._rare[gram]}
        if not candidates:
            return 0.0, None
        first, second = set(_ngrams(words, 2)), set(_ngrams(split_words(target), 2))
        shares = [(self._share(number, first, second), number) for number in sorted(candidates)]
        value, number = max(shares, key=lambda pair: pair[0])
        return value, number

    def _share(self, number: int, source: set[Words], target: set[Words]) -> float:
        line = self.lines[number]
        sides = (line.source, source), (line.target, target)
        return min(len(own & found) / len(own) if own else 0.0 for own, found in sides)


def _ngrams(words: Iterable[str], length: int) -> Iterable[Words]:
    """The runs of ``length`` words."""
    row = list(words)
    return zip(*(row[start:] for start in range(length)), strict=False)
