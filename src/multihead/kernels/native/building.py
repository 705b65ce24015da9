"""Compiles a library into the user's cache folder, and cleans that folder.

    <cache>/<key>/kernels.so     the library
    <cache>/<key>/kernels.sha256 its SHA-256 and its size in bytes, without which it is not loaded
    <cache>/<key>/lock           held while it is compiled

A library is compiled in a draft folder beside it and renamed, under a lock, so that several processes build it once and
none loads half a file. Who holds the lock removes what killed compilations left. After a build, keys that no process
has loaded for `UNUSED_DAYS` are removed; a process that has loaded one keeps it in memory.

If the user's cache folder cannot be used (no home, read-only, others may write to it), the library is kept in a folder
of the user's in the system's temporary folder, and the announcement says so. `multihead.kernels.native` verifies and
loads what is here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

UNUSED_DAYS = 30
"""Keys that were not loaded for this long are removed."""

_KEY = re.compile("[0-9a-f]{20}")
_log = logging.getLogger("multihead")


class Checks(NamedTuple):
    """How `multihead.kernels.native` checks what it loads."""

    verified: Callable[[Path], object | None]
    """The loaded library; None if the file is not the one that was built."""
    summary: Callable[[bytes], str]
    """What is noted of a library."""
    check_owner: Callable[[Path], None]
    """Raises an `OSError` if another user could have written what is in a folder."""


def build(
    file: str,
    key: str,
    folders: Sequence[Path | str],
    compile_to: Callable[[Path], None],
    say: Callable[[str], None],
    checks: Checks,
) -> Path:
    """Compile a library into the first usable folder; its file.

    Args:
        file: name of the file.
        key: name of its folder.
        folders: cache folders, the preferred one first; a string says why a folder cannot be had.
        compile_to: compiles the library to a file.
        say: called with one line before the compilation.
        checks: of what is there.

    Raises:
        OSError: no folder can be used.
    """
    obstacles: list[str] = []
    for root in folders:
        if isinstance(root, str):
            obstacles.append(root)
            continue
        folder = root / key
        try:
            with locked(folder, checks.check_owner):
                path = folder / file
                if checks.verified(path) is None:  # another process may have built it meanwhile
                    where = "; ".join([str(folder), *obstacles])
                    say(f"building the compiled {path.stem}, once for this machine ({where})")
                    _build(path, compile_to, checks.summary)
            clean(root, key, checks.check_owner)
            return path
        except OSError as error:
            obstacles.append(f"{folder} cannot be used: {error.strerror or error}")
    raise OSError("; ".join(obstacles))


def _build(path: Path, compile_to: Callable[[Path], None], summary: Callable[[bytes], str]) -> None:
    record, began = path.with_suffix(".sha256"), time.monotonic()
    for leftover in path.parent.iterdir():  # the lock is held: nobody works in them
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as draft:
        made = Path(draft, path.name)
        compile_to(made)
        made.chmod(0o700)
        noted = Path(draft, record.name)
        noted.write_text(summary(made.read_bytes()), encoding="ascii")
        noted.chmod(0o600)
        for name in (path, record):  # whatever has their names: a folder, a link, another's file
            _remove(name)
        noted.replace(record)
        made.replace(path)
    _log.info("built in %.1f s", time.monotonic() - began)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def clean(root: Path, keep: str, check_owner: Callable[[Path], None]) -> None:
    """Remove the keys of a cache folder that were not used for a while, except one and those in use by a build."""
    oldest = time.time() - UNUSED_DAYS * 86400
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            if folder.name == keep or not _KEY.fullmatch(folder.name) or folder.is_symlink():
                continue
            with contextlib.suppress(OSError):
                if max(path.lstat().st_mtime for path in (folder, *folder.iterdir())) < oldest:
                    with locked(folder, check_owner, wait=False):
                        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path, check_owner: Callable[[Path], None], *, wait: bool = True) -> Iterator[None]:
    """Create a folder where others cannot write, and hold its lock.

    Raises:
        OSError: it cannot be created or belongs to somebody else, or (without ``wait``) another process has the lock.
    """
    while True:
        for one in (folder.parent, folder):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # `clean` has removed the folder meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_same(descriptor, folder / "lock"):
                yield
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
