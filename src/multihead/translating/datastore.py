"""A datastore: states of a model in a text, and the symbol after each.

It is a folder of two files. `translating.remember` writes it, and the compiled search mixes it in (`engine.neighbours`,
which has the equations). Nothing here imports torch.

    datastore.json           the model that it is of, and how its neighbours are used
    datastore.safetensors    keys [entries, width] of int8, what 1 stands for in each (steps), symbols [entries],
                             centres [cells, width] and sizes [cells] of the cells, whose entries stand together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field

from multihead.configuration import Settings, build
from multihead.engine.datastore import MOST, Cells, Floats, PackedDatastore
from multihead.errors import ConfigurationError, FormatError, ShapeError
from multihead.sealed import open_folder
from multihead.tensor_files import read_arrays

if TYPE_CHECKING:
    from multihead.engine.search import CompiledSearch

CONFIG, ARRAYS = "datastore.json", "datastore.safetensors"
FORMAT_VERSION = 1
AGAIN = "make it again by `multihead datastore`"

_TYPES = {"keys": "int8", "steps": "float32", "symbols": "int32", "centres": "float32", "sizes": "int64"}


class Remembering(Settings):
    """How the neighbours of a state are used."""

    neighbours: int = Field(default=64, ge=1, le=MOST)
    """The nearest entries of a state."""
    share: float = Field(gt=0, lt=1)
    """Their part of the probabilities."""
    temperature: float = Field(gt=0)
    """Of the squared distances, whose size depends on the model: it has no upper bound."""
    probes: int = Field(default=0, ge=0)
    """Cells that a state looks into; 0 for all."""


@dataclass(frozen=True)
class Datastore:
    """A datastore in memory.

    Args:
        model: `bundle.model_digest` of the model whose states they are.
        how: how its neighbours are used.
        keys, steps, symbols, cells: as `engine.datastore.PackedDatastore` takes them.
    """

    model: str
    how: Remembering
    keys: npt.NDArray[np.int8]
    steps: Floats
    symbols: npt.NDArray[np.int32]
    cells: Cells

    @cached_property
    def packed(self) -> PackedDatastore:
        """What the compiled search reads.

        Raises:
            ShapeError, ConfigurationError, SurroundingsError: as `PackedDatastore`.
        """
        return PackedDatastore(self.keys, self.steps, self.symbols, self.cells)

    def join(self, search: CompiledSearch) -> CompiledSearch:
        """A search that mixes the datastore in.

        Raises:
            ConfigurationError: it does not fit the models.
        """
        from multihead.engine.neighbours import NeighbourSearch

        how = self.how
        return NeighbourSearch(search, self.packed, how.neighbours, how.share, how.temperature, how.probes)


def read(folder: Path, model: str, *earlier: str) -> Datastore:
    """Read a datastore.

    Args:
        folder: what `multihead datastore` wrote.
        model: `bundle.model_digest` of the model that it must be of.
        *earlier: the other ones of `bundle.model_digests`.

    Raises:
        FormatError: it is none, or damaged.
        ConfigurationError: it is of another model.
    """
    with open_folder(folder, AGAIN) as found:
        if CONFIG not in found:
            raise FormatError(f"{folder}: is not a datastore, as it has no {CONFIG}; {AGAIN}")
        said = found.read_json(CONFIG)
        version = said.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise FormatError(f"{folder / CONFIG}: format {version!r}, expected {FORMAT_VERSION}; {AGAIN}")
        own = said.pop("model", None)
        check_model(own, (model, *earlier), str(folder))
        assert isinstance(own, str)
        how = build(Remembering, said, str(folder / CONFIG))
        arrays = read_arrays(found, ARRAYS)
    types = {name: kind for name, (kind, _) in arrays.items()}
    if types != _TYPES:
        raise FormatError(f"{folder / ARRAYS}: has {types}, expected {_TYPES}; {AGAIN}")
    values = {name: array for name, (_, array) in arrays.items()}
    cells = Cells(values.pop("centres"), values.pop("sizes"))
    made = Datastore(own, how, **values, cells=cells)
    try:
        made.packed  # noqa: B018  # checks the shapes
    except ShapeError as error:
        raise FormatError(f"{folder / ARRAYS}: {error}; {AGAIN}") from None
    return made


def check_model(own: object, models: Sequence[str], what: str) -> None:
    """Raise ConfigurationError if a datastore, ``what``, is not of a model, by its digests."""
    if own not in models:
        raise ConfigurationError(f"{what}: is of another model ({own}, this one is {models[0]}); {AGAIN}")


def size_of(folder: Path) -> int:
    """Bytes of the entries of a datastore.

    Raises:
        FormatError: it is none.
    """
    with open_folder(folder, AGAIN) as found:
        return found.size(ARRAYS)


def datastore_digest(folder: Path) -> str:
    """Identifies the datastore in a folder.

    Raises:
        FormatError: it is none, or damaged.
    """
    with open_folder(folder, AGAIN) as found:
        return found.digest(CONFIG)[:16] + "-" + found.digest(ARRAYS)[:16]
