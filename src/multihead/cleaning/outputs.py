"""Write kept and removed pairs: text, TSV or JSON lines, or compressed.

    clean.de + clean.en         two files: the lines as they were read
    clean.tsv, clean.jsonl      one file of pairs, read by `data.records`
    removed.tsv, removed.jsonl  line, reason, score, detail, source and target of each removed candidate

Every file may end in .gz, .xz or .zst. Reading a file of kept pairs gives exactly those pairs, but for tabs and line
breaks within a side, which TSV cannot hold and which become spaces. Removed pairs have the same columns, so that they
can be read as a corpus, too. Equal pairs give equal bytes: nothing in the files depends on name or time.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from multihead.data.corpus import Languages
from multihead.data.entries import find_columns
from multihead.data.text_files import one_cell
from multihead.errors import ConfigurationError, SurroundingsError, require_package
from multihead.files import atomic_file, write_errors

_BOM = codecs.BOM_UTF8.decode()
_PAIRS = (".tsv", ".jsonl", ".ndjson")
_COMPRESSED = (".gz", ".xz", ".zst")
COLUMNS = ("line", "reason", "score", "detail", "source", "target")
"""Columns and keys of the file of removed pairs."""


class Removed(NamedTuple):
    """A removed candidate."""

    line: int
    reason: str
    score: float | None
    """What the filter measured; None if the candidate could not be read."""
    detail: str
    source: str
    target: str


def record_format(path: Path) -> str | None:
    """The format of a file of records by its name: ".tsv", ".jsonl" or ".ndjson"; None for others."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _PAIRS else None


def check_record_file(path: Path, what: str) -> None:
    """Check that a file is named as one of records.

    Raises:
        ConfigurationError: it is not.
    """
    if record_format(path) is None:
        known = f"{', '.join(_PAIRS)}, each also with {', '.join(_COMPRESSED)}"
        raise ConfigurationError(f"{path}: the extension decides how {what} are written; expected one of {known}")


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[Callable[[str], None]]:
    """A function that writes text to a new file, compressed if its name says so; the file appears when it is complete.

    Raises:
        MissingDependencyError: the file is zstd, and the package `zstandard` is not installed.
        SurroundingsError: it cannot be written.
    """
    with atomic_file(path) as draft, draft.open("wb") as raw, _compressed(path, raw) as stream:

        def write(text: str) -> None:
            with write_errors(path):
                stream.write(text.encode("utf-8"))

        yield write


@contextlib.contextmanager
def _compressed(path: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            yield cast(BinaryIO, packed)
    elif suffix == ".xz":
        try:
            import lzma
        except ImportError:  # Python can be built without it
            raise SurroundingsError(f"{path}: this Python has no module lzma to write xz with; write .gz") from None
        with lzma.open(raw, "wb") as frames:
            yield cast(BinaryIO, frames)
    elif suffix == ".zst":
        require_package("zstandard", "zstd", f"writing {path}")
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as writer:
            yield cast(BinaryIO, writer)
    else:
        yield raw


Pairs = Iterable[tuple[str, str]]


@contextlib.contextmanager
def pair_writer(output: Path, output_target: Path | None, languages: Languages) -> Iterator[Callable[[Pairs], None]]:
    """A function that writes kept pairs.

    Args:
        output: the file of sources, or of pairs.
        output_target: the file of targets, or None.
        languages: codes of the sides, as the reader of the file will be given them.
    """
    if output_target is None:
        rows = _tsv_rows(languages) if record_format(output) == ".tsv" else _json_rows
        with open_output(output) as write:
            yield lambda pairs: write("".join(rows(pairs)))
        return
    with open_output(output) as first, open_output(output_target) as second:
        begun = False

        def write_both(pairs: Pairs) -> None:
            nonlocal begun
            if rows := list(pairs):
                for write, side in zip((first, second), zip(*rows, strict=True), strict=True):
                    write("".join(_lines(side, begun)))
                begun = True

        yield write_both


def _lines(texts: Sequence[str], begun: bool) -> Iterator[str]:
    """Lines that are read as these texts: one CR and a first byte order mark would be dropped."""
    for number, text in enumerate(texts):
        mark = _BOM if number == 0 and not begun and text.startswith(_BOM) else ""
        yield f"{mark}{text}\r\n" if text.endswith("\r") else f"{mark}{text}\n"


def _tsv_rows(languages: Languages) -> Callable[[Pairs], Iterator[str]]:
    begun = False

    def rows(pairs: Pairs) -> Iterator[str]:
        nonlocal begun
        for source, target in pairs:
            cells = one_cell(source), one_cell(target)
            if not begun:
                # A first pair of column names would be read as a header, unless there is one.
                if find_columns(cells, languages) is not None:
                    yield "source\ttarget\n"
                elif cells[0].startswith(_BOM):
                    yield _BOM
                begun = True
            yield f"{cells[0]}\t{cells[1]}\n"

    return rows


def _json_rows(pairs: Pairs) -> Iterator[str]:
    for source, target in pairs:
        yield json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def removed_writer(path: Path) -> Iterator[Callable[[Iterable[Removed]], None]]:
    """A function that writes removed candidates."""
    with open_output(path) as write:
        if record_format(path) == ".tsv":
            write("\t".join(COLUMNS) + "\n")
            yield lambda rows: write("".join(map(_removed_row, rows)))
        else:
            yield lambda rows: write("".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows))


def _removed_row(row: Removed) -> str:
    score = "" if row.score is None else f"{row.score:.4g}"
    return "\t".join([str(row.line), row.reason, score, *map(one_cell, (row.detail, row.source, row.target))]) + "\n"
