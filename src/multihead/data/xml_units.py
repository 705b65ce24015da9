"""Units in several languages, read from XML: what TMX and XLIFF share.

Files are streamed, in any encoding that Python knows; it is found from byte order mark and declaration as in XML 1.0,
appendix F. Files are untrusted: nothing outside of them is ever fetched (a DOCTYPE is ignored), and a file that
declares entities is refused, since a few lines of them can expand to fill the memory.

A `UnitParser` collects the units of one format (`tmx`, `xliff`); `scan_units` makes a corpus of them. Which segments of
a unit are the two sides is decided here, by their languages.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from multihead.data.corpus import Languages, normalize_code, primary_language
from multihead.data.entries import Entry, EntryScan, Sides, Unusable, usable
from multihead.data.text_files import LONGEST_LINE, TextScan, one_line, open_text, refuse_pipe
from multihead.errors import DataError

NO_ENTITY = "an entity that is not declared"

_BLOCK = 1 << 18
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
        "a control character, or an & or < that is not written &amp; or &lt;? Fix the line"
    ),
    expat.errors.codes[expat.errors.XML_ERROR_BAD_CHAR_REF]: "XML 1.0 has no such character: remove it from the line",
}
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*\sencoding\s*=\s*["']([A-Za-z][\w.-]*)["']""", re.ASCII)


@dataclass
class Unit:
    """Texts in several languages that translate each other."""

    line: int
    codes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # parallel to codes
    fault: Unusable | None = None


class UnitParser(ABC):
    """Handlers of the XML parser, which collect finished units in ``done``; subclasses know the elements.

    Args:
        path: the file.
        languages: the languages of the segments to keep; None to count languages only.
        separator: between the namespace and the name of an element; None: names are as written.
    """

    format: str
    """Its name, for messages."""
    root: str
    """Name of the first element."""

    def __init__(self, path: Path, languages: tuple[str, str] | None, separator: str | None = None) -> None:
        self.path, self.languages = path, languages
        self.digest = hashlib.sha256()
        self.codes: Counter[str] = Counter()  # number of segments of each language
        self.source_language = ""  # from the header
        self.line, self.ended = 1, False  # line reached so far; whether a line feed came last, so that it is empty
        self.done: list[Unit] = []
        self.pieces: list[str] | None = None  # of the open segment
        self.size = self.hidden = 0  # characters of the open segment; depth of open codes
        self.parser = expat.ParserCreate(namespace_separator=separator)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start_root
        self.parser.EndElementHandler = self.end
        self.parser.EntityDeclHandler = self._declared
        self.parser.SkippedEntityHandler = self._skipped

    @abstractmethod
    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins, after the root."""

    @abstractmethod
    def end(self, name: str) -> None:
        """An element ends."""

    @property
    @abstractmethod
    def unit(self) -> Unit | None:
        """The open unit."""

    def start_root(self, name: str, attributes: dict[str, str]) -> None:  # noqa: ARG002 - XLIFF has some
        """The root begins."""
        found = name.rpartition(" ")[2]
        if found != self.root:
            message = f"is XML, but not {self.format}: its root is <{found}>, expected <{self.root}>"
            raise DataError(message, self.path)
        self.parser.StartElementHandler = self.start

    def open_segment(self) -> None:
        """Collect the text that follows."""
        self.pieces, self.size, self.hidden = [], 0, 0
        self.parser.CharacterDataHandler = self._text

    def close_segment(self) -> str:
        """The text since `open_segment`."""
        assert self.pieces is not None
        text, self.pieces = "".join(self.pieces), None
        self.parser.CharacterDataHandler = None
        return text

    def hide(self) -> None:
        """An element begins whose text does not count."""
        self.hidden += 1
        self.parser.CharacterDataHandler = None

    def show(self) -> None:
        """It ends, or one within it."""
        self.hidden -= 1
        self.parser.CharacterDataHandler = None if self.hidden else self._text

    def _text(self, text: str) -> None:
        assert self.pieces is not None
        self.pieces.append(text)
        self.size += len(text)
        if self.size > LONGEST_LINE:
            message = f"a segment of more than {LONGEST_LINE >> 20} Mi characters; is this {self.format}?"
            raise DataError(message, self.path, self.parser.CurrentLineNumber)

    def _declared(self, name: str, *_: object) -> NoReturn:
        message = f"declares an entity ({name}), which may be made to fill the memory and is refused"
        remedy = "take the declaration out and write in its place what it stands for"
        raise DataError(f"{message}; {remedy}", self.path, self.parser.CurrentLineNumber)

    def _skipped(self, name: str, *_: object) -> None:
        # Called only if there is a DOCTYPE, which might declare the entity elsewhere; otherwise expat raises an error.
        if self.pieces is not None and not self.hidden and self.unit is not None:
            self.unit.fault = self.unit.fault or Unusable(NO_ENTITY, f"&{name};")


Make = Callable[[Path, tuple[str, str] | None], UnitParser]


def scan_units(path: Path, languages: Languages, make: Make, element: str) -> EntryScan:
    """Scan a file of units; missing languages are found by `choose_languages`.

    Args:
        path: the file.
        languages: those given by the caller.
        make: the parser of the format.
        element: the name of a unit, for messages.

    Raises:
        DataError: as `open_text`; or the file is not well-formed XML, not of the format, or not in the encoding it
            declares; it declares entities; it lacks one of the languages, or no unit has both.
    """
    refuse_pipe(path)
    parser = make(path, None)
    units = sum(1 for _ in parsed(parser))
    if not units:
        raise DataError(f"has no translation unit (<{element}>); export the file again", path)
    text = TextScan(path, parser.line - parser.ended, 0, parser.digest.hexdigest())
    chosen = _chosen(parser, languages)
    return EntryScan(text, units, chosen, "units", partial(_entries, path, make, chosen)).with_a_pair()


def read_units(path: Path, languages: Languages, make: Make, first: int) -> Iterator[Entry]:
    """The units of a file that is not scanned; see `readers.read_entries`.

    Two given languages are taken as they are; a missing one is chosen by the first units.
    """
    source, target = languages
    if source is None or target is None:
        parser = make(path, None)
        for _ in islice(parsed(parser), first):
            pass
        source, target = _chosen(parser, languages)
    return _entries(path, make, (source, target))


def _chosen(parser: UnitParser, languages: Languages) -> tuple[str, str]:
    """The two languages, by what the parser has read."""
    try:
        return choose_languages(parser.codes, parser.source_language, languages)
    except DataError as error:
        raise DataError(str(error), parser.path) from None


def _entries(path: Path, make: Make, languages: tuple[str, str]) -> Iterator[Entry]:
    return ((unit.line, _sides(unit, languages)) for unit in parsed(make(path, languages)))


def _sides(unit: Unit, languages: tuple[str, str]) -> Sides:
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


def parsed(parser: UnitParser) -> Iterator[Unit]:
    """Parse and hash a file, yielding its units as they end."""
    with open_text(parser.path) as stream:
        block = stream.read(_BLOCK)
        encoding = _encoding(block, parser.path)
        decoder = codecs.getincrementaldecoder(encoding)()
        while True:
            parser.digest.update(block)
            try:
                text = decoder.decode(block, not block)
                _feed(parser, text, final=not block)
            except UnicodeError as error:
                raise _misencoded(parser, encoding, error) from None
            parser.line, parser.ended = parser.line + text.count("\n"), (text or "\n" * parser.ended).endswith("\n")
            yield from parser.done
            parser.done.clear()
            if not block:
                return
            block = stream.read(_BLOCK)


def _feed(parser: UnitParser, text: str, *, final: bool) -> None:
    try:
        parser.parser.Parse(text, final)
    except expat.ExpatError as error:
        what = f"not well-formed XML ({expat.ErrorString(error.code)}, at column {error.offset + 1})"
        remedy = _REMEDIES.get(error.code, "fix the line (xmllint --noout FILE names all such places)")
        raise DataError(f"{what}; {remedy}, or export the file again", parser.path, error.lineno) from None


def _misencoded(parser: UnitParser, encoding: str, error: UnicodeError) -> DataError:
    line = parser.line
    if isinstance(error, UnicodeDecodeError):
        line += error.object[: error.start].decode(encoding, "ignore").count("\n")
    reason = getattr(error, "reason", str(error))
    message = f"not valid {encoding} ({reason}); fix the line, or declare the encoding in which it really is"
    return DataError(f'{message}: <?xml version="1.0" encoding="..."?>', parser.path, line)


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
