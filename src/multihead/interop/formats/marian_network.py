"""The network of Marian's own models: its settings and its weights.

The names of arrays and what the network computes are those of Marian's ``transformer.h``. It is a post-norm (operations
``dan`` after each sub-layer) or pre-norm (``n`` before, ``da`` after) Transformer. Embeddings are scaled by sqrt(D),
positions are `models.layers.sinusoid`'s "marian", and the epsilon of layer norms is 1e-6. Matrices are applied from the
right: they are transposed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats.renaming import check_layers
from multihead.model_folder import COPY_AGAIN, parse_settings
from multihead.models.config import TransformerConfig

Arrays = dict[str, NDArray[Any]]

_NORM_EPS = 1e-6
_NEVER = -100.0
"""Bias of padding in the output, where Marian has no entry: its probability is below the precision of float32."""

_FIXED: dict[str, tuple[str, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-ffn-activation": ("relu", "swish", "gelu"),
    "transformer-no-projection": ("false",),
    "transformer-pool": ("false",),
    "transformer-no-bias": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-attention-mask": ("default",),
    "right-left": ("false",),
    "ulr": ("false",),
    "lemma-dim-emb": ("0",),
    "bert-train-type-embeddings": ("false", "true"),
}
"""Options that decide what is computed, with the supported values."""

_ATTENTION = {"self_attention": "self", "cross_attention": "context"}


def read_network(arrays: Arrays, options: Mapping[str, Any], path: Path) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The settings and the weights of a network, with one entry more in its vocabularies: padding.

    Args:
        arrays: by Marian's names.
        options: Marian's options of the model, all values as text.
        path: for messages.

    Raises:
        FormatError: an option is none that multihead has; an array is missing, unknown or of another type.
    """
    _refuse(options, path)
    rest = _Arrays(arrays, path)
    shared = "Wemb" in arrays
    tables = [rest.take("Wemb")] * 2 if shared else [rest.take(f"{side}_Wemb") for side in ("encoder", "decoder")]
    size = max(map(len, tables)) + 1
    config = _settings(options, arrays, size, tables[0].shape[1], path)
    weights = {"source_embedding.table.weight": _grown(tables[0], size)}
    if not shared:
        weights["target_embedding.table.weight"] = _grown(tables[1], size)
    if not config.tie_output:
        weights["output.weight"] = _grown(rest.output(), size)
    weights["output.bias"] = _bias(rest, size, len(tables[1]))
    if config.positions == "learned":
        for side in ("source", "target"):
            weights[f"{side}_embedding.positions.table.weight"] = rest.take("Wpos")
    stacks = (("encoder", "source", config.encoder_layers), ("decoder", "target", config.decoder_layers))
    for stack, side, layers in stacks:
        if config.embedding_norm:
            weights |= rest.norm(f"{side}_embedding.norm", f"{stack}_emb", "_pre")
        if config.has_final_norm:
            weights |= rest.norm(f"{stack}_norm", f"{stack}_top", "")
        for i in range(layers):
            weights |= _layer(rest, f"{stack}.{i}", f"{stack}_l{i + 1}", config)
    rest.finish()
    return config, weights


def _layer(rest: _Arrays, ours: str, theirs: str, config: TransformerConfig) -> dict[str, Tensor]:
    """The weights of a layer."""
    suffix = "_pre" if config.norm == "pre" else ""
    found: dict[str, Tensor] = {}
    for kind, name in _ATTENTION.items():
        if kind == "cross_attention" and ours.startswith("encoder"):
            continue
        prefix = f"{theirs}_{name}"
        found[f"{ours}.{kind}.in_projection.weight"] = torch.cat([rest.take(f"{prefix}_W{part}").T for part in "qkv"])
        found[f"{ours}.{kind}.in_projection.bias"] = torch.cat([rest.row(f"{prefix}_b{part}") for part in "qkv"])
        found[f"{ours}.{kind}.output_projection.weight"] = rest.take(f"{prefix}_Wo").T
        found[f"{ours}.{kind}.output_projection.bias"] = rest.row(f"{prefix}_bo")
        found |= rest.norm(f"{ours}.{kind.removesuffix('attention')}residual.norm", f"{prefix}_Wo", suffix)
    for module, number in (("expand", 1), ("contract", 2)):
        found[f"{ours}.feed_forward.{module}.weight"] = rest.take(f"{theirs}_ffn_W{number}").T
        found[f"{ours}.feed_forward.{module}.bias"] = rest.row(f"{theirs}_ffn_b{number}")
    return found | rest.norm(f"{ours}.feed_forward_residual.norm", f"{theirs}_ffn_ffn", suffix)


class _Arrays:
    """The arrays of a model, of which all must be taken."""

    def __init__(self, arrays: Arrays, path: Path) -> None:
        self._arrays, self._path = arrays, path
        self._taken: set[str] = set()

    def take(self, name: str) -> Tensor:
        """An array as a float32 tensor."""
        array = self._arrays.get(name)
        if array is None:
            raise FormatError(f"{self._path}: has no {name}; {COPY_AGAIN}")
        if array.dtype.kind != "f" or array.ndim != 2:
            raise FormatError(
                f"{self._path}: {name} is of the type {array.dtype} with {array.ndim} axes; expected a float matrix: "
                "multihead does not read quantized models of Marian"
            )
        self._taken.add(name)
        return torch.from_numpy(array.astype(np.float32))

    def row(self, name: str) -> Tensor:
        """A vector, which Marian stores as a matrix of one row."""
        return self.take(name).flatten()

    def norm(self, ours: str, theirs: str, suffix: str) -> dict[str, Tensor]:
        """Gain and shift of a layer norm."""
        scale, shift = self.row(f"{theirs}_ln_scale{suffix}"), self.row(f"{theirs}_ln_bias{suffix}")
        return {f"{ours}.weight": scale, f"{ours}.bias": shift}

    def output(self) -> Tensor:
        """The output projection, a row for each entry; old models have it transposed."""
        name = "decoder_ff_logit_out_W"
        return self.take(name).T if name in self._arrays else self.take(f"{name}t")

    def output_bias(self) -> Tensor | None:
        """The bias of the output, if the model has one."""
        name = "decoder_ff_logit_out_b"
        return self.row(name) if name in self._arrays else None

    def finish(self) -> None:
        """Check that every array was taken."""
        rest = sorted(name for name in self._arrays if name not in self._taken and not name.startswith("special:"))
        if rest:
            raise FormatError(
                f"{self._path}: has {len(rest)} arrays that such a model does not have, among them {rest[:3]}: the "
                "model has parts that multihead does not know"
            )


def _refuse(options: Mapping[str, Any], path: Path) -> None:
    """Refuse options with unsupported values, by name."""
    for name, allowed in _FIXED.items():
        value = options.get(name, allowed[0])
        if value not in allowed:
            raise FormatError(f"{path}: {name} is {value!r}; multihead reads models with {' or '.join(allowed)}")
    if options.get("transformer-tied-layers"):
        raise FormatError(f"{path}: transformer-tied-layers is set; multihead has no layers that share weights")
    widths = options.get("transformer-decoder-dim-ffn", "0"), options.get("transformer-dim-ffn")
    if widths[0] not in ("0", widths[1]):
        raise FormatError(
            f"{path}: transformer-decoder-dim-ffn is {widths[0]} and transformer-dim-ffn {widths[1]}; multihead reads "
            "models where they are equal"
        )


def _settings(
    options: Mapping[str, Any], arrays: Mapping[str, Any], size: int, width: int, path: Path
) -> TransformerConfig:
    """The settings of the network."""
    learned = "Wpos" in arrays
    tied_all = options.get("tied-embeddings-all") == "true"
    before, after = (_operations(options, f"transformer-{kind}process", path) for kind in ("pre", "post"))
    if (before, after) not in (("", "an"), ("n", "a")):
        raise FormatError(
            f"{path}: transformer-preprocess is {options.get('transformer-preprocess')!r} and transformer-postprocess "
            f"{options.get('transformer-postprocess')!r}; multihead reads '' with 'dan', and 'n' with 'da'"
        )
    ends = {}
    for kind in ("emb", "top"):
        name = f"transformer-postprocess-{kind}"
        ends[kind] = _operations(options, name, path)
        if ends[kind] not in ("", "n"):
            raise FormatError(f"{path}: {name} is {options.get(name)!r}; multihead reads 'd' and 'n'")
    activation = options.get("transformer-ffn-activation", "swish")
    values = {
        "source_vocab": size,
        "target_vocab": size,
        "padding_id": size - 1,
        "width": width,
        "heads": options.get("transformer-heads"),
        "inner": options.get("transformer-dim-ffn"),
        "feed_forward": {"swish": "silu"}.get(activation, activation),
        "encoder_layers": options.get("enc-depth"),
        "decoder_layers": options.get("dec-depth"),
        "positions": "learned" if learned else "sinusoidal",
        "sinusoid": "marian",
        "max_positions": len(arrays["Wpos"]) if learned else 512,
        "embedding_scale": "none" if learned else "embedding",
        "embedding_norm": ends["emb"] == "n",
        "norm": "pre" if before == "n" else "post",
        "final_norm": ends["top"] == "n",
        "norm_eps": _NORM_EPS,
        "tie_embeddings": "Wemb" in arrays,
        "tie_output": tied_all or options.get("tied-embeddings") == "true",
        "output_bias": True,
    }
    try:
        numbers = {name: int(values[name]) for name in ("heads", "inner", "encoder_layers", "decoder_layers")}
    except (TypeError, ValueError):
        raise FormatError(f"{path}: the settings of the network are incomplete; {COPY_AGAIN}") from None
    settings = parse_settings(TransformerConfig, {**values, **numbers}, path)
    check_layers(settings, arrays, path)
    return settings


def _operations(options: Mapping[str, Any], name: str, path: Path) -> str:
    """The operations of an option, without dropout; Marian's default where it is missing."""
    defaults = {"transformer-postprocess": "dan", "transformer-postprocess-emb": "d"}
    value = options.get(name, defaults.get(name, ""))
    if not isinstance(value, str):
        raise FormatError(f"{path}: {name} is {value!r}; expected operations such as 'dan'")
    return value.replace("d", "")


def _grown(matrix: Tensor, size: int) -> Tensor:
    """The matrix with rows of zeros up to ``size``."""
    return torch.cat([matrix, matrix.new_zeros(size - len(matrix), matrix.shape[1])])


def _bias(rest: _Arrays, size: int, entries: int) -> Tensor:
    """The bias of the output, in which the rows that Marian does not have are never chosen."""
    bias = torch.full((size,), _NEVER)
    own = rest.output_bias()
    bias[:entries] = 0.0 if own is None else own
    return bias
