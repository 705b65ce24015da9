"""Files and folders that are written whole or not at all.

Everything is first written beside its destination under a name that nobody reads, forced to the disk, and then
renamed: a reader sees the old content or the new one, whenever the machine stops. A full disk or a missing
permission becomes a `SurroundingsError` that names the file, and leaves nothing behind. What a killed process left
(drafts, a folder moved aside) is cleared up by `remove_unfinished` when the next one starts.

The disk is changed through functions of `os` alone, so that a test can let each single call fail.

One process at a time: a lock of the operating system on an open file or folder, gone when its holder ends.

However a process ends, the system takes its locks back, so nothing has to be cleared up and nobody waits for the dead.
They bind only those who ask (flock), and have no effect where the system, or a file system, knows none.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multihead.errors import SurroundingsError

if TYPE_CHECKING:
    from torch import Tensor

_UNFINISHED = ".unfinished"
_REPLACED = ".replaced"


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turns an `OSError` from writing ``path`` into one sentence with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "no space left on the device: free some and start again",
            errno.EDQUOT: "the disk quota is used up: free some space and start again",
            errno.EFBIG: "larger than files may be here (ulimit -f): raise the limit and start again",
            errno.EACCES: "permission denied: choose a folder that you may write to",
            errno.EPERM: "permission denied: choose a folder that you may write to",
            errno.EROFS: "the file system is read-only: choose another place",
        }.get(error.errno or 0, error.strerror or str(error))
        raise SurroundingsError(f"{path}: cannot be written: {remedy}") from error


def fsync(path: Path) -> None:
    """Asks the operating system to put a file or folder on the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}{_UNFINISHED}-{os.getpid()}")


def drafts_of(path: Path) -> list[Path]:
    """What writers of ``path`` have not finished, whichever process they were."""
    return list(path.parent.glob(f"{glob.escape(f'.{path.name}{_UNFINISHED}-')}*"))


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Gives a name to write to; on leaving without an exception it becomes ``path``, otherwise it is removed."""
    draft = _draft_of(path)
    try:
        with write_errors(path):
            yield draft
            fsync(draft)
            draft.replace(path)
            fsync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # the reason why it could not be made is the error to report
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with atomic_file(path) as draft:
        write_chunks(draft, [text.encode()])


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Writes a file and returns the SHA-256 of what it should hold, taken on the way to the disk.

    Meant for drafts: alone it does not write whole or not at all.
    """
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
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
    """Writes a safetensors file and returns its SHA-256; for drafts, as `write_chunks`.

    The same bytes as `safetensors.torch.save_file`, but each tensor goes from where it lies to the disk, and an error
    of the system stays the `OSError` that it is.
    """
    return write_chunks(path, _serialized(tensors))


def _serialized(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The length of the header in eight bytes, the header in JSON, and each tensor's bytes, widest elements first."""
    import torch

    order = sorted(tensors, key=lambda name: (-_rank(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _DTYPES[str(tensors[name].dtype)], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


_DTYPES = {
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
"""As the format spells them, in the order in which it ranks them."""


def _rank(tensor: Tensor) -> int:
    return list(_DTYPES).index(str(tensor.dtype))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder to fill; on leaving without an exception it takes the place of ``path``.

    A folder that stands at ``path`` is moved aside for the moment of the exchange: see `current_folder`.
    """
    draft = _draft_of(path)
    try:
        with write_errors(path):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            yield draft
            for file in draft.rglob("*"):
                fsync(file)
            fsync(draft)
            _end_exchange(path)
            if path.exists():
                path.replace(_aside(path))
            draft.replace(path)
            fsync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            _end_exchange(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}{_REPLACED}")


def _end_exchange(path: Path) -> None:
    """Puts back what was moved aside if nothing took its place; otherwise removes it."""
    aside = _aside(path)
    if aside.exists():
        if path.exists():
            shutil.rmtree(aside)
        else:
            aside.replace(path)


def current_folder(path: Path) -> Path:
    """Where the content of ``path`` stands, for readers: aside, should the machine have stopped in an exchange."""
    aside = _aside(path)
    return aside if aside.is_dir() and not path.exists() else path


def is_unfinished(path: Path) -> bool:
    """Whether ``path`` is something that a stopped writer left, and that nobody will read."""
    return path.name.startswith(".") and f"{_UNFINISHED}-" in path.name


def remove_unfinished(folder: Path) -> None:
    """Clears up what stopped writers left in ``folder``: drafts are removed, exchanges ended."""
    if not folder.is_dir():
        return
    with write_errors(folder):
        for path in list(folder.iterdir()):
            if is_unfinished(path):
                remove(path)
            elif path.name.startswith(".") and path.name.endswith(_REPLACED):
                _end_exchange(path.with_name(path.name[1 : -len(_REPLACED)]))


def remove(path: Path) -> None:
    """Removes a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_LOCK_TABLE = Path("/proc/locks")


def take_lock(descriptor: int) -> bool:
    """Locks an open file or folder until it is closed or this process ends; False where somebody else has it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def lock_holder(descriptor: int) -> str:
    """Who has the lock of an open file or folder, in words: `` (process 123)``; nothing where the system does not say.

    Linux lists its locks in /proc/locks, a line each: ``1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF`` has process,
    device (in hexadecimal) and inode.
    """
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        rows = [line.split() for line in _LOCK_TABLE.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return ""
    processes = [row[4] for row in rows if row[1] == "FLOCK" and row[5] == place]
    return f" (process {processes[0]})" if processes and processes[0] != "0" else ""
