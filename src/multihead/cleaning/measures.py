"""What the filters measure on the two texts of a pair alone.

Numbers are compared as multisets of their digits, so that 1,000.5 equals 1.000,5 and the order is free. A number that
only one side has may be spelled out on the other ("12" and "zwölf"): it counts from 100 on, or if the other side has a
number of its own that is left over. URLs and mail addresses are compared as they are, but for scheme, "www." and the
punctuation behind them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

from multihead.diagnosis.corpus import normalize_text

_BROKEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ufffe\uffff]")
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SEPARATORS = re.compile("[.,]")
_SPELLED = 100
"""Numbers below are often spelled out."""
_LONG_NUMBER = 30
_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"]+|(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]+", re.IGNORECASE)
_BEGINNING = re.compile(r"^(?:https?://)?(?:www\.)?")
_NAME_WORDS = 3
"""A copy of fewer words may be a name."""
_LETTERS_OF_A_WORD = 6
"""Letters that count as a word where words are not separated."""


def normalize(text: str) -> str:
    """The text without case, white space, punctuation and forms of characters (NFKC); unchanged if nothing is left."""
    return normalize_text(text if text.isascii() else unicodedata.normalize("NFKC", text))


def broken(source: str, target: str) -> float:
    """The share of control characters and replacement characters, of the side with more; 0 for most text."""
    if source.isprintable() and target.isprintable() and "\ufffd" not in source and "\ufffd" not in target:
        return 0.0
    return max(len(_BROKEN.findall(text)) / len(text) for text in (source, target))


def copied(source: str, target: str, same: bool) -> float:
    """The share of the target's words that stand in the source, out of at least 3; numbers do not count.

    Args:
        source: a text.
        target: another one.
        same: whether both are equal when normalized; then the number of letters counts, too, for scripts without
            spaces.
    """
    words = [word for word in target.casefold().split() if any(map(str.isalpha, word))]
    if same:
        letters = sum(map(str.isalpha, target))
        return min(max(len(words), letters / _LETTERS_OF_A_WORD) / _NAME_WORDS, 1.0)
    known = set(source.casefold().split())
    return sum(word in known for word in words) / max(len(words), _NAME_WORDS)


def numbers(text: str) -> Counter[str]:
    """The numbers of a text, as digits without separators and leading zeros."""
    if _DIGIT.search(text) is None:
        return Counter()
    found = (_SEPARATORS.sub("", number) for number in _NUMBER.findall(text))
    return Counter(number if len(number) > _LONG_NUMBER else str(int(number)) for number in found)


def differing_numbers(source: str, target: str) -> float:
    """The share of the numbers of both sides that the other one lacks; NaN without numbers."""
    first, second = numbers(source), numbers(target)
    if not first and not second:
        return math.nan
    if first == second:
        return 0.0
    left = list((first - second).elements()), list((second - first).elements())
    both = min(map(len, left))
    surplus = max(left, key=len)
    alone = sum(len(number) > 2 and (len(number) > _LONG_NUMBER or int(number) >= _SPELLED) for number in surplus)
    return (2 * both + max(alone - both, 0)) / (first.total() + second.total())


def urls(text: str) -> set[str]:
    """The URLs and mail addresses of a text."""
    if "://" not in text and "@" not in text and "www." not in text.casefold():
        return set()
    found = (match.rstrip(".,;:!?)]}'»“”’/").casefold() for match in _URL.findall(text))
    return {_BEGINNING.sub("", url) for url in found}


def differing_urls(source: str, target: str) -> float:
    """The share of the URLs and addresses of both sides that the other one lacks; NaN without any."""
    first, second = urls(source), urls(target)
    every = first | second
    return len(first ^ second) / len(every) if every else math.nan
