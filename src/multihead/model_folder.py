"""Weights in fewer bits, as they lie on disk and as the compiled search multiplies with them.

Of a matrix W of float32, row by row:

    bfloat16    the nearest number with 8 bits of precision
    int8        q_ij = round(127 w_ij / m_i), m_i = max_j |w_ij|        what is left of w_ij is q_ij m_i / 127

(Rounding is to the nearest, ties to even.) Rounding twice is rounding once: whoever reads rounded weights and rounds
them again has the same bytes. Vectors (biases, gains, shifts) stay float32, and so do positions that were learned. A
file keeps a bfloat16 matrix as such; an int8 matrix NAME as bytes, with its m as NAME + `LARGEST`. A row whose m is
below 1e-30 is a row of zeros.

A network on disk: ``config.json`` and ``model.safetensors``, which are checked against each other; no pickles.

What else belongs to a model (tokenizers, how it is searched) and what its settings mean is for those who know it:
`multihead.bundle` for translators, `runs.pointer.train` for pointer networks. They hand their parts to `save_folder`
and get the settings from `read_config`.

`FORMAT_VERSION` is a promise: newer code reads every older folder, and takes what it does not say as the default.
Version 2 has more settings of networks and of search than version 1; version 3 has other networks than Transformers;
version 4 has rounded weights, and is written for those alone, so that older code reads whatever else is written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from multihead.configuration import Settings, SettingsType, build
from multihead.errors import ConfigurationError, FormatError
from multihead.files import atomic_folder, current_folder, sha256_of, write_tensors

Rounding = Literal["bfloat16", "int8"]

LARGEST = ":largest"


def round_matrix(matrix: Float[Tensor, "out in"], precision: Rounding) -> Float[Tensor, "out in"]:
    """What is left of a matrix, in float32."""
    if precision == "bfloat16":
        return matrix.bfloat16().float()
    return _restored(*_steps(matrix))


def pack(tensors: Mapping[str, Tensor], names: Collection[str], precision: Rounding) -> dict[str, Tensor]:
    """The tensors for a file: the matrices of these names rounded, the others as they are."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names:
            packed[name] = tensor.detach()
        elif precision == "bfloat16":
            packed[name] = tensor.detach().bfloat16()
        else:
            packed[name], packed[name + LARGEST] = _steps(tensor.detach())
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, those that `pack` rounded in float32 again.

    Raises:
        ValueError: they are not as `pack` leaves them; names one.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(LARGEST) and name.removesuffix(LARGEST) in tensors:
            continue
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.dtype == torch.int8:
            largest = tensors.get(name + LARGEST)
            if largest is None or largest.dtype != torch.float32 or largest.shape != tensor.shape[:1]:
                raise ValueError(f"{name} has bytes, but not a largest number for each of its {len(tensor)} rows")
            tensor = _restored(tensor, largest)
        found[name] = tensor
    return found


def _steps(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """q and m."""
    largest = matrix.abs().amax(1)
    largest = torch.where(largest < 1e-30, 0.0, largest)  # 127 / m would run over
    # Tensor by tensor: PyTorch divides a number by a tensor in two steps, and rounds twice.
    steps = torch.where(largest > 0, torch.full_like(largest, 127.0) / largest, 0.0)
    return (matrix * steps[:, None]).round().to(torch.int8), largest


def _restored(steps: Tensor, largest: Tensor) -> Tensor:
    """q m / 127; the largest ones exactly, so that they are found again."""
    values = steps.float() * (largest / torch.full_like(largest, 127.0))[:, None]
    return torch.where(steps.abs() == 127, steps.sign() * largest[:, None], values)


FORMAT_VERSION = 4

_WHOLE = 3
"""The version of a folder whose weights are whole."""

WEIGHTS, CONFIG = "model.safetensors", "config.json"

COPY_AGAIN = "copy the whole model folder again"
"""What to do about a damaged folder."""


def save_folder(
    folder: Path,
    model: nn.Module,
    settings: Settings,
    parts: Callable[[Path], dict[str, Any]] = lambda _: {},
    rounding: Rounding | None = None,
) -> None:
    """Writes a model folder, whole or not at all; a model that stands there is replaced.

    Args:
        folder: where to.
        model: whose parameters are kept (a shared one once).
        settings: of the network; they say its ``architecture``.
        parts: writes what else belongs to the model into the folder it is given, and returns what config.json is to
            have besides version, settings and the SHA-256 of the weights.
        rounding: keep the matrices so (`multihead.model_folder`), but for the vectors of positions.

    Raises:
        FormatError: something that is not a model stands there; it is left alone.
        SurroundingsError: it cannot be written; what stood there still does.
    """
    if folder.exists() and not (folder / CONFIG).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FormatError(f"{folder}: holds something that is not a model; nothing was touched. Choose a new folder")
    with atomic_folder(folder) as draft:
        tensors: dict[str, Tensor] = dict(model.named_parameters())
        if rounding is not None:
            matrices = [name for name, tensor in tensors.items() if tensor.dim() == 2 and _POSITIONS not in name]
            tensors = pack(tensors, matrices, rounding)
        write_tensors(draft / WEIGHTS, tensors)
        config = {
            "format_version": _WHOLE if rounding is None else FORMAT_VERSION,
            "model": settings.model_dump(mode="json"),
            "weights": sha256_of(draft / WEIGHTS),
        }
        write_json(draft / CONFIG, config | parts(draft))


_POSITIONS = "positions."
"""In the name of a table of positions."""


def locate(folder: Path) -> Path:
    """The model folder that ``folder`` is, or that a run folder holds as its best.

    Raises:
        FormatError: there is none, or only a part of one.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise FormatError(f"{folder}: {what}; give the folder that `multihead train` wrote")
    for candidate in (current_folder(folder / "best"), folder):
        there = [name for name in (CONFIG, WEIGHTS) if (candidate / name).is_file()]
        if len(there) == 2:
            return candidate
        if there:
            missing = WEIGHTS if there == [CONFIG] else CONFIG
            raise FormatError(f"{candidate}: a model folder without its {missing}; {COPY_AGAIN}")
    if (folder / "run.json").is_file():
        raise FormatError(f"{folder}: this run has no model yet: it was stopped before its first validation")
    raise FormatError(f"{folder}: not a model folder: it has no {CONFIG} and {WEIGHTS}")


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says; its ``model`` are the settings of the network, as written.

    Args:
        folder: as `locate` gives it.

    Raises:
        FormatError: it is damaged, or of a version that is not known yet.
    """
    config = read_json(folder / CONFIG)
    version = config.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise FormatError(
            f"{folder}: format version {version!r}; this multihead reads versions 1 to {FORMAT_VERSION}: "
            "a newer multihead wrote it, or the file is damaged"
        )
    if not isinstance(config.get("model"), dict):
        raise FormatError(f"{folder / CONFIG}: damaged: it describes no model; {COPY_AGAIN}")
    return config


def architecture_of(config: dict[str, Any]) -> str:
    """Which kind of network ``config.json`` describes; the first versions knew Transformers only."""
    return str(config["model"].get("architecture", "transformer"))


def require_architecture(folder: Path, config: dict[str, Any], among: Collection[str], what: str, maker: str) -> str:
    """The kind of network that ``config.json`` describes, which has to be one of ``among``.

    Args:
        folder: where it stands.
        config: what `read_config` gave.
        among: the kinds that would do.
        what: they are called.
        maker: the command that makes one.

    Raises:
        FormatError: it is another one.
    """
    architecture = architecture_of(config)
    if architecture not in among:
        raise FormatError(f"{folder}: the network in it is '{architecture}', not a {what}, which `{maker}` makes")
    return architecture


def parse_settings(cls: type[SettingsType], values: object, path: Path) -> SettingsType:
    """Settings that stand in the file ``path``.

    Raises:
        FormatError: they are not what such settings can be.
    """
    if not isinstance(values, dict):
        raise FormatError(f"{path}: damaged: expected settings, got {values!r}; {COPY_AGAIN}")
    try:
        return build(cls, values, str(path))
    except ConfigurationError as error:
        raise FormatError(f"{error}; the file is damaged: {COPY_AGAIN}") from None


def load_weights(model: nn.Module, folder: Path, config: dict[str, Any]) -> None:
    """Fills the parameters of ``model`` by name from the folder's weights; every name and shape must match.

    Raises:
        FormatError: they are damaged, not those that ``config`` was written with, or of another network.
    """
    path = folder / WEIGHTS
    tensors, parameters = _read_weights(path, config.get("weights")), dict(model.named_parameters())
    missing, surplus = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
    shapes = [name for name in parameters.keys() & tensors.keys() if parameters[name].shape != tensors[name].shape]
    if missing or surplus or shapes:
        raise FormatError(
            f"{path}: these are not the weights that config.json describes: "
            f"missing {missing[:3]}, unknown {surplus[:3]}, of another shape {sorted(shapes)[:3]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _read_weights(path: Path, digest: object) -> dict[str, Tensor]:
    """The tensors of the file whose SHA-256 is ``digest``; a folder that was made by hand may name none.

    Those that were rounded come as float32 again.
    """
    try:
        found, tensors = sha256_of(path), load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: damaged or unreadable ({error}); {COPY_AGAIN}") from None
    if digest is not None and found != digest:
        raise FormatError(
            f"{path}: not the weights that {CONFIG} was written with, or damaged (their SHA-256 is {found[:12]}..., "
            f"it says {str(digest)[:12]}...); {COPY_AGAIN}"
        )
    try:
        return unpack(tensors)
    except ValueError as error:
        raise FormatError(f"{path}: damaged: {error}; {COPY_AGAIN}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FormatError: there is none, or it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise FormatError(f"{path}: damaged: not JSON") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: damaged: expected a JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes an object for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
