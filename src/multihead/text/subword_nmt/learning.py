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

A word is searched from its start for each merge in it. For a long one this would take quadratic time, so `_LongWord`
keeps the places of its pairs, and a merge takes time for what it joins. Long words with white space are the exception.

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
_LONG = 200
"""Words of this many symbols are `_LongWord`."""


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
        self._words: list[Word | _LongWord] = [(*word[:-1], word[-1] + END) for word in counted]
        self._weights = list(counted.values())
        self._spaced = {n for n, word in enumerate(counted) if any(map(str.isspace, word))}
        self._where: dict[Pair, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def count_pairs(self) -> dict[Pair, int]:
        """The count of each pair; also records its words."""
        counts: dict[Pair, int] = defaultdict(int)
        for number, (word, weight) in enumerate(zip(self._words, self._weights, strict=True)):
            assert isinstance(word, tuple)  # before the first merge
            for pair in pairwise(word):
                counts[pair] += weight
                self._where[pair][number] += 1
            if len(word) >= _LONG and number not in self._spaced:
                self._words[number] = _LongWord(word)
        return dict(counts)

    def merge(self, pair: Pair, statistics: _Statistics) -> None:
        """Join a pair in every word, and update the counts of its neighbors before and after."""
        containing = [number for number, times in self._where.pop(pair, {}).items() if times > 0]
        grown: set[Pair] = set()
        for number in containing:
            weight = self._weights[number]
            before, after = self._join(number, pair)
            for lost in before:
                statistics.add(lost, -weight)
                self._where[lost][number] -= 1
            for gained in after:
                statistics.add(gained, weight)
                self._where[gained][number] += 1
                grown.add(gained)
        statistics.push(grown)

    def _join(self, number: int, pair: Pair) -> tuple[Iterable[Pair], Iterable[Pair]]:
        """Join a pair in a word; returns the pairs that disappear, and those that contain the new symbol."""
        old, new = self._words[number], "".join(pair)
        if isinstance(old, _LongWord):
            return old.join(pair)
        places = _places(old, pair)
        word = _joined_by_expression(old, pair) if number in self._spaced else _joined(old, places, new)
        self._words[number] = word
        return _neighbors_before(old, places), _neighbors_after(word, new)


class _LongWord:
    """A word as a linked list: the symbol at a place, and the places before and after it.

    A symbol keeps the place of its first character. Pairs and symbols are found at the places that were noted for them,
    of which those are skipped where something else is now.
    """

    def __init__(self, word: Word) -> None:
        self._end = len(word)
        self._symbols: list[str | None] = [*word]
        self._before = list(range(-1, self._end - 1))
        self._after = list(range(1, self._end + 1))
        self._pairs: dict[Pair, list[int]] = defaultdict(list)
        self._noted: dict[str, list[int]] = defaultdict(list)
        for place, pair in enumerate(pairwise(word)):
            self._pairs[pair].append(place)
        for place, symbol in enumerate(word):
            self._noted[symbol].append(place)

    def join(self, pair: Pair) -> tuple[list[Pair], list[Pair]]:
        """As `_Text._join`."""
        new, places = "".join(pair), self._places(pair)
        lost = list(self._neighbors_before(places))
        for place in places:
            second = self._after[place]
            following = self._after[second]
            self._symbols[place], self._symbols[second] = new, None
            self._after[place] = following
            if following < self._end:
                self._before[following] = place
        for place in places:
            for first in (self._before[place], place):
                if first >= 0 and self._after[first] < self._end:
                    self._pairs[self._pair_at(first)].append(first)
        noted = {place for place in (*self._noted[new], *places) if self._symbols[place] == new}
        self._noted[new] = list(noted)
        return lost, list(self._neighbors_after(noted, new))

    def _pair_at(self, place: int) -> Pair:
        first, second = self._symbols[place], self._symbols[self._after[place]]
        assert first is not None
        assert second is not None
        return first, second

    def _places(self, pair: Pair) -> list[int]:
        """As the function `_places`."""
        places, joined = [], -1
        for place in sorted(set(self._pairs.pop(pair, ()))):
            following = self._after[place]
            present = self._symbols[place] == pair[0] and following < self._end and self._symbols[following] == pair[1]
            if present and place != joined:
                places.append(place)
                joined = following
        return places

    def _neighbors_before(self, places: list[int]) -> Iterator[Pair]:
        """As the function `_neighbors_before`."""
        for place, next_place in pairwise([*places, -1]):
            if self._before[place] >= 0:
                yield self._pair_at(self._before[place])
            second = self._after[place]
            if self._after[second] not in (self._end, next_place):
                yield self._pair_at(second)

    def _neighbors_after(self, places: Iterable[int], new: str) -> Iterator[Pair]:
        """As the function `_neighbors_after`."""
        for place in places:
            if self._before[place] >= 0:
                yield self._pair_at(self._before[place])
            following = self._after[place]
            if following < self._end and self._symbols[following] != new:
                yield self._pair_at(place)


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
