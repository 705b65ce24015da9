"""URLs that were named as paths

A `pathlib.Path` keeps one of the two slashes of ``s3://bucket/name``. Readers receive paths, so they ask here whether
one is a URL.
"""

from __future__ import annotations

import re
from pathlib import Path

_AS_A_PATH = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+(?=[^/])")
"""A protocol has two characters or more: ``c:/text`` is a path on a drive."""


def url_of(path: str | Path) -> str | None:
    """The URL that a path stands for: ``s3:/bucket/name`` for ``s3://bucket/name``; None for any other path.

    A ``file:`` URL is none, and a file that exists under such a name is that file.
    """
    name = path if isinstance(path, str) else path.as_posix()
    found = _AS_A_PATH.match(name)
    if found is None or found[1].lower() == "file" or Path(path).exists():
        return None
    return f"{found[1]}://{name[found.end() :]}"


def absolute(path: str | Path) -> Path:
    """The path as it is named from any directory; a URL stays as it is."""
    return Path(path) if url_of(path) else Path(path).absolute()
