"""Memory-mapped storage of what teachers predict at each target position.

    teachers/
        teachers.json        a `SoftDescription`
        ids.bin              the best symbols of each position, the most probable one first: uint16 or uint32
        probabilities.bin    their probabilities in units of 1 / 65,535, rounded down: uint16
        manifest.json        size and SHA-256 of each (`multihead.sealed`); written last

The positions are those of the targets of a `ParallelStore`, pair after pair, each with its end symbol. Rounding down
keeps the sum of a position's probabilities at or below 1.

While a `SoftStoreWriter` writes, the folder is called ``teachers.part``, and ``progress.json`` in it says how much is
valid. A writer that starts where another one was stopped goes on there. `preparing.teachers` computes the content.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from multihead.configuration import Settings
from multihead.data.store import Int64
from multihead.errors import FormatError
from multihead.files import (
    copy_folder,
    force,
    fsync,
    fsync_all,
    remove,
    replace,
    write_chunks,
    write_errors,
    write_text,
)
from multihead.kernels.soft_targets import SoftTargets
from multihead.sealed import MANIFEST, manifest_of, open_folder, parse_json, read_file

FOLDER, _DESCRIPTION, _PROGRESS = "teachers", "teachers.json", "progress.json"
_IDS, _PROBABILITIES = "ids.bin", "probabilities.bin"
_REMEDY = "remove the folder, and the run computes it again from the teachers"
_UNIT = 65_535
_TYPE = np.dtype("<u2")


class SoftDescription(Settings):
    """What decides the content of a store."""

    format: Literal["multihead soft targets"] = "multihead soft targets"
    version: Literal[1] = 1
    teachers: tuple[str, ...]
    """SHA-256 of the weights of each."""
    symbols: int = Field(ge=1)
    """Symbols of each position."""
    ids: Literal["<u2", "<u4"]
    """Type of ids.bin."""
    pairs: int = Field(ge=1)
    positions: int = Field(ge=1)

    @classmethod
    def of(cls, teachers: tuple[str, ...], symbols: int, vocabulary: int, lengths: Int64) -> SoftDescription:
        """What describes a store of ``symbols`` symbols for pairs whose targets have these positions."""
        kind: Literal["<u2", "<u4"] = "<u2" if vocabulary <= 1 << 16 else "<u4"
        return cls(teachers=teachers, symbols=symbols, ids=kind, pairs=len(lengths), positions=int(lengths.sum()))


class SoftStore:
    """Soft targets of the pairs of a store.

    Args:
        ids: of all positions [positions, symbols].
        probabilities: likewise, in units of 1 / 65,535.
        lengths: positions of each pair, with the end symbol.
    """

    def __init__(self, ids: npt.NDArray[Any], probabilities: npt.NDArray[np.uint16], lengths: Int64) -> None:
        self._ids, self._probabilities, self._lengths = ids, probabilities, lengths
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def open(cls, run: Path, expected: SoftDescription, lengths: Int64, vocabulary: int) -> SoftStore:
        """Map the store in a run folder into memory; every file is compared with the manifest.

        Args:
            run: the run folder.
            expected: what the store is made from.
            lengths: positions of each pair.
            vocabulary: its number of symbols.

        Raises:
            FormatError: it is damaged, or made from other teachers or other text.
        """
        with open_folder(run / FOLDER, _REMEDY) as folder:
            found = folder.read_json(_DESCRIPTION)
            if folder.entries is None or found != expected.model_dump(mode="json"):
                raise FormatError(
                    f"{folder.path / _DESCRIPTION}: not made from the teachers and the text of this run; {_REMEDY}"
                )
            shape, count = (expected.positions, expected.symbols), expected.positions * expected.symbols
            ids = folder.mapped(_IDS, np.dtype(expected.ids), count)
            if int(ids.max(initial=0)) >= vocabulary:
                raise FormatError(f"{folder.path / _IDS}: symbols that are not in the vocabulary; {_REMEDY}")
            probabilities = folder.mapped(_PROBABILITIES, _TYPE, count)
            return cls(ids.reshape(shape), probabilities.reshape(shape), lengths)

    @classmethod
    def copy(cls, run: Path, other: Path, expected: SoftDescription, lengths: Int64, vocabulary: int) -> bool:
        """Copy the store in the folder of another run; returns whether it is intact and made from the same.

        Args:
            run: the run folder that gets the copy.
            other: the run folder that may have a store.
            expected: what the store is made from.
            lengths: positions of each pair.
            vocabulary: its number of symbols.

        Raises:
            SurroundingsError: the copy cannot be written.
        """
        try:
            cls.open(other, expected, lengths, vocabulary)
        except FormatError:
            return False
        copy_folder(other / FOLDER, run / FOLDER)
        return True

    def gather(self, indices: Int64, weight: float) -> SoftTargets:
        """The soft targets of the pairs at ``indices``, position after position."""
        lengths = self._lengths[indices]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts[indices] - (ends - lengths), lengths)
        ids = torch.from_numpy(self._ids[places].astype(np.int64))
        probabilities = torch.from_numpy(self._probabilities[places].astype(np.float32))
        return SoftTargets(ids, probabilities.div_(_UNIT), weight)


class SoftStoreWriter:
    """Writes a store into a run folder, piece by piece; goes on where an earlier writer was stopped.

    Args:
        run: the run folder.
        description: what the store is made from; pieces that were made from something else are removed.

    Raises:
        SurroundingsError: the folder cannot be written.
    """

    def __init__(self, run: Path, description: SoftDescription) -> None:
        self._path, self._part = run / FOLDER, run / f"{FOLDER}.part"
        self._description = description
        self.pairs = self._positions = 0
        """Pairs and positions that are written."""
        with write_errors(self._part):
            if not self._resume():
                remove(self._part)
                self._part.mkdir()
                self._note()
            for name, item in self._items():
                with (self._part / name).open("ab") as stream:
                    stream.truncate(self._positions * item)

    def _items(self) -> tuple[tuple[str, int], ...]:
        """The files, and the bytes of a position in each."""
        sizes = np.dtype(self._description.ids).itemsize, _TYPE.itemsize
        return tuple(
            (name, self._description.symbols * size) for name, size in zip((_IDS, _PROBABILITIES), sizes, strict=True)
        )

    def _resume(self) -> bool:
        """Take up the pieces of an earlier writer, if they fit."""
        path = self._part / _PROGRESS
        try:
            progress = _Progress.model_validate(parse_json(read_file(path), path))
            sizes = [(self._part / name).stat().st_size for name, _ in self._items()]
        except (FormatError, ValidationError, FileNotFoundError):
            return False
        enough = all(size >= progress.positions * item for size, (_, item) in zip(sizes, self._items(), strict=True))
        if progress.description != self._description or not enough:
            return False
        self.pairs, self._positions = progress.pairs, progress.positions
        return True

    def append(self, ids: Tensor, probabilities: Tensor, pairs: int) -> None:
        """Write the positions [positions, symbols] of the next ``pairs`` pairs; they are on the disk on return.

        Raises:
            SurroundingsError: they cannot be written; what was written before stays.
        """
        contents = (
            ids.numpy().astype(self._description.ids),
            (probabilities.double() * _UNIT).floor().clamp(0, _UNIT).numpy().astype(_TYPE),
        )
        with write_errors(self._part):
            for (name, _), content in zip(self._items(), contents, strict=True):
                with (self._part / name).open("ab") as stream:
                    stream.write(content.tobytes())
                    stream.flush()
                    force(stream.fileno())
            self.pairs, self._positions = self.pairs + pairs, self._positions + len(ids)
            self._note()

    def finish(self) -> None:
        """Seal the store and give it its name.

        Raises:
            SurroundingsError: it cannot be written.
        """
        assert (self.pairs, self._positions) == (self._description.pairs, self._description.positions)
        with write_errors(self._path):
            text = self._description.model_dump_json(indent=1) + "\n"
            write_chunks(self._part / _DESCRIPTION, [text.encode()])
            listed = [_DESCRIPTION, *(name for name, _ in self._items())]
            write_chunks(self._part / MANIFEST, [manifest_of(self._part, among=listed)])
            fsync_all(self._part)
            remove(self._path)
            replace(self._part, self._path)
            remove(self._path / _PROGRESS)  # until here, a killed process leaves what can be finished again
            fsync(self._path.parent)

    def _note(self) -> None:
        progress = _Progress(description=self._description, pairs=self.pairs, positions=self._positions)
        write_text(self._part / _PROGRESS, progress.model_dump_json(indent=1) + "\n")


class _Progress(Settings):
    """How much of an unfinished store is valid."""

    description: SoftDescription
    pairs: int = Field(ge=0)
    positions: int = Field(ge=0)
