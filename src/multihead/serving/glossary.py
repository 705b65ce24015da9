"""Glossaries: terms in a sentence, and phrases for its translation.

A term of lower-case letters is found in any case, any other only as it is written. Terms are whole words, except in
scripts without blanks between words. Longer terms come first: a word inside of one is not a term of its own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

MAX_TERMS = 500
"""Maximum terms of a glossary."""

MAX_FOUND = 10
"""Maximum terms in one sentence: the states of the search double with each."""

_WITHOUT_BLANKS = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Thai and Lao, Burmese, Khmer, kana, Han, Hangul (whose particles follow without a blank)."""


def find_phrases(glossary: Mapping[str, str | Sequence[str]], sentence: str) -> list[list[str]]:
    """The phrases that the translation of a sentence must contain, each with its alternatives.

    Args:
        glossary: the phrase, or alternatives, for each term.
        sentence: the source.
    """
    lowered = sentence.lower()
    if len(lowered) != len(sentence):  # a letter whose lower case is longer
        lowered = sentence
    taken, phrases = [False] * len(sentence), []
    for term in sorted(glossary, key=len, reverse=True):
        text = lowered if term == term.lower() else sentence
        if _take(text, term, taken):
            wanted = glossary[term]
            phrases.append([wanted] if isinstance(wanted, str) else list(wanted))
    return phrases


def _take(text: str, term: str, taken: list[bool]) -> bool:
    """Mark every free occurrence of a term; whether there is one."""
    found, start = False, text.find(term)
    while start >= 0:
        end = start + len(term)
        if _is_boundary(text, start) and _is_boundary(text, end) and not any(taken[start:end]):
            taken[start:end] = [True] * len(term)
            found = True
        start = text.find(term, start + 1)
    return found


def _is_boundary(text: str, place: int) -> bool:
    """Whether a word can begin or end before the character at a place."""
    if place in (0, len(text)):
        return True
    return not (_joins(text[place - 1]) and _joins(text[place]))


def _joins(character: str) -> bool:
    """Whether a character belongs to the same word as a letter next to it."""
    # Marks are not alphanumeric: accents apart from their letter, vowel signs of the scripts of India.
    of_word = character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
    return of_word and not any(first <= ord(character) <= last for first, last in _WITHOUT_BLANKS)
