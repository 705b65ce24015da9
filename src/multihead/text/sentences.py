"""A text and its parts: paragraphs, and the sentences that they are made of.

    paragraph TAB paragraph ...        a document is a line; a tab ends a paragraph (without one there is one paragraph)
    sentence. Sentence! Sentence?      a paragraph, cut where sentences end; or at a separator that is told

Sentences end behind ``. ! ? …`` and what closes after it, where white space follows and no small letter after that;
and behind ``。！？`` anywhere. That is a rule of thumb ("Mr. Smith" is cut): documents whose sentences are known should
have a separator. Labels, files and their lines are the business of `data.labeled`, tensors of `data.nested`.

A text that is too long, cut into parts that are not: at the ends of sentences, or else where it hurts least.

The parts and what stands between them are the text; so their translations can be put together by the same
(`joined`). A sentence that is too long alone is halved, and its halves again: behind a comma or the like near its
middle, otherwise between words, otherwise (where a text has neither) between characters. What "too long" means, of a
text and of a sentence, is for the caller to say. Sentences end as `text.sentences` has it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

PARAGRAPH = "\t"
"""What stands between the paragraphs of a document."""

_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’“»«)\]]*+(?=\s)|(?<![。！？])[。！？]++[”’」』）]*+""")
"""From the first mark of a run on, never a shorter one: a line of nothing but full stops takes no square of time."""
_SOMETHING = re.compile(r"\S")


def paragraphs_of(text: str, separator: str | None = None) -> list[list[str]]:
    """The sentences of each paragraph, without white space around them; what is empty is no sentence.

    Args:
        text: the document.
        separator: stands between sentences; without one they are cut where they end.
    """
    found = []
    for paragraph in text.split(PARAGRAPH):
        cut = sentences_of(paragraph) if separator is None else paragraph.split(separator)
        found.append([sentence.strip() for sentence in cut if sentence.strip()])
    return [sentences for sentences in found if sentences]


def sentences_of(paragraph: str) -> Iterator[str]:
    """A paragraph, each piece up to the end of a sentence; together they are the paragraph."""
    start = 0
    for end in _END.finditer(paragraph):
        following = _SOMETHING.search(paragraph, end.end())
        if following is not None and not following[0].islower():
            yield paragraph[start : end.end()]
            start = end.end()
    yield paragraph[start:]


Part = tuple[str, str]
"""A part, without white space around it, and what stands between it and the next one."""

_CLAUSE = re.compile(r"""(?<![,;:–—])[,;:–—]++["'”’»)\]]*+(?=\s)|[，、；：]++""")
_BLANK = re.compile(r"\s+")
_UNSPACED = re.compile(r"[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\u0e00-\u0eff\u1000-\u109f]")
"""Kana, Han and their punctuation, Thai, Lao, Burmese: next to these no blank is written."""
_JOINERS = "\u200d\ufe0e\ufe0f"


def cut(text: str, fits: Callable[[str], bool], bearable: Callable[[str], bool] | None = None) -> list[Part]:
    """The parts of a text, white space around it left out: ``"".join(part + between) == text.strip()``.

    Args:
        text: with something in it.
        fits: whether a part is short enough; a single character is taken even if not.
        bearable: whether a sentence that does not fit may stay whole; by default none may.
    """
    text = text.strip()
    if fits(text):
        return [(text, "")]
    found: list[Part] = []
    for sentence in sentences_of(text):
        for piece in _halved(sentence, bearable or fits):
            part = piece.strip()
            before, _, behind = piece.partition(part) if part else (piece, "", "")
            if found:
                found[-1] = found[-1][0], found[-1][1] + before
            if part:
                found.append((part, behind))
    return found


def joined(translations: Sequence[str], parts: Sequence[Part]) -> str:
    """Translations of parts, put together by what stands between those.

    Where that is nothing because the source's script writes no blanks, a blank is written unless the translation's
    writes none either.

    Args:
        translations: one of each part.
        parts: as `cut` gave them, one or more.
    """
    text = translations[0]
    for translation, (before, between), (behind, _) in zip(translations[1:], parts, parts[1:], strict=False):
        if not between and text and translation and _unspaced(before, behind) and not _unspaced(text, translation):
            between = " "
        text += between + translation
    return text


def _unspaced(before: str, behind: str) -> bool:
    """Whether a script without blanks meets where two texts do."""
    return bool(_UNSPACED.match(before[-1]) or _UNSPACED.match(behind[0]))


def _halved(piece: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """The piece, or its halves, or theirs; together they are the piece."""
    if len(piece.strip()) <= 1 or fits(piece.strip()):
        yield piece
        return
    place = _best_place(piece)
    yield from _halved(piece[:place], fits)
    yield from _halved(piece[place:], fits)


def _best_place(piece: str) -> int:
    """Where to cut: something stands on both sides."""
    first = len(piece) - len(piece.lstrip())
    last = len(piece.rstrip())
    quarter = (last - first) // 4
    clauses = [match.end() for match in _CLAUSE.finditer(piece, first + 1, last)]
    blanks = [match.start() for match in _BLANK.finditer(piece, first + 1, last)]
    for places, low, high in ((clauses, first + quarter, last - quarter), (blanks, first, last)):
        fit = [place for place in places if low < place < high]
        if fit:
            return min(fit, key=lambda place: abs(2 * place - first - last))
    return _between_characters(piece, (first + last + 1) // 2, last)


def _between_characters(piece: str, place: int, last: int) -> int:
    """From here on the first place that leaves marks with their letters; here, if there is none."""
    for other in range(place, last):
        bound = unicodedata.combining(piece[other]) or piece[other] in _JOINERS or piece[other - 1] == "\u200d"
        if not bound:
            return other
    return place
