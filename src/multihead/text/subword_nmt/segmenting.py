"""Apply and undo codes of subword-nmt: ``low er`` becomes ``lo@@ w er``.

For users with codes files, or data made with them (Sennrich, Haddow and Birch 2016). `SubwordNMT.apply` gives the same
output as the package, line for line: words are separated by spaces, runs of spaces become one, and a separator follows
each unit that does not end its word. This cannot be undone exactly; `Tokenizer`, which training uses, can.

Where the package raises an error or loses text, this does not: a glossary expression with groups does not repeat text,
and a CR after a glossary within a line is kept.

Codes files are read in `codes`; codes are learned in `learning`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from multihead.errors import ConfigurationError, DataError
from multihead.text.subword_nmt.codes import EDGES, END, Codes

SEPARATOR = "@@"

_CACHED = 1 << 18
"""Maximum number of words whose segmentation is cached."""


class SubwordNMT:
    """Applies codes to text.

    Args:
        codes: the merges.
        separator: follows every unit that is not the last of its word.
        vocabulary: units as they are printed, with separator. Other units are split again along their merges, until
            their parts are in the vocabulary or are characters.
        glossaries: regular expressions; matches within a word are units of their own, and stay whole.

    Raises:
        ConfigurationError: the separator is empty or contains a space, the vocabulary is empty, or an expression is
            not valid.
    """

    def __init__(
        self,
        codes: Codes,
        *,
        separator: str = SEPARATOR,
        vocabulary: Collection[str] | None = None,
        glossaries: Sequence[str] = (),
    ) -> None:
        if not separator or " " in separator:
            raise ConfigurationError(f"separator is {separator!r}: expected some characters without a space")
        if vocabulary is not None and not vocabulary:
            raise ConfigurationError("the vocabulary is empty: lower its threshold, or leave it out")
        self._codes = codes
        self._separator, self._between = separator, f"{separator} "
        self._vocabulary = None if vocabulary is None else frozenset(vocabulary)
        # If a merge is listed twice, the first counts. If two merges give the same unit, the one whose last place comes
        # first is undone.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(codes.merges)))}
        self._parts = {left + right: (left, right) for left, right in self._ranks}
        self._glossaries = [(_expression(f"^{text}$", text), _expression(text, text)) for text in glossaries]
        either = "|".join(glossaries)
        self._whole = _expression(f"^({either})$", either) if glossaries else None
        self._cache: dict[str, str] = {}

    def apply(self, line: str, dropout: float | int = 0.0, draw: Callable[[], float] | None = None) -> str:
        """The units of a line, with the separator after those that do not end their word.

        Args:
            line: the line, without LF. White space at its ends is kept.
            dropout: BPE-dropout (Provilkov et al. 2020): the probability that a possible merge is dropped at a step.
                If a pair is in a word several times, all its places that are not dropped are joined at once, as in
                the package (`Segmenter` joins one per step, as in the paper).
            draw: draws random numbers in [0, 1) for dropout; the same numbers give the same units.

        Raises:
            ConfigurationError: the dropout is not a probability, or ``draw`` is missing.
        """
        if not 0.0 <= dropout <= 1.0:
            raise ConfigurationError(f"dropout is {dropout}: it is a probability, from 0 to 1")
        if dropout and draw is None:
            raise ConfigurationError("dropout needs random numbers: give draw, such as random.Random(1).random")
        dropped = (lambda: draw() < dropout) if dropout and draw is not None else None
        words = line.strip(EDGES)
        if not words:
            return line
        cut = " ".join([self._cut(word, dropped) for word in words.split(" ") if word])
        leading, trailing = len(line) - len(line.lstrip(EDGES)), len(line.rstrip(EDGES))
        return line[:leading] + cut + line[trailing:]

    def _cut(self, word: str, dropped: Callable[[], bool] | None) -> str:
        """The units of a word, with separators between them."""
        if dropped is not None:
            return self._between.join(self._units(word, dropped))
        if word not in self._cache:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[word] = self._between.join(self._units(word, None))
        return self._cache[word]

    def _units(self, word: str, dropped: Callable[[], bool] | None) -> Iterator[str]:
        for part in self._around_glossaries(word):
            if len(part) == 1 or (self._whole is not None and self._whole.match(part)):
                yield part
            else:
                yield from self._segment(part, dropped)

    def _around_glossaries(self, word: str) -> list[str]:
        """The word, split before and after glossary matches; each part is then treated like a word."""
        parts = [word]
        for whole, inside in self._glossaries:
            parts = [cut for part in parts for cut in ([part] if whole.match(part) else _cut_around(inside, part))]
        return parts

    def _segment(self, word: str, dropped: Callable[[], bool] | None) -> Iterator[str]:
        symbols = self._codes.symbols(word)
        units = _merged(symbols, self._ranks) if dropped is None else _merged_at_random(symbols, self._ranks, dropped)
        units = [*units[:-1], units[-1].removesuffix(END)]
        units = units if units[-1] else units[:-1]
        last = len(units) - 1
        return (part for place, unit in enumerate(units) for part in self._known(unit, final=place == last))

    def _known(self, unit: str, final: bool) -> Iterator[str]:
        """The unit, or its parts if it is not in the vocabulary."""
        printed = unit if final else unit + self._separator
        known = self._vocabulary is None or printed in self._vocabulary
        parts = None if known else self._parts.get(unit + END if final else unit)
        if parts is None:
            yield unit
        else:
            yield from self._known(parts[0], final=False)
            yield from self._known(parts[1][: -len(END)] if final else parts[1], final)


def undo(line: str, separator: str = SEPARATOR) -> str:
    """The line without separators that are followed by a space or the end of the line, which joins its words.

    This is ``sed -r 's/(@@ )|(@@ ?$)//g'``, as recommended by the package.
    """
    return re.sub(rf"{re.escape(separator)}(?: |\Z)", "", line)


def read_vocabulary(lines: Iterable[str], threshold: int | None = None, name: str = "vocabulary") -> frozenset[str]:
    """The units of a vocabulary file, which has a unit, a space and its frequency on each line.

    Args:
        lines: the lines, without LF.
        threshold: leave out less frequent units.
        name: the name of the file in error messages.

    Raises:
        DataError: a line is not a unit and a count, or no unit is frequent enough.
    """
    units = set()
    for number, line in enumerate(lines, 1):
        unit, _, count = line.strip(EDGES).partition(" ")
        try:
            frequency = int(count)
        except ValueError:
            raise DataError(f"expected a unit, a space and its frequency, got {line[:80]!r}", name, number) from None
        if threshold is None or frequency >= threshold:
            units.add(unit)
    if not units:
        raise DataError(f"no unit has a frequency of {threshold or 0} or more; lower the threshold", name)
    return frozenset(units)


def _merged(symbols: list[str], ranks: dict[tuple[str, str], int]) -> Sequence[str]:
    """The symbols after all merges; each step joins all places of the pair of lowest rank, from the left.

    A place is looked at when its pair changes, so a word of n characters takes n log n steps.
    """
    # Linked list of places, each with its symbol; a place behind the last ends every search.
    before, after = list(range(-1, len(symbols))), list(range(1, len(symbols) + 2))
    symbols = [*symbols, ""]
    waiting: dict[int, list[int]] = {}
    heap: list[int] = []

    def look_at(place: int) -> None:
        rank = ranks.get((symbols[place], symbols[after[place]]))
        if rank is not None and rank not in waiting:
            heapq.heappush(heap, rank)
        if rank is not None:
            waiting.setdefault(rank, []).append(place)

    for place in range(len(symbols) - 1):
        look_at(place)
    while heap:
        lowest = heapq.heappop(heap)
        for place in sorted(waiting.pop(lowest)):
            other = after[place]
            if ranks.get((symbols[place], symbols[other])) != lowest:  # joined since it was looked at
                continue
            symbols[place], symbols[other] = symbols[place] + symbols[other], ""
            after[place], before[after[other]] = after[other], place
            look_at(place)
            if before[place] >= 0:
                look_at(before[place])
    return [symbol for symbol in symbols if symbol]


def _merged_at_random(
    symbols: list[str], ranks: dict[tuple[str, str], int], dropped: Callable[[], bool]
) -> Sequence[str]:
    """The same if each possible merge is dropped at random in each step."""
    while len(symbols) > 1:
        possible = [(ranks[pair], place) for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        possible = [merge for merge in possible if not dropped()]
        if not possible:
            break
        best = min(possible)[0]
        end, joined = 0, []
        for rank, place in possible:
            if rank == best and place >= end:  # in `x x x` the first two are joined
                joined += [*symbols[end:place], symbols[place] + symbols[place + 1]]
                end = place + 2
        symbols = joined + symbols[end:]
    return symbols


def _cut_around(inside: re.Pattern[str], word: str) -> list[str]:
    """The word, split into matches and the text between them."""
    ends = [place for match in inside.finditer(word) for place in match.span()]
    parts = (word[start:stop] for start, stop in pairwise([0, *ends, len(word)]))
    return [part for part in parts if part]


def _expression(text: str, given: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"the glossary {given!r} is not a regular expression: {error}") from None
