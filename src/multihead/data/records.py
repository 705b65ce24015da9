"""Read sentence pairs from a file of records: TSV or JSON lines.

TSV has no quotes and no escapes: the text between two tabs is taken as it is, as `cut` does. The first line is a header
if it names both sides, by the two languages or by "source" and "target"; those columns are then read. Otherwise every
line is a record, and the first two columns are read. All lines must have as many columns as the header, or as most
lines: a line with an extra tab is left out, since it is unclear which text the tab belongs to.

JSON lines hold one object each. Its sides are named by the two languages or by "source" and "target", in the object
itself or in an object under "translation" (as in the data sets of Hugging Face). Texts may contain line breaks, which
become spaces (`text_files.one_line`). Other keys are ignored.

Both are UTF-8; a byte order mark at the start of the file is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Languages, Pair, Report, check_complete, normalize_code
from multihead.data.text_files import NOT_UTF8, TextScan, one_line, open_text, place_in_line, scan, split_lines
from multihead.errors import DataError

NOT_JSON = "not valid JSON"
NOT_AN_OBJECT = "not a JSON object"
NOT_A_STRING = "not a string"
NOT_UNICODE = "half of a surrogate pair, which is no character"

_SIDES = "source", "target"
_KEYS_NAMED = 10  # keys listed in the description of a fault


class Unusable(NamedTuple):
    """Why a record is not a pair, as in `Report.add`."""

    reason: str
    detail: str = ""


Parse = Callable[[str], tuple[str, str] | Unusable]


@dataclass(frozen=True)
class RecordScan:
    """A file with a record on each line, checked by a ``scan_...`` function; a `readers.CorpusScan`.

    Attributes:
        text: the scan of the file.
        languages: of source and target, as given.
        header: whether the first line is a header.
        parse: extracts source and target from a line.
    """

    text: TextScan
    languages: Languages
    header: bool
    parse: Parse

    @property
    def files(self) -> tuple[TextScan, ...]:
        """The one file."""
        return (self.text,)

    @property
    def lines(self) -> int:
        """Number of records, without the header."""
        return self.text.lines - self.header

    def path(self, side: int) -> Path:  # noqa: ARG002 - the protocol has it
        """The one file, for both sides."""
        return self.text.path

    def read(self, report: Report) -> Iterator[Pair]:
        """The records that are pairs, each with its line; the others go to ``report``.

        Raises:
            DataError: no record is a pair, or the file has changed since it was checked.
        """
        path = self.text.path
        number = kept = 0
        with open_text(path) as stream:
            for number, raw in enumerate(split_lines(stream, path), start=1):
                if number == 1 and self.header:
                    continue
                found = self._sides(raw)
                if isinstance(found, Unusable):
                    report.add(path, number, *found)
                else:
                    kept += 1
                    yield Pair(number, *found)
        check_complete([path], "records", self.lines, number - self.header, kept, report)

    def _sides(self, raw: bytes) -> tuple[str, str] | Unusable:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            return Unusable(NOT_UTF8, place_in_line(error))
        found = self.parse(text) if text.strip() else Unusable(EMPTY_BOTH)
        return found if isinstance(found, Unusable) else usable(*found)


def usable(source: str, target: str) -> tuple[str, str] | Unusable:
    """Both sides of a record, unless one of them is empty or only white space."""
    empty = [side for side, text in zip(_SIDES, (source, target), strict=True) if not text.strip()]
    if empty:
        return Unusable(EMPTY_BOTH) if len(empty) == 2 else Unusable(EMPTY, f"the {empty[0]}")
    return source, target


def find_columns(names: Sequence[str], languages: Languages) -> tuple[int, int] | None:
    """The places of the two sides among the names of columns or keys.

    They are the two languages if both are given and present, else the words "source" and "target"; None if neither is
    present. Language variants do not count: "de_id" is hardly the German of Indonesia.
    """
    normalized = [normalize_code(name) for name in names]
    for source, target in (languages, _SIDES):
        if source is not None and target is not None:
            wanted = normalize_code(source), normalize_code(target)
            if set(wanted) <= set(normalized):
                return normalized.index(wanted[0]), normalized.index(wanted[1])
    return None


_find_columns_cached = lru_cache(256)(find_columns)


# --------------------------------------------------------------------------- TSV


def scan_table(path: Path, languages: Languages) -> RecordScan:
    """Scan a TSV file.

    Raises:
        DataError: as `text_files.scan`; or most lines have no tab, or no line is a pair.
    """
    counts: Counter[int] = Counter()

    def look(block: bytes) -> None:
        counts.update(line.count(b"\t") + 1 for line in block.split(b"\n") if line.strip())

    text = scan(path, look)
    names = _first_line(path).split("\t")
    header = find_columns(names, languages)
    width = len(names) if header else counts.most_common(1)[0][0] if counts else 0
    if width < 2:
        message = "most lines have no tab; expected a sentence, a tab and its translation on each"
        raise DataError(f"{message} (for two files with a sentence a line, name both)", path)
    return _with_a_pair(RecordScan(text, languages, header is not None, partial(_cells, width, header or (0, 1))))


def _cells(width: int, places: tuple[int, int], line: str) -> tuple[str, str] | Unusable:
    cells = line.split("\t")
    if len(cells) != width:
        return Unusable(f"not {width} columns", f"{len(cells)}")
    return cells[places[0]], cells[places[1]]


# --------------------------------------------------------------------------- JSON lines


def scan_json_lines(path: Path, languages: Languages) -> RecordScan:
    """Scan a file of JSON lines.

    Raises:
        DataError: as `text_files.scan`; or the file is one JSON value over many lines, or no line is a pair.
    """
    text = scan(path)
    first = _first_line(path).strip()
    if first.startswith("[") or first == "{":
        filter_ = ".[]" if first.startswith("[") else "."
        message = "begins a JSON value that is more than one record; expected an object on each line"
        raise DataError(f"{message}: jq -c '{filter_}' OLD > NEW", path, 1)
    return _with_a_pair(RecordScan(text, languages, False, partial(_values, languages)))


def _values(languages: Languages, line: str) -> tuple[str, str] | Unusable:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return Unusable(NOT_JSON, f"{error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return Unusable(NOT_JSON, "a number too long or objects too deep")
    if not isinstance(record, dict):
        return Unusable(NOT_AN_OBJECT, f"{type(record).__name__}")
    inner = record.get("translation")
    for fields in (inner, record) if isinstance(inner, dict) else (record,):
        found = _find_columns_cached(tuple(fields), languages)
        if found is not None:
            return _texts(fields, found)
    names = [*record, *(f"translation.{key}" for key in inner)] if isinstance(inner, dict) else [*record]
    listed = ", ".join(f"{name:.40}" for name in names[:_KEYS_NAMED]) + ", …" * (len(names) > _KEYS_NAMED)
    return Unusable(_keys_missing(languages), f"keys: {listed or 'none'}")


def _keys_missing(languages: Languages) -> str:
    if None in languages:
        return "no 'source' and 'target', and the two languages are not given"
    return f"neither {languages[0]!r} and {languages[1]!r} nor 'source' and 'target'"


def _texts(fields: dict[str, Any], found: tuple[int, int]) -> tuple[str, str] | Unusable:
    names = tuple(fields)
    texts = []
    for place in found:
        text = fields[names[place]]
        if not isinstance(text, str):
            return Unusable(NOT_A_STRING, f"{names[place]!r} is {json.dumps(text):.40}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return Unusable(NOT_UNICODE, f"\\u{ord(text[error.start]):04x} in {names[place]!r}")
        texts.append(one_line(text))
    return texts[0], texts[1]


def _first_line(path: Path) -> str:
    with open_text(path) as stream:
        raw = next(split_lines(stream, path))
    return raw.decode("utf-8", "replace")


def _with_a_pair(found: RecordScan) -> RecordScan:
    """The scan itself, after reading a first pair; raises if there is none."""
    next(found.read(Report()))
    return found
