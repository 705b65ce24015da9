"""Find pairs nearly equal to an earlier one, by bands of sketches on disk.

Eight bytes of a sketch in a row are a band (locality-sensitive hashing: Indyk and Motwani 1998, "Approximate nearest
neighbors"). Two pairs of similarity J agree in one of 20 bands with the probability 1 - (1 - J^8)^20: 97% for 0.8,
99.8% for 0.85, 1% for 0.4. Those that agree are compared.

Bands go to files by their value, as hashes do in `cleaning.copies`, and each file is sorted in memory, in parts where
it is large. Among many equal bands a pair is compared with the first few and with the last few before it, so that the
work grows with the corpus and not with its square. Sketches are read from the verdicts again. Memory is limited by the
size of these parts, and by one bit for each row, which says what is removed.

A pair is removed if it is too similar to an earlier pair that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from multihead.cleaning.copies import COPY, PAIRS, ROWS, Copies, Files, Part, Records, read_verdicts
from multihead.cleaning.filters import Rules, Verdicts, verdict_type
from multihead.cleaning.settings import REASONS
from multihead.cleaning.sketches import SKETCH, estimate

_BAND = 8
_BANDS = SKETCH // _BAND
_FIRST, _LAST = 4, 4
"""With how many of equal bands a pair is compared."""
_COMPARED = 1 << 15
"""Pairs of sketches, or results of comparing them, that are in memory at once."""
_BLOCK = ROWS >> 4
"""Rows whose results are sorted at once: in the worst case, a row is similar to 160 others."""

_PLACE = np.dtype([("band", np.uint64), ("row", np.int64)])
_EDGE = np.dtype([("row", np.int64), ("other", np.int64), ("line", np.int64), ("similarity", np.float32)])
Rows = npt.NDArray[np.int64]


def add_similar(verdicts: Path, rows: int, rules: Rules, folder: Path, copies: Copies) -> None:
    """Add the pairs that are too similar to an earlier one, among those that are neither removed nor copies.

    Args:
        verdicts: a file of verdicts with sketches.
        rows: their number.
        rules: which similarity is too much.
        folder: receives temporary files.
        copies: those found before; receives the others.
    """
    kind = verdict_type(rules)
    count = max(-(-rows // PAIRS), 1)
    bands = Files(folder, "bands", _PLACE, _BANDS * count)
    start = 0
    for number, block in enumerate(read_verdicts(verdicts, rows, kind)):
        keep = block["reason"] == 0
        keep[copies.of(number)["row"] - start] = False
        _distribute(block, np.flatnonzero(keep), start, bands, count)
        start += len(block)
    edges = Files(folder, "edges", _EDGE, max(-(-rows // _BLOCK), 1))
    with verdicts.open("rb", buffering=0) as stream:
        for number in range(len(bands)):
            for row, other in _candidates(bands.parts(number)):
                found = _compared(stream, kind, row, other, rules.settings.max_similar)
                edges.append(found, found["row"] // _BLOCK)
    _remove(edges, rows, copies)


def _distribute(block: Verdicts, places: Rows, start: int, bands: Files, count: int) -> None:
    """Add the bands of some verdicts to the files: ``count`` for each place in the sketch."""
    values = np.ascontiguousarray(block["sketch"][places]).view(np.uint64)
    for band in range(_BANDS):
        records = np.empty(len(places), _PLACE)
        records["band"], records["row"] = values[:, band], places + start
        bands.append(records, band * count + (records["band"] % np.uint64(count)).astype(np.int64))


def _candidates(parts: Iterable[Part]) -> Iterator[tuple[Rows, Rows]]:
    """Rows with equal bands, each with an earlier one; in parts.

    Of each band, the first few and the last few records are kept from one part of the records to the next: what follows
    is compared with no others.
    """
    kept = np.empty(0, _PLACE)
    for part, more in parts:
        records = np.concatenate([kept, part])
        order = np.argsort(records["band"], kind="stable")
        values, rows = records["band"][order], records["row"][order]
        begins = np.concatenate(([True], values[1:] != values[:-1]))[: len(rows)]
        starts = np.flatnonzero(begins)
        sizes = np.diff(starts, append=len(rows))
        first = np.repeat(starts, sizes)
        behind = np.arange(len(rows)) - first
        places = np.flatnonzero(~begins & (order >= len(kept)))
        for back in range(1, _LAST + 1):
            chosen = places[behind[places] >= back]
            yield from _parts(rows[chosen], rows[chosen - back])
        for ahead in range(_FIRST):
            chosen = places[behind[places] > ahead + _LAST]
            yield from _parts(rows[chosen], rows[first[chosen] + ahead])
        if more:
            kept = records[order[(behind < _FIRST) | (np.repeat(sizes, sizes) - behind <= _LAST)]]


def _parts(rows: Rows, others: Rows) -> Iterator[tuple[Rows, Rows]]:
    for start in range(0, len(rows), _COMPARED):
        yield rows[start : start + _COMPARED], others[start : start + _COMPARED]


def _compared(stream: BinaryIO, kind: np.dtype[Any], rows: Rows, others: Rows, most: float) -> Records:
    """Those that are too similar."""
    every, places = np.unique(np.concatenate([rows, others]), return_inverse=True)
    read = b"".join(_read(stream, row * kind.itemsize, kind.itemsize) for row in every.tolist())
    known = np.frombuffer(read, kind)
    one, other = places[: len(rows)], places[len(rows) :]
    similarity = estimate(known["sketch"][one], known["sketch"][other])
    chosen = similarity > most
    found = np.empty(int(chosen.sum()), _EDGE)
    found["row"], found["other"], found["similarity"] = rows[chosen], others[chosen], similarity[chosen]
    found["line"] = known["line"][other[chosen]]
    return found


def _read(stream: BinaryIO, start: int, size: int) -> bytes:
    stream.seek(start)
    return stream.read(size)


def _remove(edges: Files, rows: int, copies: Copies) -> None:
    """Go through the rows in order, and remove those that are similar to one that is kept."""
    removed = bytearray(-(-rows // 8))
    for number in range(len(edges)):
        block = edges.read(number)
        block = block[np.lexsort((block["other"], block["row"]))]
        found: list[tuple[int, int, int, float]] = []
        for start in range(0, len(block), _COMPARED):
            for row, other, line, similarity in block[start : start + _COMPARED].tolist():
                if not (removed[row >> 3] >> (row & 7) | removed[other >> 3] >> (other & 7)) & 1:
                    removed[row >> 3] |= 1 << (row & 7)
                    found.append((row, REASONS.index("similar"), line, similarity))
        copies.add(np.array(found, COPY))
