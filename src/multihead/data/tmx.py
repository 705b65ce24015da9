"""Pairs in one file of translation units: TMX, the Translation Memory eXchange format, as translators' tools export it.

    <tmx version="1.4"><header srclang="en" .../><body>
      <tu><tuv xml:lang="en"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
          <tuv xml:lang="de-DE"><seg>...</seg></tuv></tu> ...

What a segment becomes: the codes of another format are left out with all that is inside them (``bpt``, ``ept``,
``ph``, ``it``, ``ut``, and ``sub``, a text of its own within a code); of every other element the text stays where it
is (``hi``). Nothing is put in the place of a code. A line break becomes a space (`corpus.one_line`). A unit with
several variants of a language gives the first one that is the wanted language itself, else its first variant.

Files are streamed, in any encoding that Python knows, told apart by byte order mark and declaration as XML 1.0,
appendix F, has it. They come from other people, so nothing outside of them is ever fetched (a DOCTYPE is passed over),
and a file that declares entities is refused, for a few lines of these can fill a memory.

TMX 1.4b: LISA OSCAR 2005; in older versions the attribute is ``lang``.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from multihead.data import corpus
from multihead.data.compressed import open_text
from multihead.data.corpus import Pair, TextScan, end_reading, one_line, refuse_pipe
from multihead.data.languages import Languages, choose, place_of, side_of
from multihead.data.records import Unusable, usable
from multihead.data.report import Report
from multihead.errors import DataError

NO_ENTITY = "an entity that is not declared"

_BLOCK = 1 << 18
_CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "sub"})
_STARTS = (  # how files begin; the marks of UTF-32 begin like those of UTF-16
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
    """A translation memory, found fit to be read.

    Attributes:
        text: what one pass over the file found; its lines are those of the file.
        units: how many translation units there are.
        languages: of source and target, as they were given or found.
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
        """How many translation units there are."""
        return self.units

    def path(self, side: int) -> Path:  # noqa: ARG002 - of whatever side
        """The one file, for both sides."""
        return self.text.path

    def read(self, report: Report) -> Iterator[Pair]:
        """The units that are pairs, with the line on which each begins; the others go to ``report``.

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
        end_reading([path], "units", self.units, number, kept, report)


def scan_tmx(path: Path, languages: Languages) -> TmxScan:
    """Look through a translation memory once; languages that are not given are chosen as `languages.choose` has it.

    Raises:
        DataError: as `open_text`; it is not well-formed XML, not TMX, or not in the encoding that it declares; it
            declares entities; it does not have the two languages, or no unit has both.
    """
    refuse_pipe(path)
    memory = _Memory(path, None)
    units = sum(1 for _ in _units(memory))
    if not units:
        raise DataError("has no translation unit (<tu>); export the memory again", path)
    text = TextScan(path, memory.line - memory.ended, 0, memory.digest.hexdigest())
    try:
        chosen = choose(memory.codes, memory.source_language, languages)
    except DataError as error:
        raise DataError(str(error), path) from None
    found = TmxScan(text, units, chosen)
    for _ in found.read(Report()):  # at least one, or it is said at once
        break
    return found


@dataclass
class _Unit:
    line: int
    codes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # of each code
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
    """What the parser says of a file, as units.

    Args:
        path: the file.
        languages: whose segments are wanted; None to look at the languages alone.
    """

    def __init__(self, path: Path, languages: tuple[str, str] | None) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self.codes: Counter[str] = Counter()  # of each language, how many segments
        self.source_language = ""  # as the header has it
        self.line, self.ended = 1, False  # on which what was read ends; whether it is the start of it
        self.done: list[_Unit] = []
        self._languages = languages
        self._wanted: dict[str, bool] = {}
        self._unit: _Unit | None = None
        self._code: str | None = None  # of the variant that is open, if it is wanted
        self._pieces: list[str] | None = None  # of the segment that is open
        self._size = self._hidden = 0  # characters of it; codes that are open around us
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
        if self._size > corpus.LONGEST_LINE:
            message = f"a segment of more than {corpus.LONGEST_LINE >> 20} Mi characters; is this a translation memory?"
            raise DataError(message, self.path, self.parser.CurrentLineNumber)

    def _declared(self, name: str, *_: object) -> NoReturn:
        message = f"declares an entity ({name}), which may be made to fill the memory and is refused"
        remedy = "take the declaration out and write in its place what it stands for"
        raise DataError(f"{message}; {remedy}", self.path, self.parser.CurrentLineNumber)

    def _skipped(self, name: str, *_: object) -> None:
        """Only where there is a DOCTYPE, which might declare it elsewhere; else it is an error of the XML."""
        if self._pieces is not None and not self._hidden and self._unit is not None:
            self._unit.fault = self._unit.fault or Unusable(NO_ENTITY, f"&{name};")


def _units(memory: _Memory) -> Iterator[_Unit]:
    """The units of a file, as they end; the file is hashed on the way."""
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
    """The encoding of a file that begins like this."""
    for beginning, name in _STARTS:
        if start.startswith(beginning):
            return name
    declared = _DECLARED.match(start)
    name = declared[1].decode() if declared else "utf-8"
    if name.casefold().startswith(("utf-16", "utf-32", "ucs", "iso-10646")):
        return "utf-8"  # one byte a character, so it is none of these: the text was converted, its label was not
    try:
        b"<".decode(name)  # also refuses what Python calls a codec, but makes no text
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(f"declares the encoding {name!r}, which is not known; convert it to UTF-8", path, 1) from None
