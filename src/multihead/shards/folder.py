"""Finished shards of an output, in a folder until they are joined

While ``OUTPUT`` is being made, ``OUTPUT.shards`` holds ``record.json``, which says what it is made from, and a file for
each finished shard: its number, and the beginning of the SHA-256 of its content. A shard is computed from its lines
alone, and written by whoever computed it, whole or not at all; computed again, it is the same file. So nothing is lost
or doubled, whichever process stops when, and the same command goes on with the shards that are not there yet. In the
end the shards are compared with their hashes and joined in order, and the folder is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from multihead.errors import ConfigurationError, FormatError
from multihead.files import drafts_of, lock_holder, open_lock, take_lock, write_errors
from multihead.shards import storage

_RECORD = "record.json"
_DIGITS = 16
"""Hexadecimal digits of the hash in a file's name."""


def folder_of(output: str) -> str:
    """Where the shards of an output are."""
    return f"{output}.shards"


def write_shard(output: str, number: int, content: bytes) -> str:
    """Write a finished shard, and return the name of its file; called by the process that computed it.

    Raises:
        SurroundingsError: it cannot be written.
    """
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    name = f"{number:08d}-{digest}"
    storage.write(f"{folder_of(output)}/{name}", [content])
    return name


Assemble = Callable[[Iterable[bytes]], Iterable[bytes]]


def in_a_row(shards: Iterable[bytes]) -> Iterable[bytes]:
    """The shards as they are: one text of several."""
    return shards


class ShardFolder:
    """The folder of an output; created by `shard_folder`.

    Args:
        output: the place of the output.
        made_from: everything that decides its content.
        count: number of all shards.
        assemble: makes the content of the output from that of the shards, in order; always the same.
    """

    def __init__(self, output: str, made_from: dict[str, Any], count: int, assemble: Assemble = in_a_row) -> None:
        self._output, self._made_from, self._count, self._assemble = output, made_from, count, assemble
        self._place = folder_of(output)

    def finished(self) -> dict[int, str]:
        """The names of the finished shards' files, by number.

        Raises:
            FormatError: a shard is there twice, with different content.
        """
        found: dict[int, str] = {}
        for name in sorted(storage.names_in(self._place)):
            number, dash, digest = name.partition("-")
            if not (number.isdecimal() and dash and len(digest) == _DIGITS and int(number) < self._count):
                continue  # the record, and drafts of processes that were killed
            if int(number) in found:
                raise FormatError(
                    f"{self._place}: shard {int(number)} was computed twice, with different results: do all machines "
                    "have the same version of multihead, and the same kind of processor? To start again, remove "
                    "the folder"
                )
            found[int(number)] = name
        return found

    def check_written(self, name: str) -> None:
        """Raise FormatError if this machine cannot see a file that another one has written."""
        if not storage.exists(f"{self._place}/{name}"):
            raise FormatError(
                f"{self._place}/{name}: was written by another machine, and cannot be seen here: the output has to be "
                "where all machines write and read: a shared file system, or a URL"
            )

    def join(self) -> None:
        """Write the output and remove the folder.

        Raises:
            FormatError: a shard is missing or damaged.
            ConfigurationError: another file has the name of the output.
            SurroundingsError: it cannot be written.
        """
        found = self.finished()
        missing = [number for number in range(self._count) if number not in found]
        if missing:
            raise FormatError(f"{self._place}: shard {missing[0]} is missing; the same command computes it again")
        storage.check_new(self._output)
        storage.write(self._output, self._whole(found))
        self.finish()

    def _whole(self, found: Mapping[int, str]) -> Iterable[bytes]:
        """The content of the output, from the files of the shards."""
        return self._assemble(self._read(found[number]) for number in range(self._count))

    def _read(self, name: str) -> bytes:
        content = storage.read(f"{self._place}/{name}")
        if content is None or not name.endswith(f"-{hashlib.sha256(content).hexdigest()[:_DIGITS]}"):
            raise FormatError(f"{self._place}/{name}: damaged; remove it, and the same command computes it again")
        return content

    def is_joined(self) -> bool:
        """Whether the output is complete, and only the removal of the folder was interrupted."""
        found = self.finished()
        if len(found) < self._count or not storage.exists(self._output):
            return False
        digest = hashlib.sha256()
        for chunk in self._whole(found):
            digest.update(chunk)
        with storage.open_bytes(self._output) as stream:
            return hashlib.file_digest(stream, "sha256").digest() == digest.digest()

    def finish(self) -> None:
        """Remove the folder of a complete output; the record, which says that it is complete, goes last."""
        self.note(joined=True)
        self.remove()

    def note(self, *, joined: bool) -> None:
        """Write the record."""
        record = {"made_from": self._made_from, "joined": joined}
        content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        storage.write(f"{self._place}/{_RECORD}", [content.encode()])

    def remove(self) -> None:
        """Remove the folder."""
        storage.remove_folder(self._place)


@contextlib.contextmanager
def shard_folder(
    output: str, made_from: Mapping[str, Any], count: int, assemble: Assemble = in_a_row
) -> Iterator[ShardFolder | None]:
    """Begin an output, or resume one; yields None if the output is complete and only its folder remained.

    If the body raises an exception before a shard is finished, the folder is removed.

    Args:
        output: the place of the output, which must not exist.
        made_from: everything that decides the content, as JSON. An output can only be resumed with the same values.
        count: number of all shards.
        assemble: as `ShardFolder` has it.

    Raises:
        ConfigurationError: the output exists, or its folder does not; another process is making it, or it was begun
            with other values.
        FormatError: the record is damaged.
        SurroundingsError: it cannot be written.
    """
    place = folder_of(output)
    wanted: dict[str, Any] = {**json.loads(json.dumps(made_from)), "shards": count}
    folder, known = ShardFolder(output, wanted, count, assemble), _read_record(place)
    if known is None:
        if storage.exists(output) and not storage.names_in(place):
            storage.remove_folder(place)  # its removal was interrupted
        storage.check_new(output)
    with _locked(place):
        if not storage.is_remote(output):
            for draft in drafts_of(storage.local_path(output)):  # of a killed process
                draft.unlink(missing_ok=True)
        if known is None:
            folder.note(joined=False)
        else:
            _compare(place, output, known["made_from"], wanted)
            if known["joined"] or folder.is_joined():
                folder.finish()
                yield None
                return
            storage.check_new(output)
        try:
            yield folder
        except BaseException:
            if not folder.finished():
                folder.remove()
            raise


def check_begun(output: str) -> None:
    """Raise ConfigurationError if an output was not begun."""
    if _read_record(folder_of(output)) is None:
        raise ConfigurationError(
            f"{output}: nothing of it has been done ({folder_of(output)} is not there): there is nothing to go on "
            "with; begin without --resume"
        )


def check_free(output: str) -> None:
    """Raise ConfigurationError if an output exists that no interrupted command has left."""
    if _read_record(folder_of(output)) is None:
        storage.check_new(output)


def _compare(place: str, output: str, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    names = [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]
    if names:
        changes = ", ".join(f"{name} was {known.get(name)}, now {wanted.get(name)}" for name in names)
        raise ConfigurationError(
            f"{place}: was begun for {output} by an earlier command with other settings ({changes}). To continue, "
            "repeat that command; to start again, remove it"
        )


def _read_record(place: str) -> dict[str, Any] | None:
    content = storage.read(f"{place}/{_RECORD}")
    if content is None:
        return None
    try:
        record: dict[str, Any] = json.loads(content)
        right = isinstance(record["made_from"], dict) and isinstance(record["joined"], bool)
    except (ValueError, TypeError, KeyError):
        right = False
    if not right:
        raise FormatError(f"{place}/{_RECORD}: damaged. To start again, remove {place}")
    return record


@contextlib.contextmanager
def _locked(place: str) -> Iterator[None]:
    """Lock the folder for this process; object stores have no locks."""
    if storage.is_remote(place):
        yield
        return
    path = storage.local_path(place)
    with write_errors(path):
        path.mkdir(exist_ok=True)
    descriptor = open_lock(path)
    try:
        if not take_lock(descriptor):
            who = lock_holder(descriptor)
            raise ConfigurationError(f"{place}: another process{who} is working in it; wait for that one")
        yield
    finally:
        os.close(descriptor)
