"""Read sentence pairs from CSV, with quotes (RFC 4180).

The first record that is not blank is a header if it names both sides, by the two languages or by "source" and "target",
or the columns that the user names. Without a header the first two columns are read, or those whose numbers the user
gives. Columns are separated by comma, semicolon or tab: by whichever there is a header, or most records are equally
wide.

A quoted text may contain separators, doubled quotes and line breaks; these become spaces (`text_files.one_line`). A
record is named by the line on which it begins. What is not CSV (a quote that does not end, text behind one) is left out
and named, and reading goes on at the next line. UTF-8; a byte order mark is dropped. Files are streamed by Python's
module `csv`, whose limit of 131,072 characters for a text also bounds what a lost quote can swallow.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

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
    numbered,
    usable,
)
from multihead.data.text_files import NOT_UTF8, one_line, open_text, scan, split_lines

NOT_CSV = "not valid CSV"
_SEPARATORS = ",;\t"
_LOOKED_AT = 1000
"""Records at the beginning that tell the separator."""

Row = list[str] | str
"""The columns of a record, or what is wrong with it."""


def scan_csv(path: Path, languages: Languages, columns: Columns | None = None) -> EntryScan:
    """Scan a CSV file.

    Raises:
        DataError: as `text_files.scan`; or records have no two columns, no record is a pair, or the columns that the
            user names are not there.
    """
    text = scan(path)
    entries, records = _table(path, languages, columns)
    return EntryScan(text, records, languages, "records", entries).with_a_pair()


def read_csv(path: Path, languages: Languages, columns: Columns | None, first: int) -> Iterator[Entry]:
    """The records of a CSV file that is not scanned; see `readers.read_entries`."""
    entries, _ = _table(path, languages, columns, first)
    return entries()


def _table(path: Path, languages: Languages, columns: Columns | None, most: int | None = None) -> tuple[Entries, int]:
    """What reads the records, and their number; with ``most``, both are those of so many records at the beginning."""
    separator = _separator(path, languages, None if numbered(columns) else columns)
    first, names = _first(path, separator)
    counts = Counter(len(row) if isinstance(row, list) else 0 for _, row in islice(_rows(path, separator), most))
    widths = {width: count for width, count in counts.items() if width}
    message = "has no two columns; expected a sentence and its translation in each record, separated by comma"
    too_narrow = f"{message}, semicolon or tab; columns found: {listed(names)}"
    width, places, header = lay_out(names, widths, languages, columns, path, too_narrow)
    return partial(_entries, path, separator, first if header else 0, width, places), counts.total() - header


def _separator(path: Path, languages: Languages, columns: Columns | None) -> str:
    """The one by which the first record is a header; else by which most of the first records are equally wide."""
    for separator in _SEPARATORS:
        if find_columns(_first(path, separator)[1], languages, columns) is not None:
            return separator
    return max(_SEPARATORS, key=lambda separator: _evenness(path, separator))


def _evenness(path: Path, separator: str) -> int:
    """How many of the first records have the usual number of columns, if that is at least two."""
    widths = Counter(len(row) for _, row in islice(_rows(path, separator), _LOOKED_AT) if isinstance(row, list))
    return max((count for width, count in widths.items() if width > 1), default=0)


def _first(path: Path, separator: str) -> tuple[int, list[str]]:
    """The number of the first record that is not blank, and its columns; none if it is not CSV, or all are blank."""
    for number, (_, row) in enumerate(_rows(path, separator), start=1):
        if isinstance(row, str) or any(cell.strip() for cell in row):
            return number, row if isinstance(row, list) else []
    return 1, []


def _entries(path: Path, separator: str, header: int, width: int, places: tuple[int, int]) -> Iterator[Entry]:
    """The records of a file, each with the line on which it begins, but for the one with the number of the header."""
    for number, (line, row) in enumerate(_rows(path, separator), start=1):
        if number != header:
            yield line, _sides(row, width, places)


def _sides(row: Row, width: int, places: tuple[int, int]) -> Sides:
    if isinstance(row, str):
        return Unusable(NOT_CSV, row)
    if not row:
        return Unusable(EMPTY_BOTH)
    if len(row) != width:
        return Unusable(f"not {width} columns", f"{len(row)}")
    source, target = (one_line(row[place]) for place in places)
    for text in (source, target):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:  # a byte that was kept as a surrogate
            return Unusable(NOT_UTF8, f"byte 0x{ord(text[error.start]) - 0xDC00:02x}")
    return usable(source, target)


def _rows(path: Path, separator: str) -> Iterator[tuple[int, Row]]:
    """All records, each with the line on which it begins."""
    with open_text(path) as stream:
        # Bytes that are not UTF-8 are kept as surrogates: they must not hide quotes that follow.
        lines = (raw.decode("utf-8", "surrogateescape") + "\n" for raw in split_lines(stream, path))
        reader = csv.reader(lines, delimiter=separator, strict=True)
        while True:
            begins = reader.line_num + 1
            try:
                yield begins, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield begins, str(error)
