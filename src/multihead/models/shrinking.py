"""Sizes of a smaller Transformer, and one with parts of a trained one.

The latter keeps some of the layers, evenly spaced from the first on (Shleifer and Rush 2020, "Pre-trained summarization
distillation"), and in the feed-forward network of each the units that contribute most. Width, heads and vocabularies
stay. What is left translates badly before it is trained again, with the whole models as its teachers; ``multihead
shrink`` writes it as a model folder. With enough time, a narrower network with more layers learns more from scratch
(docs/lab-notes.md, "The shape of the small model"): `narrow_half_of`, which `runs.best` trains where there is one.
Where time is short, `narrower` ones learn more than networks of the usual size.
"""

from __future__ import annotations

import functools
from math import ceil, lcm
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.skeletons import parameter_shapes

_STEP = 32
"""Widths and feed-forward units are multiples of this, which fill the vectors of every processor."""
_NARROW, _UNITS, _LEAST = 0.75, 0.625, 0.25
"""Width of a narrow network, and the usual and the least number of its feed-forward units, as shares of those of the
whole one."""


@functools.lru_cache(maxsize=1024)
def parameters_of(config: TransformerConfig) -> int:
    """The number of parameters, a shared one counted once."""
    return sum(shape.numel() for shape in parameter_shapes(lambda: Transformer(config)).values())


def half_of(config: TransformerConfig) -> TransformerConfig:
    """The sizes of a network with at most half of the parameters.

    A third of the decoder's layers stay, since the decoder runs once a symbol and the encoder once a sentence (Kasai et
    al. 2021, "Deep encoder, shallow decoder"), and as many of the encoder's as leave the feed-forward networks at least
    half of their units.

    Raises:
        ConfigurationError: even one layer a side is more than half, since the embeddings are most of the network.
    """
    most = parameters_of(config) / 2
    decoder = max(config.decoder_layers // 3, 1)
    for encoder, at_least in [*((n, config.inner / 2) for n in range(config.encoder_layers, 0, -1)), (1, _STEP)]:
        layers = {"encoder_layers": encoder, "decoder_layers": decoder}
        fitting = _fitting_units(config, most, layers)
        if fitting >= at_least:
            return _resized(config, **layers, inner=min(fitting, config.inner))
    raise ConfigurationError(
        f"{config.summary}: no network of half its {2 * most:,.0f} parameters has the same width and vocabulary"
    )


def narrow_half_of(config: TransformerConfig) -> TransformerConfig | None:
    """The sizes of a narrower network with at most half of the parameters, to be trained from scratch.

    It has three quarters of the width, all layers of the encoder, two thirds of the decoder's, and as many feed-forward
    units as then fit. ``None`` if that leaves fewer than a quarter of the units, or no width that the heads divide.
    """
    sizes = _narrow_sizes(config)
    if sizes is None:
        return None
    fitting = _fitting_units(config, parameters_of(config) / 2, sizes)
    if fitting < max(_LEAST * config.inner, _STEP):
        return None
    return _resized(config, **sizes, inner=min(fitting, config.inner))


def narrower(config: TransformerConfig) -> TransformerConfig | None:
    """The sizes of a narrower network whose updates take about half of the time, to be trained from scratch.

    It has three quarters of the width, all layers of the encoder, two thirds of the decoder's, and five eighths of the
    feed-forward units. Embeddings may be any part of its parameters, since they cost no time. ``None`` if there is no
    narrower width that the heads divide.
    """
    sizes = _narrow_sizes(config)
    if sizes is None:
        return None
    return _resized(config, **sizes, inner=max(int(_UNITS * config.inner) // _STEP, 1) * _STEP)


def _narrow_sizes(config: TransformerConfig) -> dict[str, int] | None:
    """The width and the layers of the decoder of a narrow network, if there is a width that the heads divide."""
    step = lcm(_STEP, 2 * config.heads)  # heads of even width, for rotary positions
    width = int(_NARROW * config.width) // step * step
    return {"width": width, "decoder_layers": ceil(config.decoder_layers * 2 / 3)} if width else None


def shrunk(
    model: Transformer,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    inner: int | None = None,
) -> Transformer:
    """A network with copies of some layers and feed-forward units of ``model``.

    Of n layers, k are kept at the places round(i (n - 1) / (k - 1)), and a single one is the first. The feed-forward
    unit j adds act(w_j x + b_j) v_j to the states; of all units of a layer those with the largest ||w_j|| ||v_j|| are
    kept, in their order (with a gate u_j: ||w_j|| ||u_j|| ||v_j||).

    Args:
        model: the trained network.
        encoder_layers: number of encoder layers to keep; all if ``None``.
        decoder_layers: number of decoder layers to keep; all if ``None``.
        inner: number of feed-forward units to keep in each layer; all if ``None``.

    Returns:
        The smaller network. One that keeps everything is a copy.

    Raises:
        ConfigurationError: a number is below 1, or larger than that of the model.
    """
    config = model.config
    asked = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers, "inner": inner}
    sizes = {name: getattr(config, name) if value is None else value for name, value in asked.items()}
    for name, value in sizes.items():
        if not 1 <= value <= getattr(config, name):
            raise ConfigurationError(
                f"{name} is {value}: expected a number from 1 to {getattr(config, name)}, which the model has"
            )
    kept_layers = _spaced(config.decoder_layers, sizes["decoder_layers"])
    guided = None  # the layer whose head has learned alignments keeps its part, if it is kept
    if config.alignment_layer is not None and config.alignment_layer - 1 in kept_layers:
        guided = kept_layers.index(config.alignment_layer - 1) + 1
    smaller = Transformer(_resized(config, **sizes).model_copy(update={"alignment_layer": guided}))
    own = {name: tensor.detach() for name, tensor in model.named_parameters()}
    taken: dict[str, Tensor] = {name: own[name] for name, _ in smaller.named_parameters() if not _layer_of(name)}
    for side in ("encoder", "decoder"):
        for place, kept in enumerate(_spaced(getattr(config, f"{side}_layers"), sizes[f"{side}_layers"])):
            start = f"{side}.{kept}."
            layer = {name.removeprefix(start): tensor for name, tensor in own.items() if name.startswith(start)}
            taken |= {f"{side}.{place}.{name}": tensor for name, tensor in _narrowed(layer, sizes["inner"]).items()}
    with torch.no_grad():
        for name, parameter in smaller.named_parameters():
            parameter.copy_(taken[name])
    return smaller.train(model.training)


def _fitting_units(config: TransformerConfig, most: float, sizes: dict[str, int]) -> int:
    """The most feed-forward units with which a network has at most so many parameters; 0 or less if there are none."""
    few, more = (parameters_of(_resized(config, **sizes, inner=inner)) for inner in (_STEP, 2 * _STEP))
    return _STEP * int(1 + (most - few) // (more - few))  # the parameters are linear in the units


def _resized(config: TransformerConfig, **sizes: int) -> TransformerConfig:
    values: dict[str, Any] = {name: getattr(config, name) for name in type(config).model_fields} | sizes
    if config.alignment_layer is not None:
        values["alignment_layer"] = min(config.alignment_layer, values["decoder_layers"])
    return TransformerConfig(**values)


def _layer_of(name: str) -> bool:
    return name.startswith(("encoder.", "decoder."))


def _spaced(count: int, kept: int) -> list[int]:
    """The places of ``kept`` of ``count`` layers."""
    return [round(i * (count - 1) / (kept - 1)) for i in range(kept)] if kept > 1 else [0]


def _narrowed(layer: dict[str, Tensor], inner: int) -> dict[str, Tensor]:
    """The parameters of a layer with so many feed-forward units."""
    expand, contract = layer["feed_forward.expand.weight"], layer["feed_forward.contract.weight"]
    kept = _strongest(expand, contract, layer.get("feed_forward.gate.weight"), inner)
    of_units = {f"feed_forward.{part}.{kind}" for part in ("expand", "gate") for kind in ("weight", "bias")}
    narrowed = {name: tensor[kept] if name in of_units else tensor for name, tensor in layer.items()}
    return {**narrowed, "feed_forward.contract.weight": contract[:, kept]}


def _strongest(
    expand: Float[Tensor, "units width"],
    contract: Float[Tensor, "width units"],
    gate: Float[Tensor, "units width"] | None,
    inner: int,
) -> Int[Tensor, " kept"]:
    """The units that can add most to the states, in their order."""
    strength = expand.norm(dim=1) * contract.norm(dim=0)
    if gate is not None:
        strength = strength * gate.norm(dim=1)
    kept: Tensor = strength.topk(inner).indices.sort().values
    return kept
