"""A file that grows piece by piece and can go on after a stop at any moment: neither a line lost nor one twice.

While it grows it stands beside its place under the name ``FILE.part``, and ``FILE.part.json`` says what it is made
from and up to where it is good. A piece is written and forced to the disk before it is said to be there; what is
behind that place when somebody goes on was being written when the process ended, and is cut off. When all is there, the
file takes its name. One process at a time: the part is locked, for as long as the process lives.
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
from multihead.files import drafts_of, fsync, lock_holder, take_lock, write_errors, write_text


class GrowingFile:
    """The part of a file, open for this process; made by `growing_file`.

    Args:
        path: the name that the file will have.
        made_from: what decides on its content.
        stream: the part.
        known: what an earlier process noted; empty where there was none.
    """

    def __init__(self, path: Path, made_from: dict[str, Any], stream: FileIO, known: dict[str, Any]) -> None:
        self._path, self._made_from, self._stream = path, made_from, stream
        self.lines = int(known.get("lines", 0))
        """How many lines of the input have been dealt with."""
        self._size = int(known.get("bytes", 0))
        part, found = part_of(path), os.fstat(stream.fileno()).st_size
        if found < self._size or (found and not known):
            what = "shorter than its record says" if known else "not something that this command has made"
            raise FormatError(
                f"{part}: {what}; nothing was touched. To begin anew remove it and {record_of(path).name}"
            )
        with write_errors(part):
            stream.truncate(self._size)
        if not known:
            self._note()

    def append(self, rows: Sequence[str], lines: int) -> None:
        """Writes what ``lines`` more lines of the input have become: rows without line feeds.

        Raises:
            SurroundingsError: it cannot be written; what stood there before still counts.
        """
        content = "".join(f"{row}\n" for row in rows).encode()
        with write_errors(part_of(self._path)):
            rest = memoryview(content)
            while rest:
                rest = rest[self._stream.write(rest) :]
            os.fsync(self._stream.fileno())
        self._size += len(content)
        self.lines += lines
        self._note()

    def finish(self) -> None:
        """Gives the file its name.

        Raises:
            ConfigurationError: something else has taken it.
        """
        check_free(self._path)
        with write_errors(self._path):
            part_of(self._path).replace(self._path)
            fsync(self._path.parent)
            record_of(self._path).unlink()

    def _note(self) -> None:
        """Says up to where the part is good."""
        record = {"made_from": self._made_from, "lines": self.lines, "bytes": self._size}
        write_text(record_of(self._path), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def growing_file(path: Path, made_from: Mapping[str, Any]) -> Iterator[GrowingFile | None]:
    """Begins a file, or goes on with one; None where it was all there and only the record was not yet removed.

    Who leaves with an exception before the first line leaves nothing behind.

    Args:
        path: its name; nothing stands there.
        made_from: whatever decides on the content, as JSON has it; who goes on must have the same.

    Raises:
        ConfigurationError: the file is there already, its folder is not, another process is writing it, or it was
            begun with something else.
        FormatError: what was begun is damaged.
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
    with stream:
        if not take_lock(stream.fileno()):
            raise ConfigurationError(
                f"{part_of(path)}: another process{lock_holder(stream.fileno())} is writing it; wait for that one, or "
                "choose another name"
            )
        for draft in drafts_of(record_of(path)):  # of a killed process
            draft.unlink(missing_ok=True)
        changes = differences(path, wanted)
        if changes:
            raise ConfigurationError(
                f"{part_of(path)}: is what an earlier command has done of {path.name}, and it was another one "
                f"({', '.join(changes)}). To go on give the same again; to begin anew remove it and "
                f"{record_of(path).name}"
            )
        file = GrowingFile(path, wanted, stream, _read_record(path))
        try:
            yield file
        except BaseException:
            if not file.lines:
                with contextlib.suppress(OSError):
                    part_of(path).unlink()
                    record_of(path).unlink()
            raise


def check_free(path: Path) -> None:
    """Refuses a name that is taken, or whose folder does not exist.

    A file that a process was giving its name when it ended does not count: `growing_file` ends that first.

    Raises:
        ConfigurationError: that is so.
    """
    if path.exists() and not (record_of(path).exists() and not part_of(path).exists()):
        raise ConfigurationError(f"{path}: exists already; nothing was overwritten. Choose another name")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path}: there is no folder {path.parent} to write it into; make it first")


def check_begun(path: Path) -> None:
    """Refuses a file of which nothing has been done.

    Raises:
        ConfigurationError: neither its part nor its record is there.
    """
    if not (part_of(path).exists() or record_of(path).exists()):
        raise ConfigurationError(
            f"{path}: nothing of it has been done ({part_of(path).name} is not there): there is nothing to go on with; "
            "begin without --resume"
        )


def part_of(path: Path) -> Path:
    """Where a file stands while it grows."""
    return path.with_name(f"{path.name}.part")


def record_of(path: Path) -> Path:
    """Where it is said what the part is."""
    return path.with_name(f"{path.name}.part.json")


def lines_done(path: Path) -> int:
    """How many lines of the input an unfinished file has dealt with.

    Raises:
        FormatError: its record is damaged.
    """
    return int(_read_record(path).get("lines", 0))


def differences(path: Path, made_from: Mapping[str, Any]) -> list[str]:
    """What the record of a file has otherwise, in words; nothing where there is no record.

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
        raise FormatError(f"{record}: damaged. To begin anew remove it and {part_of(path).name}")
    return dict(known)
