"""How many, how fast, how long still: a bar at the foot of a terminal, elsewhere a line now and then.

Where standard error is no terminal a line comes every half a minute, and only where it is known how many there are: a
stream without an end, and work that is soon done, stay silent.

Commands that are filters: lines of standard input to lines of standard output, as they arrive.

As many lines come out as go in, in order. What has arrived is worked on at once: a file in large parts, what somebody
types line by line.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import click

from multihead.cli.process import OutputClosedError
from multihead.data.text_files import LineStream, decode_line, split_lines
from multihead.errors import DataError

_EVERY = 30.0
"""Seconds between two lines."""


class Counter(Protocol):
    """What a piece of work tells of itself."""

    def __call__(self, more: int, /) -> None:
        """So many more are done."""

    def begin(self, done: int) -> None:
        """So many had been done before: they count, but not for the speed."""


@contextlib.contextmanager
def counter(verb: str, things: str, total: int | None = None) -> Iterator[Counter]:
    """Gives what is to be told how many more are done.

    Args:
        verb: what is done with them ("translated").
        things: what they are ("sentences").
        total: how many there are, if that is known.
    """
    if sys.stderr.isatty():
        with _bar(verb, things, total) as bar:
            yield bar
    else:
        yield _Lines(verb, things, total)


class _Lines:
    """Writes a line every half a minute."""

    def __init__(self, verb: str, things: str, total: int | None) -> None:
        self._verb, self._things, self._total = verb, things, total
        self.begin(0)

    def begin(self, done: int) -> None:
        self._done = self._before = done
        self._started = self._said = time.monotonic()

    def __call__(self, more: int, /) -> None:
        self._done += more
        now = time.monotonic()
        if self._total is None or now - self._said < _EVERY:
            return
        self._said = now
        speed = (self._done - self._before) / (now - self._started)
        still = _duration((self._total - self._done) / speed) if speed else "no telling how long"
        counted = f"{self._done:,} of {self._total:,} {self._things}"
        click.echo(f"{self._verb} {counted}, {_rate(speed)} a second, {still} still", err=True)


def _rate(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def _duration(seconds: float) -> str:
    """``40 s``, ``7 min``, ``3 h 20 min``: no more exactly than it can be known."""
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
        OutputClosedError: standard output was closed by its reader.
        SurroundingsError: it cannot be written.
    """
    fault: list[DataError] = []
    number = 1
    for lines in read_arriving(cast(ByteStream, sys.stdin.buffer), fault):
        changed = change(lines, number)
        assert len(changed) == len(lines)
        write_lines(changed)
        number += len(lines)
    if fault:
        raise fault[0]


def read_arriving(stream: ByteStream, fault: list[DataError]) -> Iterator[list[str]]:
    """Decoded lines in groups, up to the first that cannot be read: why goes to ``fault``."""
    arrived = _Arrived(stream)
    lines: list[str] = []
    for line in decode_lines(arrived, STDIN_NAME, fault):
        lines.append(line)
        if not arrived.another:
            yield lines
            lines = []
    if lines:  # those before a fault
        yield lines


def decode_lines(stream: LineStream, name: str | Path, fault: list[DataError]) -> Iterator[str]:
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
    from multihead.files import write_errors

    try:
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError:
        with write_errors(Path("standard output")):
            raise
