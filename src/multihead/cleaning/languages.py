"""How likely a line is in another language than the one it should be in.

Two steps. A line with several of the most common words of its language, and more of them than of any other language's
(`diagnosis.heuristics` has the words), is taken for granted; that is most lines, and it is a hundred times as fast as
the second step: the classifier of `text.detection` (extra `detect`) among all languages of two letters. Its probability
of close relatives counts for the language: it confuses Norwegian and Danish, Croatian and Serbian. Lines of fewer than
20 letters are not judged.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from multihead.data.corpus import Languages, primary_language
from multihead.diagnosis.heuristics import COMMON_WORDS, known_code
from multihead.errors import InputError
from multihead.text.detection import detect, detectable

_LETTERS = 20
"""A line with fewer letters says too little."""
_CONFIRMING = 2
"""Common words of the language, if there are fewer of every other, from which a line is not examined further."""
_WORD = re.compile(r"\w+")
_RELATIVES = (
    {"no", "nb", "nn", "da"},
    {"hr", "sr", "bs"},
    {"id", "ms"},
    {"cs", "sk"},
    {"gl", "pt"},
    {"es", "ca", "gl", "an"},
    {"bg", "mk"},
    {"hi", "mr", "ne"},
)


@lru_cache(maxsize=1)
def _codes_of_words() -> dict[str, tuple[str, ...]]:
    """The languages that each common word belongs to."""
    found: dict[str, list[str]] = {}
    for code, words in COMMON_WORDS.items():
        for word in words.split():
            found.setdefault(word, []).append(code)
    return {word: tuple(codes) for word, codes in found.items()}


@lru_cache(maxsize=4)
def _among(code: str) -> tuple[str, ...]:
    """Every detectable code, the expected one first, so that it stands for its language."""
    return (code, *sorted(detectable() - {primary_language(code)}))


def can_detect(code: str | None) -> bool:
    """Whether lines of this language can be told from others.

    Raises:
        MissingDependencyError: the extra is not installed.
    """
    if not code:
        return False
    try:
        detect("", [code])
    except InputError:
        return False
    return True


def relatives(code: str, other: str | None) -> frozenset[str]:
    """The languages that count for a language, without that of the other side of the corpus."""
    first, second = primary_language(code), primary_language(other)
    related = {one for group in _RELATIVES if first in group for one in group}
    return frozenset((related | {first}) - {second} | {first})


def foreign(text: str, code: str, accepted: frozenset[str]) -> float:
    """The probability that a text is in another language.

    Args:
        text: a line.
        code: the language it should be in, one that `can_detect` knows.
        accepted: codes that count for it, as `relatives` returns them.

    Returns:
        From 0 to 1; NaN for fewer than 20 letters.
    """
    if len(text) < _LETTERS or sum(map(str.isalpha, text)) < _LETTERS:
        return math.nan
    if _has_common_words(text, code):
        return 0.0
    ranking = detect(text, _among(code))
    return 1.0 - min(sum(share for found, share in ranking if found == code or found in accepted), 1.0)


def _has_common_words(text: str, code: str) -> bool:
    """Whether the most common words of the language alone show it."""
    own = known_code(code)
    if own not in COMMON_WORDS:
        return False
    known = _codes_of_words()
    hits: dict[str | None, int] = {}
    for word in _WORD.findall(text.casefold()):
        for one in known.get(word, ()):
            hits[one] = hits.get(one, 0) + 1
    mine = hits.pop(own, 0)
    return mine >= _CONFIRMING and mine > max(hits.values(), default=0)


def foreign_sides(sources: list[str], targets: list[str], languages: Languages) -> list[float]:
    """`foreign` of the worse side of each pair; a side without a code is not judged."""
    found = [math.nan] * len(sources)
    for side, texts in enumerate((sources, targets)):
        code = languages[side]
        if code is not None:
            accepted = relatives(code, languages[1 - side])
            values = (foreign(text, code, accepted) for text in texts)
            found = [a if not b >= 0 else b if not a >= 0 else max(a, b) for a, b in zip(found, values, strict=True)]
    return found


def detected(text: str) -> str:
    """The most likely language of a text, with its probability, for people."""
    ranking = detect(text)
    return f"{ranking[0][0]} {ranking[0][1]:.2f}" if ranking else "no letters"
