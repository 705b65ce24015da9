"""Atomic writes of files and folders, hashes, and locks.

Everything is first written beside its destination under a draft name, fsynced, and then renamed: a reader sees either
the old or the new content, whenever the machine stops. A full disk or a missing permission becomes a
`SurroundingsError` that names the file, and leaves nothing behind. `remove_unfinished` removes what a killed process
left (drafts, a folder moved aside) in a folder that no other process writes to. Elsewhere the next `atomic_folder` of
the same name removes the drafts of processes that have ended. The disk is changed only through functions of `os`, so
that a test can make each single call fail.

Locks are the operating system's, on an open file or folder (`open_lock`). The system releases them however a process
ends, so there are no stale locks. They bind only processes that ask for them, and have no effect where the system or
the file system does not support them.

What is open elsewhere cannot be renamed, replaced or removed on every system: `replace` waits there until it is closed,
and what this package itself has open it closes before. `multihead.platforms` says what a system can do.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from multihead import platforms
from multihead.errors import ConfigurationError, FormatError, MultiheadError, SurroundingsError
from multihead.urls import url_of

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_UNFINISHED = ".unfinished"
REPLACED = ".replaced"
"""Ends the name of a folder that was moved aside; it begins with a dot."""
_ABANDONED = 24 * 3600
"""Seconds without a change after which a draft counts as left behind, if its process cannot be asked for."""


def check_new_file(path: Path) -> None:
    """Check that a file can be written to ``path`` without replacing anything.

    Raises:
        ConfigurationError: it is a folder, exists already, or its folder does not exist; or it is a URL.
    """
    refuse_url(path)
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a folder; give the name of a new file")
    if path.exists() or path.is_symlink():
        raise ConfigurationError(f"{path}: exists already; nothing was overwritten. Choose another name")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path}: there is no folder {path.parent} to write it into; make it first")


def refuse_url(path: Path) -> None:
    """Raise ConfigurationError if an output that is written on this machine is named by a URL."""
    if (url := url_of(path)) is not None:
        raise ConfigurationError(
            f"{url}: this output is written on this machine; name a file or folder here, and copy it there. Written "
            "to URLs are shards of translations (--engine), prepared text, and cleaned files"
        )


def check_new_folder(path: Path) -> None:
    """Check that `atomic_folder` can make ``path`` without replacing anything.

    Raises:
        ConfigurationError: it is a file, a folder that is not empty, or the current folder; or a file is in its place.
    """
    refuse_url(path)
    if path.is_dir():
        if any(path.iterdir()):
            raise ConfigurationError(f"{path}: exists already; nothing was overwritten. Choose a new folder")
        if path.resolve() == Path.cwd():
            raise ConfigurationError(f"{path}: is the current folder, which cannot be replaced. Choose a new folder")
        if path.is_symlink() or os.path.ismount(path):
            what = "a link to a folder" if path.is_symlink() else "where a file system is mounted"
            raise ConfigurationError(f"{path}: is {what}, which cannot be replaced. Choose a new folder in it")
        return
    existing = next(place for place in (path, *path.absolute().parents) if place.exists() or place.is_symlink())
    if not existing.is_dir():
        raise ConfigurationError(f"{existing}: is a file; give the name of a new folder")


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise an `OSError` inside as a `SurroundingsError` that names ``path`` and a remedy."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "no space left on the device: free some and start again",
            errno.EDQUOT: "the disk quota is used up: free some space and start again",
            errno.EFBIG: "larger than files may be here (ulimit -f): raise the limit and start again",
            errno.EACCES: platforms.DENIED,
            errno.EPERM: platforms.DENIED,
            errno.EROFS: "the file system is read-only: choose another place",
        }.get(error.errno or 0, error.strerror or str(error))
        raise SurroundingsError(f"{path}: cannot be written: {remedy}") from error


def fsync(path: Path) -> None:
    """Force a file to the disk, or a folder where that can be opened.

    Where it cannot, only a file that may be written is forced.
    """
    if not platforms.FOLDERS_OPEN and (path.is_dir() or not os.access(path, os.W_OK)):
        return
    descriptor = os.open(path, platforms.TO_SYNC)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def fsync_all(folder: Path) -> None:
    """Force a folder and everything in it to the disk."""
    for path in folder.rglob("*"):
        fsync(path)
    fsync(folder)


def force(descriptor: int) -> None:
    """Force an open file to the disk."""
    if not platforms.HAS_FULL_SYNC or not platforms.force_drive(descriptor):
        os.fsync(descriptor)


def replace(source: Path, target: Path) -> None:
    """Rename a file or a folder; a file of that name is replaced. Nothing of ``source`` is open in this process."""
    if platforms.RENAMES_OPEN:
        source.replace(target)
    else:
        platforms.when_closed(lambda: source.replace(target))


def _draft_of(path: Path) -> Path:
    """The draft of this process, whose number is in its name, and where that is one of a single process."""
    place = platforms.process_place()
    return path.with_name(f".{path.name}{_UNFINISHED}-{os.getpid()}{place and f'-{place}'}")


def drafts_of(path: Path) -> list[Path]:
    """Unfinished drafts of ``path``, of all processes."""
    return list(path.parent.glob(f"{glob.escape(f'.{path.name}{_UNFINISHED}-')}*"))


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a draft to write to; it becomes ``path``, or is removed after an exception."""
    draft = _draft_of(path)
    try:
        with write_errors(path):
            yield draft
            fsync(draft)
            replace(draft, path)
            fsync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_file(path) as draft:
        write_chunks(draft, [text.encode()])


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write a file and return the SHA-256 of the chunks.

    Not atomic: for drafts of `atomic_file` and `atomic_folder`.
    """
    digest = hashlib.sha256()
    descriptor = os.open(path, platforms.WRITE, 0o666)
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            digest.update(rest)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file and return its SHA-256; not atomic, as `write_chunks`.

    It writes the same bytes as `safetensors.torch.save_file`, but without copying the tensors first, and errors of the
    system are raised as `OSError`.
    """
    return write_chunks(path, serialize_tensors(tensors))


def serialize_tensors(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The safetensors format: header length in 8 bytes, JSON header, bytes of each tensor, widest dtype first."""
    import torch

    order = sorted(tensors, key=lambda name: (-_rank(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": DTYPES[str(tensors[name].dtype)], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the tensors to 8 bytes
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


DTYPES = {
    f"torch.{name}": short
    for name, short in (
        ("bool", "BOOL"),
        ("uint8", "U8"),
        ("int8", "I8"),
        ("int16", "I16"),
        ("float16", "F16"),
        ("bfloat16", "BF16"),
        ("int32", "I32"),
        ("float32", "F32"),
        ("float64", "F64"),
        ("int64", "I64"),
    )
}
"""Names of dtypes in the format, in the order in which it ranks them."""


def _rank(tensor: Tensor) -> int:
    return list(DTYPES).index(str(tensor.dtype))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which then replaces ``path``; it is removed after an exception.

    An existing folder is moved aside during the replacement: see `current_folder`. Drafts of processes that have ended
    are removed first.
    """
    draft = _draft_of(path)
    try:
        with write_errors(path):
            _remove_abandoned(path)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            yield draft
            fsync_all(draft)
            _finish_replacement(path)
            if path.exists():
                replace(path, _aside(path))
            replace(draft, path)
            fsync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            _finish_replacement(path, patient=False)


def _remove_abandoned(path: Path) -> None:
    """Remove drafts of ``path`` that killed processes left. What cannot be looked at or removed stays.

    A draft is renamed before it is emptied: should its process go on after all, its next file has no place, so that it
    never finishes a part of what it wrote.
    """
    renamed = _draft_of(path)
    renamed = renamed.with_name(f"{renamed.name}-abandoned")
    with contextlib.suppress(OSError):
        for draft in drafts_of(path):
            with contextlib.suppress(OSError):
                if _is_abandoned(draft):
                    draft.replace(renamed)
                    remove(renamed)


def _is_abandoned(draft: Path) -> bool:
    """Whether the process that wrote a draft has ended, as far as that can be known.

    A process is asked for by its number only in its own place. Elsewhere (on another machine that shares the folder, in
    another container, after a restart, or where the system tells no place) the number may be that of another process,
    or of none, and a draft counts as left behind after a day without a change.
    """
    number, _, place = draft.name.rpartition(f"{_UNFINISHED}-")[2].removesuffix("-abandoned").partition("-")
    if place and place == platforms.process_place() and number.isdecimal():
        return not platforms.process_exists(int(number))
    changed = max(one.lstat().st_mtime for one in (draft, *draft.rglob("*")))
    return time.time() - changed > _ABANDONED


def copy_folder(source: Path, path: Path) -> None:
    """Copy a folder, which then replaces ``path``."""
    with atomic_folder(path) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}{REPLACED}")


def _finish_replacement(path: Path, *, patient: bool = True) -> None:
    """Complete an interrupted replacement: remove the folder moved aside, or move it back if nothing replaced it.

    Without patience a folder that cannot be removed yet stays until the next replacement.
    """
    aside = _aside(path)
    if aside.exists():
        if not path.exists():
            replace(aside, path)
        elif platforms.RENAMES_OPEN or not patient:
            shutil.rmtree(aside)
        else:
            platforms.when_closed(lambda: shutil.rmtree(aside))


def current_folder(path: Path) -> Path:
    """The folder to read for ``path``: the one moved aside, if a replacement was interrupted."""
    aside = _aside(path)
    return aside if aside.is_dir() and not path.exists() else path


def is_unfinished(path: Path) -> bool:
    """Whether ``path`` is a draft that a killed process may have left."""
    return path.name.startswith(".") and f"{_UNFINISHED}-" in path.name


def remove_unfinished(folder: Path) -> None:
    """Clean up after killed processes: remove drafts in ``folder`` and complete replacements."""
    if not folder.is_dir():
        return
    with write_errors(folder):
        for path in list(folder.iterdir()):
            if is_unfinished(path):
                remove(path)
            elif path.name.startswith(".") and path.name.endswith(REPLACED):
                _finish_replacement(path.with_name(path.name[1 : -len(REPLACED)]))


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_LOCK_TABLE = Path("/proc/locks")


def open_lock(path: Path, opened: int | None = None) -> int:
    """A descriptor whose lock stands for a file or folder; the caller closes it, and so releases the lock.

    Args:
        path: the file or folder, which exists.
        opened: a descriptor of it, if it is open; that may be closed before the lock.

    Raises:
        SurroundingsError: the system locks no folders, and there is no place for a file that stands for one.
    """
    if not platforms.FOLDERS_OPEN:
        return platforms.open_lock_file(path)
    return os.open(path, os.O_RDONLY) if opened is None else os.dup(opened)


def take_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed or this process ends; False if another process holds the lock."""
    fcntl = platforms.fcntl
    if fcntl is None:
        return platforms.lock_first_byte(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def lock_stands_for(descriptor: int, folder: Path) -> bool:
    """Whether a descriptor from `open_lock` still stands for a folder, which may have been removed and made again."""
    try:
        found = folder.stat()  # asked once: another process may remove it meanwhile
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (not platforms.FOLDERS_OPEN or found.st_ino == os.fstat(descriptor).st_ino)


def lock_holder(descriptor: int) -> str:
    """The holder of the lock of an open file or folder as text, `` (process 123)``; empty if the system does not tell.

    Linux lists locks in /proc/locks, one per line: ``1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF`` names process,
    device (in hexadecimal) and inode.
    """
    if not platforms.FOLDERS_OPEN:
        return ""
    state = os.fstat(descriptor)
    inode = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    try:
        rows = [line.split() for line in _LOCK_TABLE.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return ""
    processes = [row[4] for row in rows if row[1] == "FLOCK" and row[5] == inode]
    return f" (process {processes[0]})" if processes and processes[0] != "0" else ""


# --------------------------------------------------------------------------- folders of other programs

_ATTEMPTS = 10


def read_stable(folder: Path, read: Callable[[], T]) -> T:
    """What ``read`` makes of the folder of another program, which has no manifest; read again if it changed meanwhile.

    Raises:
        FormatError: a file in it is a pipe or a device, or it changes all the time.
    """
    for _ in range(_ATTEMPTS):
        before, error = _state_of(folder), None
        try:
            found = read()
        except (MultiheadError, OSError) as raised:
            error = raised
        if _state_of(folder) == before:
            if error is not None:
                raise error
            return found
    raise FormatError(f"{folder}: changes while it is read; stop what writes it, and read it again")


def _state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What tells whether a file was changed or replaced, for the files of a folder and of the folders in it."""
    found = {}
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        with contextlib.suppress(OSError):  # a link to nothing, or gone meanwhile
            state = path.stat()
            found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns)
            if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
                raise FormatError(f"{path}: is a pipe or a device, not a regular file; remove it")
    return found
