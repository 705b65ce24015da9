"""Apply and undo the codes of subword-nmt: ``low er`` becomes ``lo@@ w er`` (Sennrich, Haddow and Birch 2016).

For those who have codes files, or data made with them. `SubwordNMT.apply` gives what the package gives, line for line:
words are what stands between spaces, runs of spaces in a line become one, and where a word was cut a separator says
so. It cannot be undone exactly; `Tokenizer` can, and is what training uses, which knows nothing of this file.

Where the package stops with an error or loses text, this does not: an expression for a glossary that has groups
repeats nothing, and a CR after a glossary in the middle of a line stays.

The files are in ``subword_nmt_codes``, learning in ``subword_nmt_learning``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from multihead.errors import ConfigurationError, DataError
from multihead.text.subword_nmt.codes import EDGES, END, Codes

SEPARATOR = "@@"

_CACHED = 1 << 18
"""Words whose segmentation is remembered."""


class SubwordNMT:
    """Codes, ready to be applied.

    Args:
        codes: the merges.
        separator: stands behind every unit that is not the last of its word.
        vocabulary: units as they are printed, separator and all. A unit that is not among them is taken apart again
            along its merges, until its parts are, or are characters.
        glossaries: regular expressions; what matches one inside a word is a unit of its own, and stays whole.

    Raises:
        ConfigurationError: an empty separator, one with a space, an empty vocabulary, or an expression that is none.
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
        # Of a merge that stands there twice the first counts. Of two that give the same unit, that one is undone whose
        # last place comes first.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(codes.merges)))}
        self._parts = {left + right: (left, right) for left, right in self._ranks}
        self._glossaries = [(_expression(f"^{text}$", text), _expression(text, text)) for text in glossaries]
        either = "|".join(glossaries)
        self._whole = _expression(f"^({either})$", either) if glossaries else None
        self._cache: dict[str, str] = {}

    def apply(self, line: str, dropout: float | int = 0.0, draw: Callable[[], float] | None = None) -> str:
        """A line in units, with the separator behind those that are not the last of their word.

        Args:
            line: without LF. White space at its ends stays.
            dropout: BPE-dropout (Provilkov et al. 2020): the probability that a possible merge is left out at a step.
                Where a pair stands in a word several times, all of its places that are not left out are joined at
                once, as in the package (`Segmenter` joins one at a step, as the paper has it).
            draw: gives the random numbers for it, in [0, 1); the same numbers give the same units.

        Raises:
            ConfigurationError: a dropout that is no probability, or one without ``draw``.
        """
        if not 0.0 <= dropout <= 1.0:
            raise ConfigurationError(f"dropout is {dropout}: it is a probability, from 0 to 1")
        if dropout and draw is None:
            raise ConfigurationError("dropout needs random numbers: give draw, such as random.Random(1).random")
        left_out = (lambda: draw() < dropout) if dropout and draw is not None else None
        words = line.strip(EDGES)
        if not words:
            return line
        cut = " ".join([self._cut(word, left_out) for word in words.split(" ") if word])
        leading, trailing = len(line) - len(line.lstrip(EDGES)), len(line.rstrip(EDGES))
        return line[:leading] + cut + line[trailing:]

    def _cut(self, word: str, left_out: Callable[[], bool] | None) -> str:
        """The units of a word, with separators between them."""
        if left_out is not None:
            return self._between.join(self._units(word, left_out))
        if word not in self._cache:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[word] = self._between.join(self._units(word, None))
        return self._cache[word]

    def _units(self, word: str, left_out: Callable[[], bool] | None) -> Iterator[str]:
        for part in self._around_glossaries(word):
            if len(part) == 1 or (self._whole is not None and self._whole.match(part)):
                yield part
            else:
                yield from self._segment(part, left_out)

    def _around_glossaries(self, word: str) -> list[str]:
        """The word, cut before and after what matches a glossary; each part is then treated like a word."""
        parts = [word]
        for whole, inside in self._glossaries:
            parts = [cut for part in parts for cut in ([part] if whole.match(part) else _cut_around(inside, part))]
        return parts

    def _segment(self, word: str, left_out: Callable[[], bool] | None) -> Iterator[str]:
        units = _merged(self._codes.symbols(word), self._ranks, left_out)
        units = [*units[:-1], units[-1].removesuffix(END)]
        units = units if units[-1] else units[:-1]
        last = len(units) - 1
        return (part for place, unit in enumerate(units) for part in self._known(unit, final=place == last))

    def _known(self, unit: str, final: bool) -> Iterator[str]:
        """The unit, or the parts that it is taken apart into because the vocabulary does not have it."""
        printed = unit if final else unit + self._separator
        known = self._vocabulary is None or printed in self._vocabulary
        parts = None if known else self._parts.get(unit + END if final else unit)
        if parts is None:
            yield unit
        else:
            yield from self._known(parts[0], final=False)
            yield from self._known(parts[1][: -len(END)] if final else parts[1], final)


def undo(line: str, separator: str = SEPARATOR) -> str:
    """The line with its words whole again: without separators that a space, or the end of the line, follows.

    It is ``sed -r 's/(@@ )|(@@ ?$)//g'``, which the package's own description gives.
    """
    return re.sub(rf"{re.escape(separator)}(?: |\Z)", "", line)


def read_vocabulary(lines: Iterable[str], threshold: int | None = None, name: str = "vocabulary") -> frozenset[str]:
    """The units of a vocabulary file, which has a unit, a space and its frequency on each line.

    Args:
        lines: without LF.
        threshold: leave out what is less frequent.
        name: what messages call the file.

    Raises:
        DataError: a line without a unit and a count, or no unit is frequent enough.
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


def _merged(
    symbols: list[str], ranks: dict[tuple[str, str], int], left_out: Callable[[], bool] | None
) -> Sequence[str]:
    """The symbols after all merges: at each step those of the pair with the lowest rank, from the left."""
    while len(symbols) > 1:
        possible = [(ranks[pair], place) for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if left_out is not None:
            possible = [merge for merge in possible if not left_out()]
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
    """The word in parts: what matches, and what stands between."""
    ends = [place for match in inside.finditer(word) for place in match.span()]
    parts = (word[start:stop] for start, stop in pairwise([0, *ends, len(word)]))
    return [part for part in parts if part]


def _expression(text: str, given: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"the glossary {given!r} is not a regular expression: {error}") from None
