"""Memory-mapped storage of token ids, for corpora of any size.

A `TokenStore` is a folder with the concatenated ids of all sequences (``ids.bin``, uint16 or uint32), the offset of
each sequence (``offsets.bin``, int64, one more than there are sequences) and a description (``store.json``); all
numbers are little-endian. A `ParallelStore` is a folder with two token stores and the corpus line of each pair
(``lines.bin``), so that logs can name it.

`store_writers` writes them, whole or not at all. Stores are only read afterwards, by any number of processes;
`batching` makes batches of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.errors import FormatError, InputError, shown
from multihead.sealed import OpenFolder, find_folder

VERSION = 1  # newer code reads older versions

SIDE_FORMAT, PAIR_FORMAT = "multihead token store", "multihead parallel store"
OFFSET = np.dtype("<i8")

Ids = npt.NDArray[np.unsignedinteger[Any]]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Flat = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]
"""Sequences as concatenated ids, and the length of each."""

_CHECKED = 1 << 22
"""Numbers that are checked at a time."""


class TokenStore:
    """Sequences of token ids: ``store[i]`` is a NumPy array, ``store.lengths`` the lengths of all.

    Only the lengths are ever held in memory, and only once they are asked for.

    Args:
        ids: all sequences, concatenated.
        offsets: the start of each sequence, and the end of the last one; non-decreasing.
    """

    def __init__(self, ids: Ids, offsets: Int64) -> None:
        self._ids = ids
        self._offsets = offsets

    @cached_property
    def lengths(self) -> Int32:
        """The length of every sequence: 4 bytes each; `lengths_of` has those of some."""
        return np.diff(self._offsets).astype(np.int32)

    def lengths_of(self, indices: Int64) -> Int64:
        """The lengths of the sequences at ``indices``."""
        return self._offsets[indices + 1] - self._offsets[indices]

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]]) -> TokenStore:
        """A store in memory, for small data."""
        flat, lengths = flatten(sequences)
        return cls(flat.astype(np.uint32), np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @classmethod
    def open(cls, path: str | Path | OpenFolder) -> TokenStore:
        """Map a store into memory; in a folder with a manifest all its files are compared with that.

        Raises:
            FormatError: there is no store at ``path``, or it is damaged, truncated or from a newer version.
        """
        with _opened(path, SIDE_FORMAT) as folder:
            dtype, offsets = _read_offsets(folder)
            return cls(folder.mapped("ids.bin", dtype, int(offsets[-1])), offsets)

    def tokens(self, start: int, stop: int) -> int:
        """The number of tokens of the sequences [start, stop)."""
        return int(self._offsets[stop] - self._offsets[start])

    def release(self) -> None:
        """Let go of the pages of memory that a store on disk was read into; they are read again when needed."""
        for array in (self._ids, self._offsets):
            _release(array)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        """The ids of one sequence (a read-only view of a store on disk)."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of a store with {len(self)}")
        return self._ids[self._offsets[index] : self._offsets[index + 1]]

    def check_ids(self, vocab_size: int, path: Path) -> None:
        """Check that all ids are entries of a vocabulary.

        Raises:
            FormatError: one is not; ``path`` is the folder of the store, for the message.
        """
        largest = int(self._ids.max(initial=0))
        if largest >= vocab_size:
            raise FormatError(
                f"{path / 'ids.bin'}: ids up to {largest:,}, but those of the vocabulary end at {vocab_size - 1:,}; "
                f"{MAKE_AGAIN}"
            )
        self.release()

    @classmethod
    def of_lengths(cls, lengths: npt.NDArray[np.integer[Any]]) -> TokenStore:
        """Sequences of given lengths without their ids: enough to order them, as nothing else may be read."""
        return cls(np.empty(0, np.uint32), np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    def ids_at(self, place: int, start: int = 0, stop: int | None = None) -> Int64:
        """The id at a place, counted from 0, of each of the sequences [start, stop); 0 for shorter ones."""
        bounds = self._offsets[start : (len(self) if stop is None else stop) + 1]
        found, there = np.zeros(len(bounds) - 1, np.int64), np.diff(bounds) > place
        found[there] = self._ids[bounds[:-1][there] + place]
        return found

    def gather(self, indices: Int64) -> tuple[Int64, Int64]:
        """The concatenated ids of the sequences at ``indices``, and the length of each."""
        lengths = self.lengths_of(indices)
        ends = np.cumsum(lengths)
        # position in the store minus position in the result, for each id
        shift = np.repeat(self._offsets[indices] - (ends - lengths), lengths)
        return self._ids[np.arange(len(shift)) + shift].astype(np.int64), lengths


@dataclass(frozen=True, eq=False)
class ParallelStore:
    """Pairs of token sequences, and the corpus line (from 1) of each."""

    source: TokenStore
    target: TokenStore
    lines: Int64

    @classmethod
    def from_lists(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> ParallelStore:
        """A store in memory, for small data; lines are numbered from 1."""
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources but {len(targets)} targets; expected as many of each")
        lines = np.arange(1, len(sources) + 1, dtype=np.int64)
        return cls(TokenStore.from_lists(sources), TokenStore.from_lists(targets), lines)

    @classmethod
    def open(cls, path: str | Path | OpenFolder) -> ParallelStore:
        """Map a store into memory.

        Raises:
            FormatError: as `TokenStore.open`; or the two sides have different numbers of sequences.
        """
        with _opened(path, PAIR_FORMAT) as folder:
            _read_description(folder, PAIR_FORMAT)
            source, target = TokenStore.open(folder.part("source")), TokenStore.open(folder.part("target"))
            if len(source) != len(target):
                raise FormatError(f"{folder.path}: {len(source)} sources, {len(target)} targets; {MAKE_AGAIN}")
            return cls(source, target, folder.mapped("lines.bin", OFFSET, len(source)))

    def check_ids(self, source_vocab: int, target_vocab: int, path: Path) -> None:
        """Check the ids of both sides, as `TokenStore.check_ids` does."""
        self.source.check_ids(source_vocab, path / "source")
        self.target.check_ids(target_vocab, path / "target")

    def release(self) -> None:
        """As `TokenStore.release`, for both sides."""
        self.source.release()
        self.target.release()

    def __len__(self) -> int:
        return len(self.source)


MAKE_AGAIN = "delete the folder and make it again from the corpus"


def _release(array: npt.NDArray[Any]) -> None:
    mapped: object = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def flatten(sequences: Sequence[Sequence[int]]) -> tuple[Int64, Int64]:
    """The concatenated ids of some sequences, and the length of each."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum())), lengths


def read_lengths(folder: OpenFolder) -> Int32:
    """The lengths of the sequences of a store, whose ids are not read; errors as `TokenStore.open`."""
    return np.diff(_read_offsets(folder)[1]).astype(np.int32)


def _opened(path: str | Path | OpenFolder, form: str) -> AbstractContextManager[OpenFolder]:
    """A folder to read from: an opened one stays open."""
    if isinstance(path, OpenFolder):
        return nullcontext(path)
    found = find_folder(Path(path), MAKE_AGAIN)
    if found is None:
        raise FormatError(f"{path}: no {form} here (there is no such folder); check the path")
    return found


def _read_offsets(folder: OpenFolder) -> tuple[np.dtype[Any], Int64]:
    """The type of the ids, and the offsets of the sequences."""
    described = _read_description(folder, SIDE_FORMAT)
    count, tokens, dtype = described.get("count"), described.get("tokens"), described.get("dtype")
    if type(count) is not int or type(tokens) is not int or count < 0 or dtype not in ("<u2", "<u4"):
        raise FormatError(f"{folder.path / 'store.json'}: damaged description {shown(described)}; {MAKE_AGAIN}")
    offsets = folder.mapped("offsets.bin", OFFSET, count + 1)
    parts = (offsets[start : start + _CHECKED + 1] for start in range(0, count, _CHECKED))
    decreases = any((part[1:] < part[:-1]).any() for part in parts)  # differences could overflow
    if offsets[0] != 0 or offsets[-1] != tokens or decreases:
        raise FormatError(f"{folder.path / 'offsets.bin'}: the offsets do not fit the ids; {MAKE_AGAIN}")
    return np.dtype(dtype), offsets


def _read_description(folder: OpenFolder, form: str) -> dict[str, Any]:
    if "store.json" not in folder:
        raise FormatError(f"{folder.path}: no {form} here (there is no store.json in it); check the path")
    file, described = folder.path / "store.json", folder.read_json("store.json")
    if described.get("format") != form:
        raise FormatError(f"{file}: does not describe a {form}; check the path")
    version = described.get("version")
    if type(version) is not int or version > VERSION:
        known = f"this multihead reads versions up to {VERSION}"
        raise FormatError(f"{file}: is of version {shown(version)}, but {known}; install a newer multihead")
    return described
