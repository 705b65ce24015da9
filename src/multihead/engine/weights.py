"""The compiled search: its C++ sources and the signatures of its functions; `multihead.kernels.native` builds it.

`decoding.cpp` holds the search (queue, threads, hypotheses) and `network.h` what a step computes; `products.h`,
`packing.h` and `tiles.h` multiply matrices in each precision. `multihead.engine.search` calls them.

What the compiled search takes of a Transformer: sizes, and tensors in a fixed order; or why it cannot have them.

The order is that in which ``decoding_model`` of kernels/native/decoding.cpp reads them. What is computed with them is
`models.transformer`'s, on which nothing here depends but the names of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from multihead.attention import MultiHeadAttention
from multihead.kernels.native import Announce, Library, Native, load_library
from multihead.model_folder import round_matrix
from multihead.models.layers import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    Residual,
    sinusoid,
)
from multihead.models.network import Network
from multihead.models.transformer import Transformer

_FILES = ("decoding.cpp", "network.h", "products.h", "packing.h", "tiles.h")
_SIGNATURES = {
    "decoding_model": "ppp:p",
    "decoding_model_free": "p",
    "decoding_positions": "pplpl",
    "decoding_shortlist": "pplpp:p",
    "decoding_shortlist_free": "p",
    "decoding_search": "ppdplplp:p",
    "decoding_search_free": "p",
    "decoding_add": "plplll",
    "decoding_drop": "pl:l",
    "decoding_leading": "plp:l",
    "decoding_run": "pd:l",
    "decoding_seconds": "pp",
    "decoding_matrix_unit": "l:l",
    "decoding_next": "pp:l",
    "decoding_take": "pppppp",
}
_BRIEF = {"add", "drop", "leading", "next", "positions", "seconds", "take"}

DECODING = Library(
    "decoding",
    tuple(Path(__file__).with_name("native") / file for file in _FILES),
    _SIGNATURES,
    frozenset(f"decoding_{name}" for name in _BRIEF),
)


def decoding(announce: Announce | None = None) -> Native:
    """The compiled search, or why there is none.

    Args:
        announce: told in one line before a build begins, which takes some seconds.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and it cannot be built.
    """
    return load_library(DECODING, announce)


Precision = Literal["float32", "bfloat16", "int8"]
"""Of the matrix products: of their weights, which are rounded once (`multihead.model_folder`), and of what they are
multiplied by. The vectors of symbols are rounded as weights are."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_ACTIVATIONS = ("relu", "gelu", "reglu", "geglu", "swiglu")


class Parts(NamedTuple):
    """A model as numbers."""

    sizes: list[int]
    scales: list[float]
    tensors: list[Tensor | None]
    """Contiguous float32; None where the model has no bias."""


def refusal(model: Network) -> str | None:
    """Why the compiled search cannot be had for a model; None if it can."""
    if type(model) is not Transformer:
        return f"a {type(model).__name__} is not compiled, only a Transformer is"
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
        return "the weights are not float32 on a CPU"
    if _watched(model):
        return "hooks watch its modules, which compiled code would not call"
    if _kinds(model) != _kinds(_skeleton(model)):
        return "modules in it are not a Transformer's own"
    if not all(_finite(p) for p in model.parameters()):
        return "a weight is not a finite number"
    return None


def version(model: Network) -> tuple[bool, tuple[tuple[int, int], ...]]:
    """Changes with every change in place of a weight, when one is replaced, and when somebody begins to watch.

    Of weights that were made in PyTorch's inference mode nobody counts the changes in place.
    """
    return _watched(model), tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())


def parts_of(model: Transformer, precision: Precision) -> Parts:
    """The numbers, without a copy of what lies in memory as it is needed."""
    config, attention = model.config, next(_attentions(model))
    final, embedded = config.has_final_norm, config.embedding_norm
    sizes = [
        PRECISIONS.index(precision),
        config.width,
        attention.heads,
        attention.kv_heads,
        attention.key_width // attention.heads,
        attention.value_width // attention.heads,
        config.inner,
        config.encoder_layers,
        config.decoder_layers,
        config.source_vocab,
        config.target_vocab,
        _ACTIVATIONS.index(config.feed_forward),
        int(config.norm == "pre"),
        int(final),
        int(embedded),
    ]
    tensors: list[Tensor | None] = []
    for embedding in (model.source_embedding, model.target_embedding):
        table = embedding.table.weight.detach()
        table = table if precision == "float32" else round_matrix(table, precision)
        tensors += [table, *(_norm(embedding.norm) if embedded else ())]
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        tensors += [*_own(layer.self_residual, layer.self_attention)]
        tensors += [*_feed_forward(layer.feed_forward_residual, layer.feed_forward)]
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        tensors += [*_own(layer.self_residual, layer.self_attention)]
        tensors += [*_cross(layer.cross_residual, layer.cross_attention)]
        tensors += [*_feed_forward(layer.feed_forward_residual, layer.feed_forward)]
    if final:
        tensors += [*_norm(model.encoder_norm), *_norm(model.decoder_norm)]
    tensors += [model.output.weight, None]
    held = [None if tensor is None else tensor.detach().contiguous() for tensor in tensors]
    return Parts(sizes, [model.source_embedding.scale, model.output_scale, config.norm_eps], held)


def positions_of(embedding: Embedding, length: int) -> Tensor:
    """The vectors of positions, ``length`` of them or, where they are learned, all there are."""
    if isinstance(embedding.positions, LearnedPositions):
        return embedding.positions.table.weight.detach().contiguous()
    return sinusoid(torch.arange(length), embedding.positions.width)


def _own(residual: Residual, attention: MultiHeadAttention) -> Iterator[Tensor | None]:
    assert attention.in_projection is not None
    yield from _norm(residual.norm)
    yield from (attention.in_projection.weight, attention.in_projection.bias)
    yield from _linear(attention.output_projection)


def _cross(residual: Residual, attention: MultiHeadAttention) -> Iterator[Tensor | None]:
    packed = attention.in_projection
    assert packed is not None
    yield from _norm(residual.norm)
    for rows in (slice(0, packed.starts[1]), slice(packed.starts[1], None)):
        yield from (packed.weight[rows], None if packed.bias is None else packed.bias[rows])
    yield from _linear(attention.output_projection)


def _feed_forward(residual: Residual, network: FeedForward) -> Iterator[Tensor | None]:
    yield from _norm(residual.norm)
    yield from _linear(network.expand)
    if isinstance(network, GatedFeedForward):
        yield from _linear(network.gate)
    yield from _linear(network.contract)


def _norm(norm: nn.Module) -> Iterator[Tensor | None]:
    assert isinstance(norm, nn.LayerNorm)
    yield from (norm.weight, norm.bias)


def _linear(linear: nn.Linear) -> Iterator[Tensor | None]:
    yield from (linear.weight, linear.bias)


def _attentions(model: Transformer) -> Iterator[MultiHeadAttention]:
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            yield module


def _finite(x: Tensor) -> bool:
    """By the extremes, which are NaN where anything is: a pass over memory and no copy."""
    return all(bool(extreme.isfinite()) for extreme in x.detach().aminmax())


def _watched(model: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _skeleton(model: Transformer) -> Transformer:
    """A model of the same settings without numbers."""
    with torch.device("meta"):
        return Transformer(model.config)


def _kinds(model: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in model.named_modules()]
