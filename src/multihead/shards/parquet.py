"""Rows of a Parquet file as lines.

The text is a column of strings, possibly within a structure: ``translation.de`` in data sets of Hugging Face. A missing
value is an empty line, and line breaks within a text become spaces (`text_files.one_line`). `data.parquet_files` opens
the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from multihead.data.parquet_files import columns_of, is_text, opened, texts_of
from multihead.data.text_files import one_line
from multihead.errors import ConfigurationError, DataError

_ROWS = 4096
"""Rows that are decoded at a time."""


def inspect(raw: BufferedReader, name: str, column: str | None) -> tuple[int, str]:
    """The number of rows, and the column to read.

    Args:
        raw: the open file.
        name: of the file, for errors.
        column: the wanted column; None for the only one of strings.

    Raises:
        DataError: the file is damaged.
        ConfigurationError: there is no such column of strings; the message lists them.
    """
    with opened(raw, name) as file:
        found = [one for one, kind in columns_of(file.schema_arrow, name).items() if is_text(kind)]
        rows = int(file.metadata.num_rows)
    if column is None and len(found) == 1:
        column = found[0]
    if column not in found:
        which = "several columns of strings" if column is None else f"no column of strings {column}"
        listed = ", ".join(found) or "none"
        raise ConfigurationError(f"{name}: has {which}: name one of these by --column: {listed}")
    return rows, column


def read_rows(raw: BufferedReader, name: str, column: str, first: int, count: int) -> Iterator[str]:
    """The texts of ``count`` rows, after the ``first`` ones.

    Raises:
        DataError: the file is damaged, or a text is not UTF-8; names the row.
    """
    with opened(raw, name) as file:
        before, groups, skipped = 0, [], 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if before + rows <= first:
                skipped += rows
            elif before < first + count:
                groups.append(group)
            before += rows
        row, end = skipped, first + count
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[column]):
            here = batch.slice(max(0, first - row), max(0, end - max(row, first)))
            at, row = max(row, first), row + batch.num_rows
            for number, text in enumerate(texts_of(here, column), start=at + 1):
                yield one_line(_decoded(text, name, column, number))


def _decoded(text: str | bytes | None, name: str, column: str, number: int) -> str:
    """Raises DataError if the text is not UTF-8."""
    try:
        return text.decode() if isinstance(text, bytes) else text or ""
    except UnicodeDecodeError:
        raise DataError(f"the text in column {column} is not valid UTF-8", name, number) from None
