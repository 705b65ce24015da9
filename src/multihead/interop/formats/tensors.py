"""Tensors of safetensors, PyTorch and NumPy files, without running code.

A file of PyTorch is a pickle. It is loaded with ``weights_only``, which refuses everything but tensors and plain data,
and only if no part of it claims to be larger than the file. Several files with an index (shards) are one set.
"""

from __future__ import annotations

import math
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import stored
from multihead.model_folder import COPY_AGAIN, read_json

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Files of weights in folders of `transformers`, the preferred one first; each may be cut into shards with an index."""


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors in the weight file of a folder, or in its shards.

    Raises:
        FormatError: there is no weight file, or one is damaged or holds more than tensors.
    """
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return {name: tensor for shard in _shards(index) for name, tensor in read_tensors(shard).items()}
    raise FormatError(f"{folder}: there are no weights; expected {' or '.join(WEIGHT_FILES)}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a file of PyTorch, by name.

    Raises:
        FormatError: the file is damaged, holds more than tensors, or holds none.
    """
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise FormatError(f"{path}: damaged or unreadable ({error}); {COPY_AGAIN}") from None
    content = read_checkpoint(path)
    tensors = {name: stored(value, path) for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise FormatError(f"{path}: holds no tensors by name; expected the weights of a network")
    return tensors


def read_checkpoint(path: Path) -> dict[Any, Any]:
    """The dictionary in a file of PyTorch: tensors and plain data.

    Raises:
        FormatError: the file is damaged, holds other objects, whose loading would run code, or is no dictionary.
    """
    _check_sizes(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FormatError(
            f"{path}: holds objects besides tensors, whose loading would run code of the file; it is not loaded: get "
            "the model as model.safetensors"
        ) from None
    except Exception as error:  # damaged pickles raise whatever their remains mean
        raise FormatError(f"{path}: damaged or unreadable ({_first_line(error)}); {COPY_AGAIN}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: holds a {type(content).__name__}; expected tensors by name")
    return content


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a NumPy archive (``.npz``), by name.

    Raises:
        FormatError: the file is damaged, or an array holds Python objects or claims to be larger than its part.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            limit = _LARGEST_RATIO * path.stat().st_size
            claimed = sum(part.file_size for part in archive.infolist())
            if claimed > limit:
                raise ValueError(f"its parts claim {claimed:,} bytes")
            for part in archive.infolist():
                with archive.open(part) as stream:
                    size = _array_size(stream) + stream.tell()
                if size != part.file_size:
                    raise ValueError(f"{part.filename} claims {size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise FormatError(f"{path}: damaged or unreadable ({_first_line(error)}); {COPY_AGAIN}") from None


_LARGEST_RATIO = 8
"""Arrays may be this many times as large as their compressed file: weights compress little."""


def _array_size(stream: Any) -> int:
    """The number of bytes of an array, from its header, which the stream is then behind."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(stream)
    if kind.hasobject:
        raise ValueError("an array holds Python objects")
    return math.prod(shape) * kind.itemsize


def _check_sizes(path: Path) -> None:
    """Refuse an archive whose parts claim to be larger than the file together, before anything is allocated."""
    try:
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            claimed = sum(part.file_size for part in archive.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path}: damaged or unreadable ({error}); {COPY_AGAIN}") from None
    if claimed > size:
        raise FormatError(f"{path}: damaged: its parts claim {claimed:,} bytes, and it has {size:,}; {COPY_AGAIN}")


def _shards(index: Path) -> Iterator[Path]:
    """The files that an index names, which stand next to it."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise FormatError(f"{index}: damaged: it names no files; {COPY_AGAIN}")
    for name in sorted(map(str, set(names.values()))):
        if Path(name).name != name:
            raise FormatError(f"{index}: names {name!r}, which is no file of this folder; {COPY_AGAIN}")
        if not (index.parent / name).is_file():
            raise FormatError(f"{index.parent / name}: there is no such file, but {index.name} names it; {COPY_AGAIN}")
        yield index.parent / name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
