"""Tensors read from safetensors files, with every size checked first.

    header length, 8 bytes | header: {NAME: {"dtype": T, "shape": [...], "data_offsets": [BEGIN, END]}} | bytes

Nothing is allocated before the header is compared with the size of the file: the tensors must fill it without gaps.
Files are read from a folder that `multihead.sealed` has opened, and compared with its manifest. `files.write_tensors`
writes them; what the tensors mean is known to `multihead.model_folder` and the other modules that write them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.errors import FormatError
from multihead.files import DTYPES
from multihead.sealed import OpenFolder, parse_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array = npt.NDArray[Any]

_TYPES = {short: name.removeprefix("torch.") for name, short in DTYPES.items()}
_STORED_AS = {"bool": "uint8", "bfloat16": "uint16"}
"""Types that NumPy has not, or would have to check, each with one of the same size."""
_MOST_HEADER = 1 << 26


class TensorPlace(NamedTuple):
    """A tensor in a safetensors file."""

    dtype: str
    """The name of the type in PyTorch."""
    shape: tuple[int, ...]
    start: int
    """Its first byte after the header."""
    end: int


def tensor_places(folder: OpenFolder, name: str) -> dict[str, TensorPlace]:
    """The tensors that a safetensors file holds, from its header; no more of the file is read.

    Raises:
        FormatError: the file is missing, or its header does not describe exactly the bytes that are there.
    """
    return _places(_header(folder, name), folder, name)


def read_tensors(folder: OpenFolder, name: str, into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors in a safetensors file.

    Args:
        folder: the folder of the file.
        name: the file.
        into: tensors to be overwritten by those of the same name, shape and type, which saves memory and time.

    Raises:
        FormatError: as `tensor_places`; or these are not the bytes that the manifest lists, which may leave ``into``
            overwritten.
    """
    import torch

    header, found = _header(folder, name), {}
    for key, place in _places(header, folder, name).items():
        dtype: torch.dtype = getattr(torch, place.dtype)
        target = (into or {}).get(key)
        if target is not None and target.dtype == dtype and target.shape == place.shape and target.is_cpu:
            found[key] = target.detach() if target.is_contiguous() else torch.empty(place.shape, dtype=dtype)
        else:
            found[key] = torch.empty(place.shape, dtype=dtype)
    rooms = (tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in found.values() if tensor.numel())
    _fill(folder, name, header, rooms)
    return found


def read_arrays(folder: OpenFolder, name: str) -> dict[str, tuple[str, Array]]:
    """The tensors in a safetensors file as arrays, each with the name of its type; bfloat16 as its 16 bits.

    Raises:
        FormatError: as `read_tensors`.
    """
    header = _header(folder, name)
    found = {
        key: (place.dtype, np.empty(place.shape, _numpy_type(place.dtype)))
        for key, place in _places(header, folder, name).items()
    }
    rooms = (array.reshape(-1).view(np.uint8).data for _, array in found.values() if array.size)
    _fill(folder, name, header, rooms)
    return found


def _numpy_type(name: str) -> np.dtype[Any]:
    """The type of NumPy in which a type of PyTorch is read."""
    return np.dtype(_STORED_AS.get(name, name))


def _fill(folder: OpenFolder, name: str, header: bytearray, rooms: Iterable[memoryview]) -> None:
    """Fill ``rooms`` with what follows the header; errors as `read_tensors`."""
    again = bytearray(len(header))
    folder.read_into(name, chain([memoryview(again)], rooms))
    if again != header:
        raise FormatError(f"{folder.path / name}: has changed while it was read; read it again")


def _header(folder: OpenFolder, name: str) -> bytearray:
    """The length of the header and the header, at the beginning of a safetensors file."""
    length, size = int.from_bytes(folder.read_start(name, 8), "little"), folder.size(name)
    if size < 8 or length > min(size - 8, _MOST_HEADER):
        described = f"its header has {length:,} bytes, the file {size:,}"
        raise FormatError(f"{folder.path / name}: damaged: {described}; {folder.remedy}")
    return folder.read_start(name, 8 + length)


def _places(header: bytearray, folder: OpenFolder, name: str) -> dict[str, TensorPlace]:
    """The places that a header describes, in their order; the tensors must fill the file without gaps."""
    path, remedy = folder.path / name, folder.remedy
    described = parse_json(header[8:], path, remedy)
    described.pop("__metadata__", None)
    found = {key: _place_of(values) for key, values in described.items()}
    places, end, size = {}, 0, folder.size(name) - len(header)
    for key, place in sorted(found.items(), key=lambda item: (0, 0) if item[1] is None else item[1][2:]):
        if place is None or place.start != end:
            raise FormatError(f"{path}: damaged: its header describes '{key:.80}' as no tensor can be; {remedy}")
        places[key], end = place, place.end
    if end != size:
        raise FormatError(f"{path}: damaged: its tensors have {end:,} bytes, and there are {size:,}; {remedy}")
    return places


def _place_of(values: object) -> TensorPlace | None:
    """What an entry of a header describes; None if it is impossible."""
    match values:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if dtype in _TYPES:
            width = _numpy_type(_TYPES[dtype]).itemsize
            sizes = len(shape) <= 16 and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
            if sizes and 0 <= start <= end and math.prod(shape) * width == end - start:
                return TensorPlace(_TYPES[dtype], tuple(shape), start, end)
    return None
