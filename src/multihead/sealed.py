"""Folders with a manifest: sealed when written, checked when opened.

    manifest.json    {"format": "multihead manifest", "version": 1,
                      "files": {NAME: {"bytes": N, "sha256": H}, ...}, "sha256": H of what stands before it}

`seal` writes the manifest as the last file of a draft, before the draft is renamed into place. `open_folder` opens a
folder once, and every file of it relative to that: what is read afterwards is one snapshot, even if the folder is
replaced meanwhile (`files.atomic_folder`). A replacement that falls into the opening itself is noticed, and the folder
opened again. Only regular files are read. A file that the manifest lists is read whole, compared with size and SHA-256,
and only then used; a file that it does not list is never read. Folders of older versions have no manifest: the modules
that read them keep the checks of their time.

JSON is bounded in size and depth. Tensors are read from such folders by `multihead.tensor_files`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from multihead import platforms
from multihead.errors import FormatError
from multihead.files import REPLACED, sha256_of, write_chunks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MANIFEST = "manifest.json"
MOST_JSON, MOST_TEXT = 1 << 26, 1 << 28
"""Maximum bytes of a JSON file, and of another file that is read as text."""
DEEPEST = 100
"""Maximum depth of a JSON value."""

_FORMAT, _VERSION = "multihead manifest", 1
_MOST_MANIFEST, _MOST_OPEN = 1 << 22, 100
_BLOCK = 1 << 20
_ATTEMPTS = 100


class Entry(NamedTuple):
    """A file as the manifest lists it."""

    bytes: int
    sha256: str


# --------------------------------------------------------------------------- writing


def seal(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the manifest of a draft, as its last file; not atomic. Arguments and errors as `manifest_of`."""
    write_chunks(folder / MANIFEST, [manifest_of(folder, known)])


def manifest_of(
    folder: Path,
    known: Mapping[str, str] | None = None,
    planned: Mapping[str, bytes] | None = None,
    among: Collection[str] | None = None,
) -> bytes:
    """The content of the manifest of a folder.

    Args:
        folder: the folder.
        known: the SHA-256 of files that were hashed when they were written; the others are read.
        planned: content of files that will be written next.
        among: the names in the folder (files or folders) that the manifest lists; None = all.

    Raises:
        OSError: the folder cannot be read.
    """
    entries = {name: Entry(len(text), hashlib.sha256(text).hexdigest()) for name, text in (planned or {}).items()}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        listed = name != MANIFEST and (among is None or name.split("/")[0] in among)
        if listed and name not in entries and path.is_file():
            entries[name] = Entry(path.stat().st_size, (known or {}).get(name) or sha256_of(path))
    return _manifest_bytes(entries)


def _manifest_bytes(entries: Mapping[str, Entry]) -> bytes:
    files = {name: entries[name]._asdict() for name in sorted(entries)}
    content: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "files": files}
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=1, ensure_ascii=False) + "\n").encode()


def _read_manifest(content: bytearray, path: Path, remedy: str) -> dict[str, Entry] | None:
    """The entries of a manifest; None if the file is not one of ours.

    Raises:
        FormatError: it is damaged, or of a newer version.
    """
    try:
        found = parse_json(content, path)
    except FormatError:
        found = {}
    if found.get("format") != _FORMAT:
        return None
    if isinstance(found.get("version"), int) and found["version"] > _VERSION:
        raise FormatError(f"{path}: of version {found['version']}; a newer multihead wrote it, install that")
    files = found.get("files")
    listed = files if isinstance(files, dict) and all(map(_is_entry, files.items())) else {}
    entries = {name: Entry(**values) for name, values in listed.items()}
    if _manifest_bytes(entries) != content:
        raise FormatError(f"{path}: damaged: not as it was written; {remedy}")
    return entries


def _is_entry(item: tuple[str, object]) -> bool:
    match item:
        case [name, {"bytes": int(size), "sha256": str(digest), **rest}] if not rest:
            path = PurePosixPath(name)
            inside = name.isprintable() and path.name and not path.is_absolute() and ".." not in path.parts
            return bool(inside) and size >= 0 and re.fullmatch("[0-9a-f]{64}", digest) is not None
    return False


# --------------------------------------------------------------------------- opening


class _ReplacedError(Exception):
    """The folder was replaced while it was opened."""


class _AbsentError(Exception):
    """There is no such folder."""


class OpenFolder:
    """An opened folder: a context manager that closes it. Reads are relative to it, and checked.

    Attributes:
        path: as it was named, for messages.
        entries: the files of the manifest; None for a folder without one.
    """

    def __init__(self, path: Path, place: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        self.entries: dict[str, Entry] | None = None
        self._place = place
        self._prefix = ""
        self._files: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._descriptor = os.open(place, platforms.READ_FOLDER) if platforms.OPENS_WITHIN else None
        state = place.stat() if self._descriptor is None else os.fstat(self._descriptor)
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(place)
        self._identity = state.st_dev, state.st_ino

    def _open_files(self) -> None:
        """Read the manifest, and open every file.

        Raises:
            _ReplacedError: the folder was replaced meanwhile.
            FormatError: the manifest is damaged.
        """
        opened: list[int | None] = [None]
        with contextlib.suppress(OSError):
            if self._try(MANIFEST) is not None and self.size(MANIFEST) <= _MOST_MANIFEST:
                content = self.read_bytes(MANIFEST)
                self.entries = _read_manifest(content, self.path / MANIFEST, self.remedy)
            place = self._place if self._descriptor is None else self._descriptor
            names = os.listdir(place) if self.entries is None else self.entries  # noqa: PTH208 - a descriptor
            opened = [self._try(name) for name in list(names)[:_MOST_OPEN]]
        doubtful = None in opened or self.entries is None or self._descriptor is None
        if doubtful and not self._is_current():
            raise _ReplacedError

    def _try(self, name: str) -> int | None:
        """Open a file, unless it cannot be opened; that is reported when it is read."""
        try:
            return self._open(name)
        except OSError:
            return None

    def _open(self, name: str) -> int:
        if name not in self._files:
            if self._descriptor is not None:
                self._files[name] = os.open(name, platforms.READ, dir_fd=self._descriptor)
            elif (self._place / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            else:
                self._files[name] = os.open(self._place / name, platforms.READ)
        return self._files[name]

    def _is_current(self) -> bool:
        """Whether the path still names this folder; one moved aside counts until another stands in its place."""
        try:
            now = self._place.stat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self._identity and (self._place == self.path or not self.path.exists())

    def part(self, prefix: str) -> OpenFolder:
        """A folder in this one, opened with it and closed with it."""
        part = object.__new__(OpenFolder)
        part.__dict__ = {**self.__dict__, "path": self.path / prefix, "_prefix": f"{self._prefix}{prefix}/"}
        return part

    def __contains__(self, name: str) -> bool:
        """Whether the manifest lists a file; in a folder without one, whether there is something but a folder."""
        if self.entries is not None:
            return self._prefix + name in self.entries
        try:
            return not stat.S_ISDIR(os.fstat(self._open(self._prefix + name)).st_mode)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError:
            return True  # reading it says what is wrong

    def names(self) -> list[str]:
        """The files that the manifest lists below this folder; without a manifest, what the folder holds."""
        if self.entries is not None:
            return [name.removeprefix(self._prefix) for name in self.entries if name.startswith(self._prefix)]
        place = self._place / self._prefix if self._descriptor is None or self._prefix else self._descriptor
        return sorted(os.listdir(place))  # noqa: PTH208 - a descriptor

    def size(self, name: str) -> int:
        """The bytes of a file.

        Raises:
            FormatError: it cannot be read, is not a regular file, or not as long as the manifest says.
        """
        _, size = self._checked(name)
        return size

    def _checked(self, name: str) -> tuple[int, int]:
        """Descriptor and size of a file; errors as `size`."""
        path, name = self.path / name, self._prefix + name
        entry = None if self.entries is None else self.entries.get(name)
        if self.entries is not None and entry is None and name != MANIFEST:
            raise FormatError(
                f"{path}: {MANIFEST} does not list it, so it is missing there, or was added; {self.remedy}"
            )
        try:
            descriptor = self._open(name)
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(f"{path}: is missing; {self.remedy}") from None
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror}; {self.remedy}") from None
        size = _regular_size(descriptor, path, self.remedy)
        if entry is not None and size != entry.bytes:
            raise FormatError(f"{path}: damaged: it has {size:,} bytes, {MANIFEST} says {entry.bytes:,}; {self.remedy}")
        return descriptor, size

    def read_into(self, name: str, rooms: Iterable[memoryview]) -> str:
        """Fill ``rooms`` with the content of a file, one after the other; returns its SHA-256.

        What was read may be used once this has returned.

        Raises:
            FormatError: as `size`; or it is not the file that the manifest lists.
        """
        descriptor, left = self._checked(name)
        digest, listed = hashlib.sha256(), self._prefix + name
        for room in self._filled(descriptor, name, rooms, left):
            digest.update(room)
            left -= len(room)
        actual = self._digests[listed] = digest.hexdigest()
        expected = actual if self.entries is None or listed == MANIFEST else self.entries[listed].sha256
        if actual != expected or left:
            raise FormatError(
                f"{self.path / name}: damaged, or changed since it was written (its SHA-256 is {actual[:12]}..., "
                f"{MANIFEST} says {expected[:12]}...); {self.remedy}"
            )
        return actual

    def _filled(self, descriptor: int, name: str, rooms: Iterable[memoryview], left: int) -> Iterator[memoryview]:
        """The parts of the rooms, as they are filled with ``left`` bytes of a file."""
        try:
            with io.FileIO(descriptor, closefd=False) as stream:
                stream.seek(0)
                for room in rooms:
                    place, end = 0, min(len(room), left)
                    while place < end:
                        read = stream.readinto(room[place : min(place + _BLOCK, end)])
                        if not read:  # cut off meanwhile
                            return
                        yield room[place : place + read]
                        place, left = place + read, left - read
                    if not left:
                        return
        except OSError as error:
            raise FormatError(f"{self.path / name}: cannot be read: {error.strerror}; {self.remedy}") from None

    def verify(self, name: str) -> str:
        """The SHA-256 of a file, read in any case; errors as `read_into`."""
        return self.read_into(name, repeat(memoryview(bytearray(min(self.size(name), _BLOCK)))))

    def verify_all(self) -> None:
        """Compare every file below this folder with the manifest; errors as `read_bytes`."""
        for name in () if self.entries is None else self.names():
            self.verify(name)

    def digest(self, name: str) -> str:
        """The SHA-256 of a file: the one in the manifest, or, without a manifest, that of its content."""
        if self.entries is not None:
            self.size(name)
            return self.entries[self._prefix + name].sha256
        return self._digests.get(self._prefix + name) or self.verify(name)

    def read_bytes(self, name: str, most: int | None = MOST_TEXT) -> bytearray:
        """The content of a file.

        Raises:
            FormatError: as `read_into`; or it is larger than ``most``.
        """
        size = self.size(name)
        if most is not None and size > most:
            raise FormatError(f"{self.path / name}: has {size:,} bytes, but at most {most:,} are read; {self.remedy}")
        content = bytearray(size)
        self.read_into(name, [memoryview(content)])
        return content

    def read_start(self, name: str, most: int) -> bytearray:
        """The first bytes of a file, not compared with the manifest; errors as `size`."""
        descriptor, size = self._checked(name)
        start = bytearray(min(most, size))
        filled = sum(map(len, self._filled(descriptor, name, [memoryview(start)], len(start))))
        return start[:filled]

    def read_text(self, name: str, most: int | None = MOST_TEXT) -> str:
        """The text in a file; errors as `read_bytes`, and for text that is not UTF-8."""
        try:
            return self.read_bytes(name, most).decode("utf-8")
        except UnicodeDecodeError:
            raise FormatError(f"{self.path / name}: damaged: not UTF-8 text; {self.remedy}") from None

    def read_json(self, name: str, most: int = MOST_JSON) -> dict[str, Any]:
        """The object in a JSON file; errors as `read_bytes` and `parse_json`."""
        return parse_json(self.read_bytes(name, most), self.path / name, self.remedy)

    def mapped(self, name: str, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """An array mapped into memory from a file that holds nothing else; errors as `read_bytes`."""
        import numpy as np

        descriptor, size = self._checked(name)
        if size != count * dtype.itemsize:
            expected = f"expected {count * dtype.itemsize:,} bytes"
            raise FormatError(f"{self.path / name}: has {size:,} bytes, {expected}; {self.remedy}")
        if self.entries is not None:
            self.verify(name)
        if count == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        with io.FileIO(descriptor, closefd=False) as stream:
            return np.asarray(np.memmap(stream, dtype, mode="r"))

    def close(self) -> None:
        """Close the folder and its files; arrays that were mapped remain."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find_folder(path: Path, remedy: str) -> OpenFolder | None:
    """As `open_folder`; None if there is no folder at ``path``."""
    for attempt in range(_ATTEMPTS):
        try:
            return _open_once(path, remedy)
        except _AbsentError:
            if attempt >= 2 and not path.is_dir():  # while it is replaced, a folder is absent for a moment
                return None
        except _ReplacedError:
            pass
        time.sleep(min(0.0005 * (attempt + 1), 0.01))
    raise FormatError(f"{path}: replaced {_ATTEMPTS} times while it was opened; stop what writes it, and read it again")


def open_folder(path: Path, remedy: str) -> OpenFolder:
    """Open a folder of ours with its files.

    Args:
        path: the folder; the one moved aside is read while it is being replaced.
        remedy: what to do about a damaged file, for messages.

    Raises:
        FormatError: there is no such folder, it cannot be read, or its manifest is damaged.
    """
    found = find_folder(path, remedy)
    if found is None:
        raise FormatError(f"{path}: {'is a file, not a folder' if path.exists() else 'there is no such folder'}")
    return found


def _open_once(path: Path, remedy: str) -> OpenFolder:
    aside = [path.with_name(f".{path.name}{REPLACED}")] if path.name else []  # the current folder is never replaced
    for place in (path, *aside):
        try:
            found = OpenFolder(path, place, remedy)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            found._open_files()
        except BaseException:
            found.close()
            raise
        return found
    raise _AbsentError


# --------------------------------------------------------------------------- single files and formats


def read_file(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a regular file that belongs to no folder of ours.

    Raises:
        FormatError: it cannot be read, is a folder, a pipe or a device, or larger than ``most`` bytes.
    """
    try:
        descriptor = os.open(path, platforms.READ)
    except OSError as error:
        if path.is_dir():  # some systems do not open folders
            raise FormatError(f"{path}: is a folder, not a regular file; give a regular file") from None
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        size = _regular_size(descriptor, path, "give a regular file")
        if size > most:
            raise FormatError(f"{path}: has {size:,} bytes, but at most {most:,} are read")
        with io.FileIO(descriptor, closefd=False) as stream:
            return stream.read(most)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _regular_size(descriptor: int, path: Path, remedy: str) -> int:
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        what = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe or a device"
        raise FormatError(f"{path}: is {what}, not a regular file; {remedy}")
    return state.st_size


def parse_json(content: bytes | bytearray, path: Path, remedy: str = "", deepest: int = DEEPEST) -> dict[str, Any]:
    """The object in the content of a JSON file.

    Args:
        content: of bounded size.
        path: its file, for messages.
        remedy: what to do about damage, for messages.
        deepest: maximum depth of arrays and objects in each other.

    Raises:
        FormatError: it is not JSON, not an object, or too deep.
    """
    end = f"; {remedy}" if remedy else ""
    too_deep = FormatError(f"{path}: damaged: JSON of a depth above {deepest}{end}")
    try:
        found = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise too_deep from None
    except ValueError:
        raise FormatError(f"{path}: damaged: not JSON{end}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: damaged: expected a JSON object{end}")
    level: list[Any] = [found]
    for _ in range(deepest):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return found
    raise too_deep
