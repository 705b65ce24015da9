"""A file that is written piece by piece and can be resumed after any stop.

No line is lost or written twice. While the file grows, its name is ``FILE.part``; ``FILE.part.json`` records what it is
made from and how many bytes are valid. A piece is written and synced to disk before it is recorded. On resuming, bytes
beyond the recorded size, which the stopped process was still writing, are cut off. The complete file is renamed to its
final name. Only one process can write: the part is locked as long as the process lives.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from multihead.errors import ConfigurationError, FormatError
from multihead.files import (
    check_new_file,
    drafts_of,
    force,
    fsync,
    lock_holder,
    open_lock,
    replace,
    take_lock,
    write_errors,
    write_text,
)


class GrowingFile:
    """The open part of a file; created by `growing_file`.

    Args:
        path: final name of the file.
        made_from: everything that decides its content.
        stream: the part.
        known: the record of an earlier process; empty if there was none.
    """

    def __init__(self, path: Path, made_from: dict[str, Any], stream: FileIO, known: dict[str, Any]) -> None:
        self._path, self._made_from, self._stream = path, made_from, stream
        self.lines = int(known.get("lines", 0))
        """Number of input lines that are done."""
        self._size = int(known.get("bytes", 0))
        part, found = part_of(path), os.fstat(stream.fileno()).st_size
        if found < self._size or (found and not known):
            what = "shorter than its record says" if known else "not something that this command has made"
            raise FormatError(
                f"{part}: {what}; nothing was touched. To start again, remove it and {record_of(path).name}"
            )
        with write_errors(part):
            stream.truncate(self._size)
        if not known:
            self._note()

    def append(self, rows: Sequence[str], lines: int) -> None:
        """Write rows, without line feeds, for ``lines`` more lines of the input.

        Raises:
            SurroundingsError: it cannot be written; the earlier content remains valid.
        """
        self.append_bytes("".join(f"{row}\n" for row in rows).encode(), lines)

    def append_bytes(self, content: bytes, lines: int) -> None:
        """Write what ``lines`` more lines of the input became, if that is not rows of text; errors as `append`."""
        with write_errors(part_of(self._path)):
            rest = memoryview(content)
            while rest:
                rest = rest[self._stream.write(rest) :]
            force(self._stream.fileno())
        self._size += len(content)
        self.lines += lines
        self._note()

    def finish(self) -> None:
        """Rename the part to the final name.

        Raises:
            ConfigurationError: another file has this name.
        """
        check_free(self._path)
        self._stream.close()  # an open file cannot be renamed everywhere; the lock is held on
        with write_errors(self._path):
            replace(part_of(self._path), self._path)
            fsync(self._path.parent)
            record_of(self._path).unlink()

    def discard(self) -> None:
        """Remove the part, which was only needed until now.

        Raises:
            SurroundingsError: it cannot be removed.
        """
        self._stream.close()
        with write_errors(self._path):
            part_of(self._path).unlink()
            record_of(self._path).unlink(missing_ok=True)  # the same command may have removed it: `remove_lone_record`

    def _note(self) -> None:
        """Record how much of the part is valid."""
        record = {"made_from": self._made_from, "lines": self.lines, "bytes": self._size}
        write_text(record_of(self._path), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def growing_file(path: Path, made_from: Mapping[str, Any]) -> Iterator[GrowingFile | None]:
    """Begin a file, or resume one; yields None if the file is complete and only its record remained.

    If the body raises an exception before the first line is written, the part is removed.

    Args:
        path: final name, which must not exist.
        made_from: everything that decides the content, as JSON. A file can only be resumed with the same values.

    Raises:
        ConfigurationError: the file exists, its folder does not, another process is writing it, or it was begun with
            other values.
        FormatError: the part or its record is damaged.
        SurroundingsError: it cannot be written.
    """
    check_free(path)
    wanted: dict[str, Any] = json.loads(json.dumps(made_from))
    if path.exists():
        if differences(path, wanted):
            record_of(path).unlink()
            check_free(path)
        record_of(path).unlink()
        yield None
        return
    with write_errors(part_of(path)):
        stream = FileIO(part_of(path), "a+")
    with stream, _locked(part_of(path), stream):
        for draft in drafts_of(record_of(path)):  # of a killed process
            draft.unlink(missing_ok=True)
        changes = differences(path, wanted)
        if changes:
            raise ConfigurationError(
                f"{part_of(path)}: was begun by an earlier command with other settings ({', '.join(changes)}). To "
                f"continue, repeat that command; to start again, remove it and {record_of(path).name}"
            )
        file = GrowingFile(path, wanted, stream, _read_record(path))
        try:
            yield file
        except BaseException:
            if not file.lines:
                stream.close()
                with contextlib.suppress(OSError):
                    part_of(path).unlink()
                    record_of(path).unlink()
            raise


@contextlib.contextmanager
def _locked(part: Path, stream: FileIO) -> Iterator[None]:
    """Lock a part for this process."""
    lock = open_lock(part, stream.fileno())
    try:
        if not take_lock(lock):
            raise ConfigurationError(
                f"{part}: another process{lock_holder(lock)} is writing it; wait for that one, or choose another name"
            )
        yield
    finally:
        os.close(lock)


def check_free(path: Path) -> None:
    """Raise ConfigurationError if the file exists, or its folder does not.

    A file whose renaming was interrupted does not count: `growing_file` finishes it.
    """
    if not path.is_file() or part_of(path).exists() or not record_of(path).exists():
        check_new_file(path)


def remove_lone_record(path: Path) -> None:
    """Remove the record of a part that is gone: its process ended within `GrowingFile.discard`, when all was done."""
    if not part_of(path).exists():
        with write_errors(path):
            record_of(path).unlink(missing_ok=True)


def check_begun(path: Path) -> None:
    """Raise ConfigurationError if neither the part nor the record of a file exists."""
    if not (part_of(path).exists() or record_of(path).exists()):
        raise ConfigurationError(
            f"{path}: nothing of it has been done ({part_of(path).name} is not there): there is nothing to go on with; "
            "begin without --resume"
        )


def part_of(path: Path) -> Path:
    """The name of a file while it grows."""
    return path.with_name(f"{path.name}.part")


def record_of(path: Path) -> Path:
    """The name of the record of a part."""
    return path.with_name(f"{path.name}.part.json")


def lines_done(path: Path) -> int:
    """Number of input lines that are done in an unfinished file.

    Raises:
        FormatError: its record is damaged.
    """
    return int(_read_record(path).get("lines", 0))


def differences(path: Path, made_from: Mapping[str, Any]) -> list[str]:
    """How ``made_from`` differs from the record of a file, in words; empty if there is no record.

    Raises:
        FormatError: the record is damaged.
    """
    known = _read_record(path).get("made_from", made_from)
    names = [name for name in {**known, **made_from} if known.get(name) != made_from.get(name)]
    return [f"{name} was {known.get(name)}, now {made_from.get(name)}" for name in names]


def _read_record(path: Path) -> dict[str, Any]:
    record = record_of(path)
    if not record.exists():
        return {}
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        right = isinstance(known["made_from"], dict) and known["lines"] >= 0 and known["bytes"] >= 0
    except (OSError, ValueError, TypeError, KeyError):
        right = False
    if not right:
        raise FormatError(f"{record}: damaged. To start again, remove it and {part_of(path).name}")
    return dict(known)
