"""How many, how fast, how long still: a bar at the foot of a terminal, elsewhere a line now and then.

Where standard error is no terminal a line comes every half a minute, and only where it is known how many there are: a
stream without an end, and work that is soon done, stay silent.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

import click

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
