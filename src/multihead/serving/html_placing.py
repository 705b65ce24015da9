"""Inline tags in a translation, placed by its alignment with the source.

Every word of the translation belongs to the source word that it attends to most. An element goes around the range of
words that has the most words of its source and the fewest others. Elements of one level do not overlap; they change
their order where the words do. An element that covers its whole segment covers the whole translation. Where a model has
no attention, words are matched by their position.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from multihead.serving.html_text import Element, Segment
from multihead.serving.schema import WordAlignment

Range = tuple[int, int]

Quote = Callable[[str], str]


def escape(text: str) -> str:
    """A text as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\xa0", "&nbsp;")


@dataclass(frozen=True)
class _Words:
    """The words of a translation."""

    text: str
    read: str
    """The source."""
    source: list[Range]
    """Characters of each source word."""
    spans: list[Range]
    """Characters of each word."""
    owners: list[int]
    """The source word of each word."""
    quote: Quote


def render(segment: Segment, translation: str, alignment: WordAlignment | None, quote: Quote = escape) -> str:
    """The translation of a segment with its tags.

    Args:
        segment: as `html_text.parse` returns it.
        translation: of its text.
        alignment: of the translation, if there is one.
        quote: makes HTML, or another format, of a text.
    """
    if not segment.elements:
        return segment.before + quote(translation) + segment.after
    words = _match(segment.text, translation, alignment, quote)
    inner = _place(segment.elements, (0, len(segment.text)), (0, len(translation)), words)
    return segment.before + inner + segment.after


def _match(source: str, translation: str, alignment: WordAlignment | None, quote: Quote) -> _Words:
    if alignment is not None:
        read, spans = _find(alignment.source_words, source), _find(alignment.target_words, translation)
        if read and spans:
            owners = [max(range(len(read)), key=row.__getitem__) for row in alignment.weights]
            return _Words(translation, source, read, spans, owners, quote)
    read = [word.span() for word in re.finditer(r"\S+", source)]
    spans = [word.span() for word in re.finditer(r"\S+", translation)]
    owners = [place * len(read) // len(spans) for place in range(len(spans))]
    return _Words(translation, source, read, spans, owners, quote)


def _find(words: Sequence[str], text: str) -> list[Range] | None:
    """The characters of each word; None if the words are not those of the text."""
    spans, end = [], 0
    for word in words:
        start = text.find(word, end)
        if start < 0:
            return None
        end = start + len(word)
        spans.append((start, end))
    return spans


def _place(elements: Sequence[Element], source: Range, target: Range, words: _Words) -> str:
    """The translation's characters in ``target``, with the elements that stand in ``source``."""
    if not elements:
        return words.quote(words.text[target[0] : target[1]])
    free = [_overlap(span, target) for span in words.spans]
    placed: list[tuple[Range, int]] = []
    points = []
    for number, element in enumerate(elements):
        found = _range_of(element, source, target, words, free) if element.start < element.end else None
        if found is None:
            points.append(number)
            continue
        placed.append((found, number))
        for place, span in enumerate(words.spans):
            free[place] = free[place] and not _overlap(span, found)
    taken = [span for span, _ in placed]
    place, last, point_of = target[0], None, _points_in(source, target, words)
    for number in points:
        element = elements[number]
        if last is None or element.start > last.end or element.spaced[0] or last.spaced[1]:
            place = _outside(point_of(element), taken)
        last = element  # what touches it stands at the same place
        placed.append(((place, place), number))
    placed.sort(key=lambda one: (one[0][0], one[0][1] > one[0][0], one[1]))
    parts, end = [], target[0]
    for span, number in placed:
        element = elements[number]
        parts.append(words.quote(words.text[end : span[0]]))
        if element.start == element.end:
            parts.append(_spaced(element, span[0], words.text))
        else:
            inner = _place(element.children, (element.start, element.end), span, words)
            parts += [element.opening, inner, element.closing]
        end = span[1]
    return "".join([*parts, words.quote(words.text[end : target[1]])])


def _spaced(element: Element, place: int, text: str) -> str:
    """What has a single place, with its content, and with blanks where the source has some and the text has none."""
    inner = "".join(_spaced(child, 0, "") + " " * child.spaced[1] for child in element.children)
    before = element.spaced[0] and place > 0 and not text[place - 1].isspace()
    after = element.spaced[1] and place < len(text) and not text[place].isspace()
    return " " * before + element.opening + inner + element.closing + " " * after


def _range_of(element: Element, source: Range, target: Range, words: _Words, free: Sequence[bool]) -> Range | None:
    """The range of free words with the most words of the element and the fewest others; None if it has none."""
    inside = {number for number, span in enumerate(words.source) if _overlap(span, source)}
    own = {number for number in inside if _overlap(words.source[number], (element.start, element.end))}
    if own == inside and all(free[place] for place, span in enumerate(words.spans) if _overlap(span, target)):
        return _trim(element, source, target, words)
    best, top, gain, start = None, 0, 0, 0
    for place in range(len(words.spans)):
        if not free[place]:
            gain = 0
            continue
        if gain <= 0:
            start, gain = place, 0
        gain += 1 if words.owners[place] in own else -1
        if gain > top:
            top, best = gain, (start, place)
    if best is None:
        return None
    found = max(words.spans[best[0]][0], target[0]), min(words.spans[best[1]][1], target[1])
    return _trim(element, source, found, words)


def _trim(element: Element, source: Range, found: Range, words: _Words) -> Range | None:
    """Leave out punctuation at a side where the element has none, and its surroundings may."""
    start, end = found
    if element.end < source[1] and words.read[element.end - 1].isalnum():
        while end > start and not words.text[end - 1].isalnum():
            end -= 1
    if element.start > source[0] and words.read[element.start].isalnum():
        while start < end and not words.text[start].isalnum():
            start += 1
    return (start, end) if start < end else None


def _points_in(source: Range, target: Range, words: _Words) -> Callable[[Element], int]:
    """Finds where something without words stands: before the word that follows it, or after the one before it.

    It stands after the one before it if the source has a blank only on its other side.
    """
    read = [number for number, span in enumerate(words.source) if _overlap(span, source)]
    starts, ends = ([words.source[number][side] for number in read] for side in (0, 1))
    first, last = dict[int, int](), dict[int, int]()  # characters of the words of each source word
    for owner, (start, end) in zip(words.owners, words.spans, strict=True):
        if target[0] <= start and end <= target[1]:
            first[owner], last[owner] = min(first.get(owner, start), start), max(last.get(owner, end), end)

    def point(element: Element) -> int:
        after, before = bisect_left(starts, element.start), bisect_right(ends, element.start) - 1
        if before < 0 and after == 0:
            return target[0]
        if after == len(read):
            return target[1]
        following = first.get(read[after])
        previous = last.get(read[before]) if before >= 0 else None
        if following is not None and not (previous is not None and element.spaced == (False, True)):
            return following
        return target[1] if previous is None else previous

    return point


def _outside(place: int, taken: Iterable[Range]) -> int:
    """The place, or the end of the range that it would be in."""
    return next((end for start, end in taken if start < place < end), place)


def _overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]
