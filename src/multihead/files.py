"""Files and folders that are written whole or not at all.

Everything is first written beside its destination under a name that nobody reads, forced to the disk, and then
renamed: a reader sees the old content or the new one, whenever the machine stops. A full disk or a missing
permission becomes a `SurroundingsError` that names the file, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from multihead.errors import SurroundingsError

_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an `OSError` from writing ``path`` into one sentence with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "no space left on the device: free some and start again",
            errno.EDQUOT: "the disk quota is used up: free some space and start again",
            errno.EACCES: "permission denied: choose a folder that you may write to",
            errno.EROFS: "the file system is read-only: choose another place",
        }.get(error.errno or 0, error.strerror or str(error))
        raise SurroundingsError(f"{path}: cannot be written: {remedy}") from error


def _force(path: Path) -> None:
    """Asks the operating system to put a file or folder on the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a name to write to; on leaving without an exception it becomes ``path``, otherwise it is removed."""
    draft = path.with_name(f".{path.name}{_UNFINISHED}-{os.getpid()}")
    try:
        with explained(path):
            yield draft
            _force(draft)
            draft.replace(path)
            _force(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder to fill; on leaving without an exception it takes the place of ``path``.

    A folder that stands at ``path`` is moved to ``path.old`` for the moment of the exchange: `recover_folder` puts
    it back should the machine stop just then.
    """
    draft, old = (
        path.with_name(f".{path.name}{_UNFINISHED}-{os.getpid()}"),
        path.with_name(f"{path.name}.old"),
    )
    try:
        with explained(path):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            yield draft
            for file in draft.rglob("*"):
                _force(file)
            _force(draft)
            recover_folder(path)
            if path.exists():
                path.replace(old)
            draft.replace(path)
            _force(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Ends an exchange that `whole_folder` could not end."""
    old = path.with_name(f"{path.name}.old")
    if old.exists() and not path.exists():
        old.replace(path)


def remove_unfinished(folder: Path) -> None:
    """Removes what stopped writers left in ``folder``."""
    for draft in folder.glob(f".*{_UNFINISHED}-*"):
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
