"""A network on disk: settings and weights, checked against each other.

    config.json            format version, settings of the network, SHA-256 of the weights
    model.safetensors      the weights; no pickle is ever loaded
    manifest.json          size and SHA-256 of every file (`multihead.sealed`)

Other parts of a model (tokenizers, settings of search) are written and read by the modules that know them:
`multihead.bundle` for translators, `runs.pointer.model` for pointer networks. They pass a function that writes them to
`save_folder`. To read a model they open the folder with `open_model`, and read the settings with `read_config`.

`FORMAT_VERSION` is a promise: newer code reads every older folder, and uses the defaults for missing settings. Version
2 added settings of networks and of search; version 3 added networks other than Transformers; version 4 added rounded
weights; version 5 added settings for models of other programs; version 6 added the manifest.

Weights can be rounded to fewer bits, row by row of each matrix W:

    bfloat16    the nearest number with 8 bits of precision
    int8        q_ij = round(127 w_ij / m_i), m_i = max_j |w_ij|        w_ij becomes q_ij m_i / 127

Rounding is to nearest, ties to even. Rounding again changes nothing: rounding loaded weights again gives the same
bytes. Vectors (biases, gains, shifts) and learned positions stay float32. A bfloat16 matrix is stored as such; an int8
matrix NAME is stored as int8, with its m as NAME + `LARGEST`. A row with m below 1e-30 becomes zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from multihead.configuration import Settings, SettingsType, build
from multihead.errors import ConfigurationError, FormatError, shortened, shown
from multihead.files import atomic_folder, write_tensors
from multihead.sealed import MANIFEST, MOST_JSON, OpenFolder, find_folder, parse_json, read_file, seal
from multihead.tensor_files import read_tensors, tensor_places

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    NetworkType = TypeVar("NetworkType", bound=nn.Module)

Rounding = Literal["bfloat16", "int8"]

LARGEST = ":largest"

FORMAT_VERSION = 6
_SEALED_SINCE = 6

WEIGHTS, CONFIG = "model.safetensors", "config.json"

COPY_AGAIN = "copy the whole model folder again"
"""Advice for a damaged folder."""


def save_folder(
    folder: Path,
    model: nn.Module,
    settings: Settings,
    write_parts: Callable[[Path], dict[str, Any]] = lambda _: {},
    rounding: Rounding | None = None,
) -> None:
    """Write a model folder atomically; an existing model is replaced.

    Args:
        folder: the folder to write.
        model: its parameters are saved, a shared one once.
        settings: settings of the network, including its ``architecture``.
        write_parts: writes the other parts of the model into the folder that it is given, and returns entries of
            config.json besides version, settings and the SHA-256 of the weights.
        rounding: round the matrices, except for learned positions; None = float32.

    Raises:
        FormatError: the folder holds something that is not a model; it is left untouched.
        SurroundingsError: the folder cannot be written; an existing model is left untouched.
    """
    if folder.exists() and not (folder / CONFIG).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FormatError(f"{folder}: holds something that is not a model; nothing was touched. Choose a new folder")
    with atomic_folder(folder) as draft:
        tensors: dict[str, Tensor] = dict(model.named_parameters())
        if rounding is not None:
            matrices = [name for name, tensor in tensors.items() if tensor.dim() == 2 and _POSITIONS not in name]
            tensors = quantize_tensors(tensors, matrices, rounding)
        digest = write_tensors(draft / WEIGHTS, tensors)
        config = {"format_version": FORMAT_VERSION, "model": settings.model_dump(mode="json"), "weights": digest}
        write_json(draft / CONFIG, config | write_parts(draft))
        seal(draft, {WEIGHTS: digest})


_POSITIONS = "positions."
"""Part of the parameter names of learned positions."""


def open_model(folder: Path) -> OpenFolder:
    """Open the model folder: ``folder`` itself, or the best model of a run folder. The caller closes it.

    Raises:
        FormatError: there is no model folder, or only a part of one.
    """
    for candidate in (folder / "best", folder):
        found = find_folder(candidate, COPY_AGAIN)
        if found is None:
            continue
        present = [name for name in (CONFIG, WEIGHTS) if name in found]
        if len(present) == 2:
            return found
        found.close()
        if present:
            missing = WEIGHTS if present == [CONFIG] else CONFIG
            raise FormatError(f"{candidate}: a model folder without its {missing}; {COPY_AGAIN}")
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        advice = "give the folder that `multihead train` wrote"
        if len(folder.parts) == 2 and not folder.parent.exists():  # as names on the Hugging Face Hub have
            advice += f", or get a model of the Hugging Face Hub: `multihead import {folder.as_posix()} -o model`"
        raise FormatError(f"{folder}: {what}; {advice}")
    if (folder / "run.json").is_file():
        raise FormatError(f"{folder}: this run has no model yet: it was stopped before its first validation")
    raise FormatError(f"{folder}: not a model folder: it has no {CONFIG} and {WEIGHTS}")


def read_config(folder: OpenFolder) -> dict[str, Any]:
    """Read ``config.json``; its ``model`` holds the settings of the network.

    Raises:
        FormatError: the file is damaged, its version is newer than this code, or the folder has lost its manifest.
    """
    config = folder.read_json(CONFIG)
    version = config.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise FormatError(
            f"{folder.path / CONFIG}: format version {shown(version)}; this multihead reads versions 1 to "
            f"{FORMAT_VERSION}: a newer multihead wrote it, or the file is damaged"
        )
    if folder.entries is None and version >= _SEALED_SINCE:
        raise FormatError(f"{folder.path / MANIFEST}: is missing or damaged; {COPY_AGAIN}")
    if not isinstance(config.get("model"), dict):
        raise FormatError(f"{folder.path / CONFIG}: damaged: it describes no model; {COPY_AGAIN}")
    return config


def architecture_of(config: dict[str, Any]) -> str:
    """The kind of network that ``config.json`` describes; the first versions had Transformers only."""
    return str(config["model"].get("architecture", "transformer"))


def require_architecture(
    folder: OpenFolder, config: dict[str, Any], among: Collection[str], what: str, maker: str
) -> str:
    """Check that ``config.json`` describes a network of one of the kinds ``among``; return its kind.

    Args:
        folder: the model folder.
        config: the result of `read_config`.
        among: the accepted kinds.
        what: name of these kinds, for the message.
        maker: the command that trains such a network, for the message.

    Raises:
        FormatError: it is a network of another kind.
    """
    architecture = architecture_of(config)
    if architecture not in among:
        found = shortened(architecture)
        raise FormatError(f"{folder.path}: the network in it is '{found}', not a {what}, which `{maker}` makes")
    return architecture


def parse_settings(cls: type[SettingsType], values: object, path: Path) -> SettingsType:
    """Build settings from ``values``, which were read from ``path``.

    Raises:
        FormatError: the values are not valid settings of this class.
    """
    if not isinstance(values, dict):
        raise FormatError(f"{path}: damaged: expected settings, got {shown(values)}; {COPY_AGAIN}")
    try:
        return build(cls, values, str(path))
    except ConfigurationError as error:
        raise FormatError(f"{error}; the file is damaged: {COPY_AGAIN}") from None


def differing_shapes(settings: Settings, build: Callable[[], Any], stored: Mapping[str, Sequence[int]]) -> str | None:
    """How stored tensors differ from the parameters of a network, in words; None if they do not.

    Args:
        settings: of the network. What it costs to compare is bounded by the number of tensors, whatever they say.
        build: builds it.
        stored: the shapes of the tensors.
    """
    layers = _count_layers(settings)
    if layers > len(stored):
        return f"it has {layers:,} layers, but there are {len(stored):,} tensors"
    from multihead.skeletons import parameter_shapes

    expected = parameter_shapes(build)
    missing, surplus = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    shapes = [
        f"{name} {list(stored[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in stored and list(stored[name]) != list(shape)
    ]
    if not (missing or surplus or shapes):
        return None
    return f"missing {missing[:3]}, unknown {surplus[:3]}, of another shape {shapes[:3]}"


def _count_layers(settings: Settings) -> int:
    """All layers of a network, and of the networks in it."""
    counts = (
        _count_layers(value) if isinstance(value, Settings) else value if name.endswith("layers") else 0
        for name, value in settings
    )
    return sum(counts)


def load_network(
    settings: Settings, build: Callable[[], NetworkType], folder: OpenFolder, config: dict[str, Any]
) -> NetworkType:
    """Build the network of a folder and load its weights; nothing is built unless their header agrees with it.

    Args:
        settings: of the network.
        build: builds it.
        folder: the model folder.
        config: the result of `read_config`.

    Raises:
        FormatError: the weights are damaged, not the ones that ``config`` was written with, or of another network.
    """
    places = tensor_places(folder, WEIGHTS)
    stored = {
        name: place.shape
        for name, place in places.items()
        if not (name.endswith(LARGEST) and name.removesuffix(LARGEST) in places)
    }
    problem = differing_shapes(settings, build, stored)
    if problem is not None:
        raise FormatError(
            f"{folder.path / WEIGHTS}: these are not the weights that {CONFIG} describes: {problem}; {COPY_AGAIN}"
        )
    model = build()
    _load_weights(model, folder, config)
    return model


def _load_weights(model: nn.Module, folder: OpenFolder, config: dict[str, Any]) -> None:
    """Load the folder's weights into ``model`` by name.

    Raises:
        FormatError: the weights are damaged, not the ones that ``config`` was written with, or of another network.
    """
    import torch

    parameters = dict(model.named_parameters())
    tensors = _read_weights(folder, config.get("weights"), parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if tensors[name].data_ptr() != parameter.data_ptr():
                parameter.copy_(tensors[name])


def _read_weights(folder: OpenFolder, digest: object, into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load the tensors of a model folder; rounded ones become float32.

    Args:
        folder: the folder.
        digest: their SHA-256 in config.json; None (in a folder that was made by hand) disables the check.
        into: as for `read_tensors`.

    Raises:
        FormatError: the file is damaged or has another SHA-256.
    """
    path, tensors = folder.path / WEIGHTS, read_tensors(folder, WEIGHTS, into)
    actual = folder.digest(WEIGHTS)
    if digest is not None and actual != digest:
        raise FormatError(
            f"{path}: not the weights that {CONFIG} was written with, or damaged (their SHA-256 is {actual[:12]}..., "
            f"it says {str(digest)[:12]}...); {COPY_AGAIN}"
        )
    try:
        return dequantize_tensors(tensors)
    except ValueError as error:
        raise FormatError(f"{path}: damaged: {error}; {COPY_AGAIN}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        FormatError: the file cannot be read or holds no JSON object.
    """
    return parse_json(read_file(path, MOST_JSON), path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object, indented for people."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def round_matrix(matrix: Float[Tensor, "out in"], precision: Rounding) -> Float[Tensor, "out in"]:
    """A matrix after rounding, in float32."""
    if precision == "bfloat16":
        return matrix.bfloat16().float()
    return _dequantize(*_quantize(matrix))


def quantize_tensors(tensors: Mapping[str, Tensor], names: Collection[str], precision: Rounding) -> dict[str, Tensor]:
    """The tensors of a file, with the matrices in ``names`` rounded."""
    quantized: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names:
            quantized[name] = tensor.detach()
        elif precision == "bfloat16":
            quantized[name] = tensor.detach().bfloat16()
        else:
            quantized[name], quantized[name + LARGEST] = _quantize(tensor.detach())
    return quantized


def dequantize_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `quantize_tensors`: all tensors in float32.

    Raises:
        ValueError: a tensor is not as `quantize_tensors` writes it; the message names it.
    """
    import torch

    dequantized: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(LARGEST) and name.removesuffix(LARGEST) in tensors:
            continue
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.dtype == torch.int8:
            largest = tensors.get(name + LARGEST)
            fits = largest is not None and largest.dtype == torch.float32 and largest.shape == tensor.shape[:1]
            if largest is None or not fits or tensor.dim() != 2:
                rows = tensor.shape[:1].numel()
                raise ValueError(f"{name} has bytes, but not a largest number for each of its {rows} rows")
            tensor = _dequantize(tensor, largest)
        dequantized[name] = tensor
    return dequantized


def _quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """As `to_steps`, on the CPU."""
    import torch

    steps, largest = to_steps(matrix.detach().cpu().numpy())
    return torch.from_numpy(steps), torch.from_numpy(largest)


def _dequantize(steps: Tensor, largest: Tensor) -> Tensor:
    """As `from_steps`, on the CPU."""
    import torch

    return torch.from_numpy(from_steps(steps.numpy(), largest.numpy()))


def to_steps(matrix: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """q [out, in] as int8 and m [out]."""
    largest = np.abs(matrix).max(axis=1)
    largest = np.where(largest < 1e-30, largest.dtype.type(0), largest)  # 127 / m would overflow
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(largest > 0, largest.dtype.type(127) / largest, largest.dtype.type(0))
        return np.rint(matrix * scale[:, None]).astype(np.int8), largest


def from_steps(steps: npt.NDArray[Any], largest: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """q m / 127; entries of magnitude 127 become exactly m, so that quantizing again finds the same m."""
    values = steps.astype(np.float32) * (largest / largest.dtype.type(127))[:, None]
    extremes = np.sign(steps).astype(np.float32) * largest[:, None]
    return np.asarray(np.where(np.abs(steps) == 127, extremes, values))
