"""Files to translate: plain text, HTML, and subtitles (SubRip, WebVTT).

Each format is read as parts that stay and passages to translate, as `html_text` reads HTML. The lines of a subtitle are
translated as one text and broken into as many lines again.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from multihead.errors import FormatError
from multihead.serving.html_placing import Quote, escape, render
from multihead.serving.html_text import Segment, parse
from multihead.serving.schema import WordAlignment

FORMATS = (".txt", ".html", ".htm", ".srt", ".vtt")
"""Endings of the files that are translated."""

_TIMES = re.compile(r"^\s*(?:\d+:)?\d+:\d\d[,.]\d+\s+-->\s")
_WORD_TIME = re.compile(r"(<(?:\d+:)?\d+:\d\d\.\d+>)")
"""A tag of WebVTT that says when the words after it begin."""
_WEBVTT_BLOCK = re.compile(r"^(?:WEBVTT|NOTE|STYLE|REGION)\b")


@dataclass(frozen=True)
class Passage:
    """A segment, and into how many lines its translation is broken."""

    segment: Segment
    lines: int = 1
    line_end: str = "\n"
    """What stands between these lines."""

    def render(self, translation: str, alignment: WordAlignment | None, quote: Quote) -> str:
        """The translation in the format of the file."""
        text = render(self.segment, translation, alignment, quote)
        return text if self.lines == 1 else _break(text, self.lines).replace("\n", self.line_end)


@dataclass(frozen=True)
class Document:
    """A file as parts that stay and passages to translate."""

    parts: list[str | Passage]
    quote: Quote
    """Makes the format's text of a plain one."""


def read_document(name: str, content: bytes) -> Document:
    """Read a file.

    Args:
        name: its ending is one of `FORMATS`.
        content: UTF-8, or UTF-16 with a byte order mark.

    Raises:
        FormatError: another format, or not such text.
    """
    ending = PurePath(name).suffix.lower()
    if ending not in FORMATS:
        raise FormatError(f"the file {name!r}: expected one that ends with {', '.join(FORMATS)}")
    text = _decode(name, content)
    if ending == ".txt":
        return Document(_lines(text), str)
    parts = _passages(text) if ending in (".html", ".htm") else _subtitles(text)
    return Document(parts, str if ending == ".srt" else escape)


def _decode(name: str, content: bytes) -> str:
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if wide else "utf-8")  # a mark of UTF-8 stays a character of the text
    except UnicodeDecodeError:
        raise FormatError(f"the file {name!r}: expected UTF-8 text") from None


def _passages(html: str) -> list[str | Passage]:
    return [Passage(part) if isinstance(part, Segment) else part for part in parse(html)]


def _lines(text: str) -> list[str | Passage]:
    parts: list[str | Passage] = []
    for line in text.splitlines(keepends=True):
        words = line.strip().lstrip("\ufeff")
        if any(map(str.isalpha, words)):
            start = line.index(words)
            parts.append(Passage(Segment(words, [], line[:start], line[start + len(words) :])))
        else:
            parts.append(line)
    return parts


def _subtitles(text: str) -> list[str | Passage]:
    """Cues are the lines after one with times, up to an empty one, or to the next cue if there is none between."""
    parts: list[str | Passage] = []
    cue: list[str] = []
    inside = note = False
    for line in [*text.splitlines(keepends=True), ""]:
        timed = _TIMES.match(line) is not None
        if inside and line.strip() and not timed:
            cue.append(line)
            continue
        number = cue.pop() if timed and cue and cue[-1].strip().isdecimal() else ""
        parts += [*_cue(cue), number]
        note = bool(line.strip()) and (note or _WEBVTT_BLOCK.match(line.lstrip("\ufeff")) is not None)
        inside, cue = timed and not note, []
        parts.append(line)
    return parts


def _cue(lines: Sequence[str]) -> list[str | Passage]:
    """The text of a cue: one passage, unless tags without a partner divide it."""
    joined = " ".join(line.strip() for line in lines)
    parts: list[str | Passage] = []
    for place, between in enumerate(_WORD_TIME.split(joined)):
        parts += [between] if place % 2 else [part for part in _passages(between) if part]
    if not any(isinstance(part, Passage) for part in parts):
        return ["".join(lines)]
    if len(parts) == 1 and isinstance(parts[0], Passage):
        parts = [Passage(parts[0].segment, len(lines), _line_end(lines[0]))]
    return [*parts, _line_end(lines[-1])]


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _break(text: str, lines: int) -> str:
    """Break a text at blanks outside of tags into lines of about the same length."""
    blanks = [found.start() for found in re.finditer(r" (?![^<]*>)", text)]
    for number in range(1, min(lines, len(blanks) + 1)):
        place = min(blanks, key=lambda blank: abs(blank - number * len(text) / lines))
        blanks.remove(place)
        text = text[:place] + "\n" + text[place + 1 :]
    return text
