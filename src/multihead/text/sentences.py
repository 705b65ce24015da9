"""Split texts into paragraphs and sentences, and long texts into parts.

    paragraph TAB paragraph ...        a document is one line; tabs separate its paragraphs
    sentence. Sentence! Sentence?      a paragraph, split where sentences end, or at a given separator

Where sentences end is found by `text.boundaries`, by the rules of a language. `split_at_marks` is the rule of earlier
versions, which knows no language and no abbreviation; models trained on its sentences keep it. A rule can err, so
documents with known sentences should use a separator.

A text that is too long is split between sentences. A sentence that is too long alone is split in half, recursively:
after punctuation near its middle, else between words, else (in scripts without spaces) between characters. Parts
and what stands between them add up to the text, so translations can be joined in the same way (`join_translations`).
The caller defines what is too long. Labels and files of documents are read by `data.labeled`, tensors made by
`data.nested`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from multihead.text.boundaries import UNSPACED, sentence_starts

PARAGRAPH = "\t"
"""Separates the paragraphs of a document."""

_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’“»«)\]]*+(?=\s)|(?<![。！？])[。！？]++[”’」』）]*+""")
"""The possessive quantifiers keep the time linear on a line of full stops: no match starts within a run of marks."""
_SOMETHING = re.compile(r"\S")


def split_paragraphs(text: str, split: Callable[[str], Iterable[str]]) -> list[list[str]]:
    """The non-empty sentences of each paragraph, without surrounding white space.

    Args:
        text: the document.
        split: splits a paragraph into sentences.
    """
    paragraphs = []
    for paragraph in text.split(PARAGRAPH):
        sentences = [sentence.strip() for sentence in split(paragraph)]
        paragraphs.append([sentence for sentence in sentences if sentence])
    return [sentences for sentences in paragraphs if sentences]


def split_sentences(paragraph: str, language: str | None = None) -> list[str]:
    """The sentences of a paragraph with the white space after them, so that they concatenate to the paragraph.

    None is empty; a paragraph of white space is one sentence.

    Args:
        paragraph: the text.
        language: its code, as `text.boundaries.sentence_starts` takes it; None if it is not known.
    """
    places = [0, *sentence_starts(paragraph, language), len(paragraph)]
    return [paragraph[start:end] for start, end in pairwise(places) if start < end]


def split_at_marks(paragraph: str) -> Iterator[str]:
    """Split after marks that end sentences, in any language; the results concatenate to the paragraph.

    A sentence ends after ``. ! ? …`` and closing punctuation if white space follows, but no lower-case letter after it;
    and after ``。！？`` anywhere. So "Mr. Smith" is split.
    """
    start = 0
    for end in _END.finditer(paragraph):
        following = _SOMETHING.search(paragraph, end.end())
        if following is not None and not following[0].islower():
            yield paragraph[start : end.end()]
            start = end.end()
    yield paragraph[start:]


Part = tuple[str, str]
"""A part without surrounding white space, and the text between it and the next part."""

_CLAUSE = re.compile(
    r"""(?:(?<![,;:–—])[,;:–—]++|(?<=\w{4})[.!?…]++)["'”’»)\]]*+(?=\s)|[，、；：。！？]++[”’」』）]*+"""
)
"""Ends of clauses, and of sentences that `text.boundaries` leaves together: in quotations, in text without capitals."""
_SPACE = re.compile(r"\s+")
_JOINERS = "\u200d\ufe0e\ufe0f"


def split_text(
    text: str,
    fits: Callable[[str], bool],
    sentence_fits: Callable[[str], bool] | None = None,
    language: str | None = None,
) -> list[Part]:
    """Split a text into parts that fit, such that ``"".join(part + between) == text.strip()``.

    Args:
        text: not empty.
        fits: whether a part is short enough; a single character is a part even if it does not fit.
        sentence_fits: whether a single sentence is short enough to stay whole; by default ``fits``.
        language: the code of its language, if it is known.
    """
    text = text.strip()
    if fits(text):
        return [(text, "")]
    found: list[Part] = []
    for sentence in split_sentences(text, language):
        for piece in _halves(sentence, sentence_fits or fits):
            part = piece.strip()
            before, _, behind = piece.partition(part) if part else (piece, "", "")
            if found:
                found[-1] = found[-1][0], found[-1][1] + before
            if part:
                found.append((part, behind))
    return found


def join_translations(translations: Sequence[str], parts: Sequence[Part]) -> str:
    """Join the translations of parts with the text between the parts.

    If that is empty because the source's script has no spaces, a space is inserted, unless the script of the
    translations has none either.

    Args:
        translations: one for each part.
        parts: the result of `split_text`.
    """
    text = translations[0]
    for translation, (before, between), (behind, _) in zip(translations[1:], parts, parts[1:], strict=False):
        if not between and text and translation and _unspaced(before, behind) and not _unspaced(text, translation):
            between = " "
        text += between + translation
    return text


def _unspaced(before: str, behind: str) -> bool:
    """Whether either side of the boundary between two texts is in a script without spaces."""
    return bool(UNSPACED.match(before[-1]) or UNSPACED.match(behind[0]))


def _halves(piece: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """Split a piece in half until all pieces fit; they concatenate to the piece."""
    if len(piece.strip()) <= 1 or fits(piece.strip()):
        yield piece
        return
    place = _best_place(piece)
    yield from _halves(piece[:place], fits)
    yield from _halves(piece[place:], fits)


def _best_place(piece: str) -> int:
    """The place to split a piece, with text on both sides."""
    first = len(piece) - len(piece.lstrip())
    last = len(piece.rstrip())
    quarter = (last - first) // 4
    clauses = [match.end() for match in _CLAUSE.finditer(piece, first + 1, last)]
    spaces = [match.start() for match in _SPACE.finditer(piece, first + 1, last)]
    for places, low, high in ((clauses, first + quarter, last - quarter), (spaces, first, last)):
        fit = [place for place in places if low < place < high]
        if fit:
            return min(fit, key=lambda place: abs(2 * place - first - last))
    return _between_characters(piece, (first + last + 1) // 2, last)


def _between_characters(piece: str, place: int, last: int) -> int:
    """The first place from ``place`` on that does not separate marks from their letters; ``place`` if there is none."""
    for other in range(place, last):
        bound = unicodedata.combining(piece[other]) or piece[other] in _JOINERS or piece[other - 1] == "\u200d"
        if not bound:
            return other
    return place
