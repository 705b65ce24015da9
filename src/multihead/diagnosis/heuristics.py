"""Guess languages, and judge the alignment of a corpus by line lengths.

`guess_languages` looks at the script and the most common short words of many lines. It knows a few dozen languages,
returns all that it cannot tell apart, and none where it is not sure. It notices files given in the wrong order.

`SideClassifier` tells the two sides of one corpus apart line by line, without knowing either language. It is a naive
Bayes classifier on byte trigrams g of a line, its begin and end marked (n-grams for language identification: Cavnar &
Trenkle 1994, "N-gram-based text categorization"):

    score(line) = sum_g log p_source(g) - log p_target(g)

A score above 0 means that the line resembles the source side. A few lines on the wrong side do little harm.

The length checks compare lengths in characters. A translation is about c times as long as its source, and its deviation
grows with the square root of the length (Gale & Church 1993, "A program for aligning sentences in bilingual corpora"):

    z = (target - c source) / sqrt((target + c source) / 2),    c = sum target / sum source
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.data.corpus import primary_language
from multihead.data.order import Array

_SCRIPTS = {
    "CYRILLIC": "ru uk be bg mk kk ky mn tg",  # not Serbian, which is written in Latin letters, too
    "CJK": "zh ja",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "ARABIC": "ar fa ur ps ug",
    "HEBREW": "he yi",
    "GREEK": "el",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "bn as",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am ti",
}
"""The first word of a letter's Unicode name, and the languages that are written with it."""

COMMON_WORDS = {
    "cs": "a v na je se že to s z do o jsem jsou byl ale jako pro který",
    "da": "og i er at det en til på som den af for ikke med der har et",
    "de": "der die das und ist ein eine in den mit auf nicht von zu im sich ich er sie einem",
    "en": "the a of and to in is on with that for it was are an at by this he from",
    "es": "el la de que y en un una los se del las por con no es para su lo al",
    "et": "ja on ei et see kui oma ka mis aga ta ning selle olid oli",
    "fi": "ja on ei se että oli hän mutta ovat kun niin myös joka tai sen",
    "fr": "le la les de des et un une est en que dans du pour qui sur avec pas au il",
    "hu": "a az és hogy nem egy is volt ez van de meg csak már mint",
    "id": "yang dan di itu dengan untuk dari ini pada tidak ke adalah dalam akan saya",
    "it": "il di che e la un una in è per non sono con del si le della i gli da",
    "lt": "ir yra kad tai į su ne buvo bet kaip iš jis apie o savo",
    "lv": "un ir ka ar uz par no bet kā tas bija arī nav viņš pie",
    "nb": "og i er det en på som til å har av for med ikke den et jeg var",
    "nl": "de het een en van in is dat op te met niet zijn voor die er aan ik hij naar",
    "pl": "i w na z się nie do to że jest o jak ale po co za od tak przez",
    "pt": "o a de que e em um uma os do da não para com se no na por é as",
    "ro": "și de în a la nu o că cu pe un este din mai sunt pentru care",
    "sk": "a v na je sa že to s z do o som sú bol ale ako pre ktorý",
    "sl": "in je v na se da za so ki ne pa z tudi bil kot po sem",
    "sv": "och i är att det en som på av för med till den har inte ett jag var",
    "tr": "bir ve bu da de için ile çok ne gibi daha olarak o ama mi en",
    "vi": "là và của có không một cho được trong với các những này người đã",
}
"""Words that occur in almost any text of several lines."""

_MIN_SHARE = 0.12
"""Minimum share of these words among all words of a text; below it no language is returned."""
_MIN_WORDS = 10
"""Minimum number of them: one or two in a few lines prove nothing."""
_MARGIN = 1.4
"""Languages whose share of these words is within this factor of the best are not told apart."""


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "")
    return name.split()[0].partition("-")[0] if character.isalpha() and name else ""


def known_code(code: str | None) -> str | None:
    """The known language of a code ("de" of "de-AT"); None if it is not known here."""
    first = primary_language(code)
    first = {"no": "nb", "nn": "nb", "iw": "he"}.get(first, first)
    return first if first in COMMON_WORDS or any(first in codes.split() for codes in _SCRIPTS.values()) else None


def guess_languages(lines: Iterable[str]) -> frozenset[str]:
    """The languages that the text may be in; empty where that is not clear."""
    text = list(lines)
    scripts = Counter(_script(character) for line in text for character in line)
    del scripts[""]
    if not scripts:
        return frozenset()
    kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
    (script, count), total = scripts.most_common(1)[0], scripts.total()
    if kana > 0.1 * total:
        return frozenset({"ja"})
    if script == "CJK":
        return frozenset({"zh"}) if count > 0.6 * total else frozenset()
    if script != "LATIN":
        return frozenset(_SCRIPTS.get(script, "").split()) if count > 0.6 * total else frozenset()
    return _languages_by_words(text) if count > 0.6 * total else frozenset()


def _languages_by_words(text: list[str]) -> frozenset[str]:
    words = Counter(word for line in text for word in re.findall(r"\w+", line.casefold()))
    counts = {code: sum(words[word] for word in small.split()) for code, small in COMMON_WORDS.items()}
    best = max(counts.values())
    if best < max(_MIN_SHARE * words.total(), _MIN_WORDS):
        return frozenset()
    return frozenset(code for code, count in counts.items() if count * _MARGIN > best)


_BITS = 16
_SIZE = 1 << _BITS
_MAX_WEIGHT = 4.0
"""Largest weight of a trigram, in nats: a rare name must not decide."""

Codes = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.float64]


class SideClassifier:
    """Naive Bayes on byte trigrams: which side of a corpus a line resembles."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _SIZE), np.int64)
        self._table: Scores | None = None

    def learn(self, sources: list[str], targets: list[str]) -> None:
        """Count the trigrams of lines of both sides; lines are not empty and contain no LF."""
        for side, texts in enumerate((sources, targets)):
            self._counts[side] += np.bincount(_trigrams(texts)[0], minlength=_SIZE)
        self._table = None

    def exchanged(self) -> SideClassifier:
        """The classifier of the same lines with source and target exchanged: its scores have the opposite sign."""
        other = SideClassifier()
        other._counts = self._counts[::-1]
        return other

    def score(self, texts: list[str]) -> Scores:
        """log p(line | source side) - log p(line | target side) of each line, in nats, averaged over its trigrams."""
        if self._table is None:
            logs = np.log((self._counts + 0.5) / (self._counts + 0.5).sum(1, keepdims=True))
            self._table = (logs[0] - logs[1]).clip(-_MAX_WEIGHT, _MAX_WEIGHT)
        codes, starts = _trigrams(texts)
        sizes = np.diff(starts, append=len(codes))
        return np.add.reduceat(self._table[codes], starts) / sizes


def _trigrams(texts: list[str]) -> tuple[Codes, Array]:
    """The trigrams of all lines, hashed to numbers below `_SIZE`, and the position of each line's first one."""
    text = "\n\n" + "\n\n".join(texts) + "\n\n"
    raw = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    wide = raw.astype(np.uint32)
    runs = (wide[:-2] << 16) | (wide[1:-1] << 8) | wide[2:]
    codes = ((runs * np.uint32(2654435761)) >> np.uint32(32 - _BITS)).astype(np.uint32)
    ends = raw == 10
    return codes, np.flatnonzero(ends[:-1] & ends[1:])[:-1].astype(np.int64)


Lengths = npt.NDArray[np.float64]


_MAX_DEVIATIONS = 6.0
_MAX_RATIO = 2.0
_SLACK = 10.0
"""Characters by which a side may be longer whatever its length: short lines are weak evidence."""
_BLOCK = 500
"""Pairs that are judged at once; where most are aligned, parts of `_MIN_PAIRS`."""
_MIN_PAIRS = 100
"""Minimum number of pairs; fewer give no result."""
_ALIGNED, _MOSTLY = 0.5, 0.2
"""Rank correlation of lengths from which a block is aligned, and from which parts of it may be."""
_MIN_SPREAD = 0.2
"""Minimum standard deviation of log lengths; below it a correlation means nothing."""


class Misalignment(NamedTuple):
    """A range of pairs, counted from 0, in which the target of pair i stands at i + offset."""

    start: int
    stop: int
    offset: int


class LengthModel(NamedTuple):
    """The usual lengths of the targets of a corpus."""

    ratio: float
    """c: characters of a target per character of its source."""
    middle: float
    """The median of z."""
    spread: float
    """The robust standard deviation of z: 1.4826 times its median absolute deviation, at least 0.5."""

    def deviations(self, source: Lengths, target: Lengths) -> Lengths:
        """|z - middle| / spread of each pair."""
        expected = source * self.ratio
        z = (target - expected) / np.sqrt((target + expected) / 2)
        return np.abs(z - self.middle) / self.spread

    def times(self, source: Lengths, target: Lengths) -> Lengths:
        """How many times each target is as long, or as short, as expected, not counting 10 characters."""
        times = (target + _SLACK) / (source * self.ratio + _SLACK)
        return np.maximum(times, 1 / times)


def length_model(source: Lengths, target: Lengths) -> LengthModel | None:
    """The usual lengths of a corpus, or of a sample of it; None for fewer than 100 pairs."""
    if len(source) < _MIN_PAIRS:
        return None
    expected = source * (target.sum() / source.sum())
    z = (target - expected) / np.sqrt((target + expected) / 2)
    middle = np.median(z)
    spread = max(1.4826 * float(np.median(np.abs(z - middle))), 0.5)
    return LengthModel(float(target.sum() / source.sum()), float(middle), spread)


def length_outliers(source: Lengths, target: Lengths) -> npt.NDArray[np.bool_]:
    """Mark pairs whose sides have incompatible lengths.

    A pair is an outlier if its z is more than 6 robust standard deviations (1.4826 times the median absolute deviation)
    from the median, and one side is more than twice as long as expected, not counting 10 characters.
    """
    model = length_model(source, target)
    if model is None:
        return np.zeros(len(source), np.bool_)
    return (model.deviations(source, target) > _MAX_DEVIATIONS) & (model.times(source, target) > _MAX_RATIO)


def find_misalignments(source: Lengths, target: Lengths, reach: int = 5) -> list[Misalignment]:
    """Find ranges in which the lines of one side stand beside the wrong lines of the other.

    In aligned text long lines stand beside long lines. Where the ranks of the lengths correlate at an offset (above
    0.5) and not in place (below 0.5, and 0.35 less), lines are missing or duplicated. Blocks of 500 pairs are judged,
    and parts of 100 of the others. With ranks (Spearman 1904) a single long line decides nothing.

    Args:
        source: positive lengths, in line order.
        target: likewise.
        reach: largest offset to try.
    """
    found: list[Misalignment] = []

    def add(start: int, stop: int, offset: int) -> None:
        if found and found[-1].stop == start and found[-1].offset == offset:
            start = found.pop().start
        found.append(Misalignment(start, stop, offset))

    for start, stop in _blocks(0, len(source), _BLOCK):
        if offset := _offset(source, target, start, stop, reach):
            add(start, stop, offset)
        elif _rank_correlation(source[start:stop], target[start:stop]) >= _MOSTLY:
            for first, last in _blocks(start, stop, _MIN_PAIRS):
                if offset := _offset(source, target, first, last, reach):
                    add(first, last, offset)
    return found


def _blocks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Blocks of ``size`` pairs; the last one has those that remain, none fewer than `_MIN_PAIRS`."""
    if stop - start >= _MIN_PAIRS:
        starts = range(start, stop - _MIN_PAIRS + 1, size)
        yield from zip(starts, [*starts[1:], stop], strict=True)


def length_correlation(source: Lengths, target: Lengths) -> float | None:
    """The correlation of the log lengths of both sides.

    None where it would mean nothing: for fewer than 500 pairs, or if all lines of a side are about equally long.
    """
    x, y = np.log(source), np.log(target)
    if len(x) < _BLOCK or min(float(x.std()), float(y.std())) < _MIN_SPREAD:
        return None
    return _correlation(x, y)


def _offset(source: Lengths, target: Lengths, start: int, stop: int, reach: int) -> int:
    """The offset of a block; 0 if it is aligned."""
    in_place = _rank_correlation(source[start:stop], target[start:stop])
    if in_place >= _ALIGNED:
        return 0
    best, offset = 0.5, 0
    for shift in (sign * distance for distance in range(1, reach + 1) for sign in (1, -1)):
        first, last = max(start, -shift), min(stop, len(target) - shift)
        if last - first < _MIN_PAIRS // 2:
            continue
        value = _rank_correlation(source[first:last], target[first + shift : last + shift])
        if value > max(best, in_place + 0.35):
            best, offset = value, shift
    return offset


def _correlation(x: Lengths, y: Lengths) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else 0.0


def _rank_correlation(x: Lengths, y: Lengths) -> float:
    """Spearman's: the correlation of the ranks, of which equal lengths share the mean."""
    return _correlation(_ranks(x), _ranks(y))


def _ranks(x: Lengths) -> Lengths:
    _, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Lengths = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
