"""Streams of commands: progress on standard error, lines in and out.

`counter` shows progress: a bar in a terminal; otherwise a line every half minute, if the total is known. Short work and
streams of unknown length stay silent, and everything with ``--quiet``.

`filter_lines` runs a command as a filter from standard input to standard output: one line out for each line in, in
order. Lines are processed as they arrive: a file in large blocks, typed text line by line.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from multihead.cli.help import tell
from multihead.cli.process import is_quiet
from multihead.data.text_files import LineStream, decode_line, split_lines
from multihead.errors import DataError, OutputClosedError
from multihead.platforms import is_closed_pipe

_EVERY = 30.0
"""Seconds between two progress lines."""


class Counter(Protocol):
    """Receives the progress of some work."""

    def __call__(self, more: int, /) -> None:
        """Count newly finished items."""

    def begin(self, done: int) -> None:
        """Set how many items were finished before; they do not count for the speed."""


@contextlib.contextmanager
def counter(verb: str, things: str, total: int | None = None) -> Iterator[Counter]:
    """Show progress until the block ends.

    Args:
        verb: what is done with the items ("translated").
        things: name of the items ("sentences").
        total: number of items; None if unknown.
    """
    if is_quiet():
        yield _Silence()
    elif sys.stderr.isatty():
        with _bar(verb, things, total) as bar:
            yield bar
    else:
        yield _ProgressLines(verb, things, total)


class _Silence:
    """No progress: ``--quiet`` was given."""

    def begin(self, done: int) -> None:
        pass

    def __call__(self, more: int, /) -> None:
        pass


class _ProgressLines:
    """Progress as a line every half minute."""

    def __init__(self, verb: str, things: str, total: int | None) -> None:
        self._verb, self._things, self._total = verb, things, total
        self.begin(0)

    def begin(self, done: int) -> None:
        self._done = self._before = done
        self._started = self._last_line = time.monotonic()

    def __call__(self, more: int, /) -> None:
        self._done += more
        now = time.monotonic()
        if self._total is None or now - self._last_line < _EVERY:
            return
        self._last_line = now
        speed = (self._done - self._before) / (now - self._started)
        remaining = _duration((self._total - self._done) / speed) if speed else "an unknown time"
        counted = f"{self._done:,} of {self._total:,} {self._things}"
        tell(f"{self._verb} {counted}, {_rate(speed)} a second, {remaining} left")


def _rate(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def _duration(seconds: float) -> str:
    """``40 s``, ``7 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def _bar(verb: str, things: str, total: int | None) -> Iterator[Counter]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{_rate(task.speed)}/s")

    class Bar:
        def __call__(self, more: int, /) -> None:
            progress.advance(task, more)

        def begin(self, done: int) -> None:
            progress.reset(task, total=total, completed=done)

    columns = [TextColumn(verb), BarColumn(), MofNCompleteColumn(), TextColumn(things), Speed(), TimeElapsedColumn()]
    if total is not None:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=total)
        yield Bar()


STDIN_NAME = "standard input"

_BLOCK = 1 << 17
"""Bytes read at once."""


@runtime_checkable
class ByteStream(Protocol):
    """A stream that returns the bytes available, without waiting for more."""

    def read1(self, size: int, /) -> bytes:
        """At least one byte and at most ``size``; none at the end."""
        ...


def filter_lines(change: Callable[[list[str], int], list[str]]) -> None:
    """Apply ``change`` to the lines of standard input and write the result to standard output.

    Args:
        change: called with a list of lines and the number of the first one (from 1); returns as many lines.

    Raises:
        DataError: a line is not UTF-8, or too long, or ``change`` raised it for a line. The lines before it have been
            written.
        OutputClosedError: standard output was closed by its reader.
        SurroundingsError: standard output cannot be written.
    """
    fault: list[DataError] = []
    number = 1
    for lines in read_arriving(cast(ByteStream, sys.stdin.buffer), fault):
        try:
            changed = change(lines, number)
        except DataError as error:
            before = (error.line or number) - number
            if 0 < before < len(lines):
                write_lines(change(lines[:before], number))
            raise
        assert len(changed) == len(lines)
        write_lines(changed)
        number += len(lines)
    if fault:
        raise fault[0]


def read_arriving(stream: ByteStream, fault: list[DataError]) -> Iterator[list[str]]:
    """Groups of lines that arrived together, up to the first invalid line, whose error is added to ``fault``."""
    arriving = _ArrivingLines(stream)
    lines: list[str] = []
    for line in decode_lines(arriving, STDIN_NAME, fault):
        lines.append(line)
        if not arriving.has_line:
            yield lines
            lines = []
    if lines:  # those before an invalid line
        yield lines


def decode_lines(stream: LineStream, name: str | Path, fault: list[DataError]) -> Iterator[str]:
    """Decoded lines up to the first invalid one; its error is added to ``fault``, to be raised after them."""
    try:
        for number, raw in enumerate(split_lines(stream, name), start=1):
            yield decode_line(raw, name, number)
    except DataError as error:
        fault.append(error)


class _ArrivingLines:
    """Lines of a stream that knows whether another whole line has arrived."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._bytes = bytearray()
        self._start = 0

    def readline(self, size: int, /) -> bytes:
        """Bytes up to and including the next LF, at most ``size``; none at the end."""
        while not self.has_line and len(self._bytes) - self._start < size:
            del self._bytes[: self._start]
            self._start = 0
            block = self._stream.read1(_BLOCK)
            if not block:
                break
            self._bytes += block
        end = self._bytes.find(b"\n", self._start) + 1 or len(self._bytes)
        line = bytes(self._bytes[self._start : min(end, self._start + size)])
        self._start += len(line)
        return line

    @property
    def has_line(self) -> bool:
        """Whether a whole line has arrived and was not read yet."""
        return self._bytes.find(b"\n", self._start) >= 0


def write_lines(lines: list[str]) -> None:
    """Write lines to standard output and flush it; raises the errors of `filter_lines`."""
    from multihead.files import write_errors

    try:
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
        sys.stdout.buffer.flush()
    except io.UnsupportedOperation:  # it was closed before the command began: `cli.main` says so
        raise
    except OSError as error:
        if is_closed_pipe(error):
            raise OutputClosedError from None
        with write_errors(Path("standard output")):
            raise
