"""Learn the same codes as subword-nmt, in the same order.

Sennrich, Haddow and Birch 2016, algorithm 1: the words of a text are counted; each is a sequence of characters, the
last with ``</w>``. The most frequent pair of adjacent symbols over all words (of equals, the largest in string order)
becomes one symbol, repeatedly.

The package is slow because it searches all counts for each merge; here a heap has the most frequent pair. The counts
themselves follow the package exactly, including its quirks, since its codes are the reference:

* A merge updates the counts of its neighbors only. If its result was in a word before (``abc`` from ``a bc``, and now
  from ``ab c``), they are counted once more.
* Rare pairs are set aside, and restored when no frequent one is left. A pair that reappears meanwhile starts from 0,
  and its previous count is lost (this happens in small texts; Multi30k gives the same codes without it).
* Symbols are found by a regular expression in which any white space (a tab, U+00A0, U+3000) ends a symbol.

A CR or LF within a line separates words like a space, since no codes file could contain it. Codes are applied in
`segmenting`.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from multihead.errors import ConfigurationError, InputError
from multihead.text.subword_nmt.codes import EDGES, END, Codes

Pair = tuple[str, str]
Word = tuple[str, ...]

_BREAKS = str.maketrans(dict.fromkeys(EDGES, " "))
_MERGES_PER_ROUND = 100
"""Rare pairs are set aside again after this many merges."""


def learn(lines: Iterable[str], merges: int = 10_000, min_frequency: int = 2) -> Codes:
    """Learn codes, of version 0.2.

    Args:
        lines: the text, with words separated by spaces.
        merges: number of merges to learn; a small text gives fewer.
        min_frequency: number of occurrences that a pair needs to be merged.

    Raises:
        InputError: there is no text, or a number is below 1.
    """
    for name, value in (("merges", merges), ("min_frequency", min_frequency)):
        if value < 1:
            raise ConfigurationError(f"{name} is {value}: it is a count, at least 1")
    counted = Counter(word for line in lines for word in line.translate(_BREAKS).split(" ") if word)
    if not counted:
        raise InputError("there is nothing to learn merges from: got no line with any text, expected the training text")
    text = _Text(counted)
    statistics = _Statistics(text.count_pairs())
    learned: list[Pair] = []
    while len(learned) < merges:
        best = statistics.most_frequent(len(learned))
        if best is None or statistics.counts[best] < min_frequency:
            break
        text.merge(best, statistics)
        statistics.counts[best] = 0
        if len(learned) % _MERGES_PER_ROUND == 0:
            statistics.set_aside()
        learned.append(best)
    return Codes(tuple(learned))


class _Statistics:
    """The counts of all pairs, and the most frequent pair."""

    def __init__(self, counts: dict[Pair, int]) -> None:
        self.counts = counts
        """Counts of the active pairs."""
        self._all = dict(counts)
        """Counts of all pairs; for an active pair, its count when it was last restored."""
        self._threshold = max(counts.values(), default=0) / 10
        self._keys: dict[str, tuple[int, ...]] = {}
        self._heap: list[tuple[int, tuple[tuple[int, ...], tuple[int, ...]], Pair]] = []
        self._fill()

    def add(self, pair: Pair, count: int) -> None:
        """Change a count; call `push` for counts that have grown."""
        self.counts[pair] = self.counts.get(pair, 0) + count

    def push(self, pairs: Iterable[Pair]) -> None:
        """Push pairs whose counts have grown; counts that have fallen are corrected when they reach the top."""
        for pair in pairs:
            heapq.heappush(self._heap, self._entry(pair))

    def most_frequent(self, learned: int) -> Pair | None:
        """The most frequent pair after ``learned`` merges, if any is left."""
        best = self._top()
        if best is None or (learned and self.counts[best] < self._threshold):
            self.set_aside()
            self.counts = dict(self._all)
            self._fill()
            best = self._top()
            if best is not None:
                self._threshold = self.counts[best] * learned / (learned + 10000.0)
                self.set_aside()
        return best

    def set_aside(self) -> None:
        """Deactivate rare pairs."""
        rare = [(pair, count) for pair, count in self.counts.items() if count < self._threshold]
        for pair, count in rare:
            del self.counts[pair]
            self._all[pair] = self._all.get(pair, 0) + count if count < 0 else count

    def _top(self) -> Pair | None:
        while self._heap:
            count, _, pair = self._heap[0]
            now = self.counts.get(pair, 0)
            if now == -count:
                return pair
            if 0 < now < -count:
                heapq.heapreplace(self._heap, self._entry(pair))
            else:  # no longer in the text, or grown and pushed again
                heapq.heappop(self._heap)
        return None

    def _fill(self) -> None:
        self._heap = [self._entry(pair) for pair, count in self.counts.items() if count > 0]
        heapq.heapify(self._heap)

    def _entry(self, pair: Pair) -> tuple[int, tuple[tuple[int, ...], tuple[int, ...]], Pair]:
        """A heap entry that is smaller for larger counts, and for equal counts for larger pairs."""
        return -self.counts[pair], (self._key(pair[0]), self._key(pair[1])), pair

    def _key(self, symbol: str) -> tuple[int, ...]:
        """A key in the reverse order of strings: a string sorts before its own prefixes."""
        if symbol not in self._keys:
            self._keys[symbol] = (*(-ord(character) for character in symbol), 1)
        return self._keys[symbol]


class _Text:
    """The distinct words as sequences of symbols, their frequencies, and the words of each pair."""

    def __init__(self, counted: dict[str, int]) -> None:
        self._words: list[Word] = [(*word[:-1], word[-1] + END) for word in counted]
        self._weights = list(counted.values())
        self._spaced = {n for n, word in enumerate(counted) if any(map(str.isspace, word))}
        self._where: dict[Pair, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def count_pairs(self) -> dict[Pair, int]:
        """The count of each pair; also records its words."""
        counts: dict[Pair, int] = defaultdict(int)
        for number, (word, weight) in enumerate(zip(self._words, self._weights, strict=True)):
            for pair in pairwise(word):
                counts[pair] += weight
                self._where[pair][number] += 1
        return dict(counts)

    def merge(self, pair: Pair, statistics: _Statistics) -> None:
        """Join a pair in every word, and update the counts of its neighbors before and after."""
        containing = [number for number, times in self._where.pop(pair, {}).items() if times > 0]
        new = "".join(pair)
        grown: set[Pair] = set()
        for number in containing:
            old, weight = self._words[number], self._weights[number]
            places = _places(old, pair)
            word = _joined_by_expression(old, pair) if number in self._spaced else _joined(old, places, new)
            self._words[number] = word
            for lost in _neighbors_before(old, places):
                statistics.add(lost, -weight)
                self._where[lost][number] -= 1
            for gained in _neighbors_after(word, new):
                statistics.add(gained, weight)
                self._where[gained][number] += 1
                grown.add(gained)
        statistics.push(grown)


def _places(word: Word, pair: Pair) -> list[int]:
    """The places of a pair in a word, from the left, without overlaps."""
    first, second = pair
    places = []
    place, last = 0, len(word) - 1
    while place < last:
        if word[place] == first and word[place + 1] == second:
            places.append(place)
            place += 2
        else:
            place += 1
    return places


def _joined(word: Word, places: list[int], new: str) -> Word:
    symbols: list[str] = []
    end = 0
    for place in places:
        symbols += (*word[end:place], new)
        end = place + 2
    return (*symbols, *word[end:])


def _joined_by_expression(word: Word, pair: Pair) -> Word:
    """Join a pair in a word with white space, where the package's expression may match within a symbol."""
    expression = rf"(?<!\S){re.escape(' '.join(pair))}(?!\S)"
    return tuple(re.sub(expression, lambda _: "".join(pair), " ".join(word)).split(" "))


def _neighbors_before(word: Word, places: list[int]) -> Iterator[Pair]:
    """The pairs that disappear when those at ``places`` are joined; one between two places is listed once."""
    for place, after in pairwise([*places, -1]):
        if place:
            yield word[place - 1], word[place]
        if place + 2 < len(word) and place + 2 != after:
            yield word[place + 1], word[place + 2]


def _neighbors_after(word: Word, new: str) -> Iterator[Pair]:
    """The pairs that contain the new symbol."""
    for place, symbol in enumerate(word):
        if symbol == new:
            if place:
                yield word[place - 1], new
            if place + 1 < len(word) and word[place + 1] != new:
                yield new, word[place + 1]
