"""Read sentence pairs from Parquet, as data sets of Hugging Face are.

    translation: struct<de: string, en: string>        or        de: string, en: string        and other columns

The two sides are columns of text, or fields of a struct: those that the user names ("translation.de"), else the two
languages in a struct "translation", else columns named by the two languages, or "source" and "target". Where such a
struct has two languages and the user names one of them, the other one follows. Only these columns are read, some rows
at a time, so that the size of a file or of its row groups does not matter. A row is named by its number, counted
from 1; rows without a text (null) are left out and named. Line breaks become spaces (`text_files.one_line`).

`data.parquet_files` opens them. Parquet compresses by itself: gzip, xz or zstd around it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from multihead.data.corpus import Languages, normalize_code
from multihead.data.entries import (
    Columns,
    Entry,
    EntryScan,
    Sides,
    Unusable,
    digest,
    find_columns,
    listed,
    usable,
)
from multihead.data.parquet_files import columns_of, is_text, opened, texts_of
from multihead.data.text_files import LONGEST_LINE, NOT_UTF8, one_line, open_text
from multihead.errors import DataError

NULL = "no text (null)"
_STRUCT = "translation"
_ROWS = 1000
"""Rows that are decoded at a time."""


def scan_parquet(path: Path, languages: Languages, columns: Columns | None = None) -> EntryScan:
    """Scan a Parquet file.

    Raises:
        DataError: it is not a Parquet file, damaged, or has no such columns of text (the message lists its columns).
        MissingDependencyError: the package `pyarrow` is not installed.
    """
    text = digest(path)
    chosen, languages, rows = _open(path, languages, columns)
    entries = partial(_entries, path, chosen)
    return EntryScan(replace(text, lines=rows), rows, languages, "rows", entries).with_a_pair()


def read_parquet(
    path: Path,
    languages: Languages,
    columns: Columns | None,
    first: int,  # noqa: ARG001 - all formats have it
) -> Iterator[Entry]:
    """The rows of a Parquet file that is not scanned; see `readers.read_entries`."""
    with open_text(path):  # its errors name what is missing, a folder or empty
        pass
    chosen, _, _ = _open(path, languages, columns)
    return _entries(path, chosen)


def _open(path: Path, languages: Languages, columns: Columns | None) -> tuple[Columns, Languages, int]:
    """The columns of the two sides, their languages, and the number of rows."""
    with opened(path, path) as file:
        names = {name: is_text(kind) or kind == "null" for name, kind in columns_of(file.schema_arrow, path).items()}
        rows = file.metadata.num_rows
    return *_choose(names, languages, columns, path), rows


def _choose(
    names: dict[str, bool], languages: Languages, columns: Columns | None, path: Path
) -> tuple[Columns, Languages]:
    """The columns of the two sides, and their languages.

    Raises:
        DataError: they are not there, or not text.
    """
    every = list(names)
    inner = [name.removeprefix(f"{_STRUCT}.") for name in every if name.startswith(f"{_STRUCT}.")]
    if columns is None:
        languages = _other_language(inner, languages)
        places = find_columns(inner, languages)
        chosen = None if places is None else tuple(f"{_STRUCT}.{inner[place]}" for place in places)
        if chosen is None and (places := find_columns(every, languages)) is not None:
            chosen = tuple(every[place] for place in places)
    else:
        chosen = columns if set(columns) <= set(every) else None
    if chosen is None:
        wanted = "and".join(f" {name!r} " for name in columns or languages if name is not None).strip()
        message = f"has no columns for the two sides ({wanted or 'the languages are not given'})"
        remedy = "name the two languages, or the columns: columns = [SOURCE, TARGET]"
        raise DataError(f"{message}; columns: {listed(every)}; {remedy}", path)
    wrong = [name for name in chosen if not names[name]]
    if wrong:
        raise DataError(f"its column {wrong[0]!r} is not text; columns: {listed(every)}", path)
    return (chosen[0], chosen[1]), languages


def _other_language(inner: Sequence[str], languages: Languages) -> Languages:
    """The languages, one of which follows from the other where there are two."""
    given = [normalize_code(language) for language in languages if language is not None]
    if len(inner) != 2 or len(given) != 1:
        return languages
    others = [name for name in inner if normalize_code(name) != given[0]]
    if len(others) != 1:
        return languages
    return (languages[0] or others[0], languages[1] or others[0])


def _entries(path: Path, columns: Columns) -> Iterator[Entry]:
    with opened(path, path) as file:
        number = 0
        # Fields of a struct are read without the others; the same column for both sides is read once.
        for batch in file.iter_batches(batch_size=_ROWS, columns=list(dict.fromkeys(columns)), use_threads=False):
            for source, target in zip(*(texts_of(batch, name) for name in columns), strict=True):
                number += 1
                yield number, _sides(source, target)


def _sides(source: str | bytes | None, target: str | bytes | None) -> Sides:
    texts = []
    for side, text in zip(("source", "target"), (source, target), strict=True):
        if text is None:
            return Unusable(NULL, f"the {side}")
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8")
            except UnicodeDecodeError as error:
                return Unusable(NOT_UTF8, f"byte 0x{text[error.start]:02x} in the {side}")
        if len(text) > LONGEST_LINE:
            return Unusable(f"more than {LONGEST_LINE >> 20} Mi characters", f"the {side}")
        texts.append(one_line(text))
    return usable(texts[0], texts[1])
