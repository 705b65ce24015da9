"""Entries of a datastore in compiled code, and the search among them.

`engine.neighbours` says what they are for, native/datastore.h how they are compared, and `translating.cells` makes the
cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.engine.weights import load_search_library, require_handle
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError
from multihead.kernels.native import thread_count

MOST = 4096
"""The largest number of nearest entries."""

_AT_A_TIME = 1 << 16

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Cells(NamedTuple):
    """Entries in cells: those of a cell stand together, and are nearer to its centre than to any other one."""

    centres: Floats
    """[cells, width]"""
    sizes: Ids
    """Entries of each, at least 1: [cells]."""


class PackedDatastore:
    """The entries of a datastore as the library holds them.

    Args:
        keys: the states, rounded: [entries, width] of int8.
        steps: what 1 stands for in each key: [entries].
        symbols: the symbol that follows each: [entries].
        cells: how the entries are divided; None if they are not.

    Raises:
        ShapeError: their shapes do not fit together, or a symbol is negative.
        ConfigurationError: there is no compiled search here.
        SurroundingsError: not enough memory.
    """

    def __init__(
        self, keys: npt.NDArray[np.int8], steps: Floats, symbols: npt.NDArray[np.int32], cells: Cells | None = None
    ) -> None:
        if keys.ndim != 2 or not keys.size or steps.shape != keys.shape[:1] or symbols.shape != keys.shape[:1]:
            raise ShapeError(
                f"expected keys [entries, width] with a step and a symbol each, got {list(keys.shape)}, "
                f"{list(steps.shape)} and {list(symbols.shape)}"
            )
        if int(symbols.min()) < 0:
            raise ShapeError(f"expected symbols from 0 on, got {symbols.min()}")
        if cells is not None and (
            cells.centres.shape != (len(cells.sizes), keys.shape[1])
            or int(cells.sizes.min(initial=1)) < 1
            or int(cells.sizes.sum()) != len(keys)
        ):
            raise ShapeError(
                f"expected cells with {len(keys):,} entries together, and a centre of width {keys.shape[1]} each, got "
                f"{cells.sizes.sum():,} entries in {len(cells.sizes)} cells, and centres {list(cells.centres.shape)}"
            )
        found = load_search_library()
        if found.library is None:
            raise ConfigurationError(f"a datastore needs the compiled search: {found.reason}")
        self.library, self.width, self.entries, self.symbols = found.library, keys.shape[1], len(keys), symbols
        self.cells = 0 if cells is None else len(cells.sizes)
        self.handle = require_handle(self.library.decoding_datastore(self.width), "a datastore")
        for some in parts_of(len(keys)) if cells is None else _cells(cells.sizes):
            values = np.ascontiguousarray(keys[some] * steps[some, None], dtype=np.float32)
            following, biases = symbols[some].astype(np.int64), _biases(values)
            addresses = values.ctypes.data, biases.ctypes.data, following.ctypes.data
            self._check(self.library.decoding_datastore_add(self.handle, *addresses, len(values)))
        if cells is not None:
            centres = np.ascontiguousarray(cells.centres, dtype=np.float32)
            biases = _biases(centres)
            given = centres.ctypes.data, biases.ctypes.data, len(centres)
            self._check(self.library.decoding_datastore_cells(self.handle, *given))

    def _check(self, failed: int) -> None:
        if failed:
            raise SurroundingsError(f"there is not enough memory for a datastore of {self.entries:,} entries")

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.library.decoding_datastore_free(self.handle)

    def check_probes(self, probes: int) -> None:
        """Raise ConfigurationError if so many cells cannot be looked into."""
        if probes < 0 or (probes and not self.cells):
            raise ConfigurationError(
                f"probes are cells to look into, or 0 for all; there are {self.cells} cells, got {probes}"
            )

    def nearest(self, states: Floats, count: int, threads: int | None = None, *, probes: int = 0) -> tuple[Ids, Floats]:
        """The nearest entries of states [rows, width], nearest first, and q . k - |k|^2 / 2 of each.

        Both are [rows, count]. -1 and -inf stand for entries that there are not. A squared distance is
        |q|^2 - 2 (q . k - |k|^2 / 2).

        Args:
            states: [rows, width].
            count: entries of each.
            threads: None for those of PyTorch.
            probes: cells that are looked into, those with the nearest centres; 0 for all.

        Raises:
            ShapeError: states of another width.
            ConfigurationError: a count that is not from 1 to `MOST`; probes without cells.
            SurroundingsError: not enough memory.
        """
        if states.ndim != 2 or states.shape[1] != self.width:
            raise ShapeError(f"expected states of width {self.width}, got {list(states.shape)}")
        if not 1 <= count <= MOST:
            raise ConfigurationError(f"neighbours are from 1 to {MOST}, got {count}")
        self.check_probes(probes)
        given = np.ascontiguousarray(states, dtype=np.float32)
        entries, values = np.empty((len(given), count), np.int64), np.empty((len(given), count), np.float32)
        sizes = len(given), count, probes, thread_count(threads)
        if self.library.decoding_nearest(
            self.handle, given.ctypes.data, *sizes, entries.ctypes.data, values.ctypes.data
        ):
            raise SurroundingsError("there is not enough memory for the search in a datastore")
        return entries, values


def parts_of(entries: int) -> Iterator[slice]:
    """Entries whose float32 numbers are in memory together."""
    return (slice(start, start + _AT_A_TIME) for start in range(0, entries, _AT_A_TIME))


def _cells(sizes: Ids) -> Iterator[slice]:
    """The entries of each cell."""
    ends = np.cumsum(sizes).tolist()
    return (slice(start, stop) for start, stop in pairwise([0, *ends]))


def _biases(values: Floats) -> Floats:
    return np.ascontiguousarray(-0.5 * np.einsum("ij,ij->i", values, values), dtype=np.float32)
