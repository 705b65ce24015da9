"""Read sentence pairs from TMX, the Translation Memory eXchange format.

    <tmx version="1.4"><header srclang="en" .../><body>
      <tu><tuv xml:lang="en"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
          <tuv xml:lang="de-DE"><seg>...</seg></tuv></tu> ...

In a segment, the codes of another format are dropped with all their content (``bpt``, ``ept``, ``ph``, ``it``, ``ut``,
and ``sub``, a text of its own within a code); the text of every other element (``hi``) is kept. Nothing replaces a
code. A line break becomes a space (`text_files.one_line`). If a unit has several variants of a language, the first with
exactly the requested code is taken, else the first variant.

Files are streamed, in any encoding that Python knows; it is found from byte order mark and declaration as in XML 1.0,
appendix F. Files are untrusted: nothing outside of them is ever fetched (a DOCTYPE is ignored), and a file that
declares entities is refused, since a few lines of them can expand to fill the memory.

TMX 1.4b: LISA OSCAR 2005; in older versions the attribute is ``lang``.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from multihead.data.corpus import Languages, Pair, Report, check_complete, normalize_code, primary_language
from multihead.data.records import Unusable, usable
from multihead.data.text_files import LONGEST_LINE, TextScan, one_line, open_text, refuse_pipe
from multihead.errors import DataError

NO_ENTITY = "an entity that is not declared"

_BLOCK = 1 << 18
_CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "sub"})
_STARTS = (  # first bytes of files; UTF-32 first, since its marks begin like those of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_REMEDIES = {
    expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS]: "the file is cut off: fetch it again",
    expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN]: "the file is cut off: fetch it again",
    expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]: (
        "a control character, or an & or < that is not written &amp; or &lt;? Mend the line"
    ),
    expat.errors.codes[expat.errors.XML_ERROR_BAD_CHAR_REF]: "XML 1.0 has no such character: take it out of the line",
}
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*\sencoding\s*=\s*["']([A-Za-z][\w.-]*)["']""", re.ASCII)


@dataclass(frozen=True)
class TmxScan:
    """A translation memory, checked by `scan_tmx`; a `readers.CorpusScan`.

    Attributes:
        text: the scan of the file; its lines are those of the file.
        units: number of translation units.
        languages: of source and target, as given or found in the file.
    """

    text: TextScan
    units: int
    languages: tuple[str, str]

    @property
    def files(self) -> tuple[TextScan, ...]:
        """The one file."""
        return (self.text,)

    @property
    def lines(self) -> int:
        """Number of translation units."""
        return self.units

    def path(self, side: int) -> Path:  # noqa: ARG002 - the protocol has it
        """The one file, for both sides."""
        return self.text.path

    def read(self, report: Report) -> Iterator[Pair]:
        """The units that are pairs, each with the line on which it begins; the others go to ``report``.

        Raises:
            DataError: no unit is a pair, or the file has changed since it was checked.
        """
        path = self.text.path
        memory = _Memory(path, self.languages)
        number = kept = 0
        for unit in _units(memory):
            number += 1
            found = _sides(unit, self.languages)
            if isinstance(found, Unusable):
                report.add(path, unit.line, *found)
            else:
                kept += 1
                yield Pair(unit.line, *found)
        check_complete([path], "units", self.units, number, kept, report)


def scan_tmx(path: Path, languages: Languages) -> TmxScan:
    """Scan a translation memory; missing languages are found by `choose_languages`.

    Raises:
        DataError: as `open_text`; or the file is not well-formed XML, not TMX, or not in the encoding it declares; it
            declares entities; it lacks one of the languages, or no unit has both.
    """
    refuse_pipe(path)
    memory = _Memory(path, None)
    units = sum(1 for _ in _units(memory))
    if not units:
        raise DataError("has no translation unit (<tu>); export the memory again", path)
    text = TextScan(path, memory.line - memory.ended, 0, memory.digest.hexdigest())
    try:
        chosen = choose_languages(memory.codes, memory.source_language, languages)
    except DataError as error:
        raise DataError(str(error), path) from None
    found = TmxScan(text, units, chosen)
    next(found.read(Report()))  # raises if there is no pair
    return found


@dataclass
class _Unit:
    line: int
    codes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # parallel to codes
    fault: Unusable | None = None


def _sides(unit: _Unit, languages: tuple[str, str]) -> tuple[str, str] | Unusable:
    if unit.fault is not None:
        return unit.fault
    source, target = _places(tuple(unit.codes), languages)
    if source is None or target is None:
        missing = [wanted for wanted, place in zip(languages, (source, target), strict=True) if place is None]
        return Unusable(f"no segment in {' and in '.join(missing)}")
    return usable(one_line(unit.texts[source]), one_line(unit.texts[target]))


@lru_cache(1024)
def _places(codes: tuple[str, ...], languages: tuple[str, str]) -> tuple[int | None, int | None]:
    return place_of(0, codes, languages), place_of(1, codes, languages)


class _Memory:
    """Handlers of the XML parser, which collect finished units in ``done``.

    Args:
        path: the file.
        languages: the languages of the segments to keep; None to count languages only.
    """

    def __init__(self, path: Path, languages: tuple[str, str] | None) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self.codes: Counter[str] = Counter()  # number of segments of each language
        self.source_language = ""  # from the header
        self.line, self.ended = 1, False  # line reached so far; whether a line feed came last, so that it is empty
        self.done: list[_Unit] = []
        self._languages = languages
        self._wanted: dict[str, bool] = {}
        self._unit: _Unit | None = None
        self._code: str | None = None  # of the open variant, if its language is wanted
        self._pieces: list[str] | None = None  # of the open segment
        self._size = self._hidden = 0  # characters of the open segment; depth of open codes
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start_root
        self.parser.EndElementHandler = self._end
        self.parser.EntityDeclHandler = self._declared
        self.parser.SkippedEntityHandler = self._skipped

    def _start_root(self, name: str, _: dict[str, str]) -> None:
        if name != "tmx":
            raise DataError(f"is XML, but not TMX: its root is <{name}>, expected <tmx>", self.path)
        self.parser.StartElementHandler = self._start

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._pieces is not None:
            if self._hidden or name in _CODES:
                self._hidden += 1
                self.parser.CharacterDataHandler = None
        elif name == "seg":
            if self._code is not None:
                self._pieces, self._size = [], 0
                self.parser.CharacterDataHandler = self._text
        elif name == "tuv":
            self._variant(attributes.get("xml:lang") or attributes.get("lang", ""))
        elif name == "tu":
            self._unit = _Unit(self.parser.CurrentLineNumber)
        elif name == "header":
            self.source_language = attributes.get("srclang", "")

    def _variant(self, code: str) -> None:
        if self._languages is None:
            self.codes.update([code] if code else [])
            return
        if code not in self._wanted:
            self._wanted[code] = side_of(code, self._languages) is not None
        if self._wanted[code]:
            self._code = code

    def _end(self, name: str) -> None:
        if self._pieces is not None:
            if self._hidden:
                self._hidden -= 1
                self.parser.CharacterDataHandler = None if self._hidden else self._text
            elif name == "seg":
                self._end_segment(self._pieces)
        elif name == "tuv":
            self._code = None
        elif name == "tu" and self._unit is not None:
            self.done.append(self._unit)
            self._unit = None

    def _end_segment(self, pieces: list[str]) -> None:
        if self._unit is not None and self._code is not None:
            self._unit.codes.append(self._code)
            self._unit.texts.append("".join(pieces))
        self._pieces = self._code = None  # a variant has one segment
        self.parser.CharacterDataHandler = None

    def _text(self, text: str) -> None:
        assert self._pieces is not None
        self._pieces.append(text)
        self._size += len(text)
        if self._size > LONGEST_LINE:
            message = f"a segment of more than {LONGEST_LINE >> 20} Mi characters; is this a translation memory?"
            raise DataError(message, self.path, self.parser.CurrentLineNumber)

    def _declared(self, name: str, *_: object) -> NoReturn:
        message = f"declares an entity ({name}), which may be made to fill the memory and is refused"
        remedy = "take the declaration out and write in its place what it stands for"
        raise DataError(f"{message}; {remedy}", self.path, self.parser.CurrentLineNumber)

    def _skipped(self, name: str, *_: object) -> None:
        # Called only if there is a DOCTYPE, which might declare the entity elsewhere; otherwise expat raises an error.
        if self._pieces is not None and not self._hidden and self._unit is not None:
            self._unit.fault = self._unit.fault or Unusable(NO_ENTITY, f"&{name};")


def _units(memory: _Memory) -> Iterator[_Unit]:
    """Parse and hash a file, yielding its units as they end."""
    with open_text(memory.path) as stream:
        block = stream.read(_BLOCK)
        encoding = _encoding(block, memory.path)
        decoder = codecs.getincrementaldecoder(encoding)()
        while True:
            memory.digest.update(block)
            try:
                text = decoder.decode(block, not block)
                _feed(memory, text, final=not block)
            except UnicodeError as error:
                raise _misencoded(memory, encoding, error) from None
            memory.line, memory.ended = memory.line + text.count("\n"), (text or "\n" * memory.ended).endswith("\n")
            yield from memory.done
            memory.done.clear()
            if not block:
                return
            block = stream.read(_BLOCK)


def _feed(memory: _Memory, text: str, *, final: bool) -> None:
    try:
        memory.parser.Parse(text, final)
    except expat.ExpatError as error:
        what = f"not well-formed XML ({expat.ErrorString(error.code)}, at column {error.offset + 1})"
        remedy = _REMEDIES.get(error.code, "mend the line (xmllint --noout FILE names all such places)")
        raise DataError(f"{what}; {remedy}, or export the memory again", memory.path, error.lineno) from None


def _misencoded(memory: _Memory, encoding: str, error: UnicodeError) -> DataError:
    line = memory.line
    if isinstance(error, UnicodeDecodeError):
        line += error.object[: error.start].decode(encoding, "ignore").count("\n")
    reason = getattr(error, "reason", str(error))
    message = f"not valid {encoding} ({reason}); mend the line, or declare the encoding in which it really is"
    return DataError(f'{message}: <?xml version="1.0" encoding="..."?>', memory.path, line)


def _encoding(start: bytes, path: Path) -> str:
    """The encoding of a file that starts with these bytes."""
    for beginning, name in _STARTS:
        if start.startswith(beginning):
            return name
    declared = _DECLARED.match(start)
    name = declared[1].decode() if declared else "utf-8"
    if name.casefold().startswith(("utf-16", "utf-32", "ucs", "iso-10646")):
        return "utf-8"  # ASCII was readable, so the file was converted without its declaration
    try:
        b"<".decode(name)  # also raises for codecs that do not yield text
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(f"declares the encoding {name!r}, which is not known; convert it to UTF-8", path, 1) from None


# --------------------------------------------------------------------------- which languages are the two sides


def covers(wanted: str, code: str) -> bool:
    """Whether ``code`` is the language ``wanted`` or a variant of it: "de" covers "de-AT", but not the reverse.

    This is the basic filtering of RFC 4647, section 3.3.1, in any letter case and with "_" for "-".
    """
    return f"{normalize_code(code)}-".startswith(f"{normalize_code(wanted)}-")


def side_of(code: str, languages: tuple[str, str]) -> int | None:
    """The side that covers a code: 0 source, 1 target, None neither; the more specific one if both do."""
    sides = [side for side in (0, 1) if covers(languages[side], code)]
    return max(sides, key=lambda side: len(languages[side]), default=None)


def place_of(side: int, codes: Sequence[str], languages: tuple[str, str]) -> int | None:
    """The index of the code to take for a side: the first equal to the requested one, else its first variant."""
    places = [place for place, code in enumerate(codes) if side_of(code, languages) == side]
    return min(places, key=lambda place: normalize_code(codes[place]) != normalize_code(languages[side]), default=None)


def choose_languages(counts: Mapping[str, int], first: str, languages: Languages) -> tuple[str, str]:
    """Source and target language of a file of units in several languages.

    Given languages must be in the file. The others follow if the file has two languages, variants counted as one (or
    one language in two variants): the remaining one; or, if none is given, ``first`` as the source.

    Args:
        counts: number of segments of each code in the file, in order of appearance.
        first: the source language in the header of the file; ignored if it is not one of the two.
        languages: those given by the caller.

    Raises:
        DataError: a language is missing or ambiguous; lists the languages of the file.
    """
    listed = ", ".join(f"{code} ({count:,})" for code, count in counts.items()) or "none"
    for wanted in languages:
        if wanted is not None and not any(covers(wanted, code) for code in counts):
            raise DataError(f"has no segment in {wanted!r}; languages found: {listed}")
    source, target = languages
    if source is not None and target is not None:
        return source, target
    two = list(dict.fromkeys(map(primary_language, counts)))
    if len(two) == 1:
        two = list(dict.fromkeys(normalize_code(code) for code in counts))
    if len(two) != 2:
        raise DataError(f"languages found: {listed}; say which is the source and which the target language")
    given = source if source is not None else target
    if given is None:
        return (two[1], two[0]) if covers(two[1], first) else (two[0], two[1])
    other = two[1] if covers(two[0], given) or covers(given, two[0]) else two[0]
    return (given, other) if target is None else (other, given)
