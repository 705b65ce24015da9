"""Files by their paths, or in object stores by URLs that fsspec opens

A place is a string: a path, ``file://`` and a path, or any other URL (``s3://bucket/name``). Paths need no further
package; the other URLs need fsspec (extra `ray`) and what it asks for, such as s3fs. A file appears whole under its
name or not at all: in a file system it is renamed, and object stores show an object when its upload ends.
"""

from __future__ import annotations

import contextlib
import glob
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from multihead.data.text_files import decompressed, open_text
from multihead.errors import ConfigurationError, DataError
from multihead.files import atomic_file, check_new_file, write_chunks, write_errors
from multihead.platforms import path_of_url
from multihead.remote_files import find, open_remote, open_system, remote_errors

_WILD = "*?["


def is_remote(place: str) -> bool:
    """Whether a place is a URL that fsspec has to open."""
    return "://" in place and not place.startswith("file://")


def local_path(place: str) -> Path:
    """The path of a place that is not remote."""
    return path_of_url(place) if place.startswith("file://") else Path(place)


def absolute(place: str) -> str:
    """The same place, for processes in other folders."""
    return place if is_remote(place) else str(local_path(place).absolute())


def expand(pattern: str) -> list[str]:
    """The places that a pattern names, sorted; a place that exists, or without ``*?[``, names itself.

    Raises:
        DataError: nothing matches.
    """
    if not any(sign in pattern for sign in _WILD) or (not is_remote(pattern) and local_path(pattern).exists()):
        return [pattern]
    found = find(pattern) if is_remote(pattern) else sorted(glob.glob(str(local_path(pattern))))  # noqa: PTH207
    if not found:
        raise DataError("no file has such a name; check the pattern", pattern)
    return found


@contextlib.contextmanager
def open_bytes(place: str) -> Iterator[io.BufferedReader]:
    """The bytes of a file as they are stored.

    Raises:
        DataError: it does not exist, or cannot be read.
    """
    if not is_remote(place):
        path = local_path(place)
        try:
            raw = path.open("rb")
        except OSError as error:
            raise DataError(f"cannot be opened ({error.strerror}); check the name", path) from None
        with raw:
            yield raw
        return
    with open_remote(place) as stream:
        yield stream


@contextlib.contextmanager
def open_decompressed(place: str) -> Iterator[io.BufferedReader]:
    """The bytes of a plain or compressed text, as `text_files.open_text`."""
    if is_remote(place):
        with open_bytes(place) as raw, decompressed(raw, place) as stream:
            yield stream
    else:
        with open_text(local_path(place)) as stream:
            yield stream


def size(place: str) -> int:
    """Number of bytes of a file, as it is stored.

    Raises:
        DataError: it does not exist.
    """
    if is_remote(place):
        files, path_there = open_system(place)
        with remote_errors(place):
            return int(files.size(path_there))
    try:
        return local_path(place).stat().st_size
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror}); check the name", local_path(place)) from None


def exists(place: str) -> bool:
    """Whether there is a file or a folder."""
    if not is_remote(place):
        return local_path(place).exists()
    files, path_there = open_system(place)
    with remote_errors(place):
        return bool(files.exists(path_there))


def read(place: str) -> bytes | None:
    """The content of a small file; None if it does not exist."""
    if not exists(place):
        return None
    with open_bytes(place) as stream:
        return stream.read()


def write(place: str, chunks: Iterable[bytes]) -> None:
    """Write a file that appears whole or not at all; one with this name is replaced.

    Raises:
        SurroundingsError: it cannot be written.
    """
    if not is_remote(place):
        path = local_path(place)
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as draft:
            write_chunks(draft, chunks)
        return
    try:
        _write_there(place, chunks)
    except DataError:
        if not isinstance(chunks, Sequence):  # which can be written again
            raise
        make_folder(place.rpartition("/")[0])
        _write_there(place, chunks)


def _write_there(place: str, chunks: Iterable[bytes]) -> None:
    """Raises DataError if there is no such folder or bucket."""
    files, path_there = open_system(place)
    with remote_errors(place, "written"), files.transaction, files.open(path_there, "wb") as stream:
        for chunk in chunks:
            stream.write(chunk)


def make_folder(folder: str) -> None:
    """Make a folder at a URL in one that exists; a bucket is never made, and object stores need no folders."""
    files, path_there = open_system(folder)
    with remote_errors(folder, "written"), contextlib.suppress(FileExistsError):  # made by another process
        files.mkdir(path_there, create_parents=False)


def names_in(folder: str) -> set[str]:
    """The names in a folder; none if it does not exist."""
    if not is_remote(folder):
        path = local_path(folder)
        return {file.name for file in path.iterdir()} if path.is_dir() else set()
    files, path_there = open_system(folder)
    with remote_errors(folder):
        found = files.ls(path_there, detail=False) if files.exists(path_there) else []
    return {str(name).rstrip("/").rsplit("/", 1)[-1] for name in found}


def remove_file(place: str) -> None:
    """Remove a file at a URL, if it exists."""
    files, path_there = open_system(place)
    with remote_errors(place, "removed"), contextlib.suppress(FileNotFoundError):
        files.rm_file(path_there)


def remove_folder(folder: str) -> None:
    """Remove a folder of files, if it exists, in the order of their names."""
    if not is_remote(folder):
        path = local_path(folder)
        with write_errors(path):
            for name in sorted(names_in(folder)):
                (path / name).unlink(missing_ok=True)
            if path.is_dir():
                path.rmdir()
        return
    files, path_there = open_system(folder)
    with remote_errors(folder, "removed"):
        if files.exists(path_there):
            files.rm(path_there, recursive=True)


def check_new(place: str) -> None:
    """Raise ConfigurationError if a file cannot be written to a place without replacing something."""
    if not is_remote(place):
        check_new_file(local_path(place))
    elif exists(place):
        raise ConfigurationError(f"{place}: exists already; nothing was overwritten. Choose another name")
