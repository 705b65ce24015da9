"""Prepared text at URLs: made here and uploaded; copied to train from it

    PLACE/making/       what `prepare` makes for a URL, as in any other folder, until it is uploaded
    PLACE/DIGEST/       a copy of what is there; its name begins the SHA-256 of its prepared.json

PLACE is `shards.publishing.place_of` the URL. Prepared text is mapped into memory, so it is read from a copy. A copy
never changes: other text under the same URL gets another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import atomic_file, open_lock, replace, take_lock, write_chunks, write_errors
from multihead.sealed import MANIFEST, open_folder
from multihead.shards import storage
from multihead.shards.publishing import MARKER, check_places, is_begun, place_of, publish
from multihead.work_folder import PREPARED, locked

_BLOCK = 1 << 22
_SECONDS = 10.0
"""Seconds between lines of progress."""
_REMEDY = "prepare the text again into a new folder"


class DifferentTextError(ConfigurationError):
    """The folder holds text that was prepared to the end, from other files or with other settings."""


def prepare_at(
    url: str, prepare: Callable[[Path], object], say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> Path:
    """Prepare text for a URL and upload it, unless it is there; returns the folder of its copy on this machine.

    Args:
        url: where ``prepared.json`` and the files beside it will be.
        prepare: prepares text in a folder, unless it is prepared there; raises DifferentTextError if that is another
            one.
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks the work to stop.

    Raises:
        ConfigurationError: the URL holds something else, or unfinished work of another command; nothing was replaced.
        Interrupted: ``stop_signal`` returned a signal; the next call goes on from there.
        SurroundingsError: the store cannot be reached or written.
    """
    place, marker = place_of(url), f"{url}/{MARKER}"
    with locked(place):
        work, content = place / "making", storage.read(f"{url}/{PREPARED}")
        if content is not None:
            storage.remove_file(marker)  # of a command that was stopped after its last file
            return _copied(url, place, content, say)
        names = storage.names_in(url)
        if names and MARKER not in names:
            raise ConfigurationError(
                f"{url}: holds something that is not prepared text; nothing was touched. Choose a new folder"
            )
        begun = is_begun(marker)
        check_places((), marker)
        try:
            prepare(work)
        except DifferentTextError:
            if begun:  # a part of it is there
                raise
            shutil.rmtree(work)
            prepare(work)
        files = {f"{url}/{name}": work / name for name in _in_order(work)}
        shown = _Progress(sum(path.stat().st_size for path in files.values()), "uploaded", say, stop_signal)
        say(f"{url}: uploading {shown.total / 1e6:,.1f} MB")
        publish(files, marker, shown)
        return _copied(url, place, (work / PREPARED).read_bytes(), say)


def local_copy(url: str, say: Callable[[str], None], digest: str | None) -> Path:
    """The folder of a copy, on this machine, of prepared text at a URL; one process copies it, others wait for it.

    Args:
        url: where the text is.
        say: called with each line of output.
        digest: the SHA-256 of its ``prepared.json``, if it is known: where a copy is, the store is not asked then.

    Raises:
        FormatError: nothing was prepared there, or it is damaged.
        SurroundingsError: the store cannot be reached, or the copy cannot be written.
    """
    place = place_of(url)
    if digest is not None and (known := _named(place, digest) / PREPARED).exists():
        return known.parent
    content = storage.read(f"{url}/{PREPARED}")
    if content is None:
        raise FormatError(
            f"{url}: nothing was prepared there to the end; give as --data what `multihead prepare --output` made"
        )
    with _turn(place):
        return _copied(url, place, content, say)


def _named(place: Path, digest: str) -> Path:
    return place / digest[:16]


def _copied(url: str, place: Path, content: bytes, say: Callable[[str], None]) -> Path:
    """The copy of the text with this ``prepared.json``; what was made here becomes it."""
    work, folder = place / "making", _named(place, hashlib.sha256(content).hexdigest())
    if (folder / PREPARED).exists():
        return folder
    with write_errors(folder):
        if (work / PREPARED).is_file() and (work / PREPARED).read_bytes() == content:
            shutil.rmtree(folder, ignore_errors=True)  # an unfinished copy
            replace(work, folder)
            return folder
        folder.mkdir(exist_ok=True)
    _copy(url, folder, content, say)
    return folder


def _copy(url: str, folder: Path, content: bytes, say: Callable[[str], None]) -> None:
    """Copy what is there; files of a copy that was stopped stay. ``prepared.json`` comes last."""
    sealed = storage.read(f"{url}/{MANIFEST}")
    if sealed is None:
        raise FormatError(f"{url}/{MANIFEST}: is missing; {_REMEDY}")
    _write(folder / MANIFEST, [sealed])
    with open_folder(folder, _REMEDY) as opened:
        entries = opened.entries or {}
    if entries.get(PREPARED) is None or entries[PREPARED].sha256 != hashlib.sha256(content).hexdigest():
        raise FormatError(f"{url}/{PREPARED}: is not the one that {MANIFEST} lists; {_REMEDY}")
    missing = [name for name in entries if name != PREPARED and not (folder / name).exists()]
    shown = _Progress(sum(entries[name].bytes for name in missing), "copied", say)
    say(f"{url}: copying {shown.total / 1e6:,.1f} MB to {folder}")
    for name in missing:
        with write_errors(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with storage.open_bytes(f"{url}/{name}") as stream, atomic_file(folder / name) as draft:
            found = write_chunks(draft, _blocks(stream.read, shown))
            if found != entries[name].sha256:
                raise FormatError(f"{url}/{name}: damaged, or changed since it was written; {_REMEDY}")
    _write(folder / PREPARED, [content])


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    with atomic_file(path) as draft:
        write_chunks(draft, chunks)


def _blocks(read: Callable[[int], bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    while chunk := read(_BLOCK):
        yield chunk
        progress(len(chunk))


def _in_order(folder: Path) -> list[str]:
    """The files of a prepared folder: what the manifest lists, then the manifest, then ``prepared.json``."""
    with open_folder(folder, _REMEDY) as opened:
        return [*(name for name in opened.names() if name != PREPARED), MANIFEST, PREPARED]


@contextlib.contextmanager
def _turn(place: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made; while another process holds it, wait."""
    with write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(place)
    try:
        while not take_lock(descriptor):
            time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


class _Progress:
    """Receives the bytes that were moved: says so now and then, and stops where a signal asks for it."""

    def __init__(
        self,
        total: int,
        verb: str,
        say: Callable[[str], None],
        stop_signal: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.total, self._done = total, 0
        self._verb, self._say, self._stop_signal = verb, say, stop_signal
        self._said = time.monotonic()

    def __call__(self, more: int) -> None:
        self._done += more
        if (number := self._stop_signal()) is not None:
            raise Interrupted(number, f"stopped while text was {self._verb}; run the same command again to continue")
        if time.monotonic() - self._said >= _SECONDS:
            self._said = time.monotonic()
            self._say(f"  {self._verb} {self._done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB")
