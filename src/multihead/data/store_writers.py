"""Writes the stores of token ids that `store` reads.

Writers fill a temporary folder next to the final one and rename it once all of it is on disk: a store exists whole or
not at all. A writer can leave that folder behind when it is stopped, and another one go on with it at a known size
(`preparing.journal` notes sizes).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.data.store import OFFSET, PAIR_FORMAT, SIDE_FORMAT, VERSION, Flat, Int64, flatten
from multihead.errors import FormatError, InputError, SurroundingsError
from multihead.files import force, fsync, replace


class Sizes(NamedTuple):
    """What was written of a `ParallelStore`: the state from which its writing can go on."""

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class TokenStoreWriter:
    """Writes a `TokenStore`: ``with TokenStoreWriter(path, vocab_size) as writer: writer.append(batch)``.

    The store appears at ``path`` when the block ends, or not at all if it raises.

    Args:
        path: of the store.
        vocab_size: all ids are smaller.
        begun: numbers of sequences and tokens of a store that was left unfinished, to go on from; None to begin.
        kept: leave an unfinished store behind if the block raises.

    Raises:
        FormatError: ``path`` exists already; or there is no unfinished store of that size.
        SurroundingsError: the disk is full or not writable.
    """

    def __init__(
        self, path: str | Path, vocab_size: int, begun: tuple[int, int] | None = None, *, kept: bool = False
    ) -> None:
        self._path, self._vocab_size = Path(path), vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._begun, self._kept = begun, kept
        self.count, self.tokens = begun or (0, 0)

    def __enter__(self) -> TokenStoreWriter:
        with _writing(self._path):
            if self._begun is None:
                self._partial = _begin(self._path)
            else:
                self._partial = _unfinished(self._path)
            self._ids = _open_at(self._partial / "ids.bin", self.tokens * self._dtype.itemsize)
            self._offsets = _open_at(
                self._partial / "offsets.bin", (self.count + 1) * OFFSET.itemsize * bool(self._begun)
            )
            if self._begun is None:
                self._offsets.write(np.zeros(1, OFFSET).tobytes())
        return self

    def append(self, sequences: Sequence[Sequence[int]]) -> None:
        """Append sequences of ids.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self.append_flat(*flatten(sequences))

    def append_flat(self, flat: npt.NDArray[np.integer[Any]], lengths: npt.NDArray[np.integer[Any]]) -> None:
        """Append sequences given as concatenated ids and the length of each; errors as in `append`."""
        if flat.size and not 0 <= flat.min() <= flat.max() < self._vocab_size:
            wrong = flat.max() if flat.max() >= self._vocab_size else flat.min()
            raise InputError(f"token id {wrong} for a store of ids from 0 to {self._vocab_size - 1}")
        with _writing(self._path):
            self._ids.write(flat.astype(self._dtype, copy=False).tobytes())
            self._offsets.write((self.tokens + np.cumsum(lengths, dtype=np.int64)).astype(OFFSET).tobytes())
        self.count += len(lengths)
        self.tokens += flat.size

    def sync(self) -> None:
        """Force what was appended to the disk."""
        with _writing(self._path):
            for file in (self._ids, self._offsets):
                _sync(file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._abandon()
            return
        described = {"count": self.count, "tokens": self.tokens, "dtype": self._dtype.str}
        try:
            with _writing(self._path):
                for file in (self._ids, self._offsets):
                    _sync_and_close(file)
                _commit(self._partial, self._path, SIDE_FORMAT, described)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        for file in (self._ids, self._offsets):
            with suppress(OSError):  # closing fails on a full disk, too
                file.close()
        if not self._kept:
            shutil.rmtree(self._partial, ignore_errors=True)


class ParallelWriter:
    """Writes a `ParallelStore`, atomically as `TokenStoreWriter` does.

    Args:
        path: of the store.
        source_vocab_size: all ids of sources are smaller.
        target_vocab_size: likewise for targets.
        begun: the size of a store that was left unfinished, to go on from; None to begin.
        kept: leave an unfinished store behind if the block raises.
    """

    def __init__(
        self,
        path: str | Path,
        source_vocab_size: int,
        target_vocab_size: int,
        begun: Sizes | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self._path, self._begun, self._kept = Path(path), begun, kept
        self._vocab_sizes = source_vocab_size, target_vocab_size

    def __enter__(self) -> ParallelWriter:
        begun = self._begun
        with _writing(self._path):
            self._partial = _begin(self._path) if begun is None else _unfinished(self._path)
            tokens = (None, None) if begun is None else begun[1:]
            with ExitStack() as stack:
                writers = (
                    TokenStoreWriter(self._partial / side, size, begun and (begun.pairs, own or 0), kept=self._kept)
                    for side, size, own in zip(("source", "target"), self._vocab_sizes, tokens, strict=True)
                )
                self._source, self._target = map(stack.enter_context, writers)
                self._lines = _open_at(self._partial / "lines.bin", begun.pairs * OFFSET.itemsize if begun else 0)
                self._sides = stack.pop_all()
        return self

    @property
    def sizes(self) -> Sizes:
        """What was written so far."""
        return Sizes(self._source.count, self._source.tokens, self._target.tokens)

    def sync(self) -> Sizes:
        """Force what was appended to the disk; returns its size, from which another writer can go on."""
        for side in (self._source, self._target):
            side.sync()
        with _writing(self._path):
            _sync(self._lines)
        return self.sizes

    def append(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], lines: Sequence[int]) -> None:
        """Append pairs, with their lines in the corpus."""
        if not len(sources) == len(targets) == len(lines):
            counts = f"{len(sources)} sources, {len(targets)} targets and {len(lines)} line numbers"
            raise InputError(f"{counts}; expected as many of each")
        self.append_flat(flatten(sources), flatten(targets), np.asarray(lines, np.int64))

    def append_flat(self, source: Flat, target: Flat, lines: Int64) -> None:
        """Append as many pairs as there are lines; each side as concatenated ids and the length of each sequence."""
        self._source.append_flat(*source)
        self._target.append_flat(*target)
        with _writing(self._path):
            self._lines.write(lines.astype(OFFSET, copy=False).tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sides.__exit__(kind, error, trace)
            if kind is None:
                with _writing(self._path):
                    _sync_and_close(self._lines)
                    _commit(self._partial, self._path, PAIR_FORMAT, {})
        finally:
            with suppress(OSError):
                self._lines.close()
            if kind is None or not self._kept:
                shutil.rmtree(self._partial, ignore_errors=True)


def _begin(path: Path) -> Path:
    if path.exists():
        raise FormatError(f"{path}: exists already, and is not overwritten; delete it or choose another path")
    partial = path.with_name(f".{path.name}.partial")
    if partial.exists():  # left by a killed process
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def _unfinished(path: Path) -> Path:
    """The folder of a store that was left unfinished; a finished part of it counts as such."""
    partial = path.with_name(f".{path.name}.partial")
    if path.exists() and not partial.exists():
        (path / "store.json").unlink(missing_ok=True)
        replace(path, partial)
    if not partial.is_dir():
        raise FormatError(f"{path}: no unfinished store to go on with; begin again")
    return partial


def _open_at(path: Path, size: int) -> BinaryIO:
    """Open a file to write behind its first ``size`` bytes; what follows them is cut off.

    Raises:
        FormatError: it has fewer.
    """
    if not size:
        return path.open("wb")
    file = path.open("r+b")
    if file.seek(0, os.SEEK_END) < size:
        file.close()
        raise FormatError(f"{path}: has fewer than {size:,} bytes, which were written before; begin again")
    file.truncate(size)
    file.seek(size)
    return file


def _commit(partial: Path, path: Path, form: str, described: dict[str, Any]) -> None:
    with (partial / "store.json").open("wb") as file:
        file.write(json.dumps({"format": form, "version": VERSION, **described}, indent=1).encode())
        _sync_and_close(file)
    fsync(partial)
    replace(partial, path)
    fsync(path.parent)


def _sync(file: BinaryIO) -> None:
    file.flush()
    force(file.fileno())


def _sync_and_close(file: BinaryIO) -> None:
    _sync(file)
    file.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror or error}); nothing was left behind"
        raise SurroundingsError(f"{message}; make room or choose another place") from error
