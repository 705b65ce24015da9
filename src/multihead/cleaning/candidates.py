"""Read every candidate of a corpus, those that cannot be used included.

The readers of `data` yield usable pairs and report the others. Here both arrive in one stream, in file order, so that
each candidate gets a verdict and the numbers of kept and removed ones add up to all. The stream is read twice, once to
judge and once to write; a file whose candidates move or change in number in between is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from multihead.cleaning.filters import Candidates
from multihead.data.corpus import Report
from multihead.data.readers import CorpusScan

CHUNK = 8192
"""Candidates that are judged at once."""

Row = tuple[int, str, str, str]
"""Line, source, target, fault."""


class _Faults(Report):
    """The faults reported since they were last taken."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self._new: deque[Row] = deque()

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        """See `Report.add`."""
        super().add(path, line, reason, detail)
        self._new.append((line, "", "", f"{reason} ({detail})" if detail else reason))

    def take(self) -> Iterator[Row]:
        """The new faults."""
        while self._new:
            yield self._new.popleft()


def read_rows(scan: CorpusScan) -> Iterator[Row]:
    """Every candidate, in file order.

    Raises:
        DataError: no candidate is a pair, or the file has changed since it was scanned.
    """
    faults = _Faults()
    for pair in scan.read(faults):
        yield from faults.take()
        yield pair.line, pair.source, pair.target, ""
    yield from faults.take()


def read_candidates(scan: CorpusScan, skip: int = 0) -> Iterator[Candidates]:
    """Every candidate after the first ``skip``, in chunks of `CHUNK`; errors as `read_rows`."""
    rows = islice(read_rows(scan), skip, None)
    while chunk := list(islice(rows, CHUNK)):
        lines, sources, targets, faults = map(list, zip(*chunk, strict=True))
        yield Candidates(lines, sources, targets, faults)
