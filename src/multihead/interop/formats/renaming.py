"""Weights of another program under our names, by a table of modules.

A format names, for each of our modules, the module or modules of the other program whose rows are put below each
other: one for a norm, three for the projections to queries, keys and values. What else programs do differently is here,
too: a missing bias is a bias of zeros, a shared matrix may be stored once or twice, and a decoder whose feed-forward
network is narrower than the encoder's is filled with units of zeros, which change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from multihead.errors import FormatError
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.skeletons import parameter_shapes

Table = Mapping[str, tuple[str, ...]]
"""Our module, and the modules of the other program that are its rows from the first to the last."""


def count_layers(names: Mapping[str, Tensor], prefix: str) -> int:
    """The number of layers whose weights are named ``PREFIX.NUMBER.``."""
    found = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in names)
    return 1 + max((int(match.group(1)) for match in found if match), default=-1)


def check_layers(config: TransformerConfig, weights: Collection[str], path: Path) -> None:
    """Check the number of layers against the weights, before a network with so many is described.

    Raises:
        FormatError: there are fewer weights than layers.
    """
    layers = config.encoder_layers + config.decoder_layers
    if layers > len(weights):
        raise FormatError(f"{path}: describes {layers:,} layers, but there are {len(weights):,} weights")


def take(weights: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    """One matrix of another program.

    Raises:
        FormatError: it is missing, or no matrix.
    """
    found = weights.get(name)
    if found is None or found.dim() != 2:
        shown = "no such weight" if found is None else f"a tensor of shape {list(found.shape)}"
        raise FormatError(f"{path}: expected a matrix '{name}', found {shown}; this is not a model of this kind")
    return found


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether a matrix is stored once, or twice with the same values."""
    return one is None or (other is not None and one.shape == other.shape and torch.equal(one, other))


def rename(weights: Mapping[str, Tensor], table: Table, ignored: str, path: Path) -> dict[str, Tensor]:
    """The weights under our names.

    Args:
        weights: by the names of the other program.
        table: what each of our modules is made of.
        ignored: expression for names that hold no parameters of ours, such as tables of sinusoids.
        path: the file, for messages.

    Raises:
        FormatError: a weight is missing or has an impossible shape, or the file has one that this kind of model lacks.
    """
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, theirs in table.items():
        names = [f"{name}.weight" for name in theirs]
        missing = [name for name in names if name not in weights]
        if missing:
            raise FormatError(f"{path}: the weight '{missing[0]}' is missing; copy the whole folder of the model again")
        found[f"{ours}.weight"] = _joined([weights[name] for name in names], names[0], path)
        biases = [f"{name}.bias" for name in theirs]
        if any(name in weights for name in biases):
            parts = [
                weights.get(bias, weights[name].new_zeros(len(weights[name])))
                for name, bias in zip(names, biases, strict=True)
            ]
            found[f"{ours}.bias"] = _joined(parts, biases[0], path)
        used.update(names, biases)
    surplus = sorted(name for name in weights.keys() - used if not re.search(ignored, name))
    if surplus:
        raise FormatError(
            f"{path}: has the weight '{surplus[0]}', and a Transformer of this kind has none of that name: the model "
            "is of a variant that multihead does not read"
        )
    return found


def fit(weights: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """The weights as `TranslatorParts` has them: shared ones once, missing biases and units as zeros."""
    found = dict(weights)
    if config.tie_embeddings:
        found.pop("target_embedding.table.weight", None)
    if config.tie_output:
        found.pop("output.weight", None)
    for name, shape in parameter_shapes(lambda: Transformer(config)).items():
        if name not in found and name.endswith(".bias"):
            found[name] = torch.zeros(shape)
        elif ".feed_forward." in name and not name.endswith("contract.bias") and name in found:
            found[name] = _widened(found[name], axis=1 if name.endswith("contract.weight") else 0, size=config.inner)
    return found


def _joined(parts: list[Tensor], name: str, path: Path) -> Tensor:
    try:
        return torch.cat(parts) if len(parts) > 1 else parts[0]
    except RuntimeError:
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise FormatError(f"{path}: '{name}' and its neighbors have shapes that do not go together: {shapes}") from None


def _widened(tensor: Tensor, axis: int, size: int) -> Tensor:
    """The tensor with zeros at the end of an axis."""
    missing = size - tensor.shape[axis]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat((tensor, tensor.new_zeros(shape)), dim=axis)
