"""Commands that are filters: lines of standard input to lines of standard output, as they arrive.

As many lines come out as go in, in order. What has arrived is worked on at once: a file in large parts, what somebody
types line by line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from multihead.cli.process import ReaderHasGone
from multihead.data.corpus import LineStream, decode_line, split_lines
from multihead.errors import DataError

NAME = "standard input"

_AT_ONCE = 1 << 17


@runtime_checkable
class ByteStream(Protocol):
    """A stream that gives what there is, without waiting for more."""

    def read1(self, size: int, /) -> bytes:
        """At least a byte and at most ``size``; none at the end."""
        ...


def filter_lines(change: Callable[[list[str], int], list[str]]) -> None:
    """Writes what ``change`` makes of the lines of standard input.

    Args:
        change: is given lines, and the number of the first of them (from 1); hands back as many.

    Raises:
        DataError: a line is not UTF-8, or too long. What came before it has been written.
        ReaderHasGone: nobody reads standard output any more.
        SurroundingsError: it cannot be written.
    """
    fault: list[DataError] = []
    number = 1
    for lines in arriving(cast(ByteStream, sys.stdin.buffer), fault):
        changed = change(lines, number)
        assert len(changed) == len(lines)
        write_lines(changed)
        number += len(lines)
    if fault:
        raise fault[0]


def arriving(stream: ByteStream, fault: list[DataError]) -> Iterator[list[str]]:
    """Decoded lines in groups, up to the first that cannot be read: why goes to ``fault``."""
    arrived = _Arrived(stream)
    lines: list[str] = []
    for line in decoded(arrived, NAME, fault):
        lines.append(line)
        if not arrived.another:
            yield lines
            lines = []
    if lines:  # those before a fault
        yield lines


def decoded(stream: LineStream, name: str | Path, fault: list[DataError]) -> Iterator[str]:
    """Decoded lines up to the first that cannot be read: why goes to ``fault``, and what came before still counts."""
    try:
        for number, raw in enumerate(split_lines(stream, name), start=1):
            yield decode_line(raw, name, number)
    except DataError as error:
        fault.append(error)


class _Arrived:
    """The lines of a stream, and whether there is another without waiting for it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._bytes = bytearray()
        self._start = 0

    def readline(self, size: int, /) -> bytes:
        """The bytes up to and with the next LF, but at most ``size``; none at the end."""
        while not self.another and len(self._bytes) - self._start < size:
            del self._bytes[: self._start]
            self._start = 0
            block = self._stream.read1(_AT_ONCE)
            if not block:
                break
            self._bytes += block
        end = self._bytes.find(b"\n", self._start) + 1 or len(self._bytes)
        line = bytes(self._bytes[self._start : min(end, self._start + size)])
        self._start += len(line)
        return line

    @property
    def another(self) -> bool:
        """Whether a whole line has arrived that was not read yet."""
        return self._bytes.find(b"\n", self._start) >= 0


def write_lines(lines: list[str]) -> None:
    """Writes lines to standard output, now; errors as in `filter_lines`."""
    from multihead.files import explained

    try:
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderHasGone from None
    except OSError:
        with explained(Path("standard output")):
            raise
