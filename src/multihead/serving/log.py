"""The server's log, with a limit on its lines per second.

No client can fill a disk with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

LINES_PER_SECOND = 5.0
"""Lines written in the long run; 10 seconds' worth may come at once."""

MAX_LINE = 1_000
"""Maximum characters of a line; longer ones are cut."""


class Log:
    """Writes lines, and counts those that are too many.

    Args:
        write: writes a line.
        clock: returns seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._most = 10 * LINES_PER_SECOND
        self._room, self._at, self._left_out = self._most, clock(), 0

    def __call__(self, line: str) -> None:
        now = self._clock()
        self._room = min(self._room + (now - self._at) * LINES_PER_SECOND, self._most)
        self._at = now
        if self._room < (2 if self._left_out else 1):
            self._left_out += 1
            return
        if self._left_out:
            self._room -= 1
            self._write(f"{self._left_out:,} lines were omitted here")
            self._left_out = 0
        self._room -= 1
        line = " ".join(line.splitlines())
        self._write(line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "...")


def log_libraries(say: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
    """Send what asyncio reports to this log, one line each; uvicorn and the parser of forms have nothing to add."""

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        say(f"internal error: {context['message']}" + (f": {type(error).__name__}: {error}" if error else ""))

    loop.set_exception_handler(report)
    for name in ("uvicorn.error", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
