"""A line at the foot of a terminal that counts; silent where standard error is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def counter(verb: str, things: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many more are done; shows how many, how fast and how long still."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn(verb), BarColumn(), MofNCompleteColumn(), TextColumn(things), TimeElapsedColumn()]
    if total is not None:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda count: progress.advance(task, count)
