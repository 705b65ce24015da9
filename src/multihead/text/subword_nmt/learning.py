"""Learn codes as subword-nmt does: the same merges, in the same order (Sennrich, Haddow and Birch 2016, algorithm 1).

The words of a text are counted; each is a row of characters, the last with ``</w>``. The pair of neighbours that is
most frequent over all words, the largest in the order of strings among equals, becomes one symbol; and so on.

Which pair is the most frequent is what takes the package its time: it looks through all counts at each merge. Here a
heap knows. What is counted is what the package counts, though, to the digit, since its codes are the measure:

* A count is changed by the neighbours of a merge alone. Where its result stood in a word before (``abc`` from ``a bc``,
  and now from ``ab c``), they are counted once more.
* Rare pairs are set aside, and looked at again when no frequent one is left. One that turns up anew while it is aside
  starts from 0, and what was counted before is lost (seen in small texts; Multi30k gives the same without).
* Symbols are found by an expression for which any white space (a tab, U+00A0, U+3000) ends one.

A CR or LF in a line parts words like a space, as no codes file could hold it. Applying is left to ``subword_nmt``.
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
_AT_ONCE = 100
"""Merges between two times that rare pairs are set aside."""


def learn(lines: Iterable[str], merges: int = 10_000, min_frequency: int = 2) -> Codes:
    """The codes learned from lines of text, of version 0.2.

    Args:
        lines: the text; words are what stands between spaces.
        merges: how many to learn; a small text gives fewer.
        min_frequency: how often a pair must occur to be merged.

    Raises:
        InputError: no text; or a number below 1.
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
        if len(learned) % _AT_ONCE == 0:
            statistics.set_aside()
        learned.append(best)
    return Codes(tuple(learned))


class _Statistics:
    """How often each pair stands in the text, and which pair does most often."""

    def __init__(self, counts: dict[Pair, int]) -> None:
        self.counts = counts
        """Of the pairs that are looked at."""
        self._all = dict(counts)
        """Of those set aside too; of those looked at as it was when they last came from here."""
        self._threshold = max(counts.values(), default=0) / 10
        self._keys: dict[str, tuple[int, ...]] = {}
        self._heap: list[tuple[int, tuple[tuple[int, ...], tuple[int, ...]], Pair]] = []
        self._fill()

    def add(self, pair: Pair, count: int) -> None:
        """Adds to a count; the heap is told by `risen`."""
        self.counts[pair] = self.counts.get(pair, 0) + count

    def risen(self, pairs: Iterable[Pair]) -> None:
        """Tells the heap that counts have grown. That one has fallen it finds out when the pair comes up."""
        for pair in pairs:
            heapq.heappush(self._heap, self._entry(pair))

    def most_frequent(self, learned: int) -> Pair | None:
        """The most frequent pair, if any is left; ``learned`` merges came before."""
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
        """Stops looking at rare pairs."""
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
            else:  # gone, or grown and in the heap a second time
                heapq.heappop(self._heap)
        return None

    def _fill(self) -> None:
        self._heap = [self._entry(pair) for pair, count in self.counts.items() if count > 0]
        heapq.heapify(self._heap)

    def _entry(self, pair: Pair) -> tuple[int, tuple[tuple[int, ...], tuple[int, ...]], Pair]:
        """Smaller for a larger count, and among equals for a larger pair."""
        return -self.counts[pair], (self._key(pair[0]), self._key(pair[1])), pair

    def _key(self, symbol: str) -> tuple[int, ...]:
        """Numbers in the reverse order of strings: a string comes before its own beginnings."""
        if symbol not in self._keys:
            self._keys[symbol] = (*(-ord(character) for character in symbol), 1)
        return self._keys[symbol]


class _Text:
    """The different words as rows of symbols, how often each occurs, and where each pair stands."""

    def __init__(self, counted: dict[str, int]) -> None:
        self._words: list[Word] = [(*word[:-1], word[-1] + END) for word in counted]
        self._weights = list(counted.values())
        self._spaced = {n for n, word in enumerate(counted) if any(map(str.isspace, word))}
        self._where: dict[Pair, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def count_pairs(self) -> dict[Pair, int]:
        """The count of each pair; notes where it stands."""
        counts: dict[Pair, int] = defaultdict(int)
        for number, (word, weight) in enumerate(zip(self._words, self._weights, strict=True)):
            for pair in pairwise(word):
                counts[pair] += weight
                self._where[pair][number] += 1
        return dict(counts)

    def merge(self, pair: Pair, statistics: _Statistics) -> None:
        """Joins a pair in every word, and counts what was its neighbour before and what is now."""
        standing = [number for number, times in self._where.pop(pair, {}).items() if times > 0]
        new = "".join(pair)
        grown: set[Pair] = set()
        for number in standing:
            old, weight = self._words[number], self._weights[number]
            places = _places(old, pair)
            word = _joined_by_expression(old, pair) if number in self._spaced else _joined(old, places, new)
            self._words[number] = word
            for lost in _neighbours_before(old, places):
                statistics.add(lost, -weight)
                self._where[lost][number] -= 1
            for gained in _neighbours_after(word, new):
                statistics.add(gained, weight)
                self._where[gained][number] += 1
                grown.add(gained)
        statistics.risen(grown)


def _places(word: Word, pair: Pair) -> list[int]:
    """Where a pair stands in a word, from the left, without overlaps."""
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
    symbols = list(word)
    for place in reversed(places):
        symbols[place : place + 2] = [new]
    return tuple(symbols)


def _joined_by_expression(word: Word, pair: Pair) -> Word:
    """The same in a word with white space, next to which a symbol may be part of one."""
    expression = rf"(?<!\S){re.escape(' '.join(pair))}(?!\S)"
    return tuple(re.sub(expression, lambda _: "".join(pair), " ".join(word)).split(" "))


def _neighbours_before(word: Word, places: list[int]) -> Iterator[Pair]:
    """The pairs that end when those at ``places`` are joined; one between two of them is the later one's."""
    for place, after in pairwise([*places, -1]):
        if place:
            yield word[place - 1], word[place]
        if place + 2 < len(word) and place + 2 != after:
            yield word[place + 1], word[place + 2]


def _neighbours_after(word: Word, new: str) -> Iterator[Pair]:
    """The pairs with the new symbol."""
    for place, symbol in enumerate(word):
        if symbol == new:
            if place:
                yield word[place - 1], new
            if place + 1 < len(word) and word[place + 1] != new:
                yield new, word[place + 1]
