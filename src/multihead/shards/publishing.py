"""Outputs at URLs: made on this machine, then uploaded in order

What a command maps into memory or writes in several passes, it makes in `place_of` a URL, as it makes it anywhere else,
and goes on there after it was stopped. `publish` uploads what is complete:

    1. MARKER           an object beside the output that lists each file with its size and SHA-256
    2. the files        in order; each appears whole or not at all, and one that is there already is left out
    3. no MARKER        the output is complete, which its last file has said since it appeared

A command that is killed in between goes on with the files that are missing. Nothing that another one wrote is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from multihead.errors import ConfigurationError, SurroundingsError
from multihead.files import sha256_of
from multihead.shards import storage

VARIABLE = "MULTIHEAD_STORES"
"""The environment variable that names the folder for outputs and copies of URLs."""
MARKER = "uploading.json"
"""Ends the name of the object that stands beside an output until it is complete."""
PROBE = b'{"files": {}}\n'
"""What the marker holds while `check_places` looks whether it can be written."""
_NOT_BEGUN = None, PROBE
_BLOCK = 1 << 22


def place_of(url: str) -> Path:
    """The folder on this machine for what is made for a URL, or copied from it.

    Raises:
        SurroundingsError: this user has no home folder, and no variable names another place.
    """
    name = url.rstrip("/").rpartition("/")[2]
    readable = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name)[:40].lstrip(".")
    return _stores() / f"{readable}-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:12]}"


def _stores() -> Path:
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "multihead" / "stores"
    except RuntimeError:
        raise SurroundingsError(
            f"this user has no home folder to keep copies of URLs in; name another folder by {VARIABLE}"
        ) from None


def is_begun(marker: str) -> bool:
    """Whether an upload was begun that is not complete."""
    return storage.read(marker) not in _NOT_BEGUN


def check_places(places: Iterable[str], marker: str) -> None:
    """Check before hours of work that their result can be uploaded: write the marker, and remove it.

    Where an upload was begun, there is nothing to check: `publish` compares it with its own.

    Raises:
        ConfigurationError: a file of such a name exists; nothing was replaced.
        DataError: there is no such folder or bucket.
        SurroundingsError: nothing can be written there.
    """
    if not is_begun(marker):
        for place in places:
            storage.check_new(place)
        storage.write(marker, [PROBE])
        storage.remove_file(marker)


def publish(files: Mapping[str, Path], marker: str, progress: Callable[[int], None] = lambda _more: None) -> None:
    """Upload files that are complete, in order; those that are there already are left out.

    Args:
        files: by the URL of each, its path here.
        marker: the URL of the object that says that the upload goes on.
        progress: receives the bytes that have been uploaded since its last call; may raise to stop.

    Raises:
        ConfigurationError: a file of this name exists, or the upload of another output was begun; nothing was replaced.
        DataError: there is no such folder or bucket.
        SurroundingsError: a file cannot be written.
    """
    sizes = {place: path.stat().st_size for place, path in files.items()}
    listed = {place: {"bytes": sizes[place], "sha256": sha256_of(path)} for place, path in files.items()}
    content = (json.dumps({"files": listed}, indent=1, ensure_ascii=False) + "\n").encode()
    found = storage.read(marker)
    if found in _NOT_BEGUN:
        for place in files:
            storage.check_new(place)
        storage.write(marker, [content])
    else:
        _check_own(marker, found, content)
    for folder in _folders_below(marker.rpartition("/")[0], files):
        storage.make_folder(folder)
    *_, last = files
    for place, path in files.items():
        if storage.exists(place) and storage.size(place) == sizes[place]:
            progress(sizes[place])
            continue
        if place == last:
            _check_own(marker, storage.read(marker), content)
        storage.write(place, _chunks(path, progress))
    storage.remove_file(marker)


def _check_own(marker: str, found: bytes | None, content: bytes) -> None:
    """Raise ConfigurationError if the marker is that of another output; None is one that another process removed."""
    if found is not None and found != content:
        raise ConfigurationError(
            f"{marker}: another output is being uploaded there, or its upload was stopped; nothing was replaced. Start "
            "that command again, remove what it has left, or choose another place"
        )


def _folders_below(top: str, files: Mapping[str, Path]) -> list[str]:
    """The folders of the files below another one, each after the one that it is in."""
    found = set()
    for place in files:
        folder = place.rpartition("/")[0]
        while folder.startswith(f"{top}/"):
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


def _chunks(path: Path, progress: Callable[[int], None]) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_BLOCK):
            yield chunk
            progress(len(chunk))
