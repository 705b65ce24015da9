"""Find where sentences end, in any language, by sentencex and a few rules.

sentencex (Wikimedia's splitter in Rust, MIT, without dependencies) knows the marks that end sentences in 80 scripts and
the abbreviations of some 30 languages, and handles quotes, brackets, initials and lists. It was chosen instead of
prefix lists because it is maintained and was better than the others that were measured (docs/lab-notes.md). Rules of
this module change what it is given and what it returns:

* It reads a copy of the same length in which every kind of white space is a blank, because it panics at some of them.
  Only the positions of its ends are used, so that no text can change or get lost.
* A long text is read in windows, because its time can grow with the square of the length.
* A sentence does not end before a lower-case letter, without white space (except after marks like 。), after an
  initial, after an ordinal number in German, and after the abbreviations of `text.abbreviations`, which sentencex
  lacks. So text without capitals is hardly split.
* A sentence ends after … too, and a whole sentence in brackets is one.

The library is imported at the first call. `text.sentences` splits with this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

from multihead.text.abbreviations import abbreviations, primary_code

_WINDOW = 2_000
"""Characters that sentencex reads at a time; a longer sentence is still found whole."""
_MARGIN = 200
"""Characters at the end of a window whose ends are left to the next window, which sees what follows them."""

_SPACES = re.compile(" *+")
_CLOSING = "\"'”’“»«›‹)]}」』）】〉》"
_OPENING = " \"'«»„“”‚‘’‹›([{–—-"
"""What may stand between the start of a sentence and its first letter."""
_WORD = re.compile(r"""[^\s"'«»„“”‚‘’\[({/–—]+$""")
"""The last word before a mark."""
_LONGEST_WORD = 40
_TAIL = 200
"""Characters before a mark that are looked at, so that a long sentence does not cost the square of its length."""
_HYPHENATED = re.compile(r"\w\.-\w")
"""Two initials."""
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65]")
"""Thai, Lao, Burmese, kana, Han and their punctuation: scripts written without spaces between words."""
_BRACKETS = re.compile(r"\s*(?:\([^()]*[.!?]\)(?= )|（[^（）]*[。！？]）)")
"""A sentence in brackets, at the start."""
_QUOTATIVE = re.compile(r"って|と(?!ても|ころ|き)")
"""What joins a quotation to its sentence in Japanese."""
_CAPITALIZING = frozenset({"de", "lb", "nds", "gsw", "bar"})
"""Languages with capital letters in common nouns, and a full stop after ordinal numbers."""


def sentence_starts(text: str, language: str | None = None) -> list[int]:
    """Where the sentences of a text begin: increasing positions of characters that are not white space.

    The first sentence is left out, so that a text of one sentence, or of none, has an empty list.

    Args:
        text: any text. Its length may be anything: the time grows in proportion.
        language: a code such as "de", "pt-BR" or "deu_Latn". With None, or a language without rules, those of English
            and of the marks of all scripts apply.
    """
    code = primary_code(language)
    plain = text.translate(_replacements())
    view = _View(text, plain, code)
    found: list[int] = []
    start, last = len(plain) - len(plain.lstrip()), len(plain.rstrip())
    for end in _candidates(plain, code):
        place = _skip_spaces(plain, end)
        if start < place < last and view.ends(start, place):
            start = place
            found.append(place)
    return found


def _candidates(plain: str, code: str) -> Iterator[int]:
    """Where sentences may begin, in increasing order: sentencex's ends, and those of sentences in brackets."""
    start = 0
    for end in chain(_windowed_ends(plain, code), (len(plain),)):
        bracket = _BRACKETS.match(plain, start, end)
        if bracket and bracket.end() < end:
            yield bracket.end()
        yield end
        start = end


def _windowed_ends(plain: str, code: str) -> Iterator[int]:
    """The ends that sentencex finds, in windows that overlap."""
    start = seen = 0
    while True:
        ends = [start + end for end in _ends(plain[start : start + _WINDOW], code)]
        complete = start + _WINDOW >= len(plain)
        limit = len(plain) if complete else start + _WINDOW - _MARGIN
        sure = [end for end in ends if end <= limit]
        yield from (end for end in sure if end > seen)
        if complete:
            return
        start, seen = max([*sure[-1:], start + _WINDOW // 2]), limit


def _ends(piece: str, code: str) -> list[int]:
    """The ends of sentences, without that of the whole piece; none where sentencex fails."""
    from sentencex import segment

    try:
        lengths = [len(sentence) for sentence in segment(code or "en", piece)]
    except BaseException as error:  # a panic in Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return []
    return list(accumulate(lengths))[:-1] if sum(lengths) == len(piece) else []


@dataclass(frozen=True)
class _View:
    """A text, and what decides whether a sentence of it ends."""

    text: str
    plain: str
    """The text as sentencex reads it, of the same length."""
    code: str

    def ends(self, start: int, place: int) -> bool:
        """Whether a sentence that begins at ``start`` ends before ``place``."""
        start = max(start, place - _TAIL)
        head = self.plain[start:place].rstrip()
        body = head.rstrip(_CLOSING)
        spaced = start + len(head) < place
        if not body:
            return spaced
        mark = self.text[start + len(body) - 1]
        if not spaced and not self._needs_no_space(mark, place):
            return False
        if len(body) < len(head) and not spaced and _QUOTATIVE.match(self.plain, place):
            return False
        first = self.plain[place : place + 20].lstrip(_OPENING)[:1]
        if first.islower() and not "ა" <= first <= "ჿ":
            return False
        single = mark == "." and body == head and not body.endswith("..")
        return not (single and self._is_abbreviation(body[:-1], first))

    def _needs_no_space(self, mark: str, place: int) -> bool:
        """Whether a mark ends a sentence without white space after it."""
        if mark in "!?":
            return bool(UNSPACED.match(self.plain, place))
        return not mark.isascii() and not mark.isalnum() and mark != "…"

    def _is_abbreviation(self, body: str, first: str) -> bool:
        """Whether the full stop after a text belongs to its last word, because the next one begins with ``first``."""
        found = _WORD.search(body[-_LONGEST_WORD:])
        if found is None:
            return False
        word = found[0]
        before = body[: len(body) - len(word)].rstrip(_OPENING)
        anywhere, numbered = abbreviations(self.code or "en")
        if word in anywhere or word.lower() in anywhere:
            return True
        if word.lower() in numbered and first.isdecimal():
            return True
        if word.isdecimal() and len(word) <= 2:  # of a list, or an ordinal number
            return not before or (self.code in _CAPITALIZING and first.isalpha() and before[-1] != ".")
        return bool(_HYPHENATED.fullmatch(word)) or (word.isupper() and len(word) == 1 and _is_initial(word, before))


def _is_initial(letter: str, before: str) -> bool:
    """Whether a capital letter is the initial of a name; sentencex knows those of ASCII names, but not "dr. A."."""
    return not letter.isascii() or not before or before[-1] == "."


def _skip_spaces(plain: str, place: int) -> int:
    """The first place from ``place`` on that is no space."""
    found = _SPACES.match(plain, place)
    assert found is not None
    return found.end()


@lru_cache(maxsize=1)
def _replacements() -> dict[int, str]:
    """One character for each that sentencex does not read, or reads in another way."""
    spaces = dict.fromkeys((code for code in range(0x3001) if chr(code).isspace()), " ")
    return {**dict.fromkeys(range(0xD800, 0xE000), "\ufffd"), **spaces, **dict.fromkeys(map(ord, "…។៕"), "?")}
