"""Files at URLs, opened by fsspec, with errors that name the place

fsspec is of the extra `ray`; it needs a package for each kind of store, such as s3fs. `shards.storage` writes and lists
files, too.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, cast

from multihead.errors import DataError, MultiheadError, SurroundingsError, require_package


def open_system(place: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there.

    Raises:
        MissingDependencyError: fsspec is not installed.
        SurroundingsError: the protocol is unknown, its package is not installed, or the store cannot be reached.
    """
    require_package("fsspec", "ray", f"opening {place}")
    import fsspec

    try:
        with remote_errors(place, "opened"):
            files, path = fsspec.core.url_to_fs(place)
            files.invalidate_cache()  # lists of files are kept, and other processes write there
    except ImportError as error:  # the package of this store
        raise SurroundingsError(f"{place}: cannot be opened: {error}") from None
    return files, str(path)


@contextlib.contextmanager
def open_remote(place: str) -> Iterator[io.BufferedReader]:
    """The bytes of a file as they are stored.

    Raises:
        DataError: there is no such file.
        SurroundingsError: it cannot be read.
    """
    files, path = open_system(place)
    with remote_errors(place):
        # In a transaction, sftp would look for a file that is yet to be committed.
        raw = files.open(path, "rb", autocommit=True)
    with raw, io.BufferedReader(_Named(raw, place), 1 << 16) as stream:
        yield cast(io.BufferedReader, stream)


def find(pattern: str) -> list[str]:
    """The URLs of the files that a pattern names, sorted; none if nothing matches."""
    files, path = open_system(pattern)
    with remote_errors(pattern):
        found = sorted(files.glob(path))
    if pattern.endswith(path):  # what stands before it may name a user and a host
        return [pattern.removesuffix(path) + name for name in found]
    return [files.unstrip_protocol(name) for name in found]


@contextlib.contextmanager
def remote_errors(place: str, what: str = "read") -> Iterator[None]:
    """Raise what a store raises as an error that names the place.

    Args:
        place: the URL.
        what: "read", "written", "opened" or "removed".
    """
    try:
        yield
    except (MultiheadError, ImportError):
        raise
    except FileNotFoundError:
        what_is_missing = "file" if what == "read" else "folder or bucket"
        raise DataError(f"there is no such {what_is_missing}; check the name", place) from None
    except Exception as error:  # stores raise errors of the packages that they use, too
        silent = f"no reason is given ({type(error).__name__}); check that such a place can be {what}"
        reason = " ".join(str(error).split()) or silent
        raise SurroundingsError(f"{place}: cannot be {what}: {reason}") from error


class _Named(io.RawIOBase):
    """A file of a store, whose errors name it."""

    def __init__(self, raw: Any, place: str) -> None:
        self._raw, self._place = raw, place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._raw.seekable())

    def readinto(self, buffer: Any) -> int:
        with remote_errors(self._place):
            content = self._raw.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with remote_errors(self._place):
            self._raw.seek(offset, whence)  # of some stores it returns nothing
        return self.tell()

    def tell(self) -> int:
        return int(self._raw.tell())
