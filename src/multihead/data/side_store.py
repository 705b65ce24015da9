"""Memory-mapped arrays with an entry for each line of the text.

    NAME/
        NAME.json        a `SideDescription`
        *.bin            arrays of little-endian numbers
        manifest.json

`write_side` writes such a folder whole or not at all, `open_side` maps its arrays into memory. What they mean is up to
`preparing.weights` and its like; `LinesOfPairs` says which line belongs to which pair of a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.configuration import Settings
from multihead.data.store import Int64
from multihead.errors import FormatError
from multihead.files import fsync, fsync_all, remove, replace, write_chunks, write_errors
from multihead.sealed import open_folder, seal

Arrays = dict[str, npt.NDArray[Any]]
"""Arrays by the names of their files."""


class SideDescription(Settings):
    """What decides the content of a folder."""

    format: Literal["multihead side data"] = "multihead side data"
    version: Literal[1] = 1
    origin: str
    """SHA-256 of the file that it was read from, or how it was computed."""
    sizes: dict[str, int]
    """Numbers in each array."""


def write_side(run: Path, name: str, origin: str, parts: Iterable[Arrays]) -> None:
    """Write the arrays of a folder, part after part.

    Args:
        run: the run folder.
        name: of the new folder in it.
        origin: as in `SideDescription`.
        parts: what to append to each array; whatever this raises leaves no folder behind.

    Raises:
        SurroundingsError: it cannot be written.
    """
    path, draft = run / name, run / f"{name}.part"
    sizes: dict[str, int] = {}
    with write_errors(draft):
        remove(draft)
        draft.mkdir()
        with ExitStack() as stack:
            streams: dict[str, BinaryIO] = {}
            for arrays in parts:
                for file, array in arrays.items():
                    if file not in streams:
                        streams[file] = stack.enter_context((draft / file).open("wb"))
                    streams[file].write(array.tobytes())
                    sizes[file] = sizes.get(file, 0) + array.size
        text = SideDescription(origin=origin, sizes=sizes).model_dump_json(indent=1) + "\n"
        write_chunks(draft / f"{name}.json", [text.encode()])
        seal(draft)
        fsync_all(draft)
        remove(path)
        replace(draft, path)
        fsync(run)


def open_side(run: Path, name: str, origin: str, types: Mapping[str, npt.DTypeLike]) -> Arrays:
    """Map the arrays of a folder into memory; every file is compared with the manifest.

    Args:
        run: the run folder.
        name: of the folder.
        origin: what it must have been made from.
        types: the type of each array.

    Raises:
        FormatError: it is damaged, or made from something else.
    """
    remedy = "remove the folder, and the run makes it again from what it was given"
    with open_folder(run / name, remedy) as folder:
        found = folder.read_json(f"{name}.json")
        sizes = found.get("sizes")
        if folder.entries is None or found.get("origin") != origin or not isinstance(sizes, dict):
            raise FormatError(f"{folder.path / f'{name}.json'}: not made from what this run was given; {remedy}")
        return {file: folder.mapped(file, np.dtype(dtype), int(sizes.get(file, 0))) for file, dtype in types.items()}


class LinesPerCorpus(NamedTuple):
    """Where the lines of a corpus are in a file that has those of all corpora."""

    pairs: int
    """Pairs of the corpus in the store."""
    start: int
    """Number of its first line, from 0."""
    reversed: bool = False
    """Whether its source is the target of the corpus that the lines belong to."""


class LinesOfPairs:
    """The line that belongs to each pair of a store.

    Args:
        corpora: in the order of the store.
        lines: the line of each pair in its corpus, from 1.
    """

    def __init__(self, corpora: Sequence[LinesPerCorpus], lines: Int64) -> None:
        self._lines = lines
        self._ends = np.cumsum([corpus.pairs for corpus in corpora])
        self._starts = np.array([corpus.start for corpus in corpora], np.int64)
        self._reversed = np.array([corpus.reversed for corpus in corpora])

    def __call__(self, pairs: Int64) -> Int64:
        """The number of the line of each pair, from 0."""
        return self._starts[self._corpora(pairs)] + self._lines[pairs] - 1

    def reversed(self, pairs: Int64) -> npt.NDArray[np.bool_]:
        """Whether each pair is read from target to source."""
        return self._reversed[self._corpora(pairs)]

    def _corpora(self, pairs: Int64) -> Int64:
        return np.searchsorted(self._ends, pairs, side="right")
