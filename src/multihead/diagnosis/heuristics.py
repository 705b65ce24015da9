"""Which language a text seems to be in, as far as its script and its commonest small words tell.

A coarse look at many lines, made to notice that files were given in the wrong order. It knows a few dozen codes, gives
all languages that it cannot tell apart, and nothing where it is not sure. Telling the two sides of one corpus apart
line by line is for `likeness`.

Which of two languages a line is in, learned from the two sides of a corpus themselves.

Naive Bayes on the bytes of the text, three at a time (Cavnar & Trenkle 1994 for the idea of telling languages by
n-grams; the decision is Bayes'):

    score(line) = sum_g log p_source(g) - log p_target(g),    g all runs of three bytes, begin and end marked

Above 0 a line is more like the source side. Lines on the wrong side do little harm while they are few: what is common
on one side outweighs them. Which language it is, is not known here; see `language_hints`.

What lengths alone tell of aligned text: pairs of which one side is far too long, stretches that have slipped, and
whether the sides have anything to do with each other.

Lengths are counted in characters. A translation is about ``c`` times as long as its source, and how far it is from
that grows with the root of the length (Gale & Church 1993, "A program for aligning sentences in bilingual corpora"):

    z = (target - c source) / sqrt((target + c source) / 2),    c = sum target / sum source

Nothing here reads text or knows which lines are meant.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
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

_WORDS = {
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
"""What is hardly missing in any text of some lines."""

_SURE = 0.12
"""Small words among all words of a text, without which nothing is said."""
_AHEAD = 1.4
"""How many times as many the first language has as the next one, or else they are not told apart."""


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "")
    return name.split()[0].partition("-")[0] if character.isalpha() and name else ""


def known_code(code: str | None) -> str | None:
    """The part of a code that this file knows a language by ("de" of "de-AT"); None if it knows nothing of it."""
    first = primary_language(code)
    first = {"no": "nb", "nn": "nb", "iw": "he"}.get(first, first)
    return first if first in _WORDS or any(first in codes.split() for codes in _SCRIPTS.values()) else None


def guess_languages(lines: Iterable[str]) -> frozenset[str]:
    """The languages that the text may be in; none where that is not clear."""
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
    return _by_words(text) if count > 0.6 * total else frozenset()


def _by_words(text: list[str]) -> frozenset[str]:
    words = Counter(word for line in text for word in re.findall(r"\w+", line.casefold()))
    total = words.total()
    shares = {code: sum(words[word] for word in small.split()) / total for code, small in _WORDS.items()}
    best = max(shares.values())
    if best < _SURE:
        return frozenset()
    return frozenset(code for code, share in shares.items() if share * _AHEAD > best)


_BITS = 16
_SIZE = 1 << _BITS
_LIMIT = 4.0
"""No three bytes say more than this, in nats: a rare name is no language."""

Codes = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.float64]


class SideClassifier:
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


Lengths = npt.NDArray[np.float64]


_DEVIATIONS = 6.0
_TIMES = 2.0
_ROOM = 10.0
"""Characters that a side may have more, whatever its length: short lines are no evidence."""
_BLOCK = 500
_FEWEST = 100
"""Pairs, without which nothing is said."""
_SPREAD = 0.2
"""The deviation of the logarithms of lengths, without which they cannot go together."""


class Misalignment(NamedTuple):
    """A stretch of pairs, places counted from 0, in which the target of place i is found at place i + offset."""

    start: int
    stop: int
    offset: int


def length_outliers(source: Lengths, target: Lengths) -> npt.NDArray[np.bool_]:
    """Which pairs have sides of lengths that do not go together.

    Such a pair is more than 6 deviations from the others (by their median, 1.4826 times their median distance from it
    being one deviation), and one side is more than twice as long as it should be, 10 characters aside.
    """
    if len(source) < _FEWEST:
        return np.zeros(len(source), np.bool_)
    expected = source * (target.sum() / source.sum())
    z = (target - expected) / np.sqrt((target + expected) / 2)
    middle = np.median(z)
    deviation = max(1.4826 * float(np.median(np.abs(z - middle))), 0.5)
    times = (target + _ROOM) / (expected + _ROOM)
    return (np.abs(z - middle) > _DEVIATIONS * deviation) & ((times > _TIMES) | (times < 1 / _TIMES))  # type: ignore[no-any-return]


def find_misalignments(source: Lengths, target: Lengths, reach: int = 5) -> list[Misalignment]:
    """Stretches where the lines of one side stand next to others than their own.

    In aligned text long lines stand beside long ones. Where the logarithms of the lengths go together at an offset
    (correlation above 0.5), and not where they stand (below 0.3), lines are missing or too many.

    Args:
        source: lengths, in the order of the lines; positive.
        target: likewise.
        reach: the largest offset that is tried.
    """
    logs = np.log(source), np.log(target)
    found: list[Misalignment] = []
    starts = list(range(0, max(len(source) - _FEWEST, 0) + 1, _BLOCK)) if len(source) >= _FEWEST else []
    for place, start in enumerate(starts):
        stop = starts[place + 1] if place + 1 < len(starts) else len(source)
        offset = _offset(*logs, start, stop, reach)
        if offset == 0:
            continue
        if found and found[-1].stop == start and found[-1].offset == offset:
            start = found.pop().start
        found.append(Misalignment(start, stop, offset))
    return found


def length_correlation(source: Lengths, target: Lengths) -> float | None:
    """The correlation of the logarithms of the lengths: how far long lines stand beside long ones.

    None where that says nothing: of fewer than 500 pairs, or where the lines of a side are all about as long.
    """
    x, y = np.log(source), np.log(target)
    if len(x) < _BLOCK or min(float(x.std()), float(y.std())) < _SPREAD:
        return None
    return _correlation(x, y)


def _offset(source: Lengths, target: Lengths, start: int, stop: int, reach: int) -> int:
    """By how much the block has slipped."""
    at_home = _correlation(source[start:stop], target[start:stop])
    if at_home >= 0.3:
        return 0
    best, offset = 0.5, 0
    for shift in (sign * distance for distance in range(1, reach + 1) for sign in (1, -1)):
        first, last = max(start, -shift), min(stop, len(target) - shift)
        if last - first < _FEWEST // 2:
            continue
        value = _correlation(source[first:last], target[first + shift : last + shift])
        if value > max(best, at_home + 0.35):
            best, offset = value, shift
    return offset


def _correlation(x: Lengths, y: Lengths) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else 0.0
