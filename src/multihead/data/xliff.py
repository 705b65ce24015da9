"""Read sentence pairs from XLIFF 1.2 and 2, the exchange of documents.

    <xliff version="1.2"><file source-language="en" target-language="de" ...><body>
      <trans-unit id="1"><source>Press <g id="1">Start</g>.</source>
                         <target state="final">Drücken Sie <g id="1">Start</g>.</target></trans-unit> ...
    <xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="1">
      <segment state="final"><source>Press <pc id="1">Start</pc>.</source>
                             <target>Drücken Sie <pc id="1">Start</pc>.</target></segment></unit> ...

A unit is a ``segment`` of XLIFF 2. Of 1.2 it is a ``trans-unit``, or each of its segments where a tool has cut it
(``<mrk mtype="seg" mid="0">`` in ``seg-source`` and ``target``). Tags that stand for codes of the document are
dropped; text between tags (``g``, ``pc``, ``mrk``) is kept, and native codes (``bpt``, ``ept``, ``ph``, ``it``, with a
``sub`` in them) are not text. Proposals of memories (``alt-trans``, ``matches``), notes and skeletons are not read.

Left out and named are units whose target is missing, that are not translated yet by their state ("new",
"needs-translation"; "initial" of XLIFF 2), and that are not to be translated (``translate="no"``). Either language may
be the source. How such files are read, and that they may be hostile, is the business of `xml_units`.

XLIFF 1.2: OASIS 2008; XLIFF 2.0: OASIS 2014; 2.1: OASIS 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from multihead.data.corpus import Languages
from multihead.data.entries import Entry, EntryScan, Unusable
from multihead.data.xml_units import Unit, UnitParser, covers, read_units, scan_units

NOT_TRANSLATED = "not translated yet"
NOT_TO_TRANSLATE = 'not to be translated (translate="no")'
UNKNOWN = "und"
"""The code of a language that the file does not name (ISO 639-2)."""

_CODES = frozenset({"bpt", "ept", "ph", "it"})
_TEXTS = frozenset({"source", "target", "seg-source"})
_UNTRANSLATED = frozenset({"new", "needs-translation", "initial"})
_XML_LANG = "http://www.w3.org/XML/1998/namespace lang"


def scan_xliff(path: Path, languages: Languages) -> EntryScan:
    """Scan a file of XLIFF 1.2 or 2.

    Raises:
        DataError: as `scan_units`.
    """
    return scan_units(path, languages, partial(_Document, given=languages), "trans-unit or segment")


def read_xliff(path: Path, languages: Languages, first: int) -> Iterator[Entry]:
    """The units of a file that is not scanned; see `readers.read_entries`."""
    return read_units(path, languages, partial(_Document, given=languages), first)


class _Document(UnitParser):
    """Elements are told apart by their local names; ``_open`` has those around the current one."""

    format, root = "XLIFF", "xliff"

    def __init__(self, path: Path, languages: tuple[str, str] | None, given: Languages) -> None:
        super().__init__(path, languages, separator=" ")
        self._given = given
        self._target_language = UNKNOWN  # of the file
        self._unit_language = UNKNOWN  # of the open unit's target
        self._open: list[str] = []
        self._translate = [True]  # of the elements around
        self._unit: Unit | None = None
        self._texts: dict[str, str] = {}  # of the open unit, by element
        self._segments: dict[str, dict[str, str]] = {}  # of its texts that were cut: by element, then by mid
        self._inline: list[tuple[int, str] | None] = []  # of the open text: where a segment begins, and its mid

    @property
    def unit(self) -> Unit | None:
        return self._unit

    def start_root(self, name: str, attributes: dict[str, str]) -> None:
        super().start_root(name, attributes)
        self._languages_of(attributes.get("srcLang"), attributes.get("trgLang"))

    def _languages_of(self, source: str | None, target: str | None) -> None:
        """The languages from here on; one that is not named is the user's."""
        self.source_language = source or self.source_language or UNKNOWN
        others = [one for one in self._given if one is not None and not covers(one, self.source_language)]
        self._target_language = target or (others[0] if others else UNKNOWN)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(" ")[2]
        if self.pieces is not None:
            self._start_inline(local, attributes)
            return
        parent = self._open[-1] if self._open else ""
        self._open.append(local)
        if local in ("file", "group", "unit", "trans-unit"):
            said = attributes.get("translate")
            self._translate.append(self._translate[-1] if said is None else said != "no")
        if local == "file" and "source-language" in attributes:
            self._languages_of(attributes["source-language"], attributes.get("target-language"))
        elif local in ("trans-unit", "segment"):
            self._unit, self._texts, self._segments = Unit(self.parser.CurrentLineNumber), {}, {}
            self._unit_language = self._target_language
            self._mark(attributes.get("state", ""))
        elif local in _TEXTS and parent in ("trans-unit", "segment") and self._unit is not None:
            if local == "target":
                self._unit_language = attributes.get(_XML_LANG, self._unit_language)
                self._mark(attributes.get("state", ""))
            self._inline = []
            self._segments[local] = {}
            self.open_segment()

    def _mark(self, state: str) -> None:
        """Note why the open unit is no pair."""
        assert self._unit is not None
        if not self._translate[-1]:
            self._unit.fault = Unusable(NOT_TO_TRANSLATE)
        elif state in _UNTRANSLATED:
            self._unit.fault = Unusable(NOT_TRANSLATED, f'state="{state}"')

    def _start_inline(self, name: str, attributes: dict[str, str]) -> None:
        if self.hidden or name in _CODES:
            self.hide()
            return
        assert self.pieces is not None
        cut = name == "mrk" and attributes.get("mtype") == "seg"
        self._inline.append((len(self.pieces), attributes.get("mid", "")) if cut else None)

    def end(self, name: str) -> None:  # noqa: ARG002 - elements end in the order of ``_open``
        if self.pieces is not None and self.hidden:
            self.show()
            return
        if self.pieces is not None and self._inline:
            begun = self._inline.pop()
            if begun is not None:
                self._segments[self._open[-1]][begun[1]] = "".join(self.pieces[begun[0] :])
            return
        local = self._open.pop() if self._open else ""
        if self.pieces is not None:
            self._texts[local] = self.close_segment()
        elif local in ("trans-unit", "segment"):
            self._end_unit()
        if local in ("file", "group", "unit", "trans-unit"):
            self._translate.pop()

    def _end_unit(self) -> None:
        unit, self._unit = self._unit, None
        assert unit is not None
        cut, cut_target = self._segments.get("seg-source"), self._segments.get("target")
        pairs = [(self._texts.get("source"), self._texts.get("target"))]
        if cut and cut_target:
            pairs = [(text, cut_target.get(mid)) for mid, text in cut.items()]
        for pair in pairs:
            found = Unit(unit.line, fault=unit.fault)
            for code, text in zip((self.source_language, self._unit_language), pair, strict=True):
                if text is not None:
                    self.codes[code] += 1
                    found.codes.append(code)
                    found.texts.append(text)
            self.done.append(found)
