"""Find duplicates and near duplicates of a whole corpus, on disk.

A record of 32 bytes per kept pair (row, line and both hashes of its verdict) goes to one of several files, chosen by
the hash, so that all copies of a pair are in the same file. A file has few different pairs; one with many copies of a
pair is large, and is sorted in parts, between which the count of each pair is kept. The removed rows are then
distributed again, to files by ranges of rows, which is the order in which the corpus is written. Memory is limited by
the size of these parts, whatever the size of the corpus.

Of equal pairs the first in the corpus is kept. The result does not depend on the number of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.cleaning.filters import Rules, Verdicts, verdict_type
from multihead.cleaning.settings import REASONS

PAIRS = 1 << 19
"""Pairs of a file, on average: 16 MiB, and about four times as much while it is sorted. At most twice as many are read
at once."""
ROWS = 1 << 18
"""Rows whose verdicts are held in memory at once."""

_KEY = np.dtype([("row", np.int64), ("line", np.int64), ("exact", np.uint64), ("near", np.uint64)])
_SEEN = np.dtype([("hash", np.uint64), ("count", np.int64), ("first", np.int64)])
COPY = np.dtype([("row", np.int64), ("reason", np.uint8), ("first", np.int64), ("score", np.float64)])
"""A removed copy: of which line, and how many there were up to this one, or how similar the two are."""
Records = npt.NDArray[Any]
Part = tuple[Records, bool]
"""Some records of a file, and whether more follow."""


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
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        parts = np.split(records[order], starts[1:]) if len(order) else []
        for number, part in zip(found.tolist(), parts, strict=True):
            with self._paths[number].open("ab") as stream:
                stream.write(part.tobytes())

    def read(self, number: int) -> Records:
        """The records of a file, in the order in which they were appended."""
        path = self._paths[number]
        return np.fromfile(path, self._kind) if path.exists() else np.empty(0, self._kind)

    def parts(self, number: int) -> Iterator[Part]:
        """The records of a file as `read` has them, at most ``2 * PAIRS`` at once; none if there is no file."""
        path = self._paths[number]
        count = path.stat().st_size // self._kind.itemsize if path.exists() else 0
        for start in range(0, count, 2 * PAIRS):
            size = min(count - start, 2 * PAIRS)
            yield np.fromfile(path, self._kind, size, offset=start * self._kind.itemsize), start + size < count

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
            for found in _copies_among(keys.parts(number), *most):
                copies.add(found)
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


def _copies_among(parts: Iterable[Part], most: int, most_near: int) -> Iterator[Records]:
    """The removed copies among records in row order, part by part, that include all copies of each pair."""
    seen = dict.fromkeys(("exact", "near"), np.empty(0, _SEEN))
    for part, more in parts:
        left = part
        for by, reason, limit in (("exact", "duplicate", most), ("near", "near-duplicate", most_near)):
            count, first = _occurrence(left, by, seen[by])
            if more:
                seen[by] = _seen_with(seen[by], left, by)
            removed = count >= limit
            found = np.empty(int(removed.sum()), COPY)
            found["row"], found["reason"] = left["row"][removed], REASONS.index(reason)
            found["first"], found["score"] = first[removed], count[removed] + 1
            yield found
            left = left[~removed]


def _occurrence(keys: Records, by: str, seen: Records) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each record, how many with the same hash come before it, and the line of the first of them.

    Args:
        keys: the records.
        by: which hash.
        seen: how many of each hash come before all of these.
    """
    hashes = np.concatenate([seen["hash"], keys[by]])
    order = np.argsort(hashes, kind="stable")  # of equal hashes the one in ``seen`` comes first
    ordered = hashes[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)])
    sizes = np.diff(starts, append=len(order))
    counts = np.concatenate([seen["count"], np.ones(len(keys), np.int64)])[order]
    before = np.cumsum(counts) - counts
    count, first = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    count[order] = before - np.repeat(before[starts], sizes)
    lines = np.concatenate([seen["first"], keys["line"]])
    first[order] = np.repeat(lines[order[starts]], sizes)
    return count[len(seen) :], first[len(seen) :]


def _seen_with(seen: Records, keys: Records, by: str) -> Records:
    """How many records of each hash there are, and the line of the first, with those of some more."""
    hashes = np.concatenate([seen["hash"], keys[by]])
    found, first, places = np.unique(hashes, return_index=True, return_inverse=True)
    every = np.empty(len(found), _SEEN)
    every["hash"], every["first"] = found, np.concatenate([seen["first"], keys["line"]])[first]
    counts = np.concatenate([seen["count"], np.ones(len(keys), np.int64)])
    every["count"] = np.bincount(places, counts, len(found))
    return every
