"""Read sentence pairs from a file of records: TSV or JSON lines.

TSV has no quotes and no escapes: the text between two tabs is taken as it is, as `cut` does. The first line that is not
blank is a header if it names both sides, by the two languages or by "source" and "target"; those columns are then read.
Otherwise every line is a record, and the first two columns are read. The user may name other columns of a header, or
give their numbers, counted from 1, where there is none. All lines must have as many columns as the header, or as most
lines: a line with an extra tab is left out, since it is unclear which text the tab belongs to.

JSON lines hold one object each. Its sides are named by the two languages or by "source" and "target", or as the user
says, in the object itself or in an object under "translation" (as in the data sets of Hugging Face). Texts may contain
line breaks, which become spaces (`text_files.one_line`). Other keys are ignored.

Both are UTF-8; a byte order mark at the start of the file is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from multihead.data.corpus import EMPTY_BOTH, Languages
from multihead.data.entries import (
    Columns,
    Entries,
    Entry,
    EntryScan,
    Sides,
    Unusable,
    find_columns,
    lay_out,
    listed,
    names_missing,
    usable,
)
from multihead.data.text_files import NOT_UTF8, one_line, open_text, place_in_line, scan, split_lines
from multihead.errors import DataError

NOT_JSON = "not valid JSON"
NOT_AN_OBJECT = "not a JSON object"
NOT_A_STRING = "not a string"
NOT_UNICODE = "half of a surrogate pair, which is no character"

Parse = Callable[[str], Sides]
"""Extracts source and target from a line."""

_find_columns_cached = lru_cache(256)(find_columns)


def _entries(path: Path, header: int, parse: Parse) -> Iterator[Entry]:
    """The records of a file, each with its line; that of a header is not one, and 0 where there is none."""
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            if number != header:
                yield number, _sides(raw, parse)


def _sides(raw: bytes, parse: Parse) -> Sides:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Unusable(NOT_UTF8, place_in_line(error))
    found = parse(text) if text.strip() else Unusable(EMPTY_BOTH)
    return found if isinstance(found, Unusable) else usable(*found)


# --------------------------------------------------------------------------- TSV


def scan_table(path: Path, languages: Languages, columns: Columns | None = None) -> EntryScan:
    """Scan a TSV file.

    Raises:
        DataError: as `text_files.scan`; or most lines have no tab, no line is a pair, or the columns that the user
            names are not there.
    """
    counts: Counter[int] = Counter()
    text = scan(path, lambda block: counts.update(_widths(block.split(b"\n"))))
    entries, header = _table(path, languages, columns, counts)
    return EntryScan(text, text.lines - header, languages, "records", entries).with_a_pair()


def read_table(path: Path, languages: Languages, columns: Columns | None, first: int) -> Iterator[Entry]:
    """The records of a TSV file that is not scanned; see `readers.read_entries`."""
    with open_text(path) as stream:
        counts = Counter(_widths(islice(split_lines(stream, path), first)))
    entries, _ = _table(path, languages, columns, counts)
    return entries()


def _widths(lines: Iterable[bytes]) -> Iterator[int]:
    """The number of columns of each line that is not blank."""
    return (line.count(b"\t") + 1 for line in lines if line.strip())


def _table(path: Path, languages: Languages, columns: Columns | None, counts: Counter[int]) -> tuple[Entries, bool]:
    """What reads the records, by how many lines have how many columns; and whether there is a header."""
    message = "most lines have no tab; expected a sentence, a tab and its translation on each"
    too_narrow = f"{message} (for two files with a sentence a line, name both)"
    line, first = _first_line(path)
    width, places, header = lay_out(first.split("\t"), counts, languages, columns, path, too_narrow)
    return partial(_entries, path, line if header else 0, partial(_cells, width, places)), header


def _cells(width: int, places: tuple[int, int], line: str) -> Sides:
    cells = line.split("\t")
    if len(cells) != width:
        return Unusable(f"not {width} columns", f"{len(cells)}")
    return cells[places[0]], cells[places[1]]


# --------------------------------------------------------------------------- JSON lines


def scan_json_lines(path: Path, languages: Languages, columns: Columns | None = None) -> EntryScan:
    """Scan a file of JSON lines.

    Raises:
        DataError: as `text_files.scan`; or the file is one JSON value over many lines, or no line is a pair.
    """
    text = scan(path)
    return EntryScan(text, text.lines, languages, "records", _objects(path, languages, columns)).with_a_pair()


def read_json_lines(
    path: Path,
    languages: Languages,
    columns: Columns | None,
    first: int,  # noqa: ARG001 - all formats have it
) -> Iterator[Entry]:
    """The records of JSON lines that are not scanned; see `readers.read_entries`."""
    return _objects(path, languages, columns)()


def _objects(path: Path, languages: Languages, columns: Columns | None) -> Entries:
    """What reads the records."""
    line, first = _first_line(path)
    first = first.strip()
    if first.startswith("[") or first == "{":
        filter_ = ".[]" if first.startswith("[") else "."
        message = "begins a JSON value that is more than one record; expected an object on each line"
        raise DataError(f"{message}: jq -c '{filter_}' OLD > NEW", path, line)
    return partial(_entries, path, 0, partial(_values, languages, columns))


def _values(languages: Languages, columns: Columns | None, line: str) -> Sides:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return Unusable(NOT_JSON, f"{error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return Unusable(NOT_JSON, "a number too long or objects too deep")
    if not isinstance(record, dict):
        return Unusable(NOT_AN_OBJECT, f"{type(record).__name__}")
    inner = record.get("translation")
    every = record
    if isinstance(inner, dict):
        every = record | {f"translation.{key}": value for key, value in inner.items()}
    for fields in (inner, every) if isinstance(inner, dict) else (record,):
        found = _find_columns_cached(tuple(fields), languages, columns)
        if found is not None:
            return _texts(fields, found)
    return Unusable(names_missing(languages, columns), f"keys: {listed([*every])}")


def _texts(fields: dict[str, Any], found: tuple[int, int]) -> Sides:
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


def _first_line(path: Path) -> tuple[int, str]:
    """The first line that is not blank, with its number; the first one, empty, if all are."""
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            if raw.strip():
                return number, raw.decode("utf-8", "replace")
    return 1, ""
