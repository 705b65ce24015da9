"""Memory-mapped storage of token ids, for corpora of any size.

A `TokenStore` is a folder with the concatenated ids of all sequences (``ids.bin``, uint16 or uint32), the offset of
each sequence (``offsets.bin``, int64, one more than there are sequences) and a description (``store.json``); all
numbers are little-endian. A `ParallelStore` is a folder with two token stores and the corpus line of each pair
(``lines.bin``), so that logs can name it.

Writers fill a temporary folder next to the final one and rename it once all of it is on disk: a store exists whole or
not at all. Stores are only read afterwards, by any number of processes. `batching` makes batches of them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from multihead.errors import FormatError, InputError, SurroundingsError, shown
from multihead.sealed import OpenFolder, find_folder

VERSION = 1  # newer code reads older versions

_SIDE_FORMAT, _PAIR_FORMAT = "multihead token store", "multihead parallel store"
_OFFSET = np.dtype("<i8")

Ids = npt.NDArray[np.unsignedinteger[Any]]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class TokenStore:
    """Sequences of token ids: ``store[i]`` is a NumPy array, ``store.lengths`` the lengths of all.

    Args:
        ids: all sequences, concatenated.
        offsets: the start of each sequence, and the end of the last one; non-decreasing.
    """

    def __init__(self, ids: Ids, offsets: Int64) -> None:
        self._ids = ids
        self._offsets = offsets
        self.lengths: Int32 = np.diff(offsets).astype(np.int32)

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
        with _opened(path, _SIDE_FORMAT) as folder:
            dtype, offsets = _read_offsets(folder)
            return cls(folder.mapped("ids.bin", dtype, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.lengths)

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

    def first_ids(self) -> Int64:
        """The first id of each sequence that has one."""
        return self._ids[self._offsets[:-1][self.lengths > 0]].astype(np.int64)

    def gather(self, indices: Int64) -> tuple[Int64, Int64]:
        """The concatenated ids of the sequences at ``indices``, and the length of each."""
        lengths = self.lengths[indices].astype(np.int64)
        ends = np.cumsum(lengths)
        # position in the store minus position in the result, for each id
        shift = np.repeat(self._offsets[indices] - (ends - lengths), lengths)
        return self._ids[np.arange(len(shift)) + shift].astype(np.int64), lengths


class TokenStoreWriter:
    """Writes a `TokenStore`: ``with TokenStoreWriter(path, vocab_size) as writer: writer.append(batch)``.

    The store appears at ``path`` when the block ends, or not at all if it raises.

    Raises:
        FormatError: ``path`` exists already.
        SurroundingsError: the disk is full or not writable.
    """

    def __init__(self, path: str | Path, vocab_size: int) -> None:
        self._path = Path(path)
        self._vocab_size = vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._count = self._tokens = 0

    def __enter__(self) -> TokenStoreWriter:
        with _writing(self._path):
            self._partial = _begin(self._path)
            self._ids: BinaryIO = (self._partial / "ids.bin").open("wb")
            self._offsets: BinaryIO = (self._partial / "offsets.bin").open("wb")
            self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        return self

    def append(self, sequences: Sequence[Sequence[int]]) -> None:
        """Append sequences of ids.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        flat, lengths = flatten(sequences)
        if flat.size and not 0 <= flat.min() <= flat.max() < self._vocab_size:
            wrong = flat.max() if flat.max() >= self._vocab_size else flat.min()
            raise InputError(f"token id {wrong} for a store of ids from 0 to {self._vocab_size - 1}")
        with _writing(self._path):
            self._ids.write(flat.astype(self._dtype).tobytes())
            self._offsets.write((self._tokens + np.cumsum(lengths)).astype(_OFFSET).tobytes())
        self._count += len(lengths)
        self._tokens += flat.size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._abandon()
            return
        described = {"count": self._count, "tokens": self._tokens, "dtype": self._dtype.str}
        try:
            with _writing(self._path):
                for file in (self._ids, self._offsets):
                    _sync_and_close(file)
                _commit(self._partial, self._path, _SIDE_FORMAT, described)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        for file in (self._ids, self._offsets):
            with suppress(OSError):  # closing fails on a full disk, too
                file.close()
        shutil.rmtree(self._partial, ignore_errors=True)


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
        with _opened(path, _PAIR_FORMAT) as folder:
            _read_description(folder, _PAIR_FORMAT)
            source, target = TokenStore.open(folder.part("source")), TokenStore.open(folder.part("target"))
            if len(source) != len(target):
                raise FormatError(f"{folder.path}: {len(source)} sources, {len(target)} targets; {MAKE_AGAIN}")
            return cls(source, target, folder.mapped("lines.bin", _OFFSET, len(source)))

    def check_ids(self, source_vocab: int, target_vocab: int, path: Path) -> None:
        """Check the ids of both sides, as `TokenStore.check_ids` does."""
        self.source.check_ids(source_vocab, path / "source")
        self.target.check_ids(target_vocab, path / "target")

    def __len__(self) -> int:
        return len(self.source)


class ParallelWriter:
    """Writes a `ParallelStore`, atomically as `TokenStoreWriter` does."""

    def __init__(self, path: str | Path, source_vocab_size: int, target_vocab_size: int) -> None:
        self._path = Path(path)
        self._vocab_sizes = source_vocab_size, target_vocab_size

    def __enter__(self) -> ParallelWriter:
        with _writing(self._path):
            self._partial = _begin(self._path)
            with ExitStack() as stack:
                writers = (
                    TokenStoreWriter(self._partial / side, vocab_size)
                    for side, vocab_size in zip(("source", "target"), self._vocab_sizes, strict=True)
                )
                self._source, self._target = map(stack.enter_context, writers)
                self._lines: BinaryIO = (self._partial / "lines.bin").open("wb")
                self._sides = stack.pop_all()
        return self

    def append(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], lines: Sequence[int]) -> None:
        """Append pairs, with their lines in the corpus."""
        if not len(sources) == len(targets) == len(lines):
            counts = f"{len(sources)} sources, {len(targets)} targets and {len(lines)} line numbers"
            raise InputError(f"{counts}; expected as many of each")
        self._source.append(sources)
        self._target.append(targets)
        with _writing(self._path):
            self._lines.write(np.asarray(lines, _OFFSET).tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sides.__exit__(kind, error, trace)
            if kind is None:
                with _writing(self._path):
                    _sync_and_close(self._lines)
                    _commit(self._partial, self._path, _PAIR_FORMAT, {})
        finally:
            with suppress(OSError):
                self._lines.close()
            shutil.rmtree(self._partial, ignore_errors=True)


MAKE_AGAIN = "delete the folder and make it again from the corpus"


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
    described = _read_description(folder, _SIDE_FORMAT)
    count, tokens, dtype = described.get("count"), described.get("tokens"), described.get("dtype")
    if type(count) is not int or type(tokens) is not int or count < 0 or dtype not in ("<u2", "<u4"):
        raise FormatError(f"{folder.path / 'store.json'}: damaged description {shown(described)}; {MAKE_AGAIN}")
    offsets = folder.mapped("offsets.bin", _OFFSET, count + 1)
    decreases = (offsets[1:] < offsets[:-1]).any()  # differences could overflow
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


def _begin(path: Path) -> Path:
    if path.exists():
        raise FormatError(f"{path}: exists already, and is not overwritten; delete it or choose another path")
    partial = path.with_name(f".{path.name}.partial")
    if partial.exists():  # left by a killed process
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def _commit(partial: Path, path: Path, form: str, described: dict[str, Any]) -> None:
    with (partial / "store.json").open("wb") as file:
        file.write(json.dumps({"format": form, "version": VERSION, **described}, indent=1).encode())
        _sync_and_close(file)
    _sync_folder(partial)
    partial.rename(path)
    _sync_folder(path.parent)


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror or error}); nothing was left behind"
        raise SurroundingsError(f"{message}; make room or choose another place") from error
