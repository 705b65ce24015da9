"""Find duplicates and near duplicates of a whole corpus, on disk.

A record of 32 bytes per kept pair (row, line and both hashes of its verdict) goes to one of several files, chosen by
the hash, so that all copies of a pair are in the same file. Each file fits in memory and is sorted by itself. The
removed rows are then distributed again, to files by ranges of rows, which is the order in which the corpus is written.
Memory is limited by the size of these files, whatever the size of the corpus.

Of equal pairs the first in the corpus is kept. The result does not depend on the number of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.cleaning.filters import Rules, Verdicts, verdict_type
from multihead.cleaning.settings import REASONS

PAIRS = 1 << 19
"""Pairs of a file, on average: 16 MiB, and about four times as much while it is sorted."""
ROWS = 1 << 18
"""Rows whose verdicts are held in memory at once."""

_KEY = np.dtype([("row", np.int64), ("line", np.int64), ("exact", np.uint64), ("near", np.uint64)])
COPY = np.dtype([("row", np.int64), ("reason", np.uint8), ("first", np.int64), ("score", np.float64)])
"""A removed copy: of which line, and how many there were up to this one, or how similar the two are."""
Records = npt.NDArray[Any]


class Files:
    """Files of records of one kind, appended to in turn; none is open in between, for there may be thousands.

    Args:
        folder: where they are; empty.
        name: how their names begin.
        kind: of a record.
        count: number of files.
    """

    def __init__(self, folder: Path, name: str, kind: np.dtype[Any], count: int) -> None:
        self._paths = [folder / f"{name}-{number}" for number in range(count)]
        self._kind = kind

    def append(self, records: Records, numbers: npt.NDArray[Any]) -> None:
        """Append each record to the file of its number."""
        for number in np.unique(numbers).tolist():
            with self._paths[number].open("ab") as stream:
                stream.write(records[numbers == number].tobytes())

    def read(self, number: int) -> Records:
        """The records of a file, in the order in which they were appended."""
        path = self._paths[number]
        return np.fromfile(path, self._kind) if path.exists() else np.empty(0, self._kind)

    def __len__(self) -> int:
        return len(self._paths)


class Copies:
    """The removed copies of a corpus, by ranges of rows; made by `find_copies`."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._files = Files(folder, "copies", COPY, max(-(-rows // ROWS), 1))

    def add(self, records: Records) -> None:
        """Add copies in any order."""
        self._files.append(records, records["row"] // ROWS)

    def of(self, block: int) -> Records:
        """The copies among rows ``block * ROWS`` to ``(block + 1) * ROWS``, in row order."""
        found = self._files.read(block)
        return found[np.argsort(found["row"])]


def read_verdicts(path: Path, rows: int, kind: np.dtype[Any]) -> Iterator[Verdicts]:
    """The verdicts of a file, of this `filters.verdict_type`, in blocks of `ROWS`."""
    with path.open("rb") as stream:
        for start in range(0, rows, ROWS):
            yield np.fromfile(stream, kind, min(ROWS, rows - start))


def find_copies(
    verdicts: Path, rows: int, rules: Rules, folder: Path, progress: Callable[[int], None] = lambda _: None
) -> Copies:
    """Find the copies among the pairs that every other filter keeps.

    Args:
        verdicts: a file of verdicts.
        rows: their number.
        rules: which copies are removed, and how many are kept.
        folder: receives temporary files.
        progress: called with the number of newly examined rows.
    """
    copies = Copies(folder, rows)
    exact, near = (rules.active(name) for name in ("duplicate", "near-duplicate"))
    if exact or near:
        keys = Files(folder, "keys", _KEY, max(-(-rows // PAIRS), 1))
        blocks = read_verdicts(verdicts, rows, verdict_type(rules))
        _distribute(blocks, keys, "near" if near else "exact", progress)
        most = rules.settings.max_copies if exact else rows, rules.settings.max_near_copies if near else rows
        for number in range(len(keys)):
            copies.add(_copies_among(keys.read(number), *most))
    return copies


def _distribute(blocks: Iterator[Verdicts], keys: Files, by: str, progress: Callable[[int], None]) -> None:
    start = 0
    for block in blocks:
        kept = np.flatnonzero(block["reason"] == 0)
        records = np.empty(len(kept), _KEY)
        records["row"] = kept + start
        for name in ("line", "exact", "near"):
            records[name] = block[name][kept]
        keys.append(records, records[by] % np.uint64(len(keys)))
        start += len(block)
        progress(len(block))


def _copies_among(keys: Records, most: int, most_near: int) -> Records:
    """The removed copies among records in row order that include all copies of each pair."""
    count, first = _occurrence(keys, "exact")
    removed = count >= most
    found = np.empty(int(removed.sum()), COPY)
    found["row"], found["reason"] = keys["row"][removed], REASONS.index("duplicate")
    found["first"], found["score"] = first[removed], count[removed] + 1
    left = keys[~removed]
    count, first = _occurrence(left, "near")
    removed = count >= most_near
    near = np.empty(int(removed.sum()), COPY)
    near["row"], near["reason"] = left["row"][removed], REASONS.index("near-duplicate")
    near["first"], near["score"] = first[removed], count[removed] + 1
    return np.concatenate([found, near])


def _occurrence(keys: Records, by: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each record, how many with the same hash come before it, and the line of the first of them."""
    order = np.argsort(keys[by], kind="stable")
    ordered = keys[by][order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)])
    sizes = np.diff(starts, append=len(order))
    count, first = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    count[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    first[order] = np.repeat(keys["line"][order[starts]], sizes)
    return count, first
