"""A stored Transformer's weights for the compiled search, without torch.

To import PyTorch takes longer than to translate a few hundred lines. A model that the compiled search alone needs is
therefore read as arrays, which become a network when somebody asks for it (`bundle.StoredBundle`). Weights are rounded
and restored as in `multihead.model_folder`, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from multihead.engine.weights import Precision, load_search_library, model_weights, position_table
from multihead.errors import ShapeError
from multihead.model_folder import LARGEST, WEIGHTS, from_steps, to_steps
from multihead.models.config import TransformerConfig
from multihead.sealed import OpenFolder
from multihead.tensor_files import Array, read_arrays

Floats = npt.NDArray[np.float32]

_POSITIONS = ("sinusoidal", "learned", "shaw", "rotary", "none")
"""The kinds of which nothing is computed by PyTorch."""


class StoredTransformer:
    """A Transformer's settings and weights (`weights.Source`).

    Args:
        config: the settings.
        weights: by the names of its parameters, a shared one once.
    """

    def __init__(self, config: TransformerConfig, weights: dict[str, Floats]) -> None:
        self.config, self.weights = config, weights
        self._asked: set[str] = set()

    @property
    def max_positions(self) -> int | None:
        """As of `models.transformer.Transformer`."""
        return self.config.max_positions if self.config.positions == "learned" else None

    def fits(self) -> bool:
        """Whether these are finite weights of such a Transformer, each of its shape, and no others."""
        if self.config.positions not in _POSITIONS:
            return False
        self._asked.clear()
        try:
            model_weights(self, "float32")
            for side in ("source", "target"):
                position_table(self, side, 1)
        except ShapeError:
            return False
        return self._asked == self.weights.keys() and all(map(_finite, self.weights.values()))

    def why_not(self) -> str | None:
        """Why compiled code cannot search with these weights here; None if it can."""
        found = load_search_library()
        return None if found.library is not None else found.reason

    def scales(self) -> tuple[float, float]:
        """What the embeddings of the source, and the states before the output projection, are multiplied by."""
        kind, width = self.config.embedding_scale, self.config.width
        return math.sqrt(width) if kind == "embedding" else 1.0, width**-0.5 if kind == "projection" else 1.0

    def weight(self, name: str, *shape: int) -> Floats | None:
        """A weight; None if there is none of this name.

        Raises:
            ShapeError: it has another shape.
        """
        if name == "output.weight" and self.config.tie_output:
            name = "target_embedding.table.weight"
        if name == "target_embedding.table.weight" and self.config.tie_embeddings:
            name = "source_embedding.table.weight"
        found = self.weights.get(name)
        if found is None:
            return None
        self._asked.add(name)
        if found.shape != shape:
            raise ShapeError(f"the compiled search expected {name} {list(shape)}, got {list(found.shape)}")
        return found

    def rounded(self, table: Floats, precision: Precision) -> Floats:
        """A matrix after rounding, in float32."""
        if precision == "float32":
            return table
        return _from_bits(_to_bits(table)) if precision == "bfloat16" else from_steps(*to_steps(table))

    def biases(self) -> Sequence[Floats]:
        """None: there are no biases by distance."""
        return ()

    def taken(self, array: Floats) -> Floats:
        """A computed array."""
        return array

    def address(self, tensor: Floats) -> int:
        """Where the numbers of an array begin."""
        if tensor.dtype != np.float32 or not tensor.flags.c_contiguous:
            raise ShapeError(f"the compiled search takes contiguous float32 numbers, got {tensor.dtype}")
        return int(tensor.ctypes.data)


def read_stored(config: TransformerConfig, folder: OpenFolder, digest: object) -> StoredTransformer | None:
    """The Transformer of a model folder; None if it is not one that the compiled search can do without PyTorch.

    Args:
        config: its settings.
        folder: the model folder.
        digest: the SHA-256 of the weights in config.json; None disables the check.

    Raises:
        FormatError: the weights are damaged.
    """
    if config.positions not in _POSITIONS or config.factors > 1:
        return None
    arrays = read_arrays(folder, WEIGHTS)
    if digest is not None and folder.digest(WEIGHTS) != digest:
        return None
    weights: dict[str, Floats] = {}
    for name, (kind, array) in arrays.items():
        if name.endswith(LARGEST) and name.removesuffix(LARGEST) in arrays:
            continue
        found = _restored(kind, array, arrays.get(name + LARGEST))
        if found is None:
            return None
        weights[name] = found
    stored = StoredTransformer(config, weights)
    return stored if stored.fits() else None


def _restored(kind: str, array: Array, largest: tuple[str, Array] | None) -> Floats | None:
    """A weight in float32; None if it is not as `model_folder.quantize_tensors` writes it."""
    if kind == "float32":
        return array
    if kind == "bfloat16":
        return _from_bits(array)
    if kind != "int8" or largest is None or largest[0] != "float32" or array.ndim != 2:
        return None
    return from_steps(array, largest[1]) if largest[1].shape == array.shape[:1] else None


def _to_bits(matrix: Floats) -> npt.NDArray[np.uint16]:
    """bfloat16: the nearest number whose last 16 bits are zero, ties to even; without NaN."""
    bits = matrix.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def _from_bits(bits: Array) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _finite(x: Floats) -> bool:
    """Whether all elements are finite. Minimum and maximum are NaN if any element is; this needs no copy."""
    return x.size == 0 or bool(np.isfinite(x.min()) and np.isfinite(x.max()))
