"""Files of which each holds some rows of every tensor, and their reader.

PyTorch's `torch.distributed.checkpoint` notes in the header of each safetensors file where its rows belong. Names are
``<part>/<name>``. `training.sharded_checkpoint` writes these files; `training.checkpoint` reads them in one process.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from multihead.errors import SurroundingsError

PARTS = ("model", "average", "optimizer")


def reader(path: Path) -> StorageReader:
    """Reads all files of a folder as one.

    Raises:
        SurroundingsError: this PyTorch knows no such files.
    """
    return cast(StorageReader, _storage(path).HuggingFaceStorageReader(str(path)))


def writer(path: Path) -> StorageWriter:
    """Writes the rows of this process to files of its own. Errors as in `reader`."""
    return cast(StorageWriter, _storage(path).HuggingFaceStorageWriter(str(path), save_distributed=True))


def _storage(path: Path) -> ModuleType:
    """PyTorch's module for these files, which old versions lack."""
    try:
        import torch.distributed.checkpoint.hf_storage as hf_storage
    except ImportError:
        raise SurroundingsError(
            f"{path}: each process wrote a part of every tensor; PyTorch {torch.__version__} has no "
            "torch.distributed.checkpoint.hf_storage to read and write such files; install a newer PyTorch"
        ) from None
    return hf_storage


def shapes_in(path: Path, part: str) -> dict[str, torch.Size]:
    """The whole shapes of the tensors of a part, by their names."""
    found = reader(path).read_metadata().state_dict_metadata
    prefix = f"{part}/"
    return {name.removeprefix(prefix): cast(Any, found[name]).size for name in found if name.startswith(prefix)}


def read_whole(path: Path, parts: Collection[str] = PARTS) -> dict[str, dict[str, Tensor]]:
    """Read whole tensors in one process, without the others; parts that are not read stay empty."""
    metadata = reader(path).read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {
        name: torch.empty(cast(Any, entry).size, dtype=cast(Any, entry).properties.dtype)
        for name, entry in metadata.items()
        if name.split("/")[0] in parts
    }
    with warnings.catch_warnings():  # it says that there is one process
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(tensors, storage_reader=reader(path), no_dist=True)
    found: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        found[part][rest] = tensor
    return found
