"""HTML: the texts to translate, with the inline tags inside of them.

    <p>Das ist <b>gut</b>.</p>      one segment: "Das ist gut.", with <b> around characters 8 to 11

A segment is the text between two block tags; inline tags (``b``, ``a``, ``span``, ...) belong to it. Everything else
stays exactly as it is: tags and their attributes, comments, scripts, code, elements with ``translate="no"`` or the
class ``notranslate``, and texts without letters. A tag without its partner, or one that crosses another, separates
segments.
`html_placing` puts the inline tags into the translations.

The scanner follows the tokenization of the HTML standard (13.2.5) as far as needed to tell text from the rest, and
takes linear time for any input. Python's parser does not in every version, and does not give the exact source back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from itertools import accumulate

_INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "label"}
    | {"mark", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "tt", "u"}
)
_POINTS = frozenset(["img", "input", "wbr"])
"""Elements without content that stand within a sentence."""
_KEPT = frozenset(
    {"applet", "audio", "canvas", "code", "embed", "kbd", "math", "object", "pre", "samp", "script", "select", "style"}
    | {"svg", "template", "textarea", "time", "var", "video"}
)
"""Elements that are kept with their content."""
_RAW = frozenset(["script", "style", "textarea", "xmp", "iframe", "noembed", "noframes"])
"""Elements whose content has no tags."""
_KEPT_BLOCKS = frozenset(["pre", "script", "style", "template", "textarea"])
"""Those of `_KEPT` that do not stand within a sentence."""

_DEEPEST = 50
"""Maximum nesting of inline elements; deeper ones separate segments."""
_MOST = 500
"""Maximum inline elements between two block tags; further ones separate segments. Each is compared with all words."""

_TAG = re.compile(r"""</?([a-zA-Z][^\s/>]*+)(?>[^>"']|"[^"]*"|'[^']*')*+>""")
_SIMPLE_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*+)[^>]*+>")
_NO_TRANSLATION = re.compile(
    r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*(?:notranslate\b|"[^"]*\bnotranslate\b|'[^']*\bnotranslate\b))""",
    re.IGNORECASE,
)
_BLANKS = " \t\n\r\f"
_SPACE = re.compile(r"[ \t\n\r\f]+")


@dataclass(frozen=True)
class Token:
    """A piece of the source: a text, a tag, or anything else, such as a comment."""

    raw: str
    kind: str
    """``text``, ``start``, ``end`` or ``other``."""
    name: str = ""
    """Of a tag, in lower case."""


def scan(html: str) -> Iterator[Token]:
    """The tokens of a document; joined, they are the document."""
    place, text, quotes = 0, 0, True
    while (place := html.find("<", place)) >= 0:
        tag = _TAG.match(html, place) if quotes else None
        if tag is None and re.match(r"</?[a-zA-Z]", html[place : place + 3]):
            # From here on no tag ends outside of quotes; once is enough to find out.
            quotes, tag = False, _SIMPLE_TAG.match(html, place)
        if tag is not None:
            end, kind, name = tag.end(), "end" if html[place + 1] == "/" else "start", tag[1].lower()
        elif html.startswith("<!--", place):
            close = html.find("-->", place + 4)
            end, kind, name = close + 3 if close >= 0 else 0, "other", ""
        elif html[place + 1 : place + 2] in ("!", "?", "/"):
            end, kind, name = html.find(">", place) + 1, "other", ""
        elif re.match(r"</?[a-zA-Z]", html[place : place + 3]):
            end, kind, name = 0, "other", ""
        else:
            place += 1
            continue
        if text < place:
            yield Token(html[text:place], "text")
        end = end if end > place else len(html)  # without its end, it takes the rest
        yield Token(html[place:end], kind, name)
        place = text = end
        if kind == "start" and name in _RAW:
            closing = re.compile(f"</{name}(?=[\\s/>])", re.IGNORECASE).search(html, place)
            text = place = len(html) if closing is None else closing.start()
            if end < place:
                yield Token(html[end:place], "other")
    if text < len(html):
        yield Token(html[text:], "text")


@dataclass
class Element:
    """An inline element, or what stands at a single place (``start == end``, no ``closing``)."""

    opening: str
    closing: str
    start: int
    end: int
    """Characters of the segment's text that it contains."""
    children: list[Element] = field(default_factory=list)
    spaced: tuple[bool, bool] = (False, False)
    """Whether white space stands before and after what has a single place."""


@dataclass(frozen=True)
class Segment:
    """A text to translate."""

    text: str
    """With references resolved and runs of white space as single blanks."""
    elements: list[Element]
    before: str
    after: str
    """White space around it, as in the source."""


def parse(html: str) -> list[str | Segment]:
    """The segments of a document, and what stays as it is between them."""
    parts: list[str | Segment] = []
    for inline, tokens in _runs(list(scan(html))):
        raw = "".join(token.raw for token in tokens)
        segment = _segment(tokens) if inline else None
        parts.append(raw if segment is None else segment)
    return parts


def _runs(tokens: Sequence[Token]) -> Iterator[tuple[bool, list[Token]]]:
    """Runs of tokens that belong to one segment, and the tokens between them."""
    run: list[Token] = []
    for token in _joined(tokens):
        inline = token.kind == "text" or token.name in _INLINE or token.name in _POINTS or token.kind == "kept"
        if inline or token.raw.startswith("<!--"):
            run.append(token)
            continue
        yield from _split(run)
        yield False, [token]
        run = []
    yield from _split(run)


def _joined(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens, with every kept element as a single one: ``kept`` within a sentence, else ``other``."""
    partners, opened = {}, dict[str, list[int]]()
    for place, token in enumerate(tokens):
        if token.kind == "start":
            opened.setdefault(token.name, []).append(place)
        elif token.kind == "end" and opened.get(token.name):
            partners[opened[token.name].pop()] = place
    place = 0
    while place < len(tokens):
        token, end = tokens[place], partners.get(place)
        kept = token.kind == "start" and (token.name in _KEPT or _NO_TRANSLATION.search(token.raw) is not None)
        if kept and end is not None:
            block = token.name in _KEPT_BLOCKS or token.name not in _KEPT | _INLINE
            raw = "".join(one.raw for one in tokens[place : end + 1])
            yield Token(raw, "other" if block else "kept")
            place = end
        else:
            yield token
        place += 1


def _split(run: Sequence[Token]) -> Iterator[tuple[bool, list[Token]]]:
    """Split a run at the tags that have no partner, or whose element contains such a tag."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    lonely, elements = [0] * len(run), 0
    for place, token in enumerate(run):
        elements += token.kind not in ("text", "end")
        if token.kind == "start" and token.name in _INLINE and len(opened) < _DEEPEST and elements <= _MOST:
            opened.append(place)
        elif token.kind not in ("text", "end") and (elements > _MOST or token.name in _INLINE):
            lonely[place] = 1
        elif token.kind == "end":
            if opened and run[opened[-1]].name == token.name:
                partners[opened.pop()] = place
            else:
                lonely[place] = 1
    for place in opened:
        lonely[place] = 1
    before = [0, *accumulate(lonely)]
    for start, end in partners.items():
        if before[end] > before[start]:
            lonely[start] = lonely[end] = 1
    part: list[Token] = []
    for token, alone in zip(run, lonely, strict=True):
        if alone:
            yield True, part
            yield False, [token]
            part = []
        else:
            part.append(token)
    yield True, part


def _segment(tokens: Sequence[Token]) -> Segment | None:
    """The segment of tokens whose tags are all paired; None if it has no letters."""
    text, root = "", Element("", "", 0, 0)
    stack = [root]
    leading, point, last = "", None, 0
    for token in tokens:
        if token.kind == "text":
            words = unescape(token.raw)
            if point is not None:
                point.spaced = (point.spaced[0], words[:1] in _BLANKS)
            if not text:
                stripped = words.lstrip(_BLANKS)
                leading += "" if point is not None else words[: len(words) - len(stripped)]
                words = stripped
            text += words
            point = None
        elif token.kind == "end":
            element = stack.pop()
            element.end, element.closing = len(text), token.raw
            if not text[element.start :].strip(_BLANKS):
                element.end = element.start
                point, last = element, len(text)
        else:
            spaced = point is None and text[-1:] in (*_BLANKS,)
            element = Element(token.raw, "", len(text), len(text), spaced=(spaced, False))
            stack[-1].children.append(element)
            if token.kind == "start" and token.name in _INLINE:
                stack.append(element)
            else:
                point, last = element, len(text)
    if not any(map(str.isalpha, text)):
        return None
    kept = text.rstrip(_BLANKS)
    short, places = _collapse(kept)
    _move(root.children, [*places, *[len(short)] * (len(text) - len(kept))])
    return Segment(short, root.children, leading, text[max(len(kept), last) :])


def _collapse(text: str) -> tuple[str, list[int]]:
    """Runs of white space as single blanks, and for each place in the text the place there."""
    short, places, end = [], list[int](), 0
    length = 0
    for run in _SPACE.finditer(text):
        places += range(length, length + run.start() - end)
        length += run.start() - end
        short += [text[end : run.start()], " "]
        places += [length] * (run.end() - run.start())
        length, end = length + 1, run.end()
    places += range(length, length + len(text) - end + 1)
    return "".join([*short, text[end:]]), places


def _move(elements: Sequence[Element], places: Sequence[int]) -> None:
    waiting = list(elements)
    while waiting:
        element = waiting.pop()
        element.start, element.end = places[element.start], places[element.end]
        waiting += element.children
