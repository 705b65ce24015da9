"""Checkpoints of PyTorch, read without running code from them.

A checkpoint is a pickle, and a pickle can name any function to be called. PyTorch's ``weights_only=True`` refuses all
but its own and plain data, and with them the checkpoints of toolkits that keep their options in objects. Here such
objects become `Inert`: the file is searched for the names it uses, and those in a package of a toolkit stand for
`Inert`, never for their code. PyTorch refuses every other name. ``argparse.Namespace``, which only holds values, is the
real one.
"""

from __future__ import annotations

import argparse
import io
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.errors import FormatError, SurroundingsError, shortened

_TOOLKITS = re.compile(r"(argparse|datetime|fairseq|joeynmt|numpy|omegaconf|onmt|pathlib|torch|torchtext|typing)\.")
"""Beginnings of the names that checkpoints of toolkits use for their options and counters."""

_PICKLES_OF_OLD_FILES = 4
"""Magic number, version, system and the object: before PyTorch 1.6 a checkpoint was these pickles, then the numbers."""


class Inert:
    """Stands for an object of another program: it takes any arguments and attributes, and does nothing."""

    def __new__(cls, *_: object, **__: object) -> Inert:
        """Any arguments are dropped."""
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The object in a checkpoint, on the CPU, with `Inert` for what is not plain data.

    Raises:
        FormatError: there is no such file, it is damaged, it names code that no toolkit's options need, or it holds
            something other than a dictionary.
        SurroundingsError: the file cannot be read.
    """
    try:
        names = sorted(set(_names(path)))
    except FileNotFoundError:
        raise FormatError(f"{path}: there is no such file; copy the whole folder of the model") from None
    except OSError as error:
        raise SurroundingsError(f"{path}: the checkpoint cannot be read ({error.strerror})") from error
    except Exception as error:  # pickletools raises whatever the damaged bytes lead to
        raise _damaged(path, error) from None
    known = {*torch.serialization.get_safe_globals()}
    inert = [(Inert, name) for name in names if _TOOLKITS.match(name) and name != "argparse.Namespace"]
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, *inert, *known]):
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # so does the library
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise FormatError(
                f"{path}: refused: it names '{refused.group(1)}', which is code and not data; a checkpoint of a "
                "translator needs none"
            ) from None
        raise _damaged(path, error) from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a checkpoint with a dictionary, got {type(content).__name__}")
    return content


def section(checkpoint: dict[str, Any], name: str, path: Path) -> dict[str, Tensor]:
    """The tensors under a name of a checkpoint, in float32.

    Raises:
        FormatError: the name is missing, or is not a state dict.
    """
    found = checkpoint.get(name)
    if not isinstance(found, dict):
        names = shortened(", ".join(map(str, checkpoint)))
        raise FormatError(f"{path}: expected the weights under '{name}', found only {names}")
    return {str(key): stored(value, path).float() for key, value in found.items() if isinstance(value, Tensor)}


def stored(tensor: Tensor, path: Path) -> Tensor:
    """The tensor, all of whose numbers are in the file: a view may claim to repeat one of them a billion times.

    Raises:
        FormatError: they are not.
    """
    if tensor.layout != torch.strided or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
        raise FormatError(f"{path}: damaged: a tensor of shape {list(tensor.shape)} is larger than its numbers")
    return tensor


def options(value: object) -> dict[str, Any]:
    """The options in a checkpoint, which are a Namespace or a dictionary; empty for anything else."""
    if isinstance(value, (argparse.Namespace, Inert)):
        return dict(vars(value))
    return dict(value) if isinstance(value, dict) else {}


def _names(path: Path) -> Iterator[str]:
    """The names of functions and classes in a checkpoint."""
    if zipfile.is_zipfile(path):
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            claimed = sum(record.file_size for record in archive.infolist())
            if claimed > size:
                raise ValueError(f"its parts claim {claimed:,} bytes, but the file has {size:,}")
            for record in archive.infolist():
                if record.filename.endswith("/data.pkl"):
                    yield from _names_in_pickle(io.BytesIO(archive.read(record)))
        return
    with path.open("rb") as file:
        for _ in range(_PICKLES_OF_OLD_FILES):
            yield from _names_in_pickle(file)


def _names_in_pickle(file: io.BytesIO | io.BufferedReader) -> Iterator[str]:
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            yield str(argument).replace(" ", ".", 1)


def _damaged(path: Path, error: Exception) -> FormatError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
    return FormatError(f"{path}: not a checkpoint of PyTorch, or damaged ({reason}); copy the file again")
