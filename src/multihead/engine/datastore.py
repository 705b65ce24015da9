"""Entries of a datastore in compiled code, and the search among them.

`engine.neighbours` says what they are for, and native/datastore.h how they are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from multihead.engine.weights import load_search_library, require_handle
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError
from multihead.kernels.native import thread_count

MOST = 4096
"""The largest number of nearest entries."""

_AT_A_TIME = 1 << 16
"""Entries that are prepacked together: memory of their float32 numbers."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class PackedDatastore:
    """The entries of a datastore as the library holds them.

    Args:
        keys: the states, rounded: [entries, width] of int8.
        steps: what 1 stands for in each key: [entries].
        symbols: the symbol that follows each: [entries].

    Raises:
        ShapeError: their shapes do not fit together, or a symbol is negative.
        ConfigurationError: there is no compiled search here.
        SurroundingsError: not enough memory.
    """

    def __init__(self, keys: npt.NDArray[np.int8], steps: Floats, symbols: npt.NDArray[np.int32]) -> None:
        if keys.ndim != 2 or not keys.size or steps.shape != keys.shape[:1] or symbols.shape != keys.shape[:1]:
            raise ShapeError(
                f"expected keys [entries, width] with a step and a symbol each, got {list(keys.shape)}, "
                f"{list(steps.shape)} and {list(symbols.shape)}"
            )
        if int(symbols.min()) < 0:
            raise ShapeError(f"expected symbols from 0 on, got {symbols.min()}")
        found = load_search_library()
        if found.library is None:
            raise ConfigurationError(f"a datastore needs the compiled search: {found.reason}")
        self.library, self.width, self.entries, self.symbols = found.library, keys.shape[1], len(keys), symbols
        self.handle = require_handle(self.library.decoding_datastore(self.width), "a datastore")
        for values, following in _in_float32(keys, steps, symbols):
            biases = np.ascontiguousarray(-0.5 * np.einsum("ij,ij->i", values, values))
            addresses = values.ctypes.data, biases.ctypes.data, following.ctypes.data
            if self.library.decoding_datastore_add(self.handle, *addresses, len(values)):
                raise SurroundingsError(f"there is not enough memory for a datastore of {self.entries:,} entries")

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.library.decoding_datastore_free(self.handle)

    def nearest(self, states: Floats, count: int, threads: int | None = None) -> tuple[Ids, Floats]:
        """The nearest entries of states [rows, width], nearest first, and q . k - |k|^2 / 2 of each.

        Both are [rows, count]. -1 and -inf stand for entries that there are not. A squared distance is
        |q|^2 - 2 (q . k - |k|^2 / 2).

        Raises:
            ShapeError: states of another width.
            ConfigurationError: a count that is not from 1 to `MOST`.
            SurroundingsError: not enough memory.
        """
        if states.ndim != 2 or states.shape[1] != self.width:
            raise ShapeError(f"expected states of width {self.width}, got {list(states.shape)}")
        if not 1 <= count <= MOST:
            raise ConfigurationError(f"neighbours are from 1 to {MOST}, got {count}")
        given = np.ascontiguousarray(states, dtype=np.float32)
        entries, values = np.empty((len(given), count), np.int64), np.empty((len(given), count), np.float32)
        sizes = len(given), count, thread_count(threads)
        if self.library.decoding_nearest(
            self.handle, given.ctypes.data, *sizes, entries.ctypes.data, values.ctypes.data
        ):
            raise SurroundingsError("there is not enough memory for the search in a datastore")
        return entries, values


def _in_float32(
    keys: npt.NDArray[np.int8], steps: Floats, symbols: npt.NDArray[np.int32]
) -> Iterator[tuple[Floats, Ids]]:
    for start in range(0, len(keys), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        values = np.ascontiguousarray(keys[some] * steps[some, None], dtype=np.float32)
        yield values, symbols[some].astype(np.int64)
