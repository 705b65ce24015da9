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
import ctypes
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from multihead.kernels import native
from multihead.kernels.native import BuildError, Library

UNUSED_DAYS = 30
"""Keys that were not loaded for this long are removed."""

_KEY = re.compile("[0-9a-f]{20}")


def build(
    library: Library, key: str, folders: Sequence[Path | str], compile_to: Callable[[Path], None], say: native.Announce
) -> Path:
    """Compile a library into the first usable folder; its file.

    Args:
        library: what is compiled.
        key: name of its folder.
        folders: cache folders, the preferred one first; a string says why a folder cannot be had.
        compile_to: compiles it to a file.
        say: called with one line before the compilation.

    Raises:
        BuildError: the compilation fails; no folder can be used.
    """
    obstacles: list[str] = []
    for root in folders:
        if isinstance(root, str):
            obstacles.append(root)
            continue
        folder = root / key
        try:
            with _locked(folder):
                path = folder / f"{library.name}.so"
                if native.verified(path) is None:  # another process may have built it meanwhile
                    where = "; ".join([str(folder), *obstacles])
                    say(f"building the compiled {library.name}, once for this machine ({where})")
                    _build(path, compile_to)
            clean(root, keep=key)
            return path
        except OSError as error:
            obstacles.append(f"{folder} cannot be used: {error.strerror or error}")
    raise BuildError(f"they cannot be kept: {'; '.join(obstacles)}")


def _build(path: Path, compile_to: Callable[[Path], None]) -> None:
    record, began = native.record_of(path), time.monotonic()
    for leftover in path.parent.iterdir():  # the lock is held: nobody works in them
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as draft:
        made = Path(draft, path.name)
        compile_to(made)
        made.chmod(0o700)
        try:
            ctypes.CDLL(str(made))
        except OSError as error:
            raise BuildError(f"what the compiler made cannot be loaded: {error}") from error
        noted = Path(draft, record.name)
        noted.write_text(native.summary(made.read_bytes()), encoding="ascii")
        noted.chmod(0o600)
        for name in (path, record):  # whatever has their names: a folder, a link, another's file
            _remove(name)
        noted.replace(record)
        made.replace(path)
    native.log.info("built in %.1f s", time.monotonic() - began)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def clean(root: Path, keep: str) -> None:
    """Remove the keys of a cache folder that were not used for a while, except one and those in use by a build."""
    oldest = time.time() - UNUSED_DAYS * 86400
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            if folder.name == keep or not _KEY.fullmatch(folder.name) or folder.is_symlink():
                continue
            with contextlib.suppress(OSError):
                if max(path.lstat().st_mtime for path in (folder, *folder.iterdir())) < oldest:
                    with _locked(folder, wait=False):
                        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Create a folder where others cannot write, and hold its lock.

    Raises:
        OSError: it cannot be created or belongs to somebody else, or (without ``wait``) another process has the lock.
    """
    while True:
        for one in (folder.parent, folder):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        native.check_owner(folder)
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
