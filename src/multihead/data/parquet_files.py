"""Open Parquet files by pyarrow (extra `parquet`), and read their texts.

Whatever is wrong is an error that names the file. A column may be a field of a struct, also of one within another:
``translation.de``. `data.parquet` reads pairs, `shards.parquet` lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from multihead.data.entries import listed
from multihead.errors import DataError, require_package
from multihead.remote_files import open_remote
from multihead.urls import url_of

_BUFFER = 1 << 20
"""Bytes of a column that are read at a time."""

Texts = list[str | bytes | None]


@contextmanager
def opened(file: Path | BufferedReader, name: Path | str) -> Iterator[Any]:
    """The open ``pyarrow.parquet.ParquetFile``; what fails while it is used is an error that names the file.

    Raises:
        DataError: it is not a Parquet file, or damaged.
        MissingDependencyError: the package `pyarrow` is not installed.
    """
    require_package("pyarrow.parquet", "parquet", f"reading {name}")
    import pyarrow
    from pyarrow import parquet

    try:
        with ExitStack() as opened_there:
            url = url_of(file) if isinstance(file, Path) else None
            read = file if url is None else opened_there.enter_context(open_remote(url))
            yield opened_there.enter_context(parquet.ParquetFile(read, buffer_size=_BUFFER, pre_buffer=False))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"not a Parquet file, or damaged ({reason:.120}); fetch it again", name) from None


def columns_of(schema: Any, name: Path | str) -> dict[str, str]:
    """The kind of each column and of each field of a struct, by its dotted name: ``string``, ``int64``.

    Raises:
        DataError: two have the same name.
    """
    found = list(_fields(schema, ""))
    columns = dict(found)
    if len(columns) < len(found):
        raise DataError(f"has two columns of one name; columns: {listed([column for column, _ in found])}", name)
    return columns


def is_text(kind: str) -> bool:
    """Whether a kind holds text."""
    return kind in ("string", "large_string", "string_view")


def _fields(fields: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for field in fields:
        kind = field.type
        if kind.num_fields and str(kind).startswith("struct"):
            yield from _fields([kind.field(i) for i in range(kind.num_fields)], f"{prefix}{field.name}.")
        else:
            encoded = str(kind).startswith(("dictionary", "run_end_encoded"))
            yield prefix + field.name, str(kind.value_type if encoded else kind)


def texts_of(batch: Any, column: str) -> Texts:
    """The texts of a column of a record batch, None where there is none; bytes, all of them, if one is not UTF-8."""
    import pyarrow

    place, rest = _place([field.name for field in batch.schema], column)
    array = batch.column(place)
    while rest:
        # Unlike `StructArray.field`, this shows no text of rows in which the struct itself is null.
        place, rest = _place([array.type.field(i).name for i in range(array.type.num_fields)], rest)
        array = array.flatten()[place]
    try:
        texts: Texts = array.to_pylist()
    except UnicodeDecodeError:
        texts = array.cast(pyarrow.large_binary()).to_pylist()
    return texts


def _place(names: list[str], column: str) -> tuple[int, str]:
    """Where a column begins among names that may have dots themselves, and what of its name is left."""
    if column in names:
        return names.index(column), ""
    name = next(name for name in names if column.startswith(f"{name}."))
    return names.index(name), column.removeprefix(f"{name}.")
