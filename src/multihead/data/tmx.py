"""Read sentence pairs from TMX, the Translation Memory eXchange format.

    <tmx version="1.4"><header srclang="en" .../><body>
      <tu><tuv xml:lang="en"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
          <tuv xml:lang="de-DE"><seg>...</seg></tuv></tu> ...

In a segment, the codes of another format are dropped with all their content (``bpt``, ``ept``, ``ph``, ``it``, ``ut``,
and ``sub``, a text of its own within a code); the text of every other element (``hi``) is kept. Nothing replaces a
code. A line break becomes a space (`text_files.one_line`). If a unit has several variants of a language, the first with
exactly the requested code is taken, else the first variant.

How such files are read, and that they may be hostile, is the business of `xml_units`.

TMX 1.4b: LISA OSCAR 2005; in older versions the attribute is ``lang``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from multihead.data.corpus import Languages
from multihead.data.entries import Entry, EntryScan
from multihead.data.xml_units import Unit, UnitParser, read_units, scan_units, side_of

_CODES = frozenset({"bpt", "ept", "ph", "it", "ut", "sub"})


class _Memory(UnitParser):
    format, root = "TMX", "tmx"

    def __init__(self, path: Path, languages: tuple[str, str] | None) -> None:
        super().__init__(path, languages)
        self._wanted: dict[str, bool] = {}
        self._unit: Unit | None = None
        self._code: str | None = None  # of the open variant, if its language is wanted

    @property
    def unit(self) -> Unit | None:
        return self._unit

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if self.pieces is not None:
            if self.hidden or name in _CODES:
                self.hide()
        elif name == "seg":
            if self._code is not None:
                self.open_segment()
        elif name == "tuv":
            self._variant(attributes.get("xml:lang") or attributes.get("lang", ""))
        elif name == "tu":
            self._unit = Unit(self.parser.CurrentLineNumber)
        elif name == "header":
            self.source_language = attributes.get("srclang", "")

    def _variant(self, code: str) -> None:
        if self.languages is None:
            self.codes.update([code] if code else [])
            return
        if code not in self._wanted:
            self._wanted[code] = side_of(code, self.languages) is not None
        if self._wanted[code]:
            self._code = code

    def end(self, name: str) -> None:
        if self.pieces is not None:
            if self.hidden:
                self.show()
            elif name == "seg":
                self._end_segment()
        elif name == "tuv":
            self._code = None
        elif name == "tu" and self._unit is not None:
            self.done.append(self._unit)
            self._unit = None

    def _end_segment(self) -> None:
        text = self.close_segment()
        if self._unit is not None and self._code is not None:
            self._unit.codes.append(self._code)
            self._unit.texts.append(text)
        self._code = None  # a variant has one segment


def scan_tmx(path: Path, languages: Languages) -> EntryScan:
    """Scan a translation memory.

    Raises:
        DataError: as `scan_units`.
    """
    return scan_units(path, languages, _Memory, "tu")


def read_tmx(path: Path, languages: Languages, first: int) -> Iterator[Entry]:
    """The units of a translation memory that is not scanned; see `readers.read_entries`."""
    return read_units(path, languages, _Memory, first)
