"""Corpora in one file: their entries, and names of the two sides.

Every reader of such a file (`records`, `csv_tables`, `parquet`, `catalogs`, `tmx`, `xliff`) turns it into entries: a
place in the file, and the two texts or the reason why they are not a pair. `EntryScan` makes a `readers.CorpusScan` of
them. Columns and keys are found by name here, so that a table, an object and a Parquet file are read alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Languages, Pair, Report, check_complete, normalize_code
from multihead.data.text_files import TextScan, open_text, refuse_pipe
from multihead.errors import DataError

SIDES = "source", "target"
NAMED = 10
"""Columns or keys that a message lists."""

Columns = tuple[str, str]
"""Names of the columns or keys of source and target, as the user gives them."""

_BLOCK = 1 << 20


class Unusable(NamedTuple):
    """Why an entry is not a pair, as in `Report.add`."""

    reason: str
    detail: str = ""


Sides = tuple[str, str] | Unusable
Entry = tuple[int, Sides]
"""The place of an entry, counted from 1 (a line; a row of Parquet), and its two texts or what is wrong with it."""
Entries = Callable[[], Iterator[Entry]]
"""Reads a file from its beginning."""


@dataclass(frozen=True)
class EntryScan:
    """A file of pairs, checked by a ``scan_...`` function; a `readers.CorpusScan`.

    Attributes:
        text: the scan of the file; its lines are those of the file.
        lines: number of entries.
        languages: of source and target, as given or found in the file.
        what: what an entry is: "records", "units".
        entries: reads the file again.
    """

    text: TextScan
    lines: int
    languages: Languages
    what: str
    entries: Entries = field(repr=False)

    @property
    def files(self) -> tuple[TextScan, ...]:
        """The one file."""
        return (self.text,)

    def path(self, side: int) -> Path:  # noqa: ARG002 - the protocol has it
        """The one file, for both sides."""
        return self.text.path

    def read(self, report: Report) -> Iterator[Pair]:
        """The entries that are pairs, each with its place; the others go to ``report``.

        Raises:
            DataError: no entry is a pair, or the file has changed since it was checked.
        """
        path = self.text.path
        number = kept = 0
        for place, found in self.entries():
            number += 1
            if isinstance(found, Unusable):
                report.add(path, place, *found)
            else:
                kept += 1
                yield Pair(place, *found)
        check_complete([path], self.what, self.lines, number, kept, report)

    def with_a_pair(self) -> EntryScan:
        """The scan itself, after reading a first pair.

        Raises:
            DataError: there is none; names the first faults.
        """
        next(self.read(Report()))
        return self


def usable(source: str, target: str) -> Sides:
    """Both sides of an entry, unless one of them is empty or only white space."""
    empty = [side for side, text in zip(SIDES, (source, target), strict=True) if not text.strip()]
    if empty:
        return Unusable(EMPTY_BOTH) if len(empty) == 2 else Unusable(EMPTY, f"the {empty[0]}")
    return source, target


def digest(path: Path) -> TextScan:
    """Count the lines of a plain or compressed file and hash its content, whatever its encoding.

    Raises:
        DataError: as `text_files.open_text`; or it is not a regular file.
    """
    refuse_pipe(path)
    found, lines, block = hashlib.sha256(), 0, b""
    with open_text(path) as stream:
        while read := stream.read(_BLOCK):
            block = read
            found.update(block)
            lines += block.count(b"\n")
    return TextScan(path, lines + (not block.endswith(b"\n")), 0, found.hexdigest())


# --------------------------------------------------------------------------- names of columns and keys


def find_columns(names: Sequence[str], languages: Languages, columns: Columns | None = None) -> tuple[int, int] | None:
    """The places of the two sides among the names of columns or keys.

    They are the ones that the user names; else the two languages if both are given and present, else the words "source"
    and "target"; None if neither is present. Language variants do not count: "de_id" is hardly the German of Indonesia.
    """
    if columns is not None:
        return (names.index(columns[0]), names.index(columns[1])) if set(columns) <= set(names) else None
    normalized = [normalize_code(name) for name in names]
    for source, target in (languages, SIDES):
        if source is not None and target is not None:
            wanted = normalize_code(source), normalize_code(target)
            if set(wanted) <= set(normalized):
                return normalized.index(wanted[0]), normalized.index(wanted[1])
    return None


def numbered(columns: Columns | None) -> tuple[int, int] | None:
    """The places that the user gives as numbers of columns, from 1; None if these are names, or none."""
    if columns is None or not all(name.isascii() and name.isdigit() and int(name) for name in columns):
        return None
    return int(columns[0]) - 1, int(columns[1]) - 1


class Layout(NamedTuple):
    """The columns of a table."""

    width: int
    """Number of columns; a record with another number is no pair."""
    places: tuple[int, int]
    """Of source and target, from 0."""
    header: bool
    """Whether the first record has the names of the columns."""


def lay_out(
    names: Sequence[str],
    widths: Mapping[int, int],
    languages: Languages,
    columns: Columns | None,
    path: Path,
    too_narrow: str,
) -> Layout:
    """The columns of a table that may have a header.

    Args:
        names: the first record.
        widths: how many records have how many columns.
        languages: of source and target, as given.
        columns: names or numbers of columns, as given.
        path: of the table.
        too_narrow: what is said of a table of fewer than two columns.

    Raises:
        DataError: the table is too narrow, or has no such columns.
    """
    places, header = numbered(columns), None
    if places is None:
        header = find_columns(names, languages) if columns is None else require_columns(names, columns, path)
    width = len(names) if header else max(widths, key=lambda count: widths[count], default=0)
    if width < 2:
        raise DataError(too_narrow, path)
    places = places or header or (0, 1)
    if max(places) >= width:
        raise DataError(f"most records have {width} columns, but column {max(places) + 1} was requested", path)
    return Layout(width, places, header is not None)


def names_missing(languages: Languages, columns: Columns | None = None) -> str:
    """What is missing where `find_columns` finds nothing."""
    if columns is not None:
        return f"no {columns[0]!r} and {columns[1]!r}"
    if None in languages:
        return "no 'source' and 'target', and the two languages are not given"
    return f"neither {languages[0]!r} and {languages[1]!r} nor 'source' and 'target'"


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first ones of many."""
    return (", ".join(_escaped(f"{name:.40}") for name in names[:NAMED]) + ", …" * (len(names) > NAMED)) or "none"


def _escaped(name: str) -> str:
    """A name without what cannot be written on a line in UTF-8: a key of JSON can have half of a surrogate pair."""
    written = name.encode("utf-8", "backslashreplace").decode()
    return written.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def require_columns(names: Sequence[str], columns: Columns, path: Path) -> tuple[int, int]:
    """The places of columns that the user names.

    Raises:
        DataError: the header has no such columns; lists what it has.
    """
    found = find_columns(names, (None, None), columns)
    if found is None:
        missing = [name for name in columns if name not in names]
        raise DataError(f"has no column {' and no column '.join(map(repr, missing))}; columns: {listed(names)}", path)
    return found
