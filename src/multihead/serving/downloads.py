"""Translated files that wait to be fetched, in memory.

A name has 128 random bits, so who knows it may fetch the file. Files expire; with too many, the oldest go first.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import PurePath

SECONDS = 600.0
"""Time for which a file can be fetched."""

MAX_BYTES = 50_000_000
"""Maximum size of all files."""


class Downloads:
    """The files.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def add(self, name: str, content: bytes) -> str:
        """Keep a file; returns the name to fetch it by."""
        # Letters of any script are kept; nothing that has a meaning in an address or a header.
        plain = re.sub(r"[^\w.-]+", "_", PurePath(name).name)[-100:].lstrip(".") or "file"
        key = f"{secrets.token_hex(16)}.{plain}"
        self._files[key] = self._clock() + SECONDS, content
        self._forget()
        return key

    def get(self, key: str) -> bytes | None:
        """The file; None if there is none of this name, or none any more."""
        self._forget()
        found = self._files.get(key)
        return None if found is None else found[1]

    def _forget(self) -> None:
        size = sum(len(content) for _, content in self._files.values())
        while self._files:
            expires, content = next(iter(self._files.values()))
            if expires > self._clock() and (size <= MAX_BYTES or len(self._files) == 1):
                break
            size -= len(content)
            self._files.popitem(last=False)
