"""Divide the entries of a datastore into cells, to search a few of them.

Lloyd's algorithm (k-means) on a part of the entries, then every entry goes to its nearest centre, which the search in a
datastore of centres finds. A search that compares only the entries of the nearest cells misses some neighbours that are
in others (Jegou, Douze and Schmid 2011, "Product quantization for nearest neighbor search", section IV, "inverted
file").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from multihead.engine.datastore import Cells, Floats, Ids, PackedDatastore, parts_of

CELL = 512
"""Entries of a cell, in the mean."""
_LEARNED = 48
"""Entries of each cell by which the centres are found."""
_ROUNDS = 8

Bytes = npt.NDArray[np.int8]


def rounded(values: Floats) -> tuple[Bytes, Floats]:
    """Rows in int8, and what 1 stands for in each: values are about keys * steps."""
    steps = np.maximum(np.abs(values).max(axis=1), 1e-30).astype(np.float32) / np.float32(127)
    return np.rint(values / steps[:, None]).astype(np.int8), steps


def divide(keys: Bytes, steps: Floats) -> tuple[Ids, Cells]:
    """The order in which the entries of a cell stand together, in their old order, and the cells.

    Args:
        keys: [entries, width].
        steps: what 1 stands for in each: [entries].
    """
    count = max(len(keys) // CELL, 1)
    chosen = np.linspace(0, len(keys) - 1, min(_LEARNED * count, len(keys))).astype(np.int64)
    learned = (keys[chosen] * steps[chosen, None]).astype(np.float32)
    centres = learned[np.linspace(0, len(learned) - 1, count).astype(np.int64)]
    for _ in range(_ROUNDS if count > 1 else 0):
        centres = _means(learned, _Nearest(centres).of(learned), centres)
    nearest = _Nearest(centres)
    cell = np.concatenate([nearest.of(keys[some] * steps[some, None]) for some in parts_of(len(keys))])
    sizes = np.bincount(cell, minlength=count)
    used = sizes > 0
    return np.argsort(cell, kind="stable"), Cells(np.ascontiguousarray(centres[used]), sizes[used].astype(np.int64))


class _Nearest:
    """Finds the nearest centre."""

    def __init__(self, centres: Floats) -> None:
        self._packed = PackedDatastore(*rounded(centres), np.zeros(len(centres), np.int32))

    def of(self, values: Floats) -> Ids:
        """The nearest centre of each row."""
        return self._packed.nearest(values, 1)[0][:, 0]


def _means(values: Floats, cell: Ids, centres: Floats) -> Floats:
    """The mean of the rows of each cell; the old centre where there are none."""
    order = np.argsort(cell, kind="stable")
    sizes = np.bincount(cell, minlength=len(centres))
    used = np.flatnonzero(sizes)
    starts = (np.cumsum(sizes) - sizes)[used]
    means = centres.copy()
    means[used] = np.add.reduceat(values[order], starts, axis=0) / sizes[used, None]
    return means
