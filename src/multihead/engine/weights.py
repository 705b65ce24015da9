"""What the compiled search needs: its C++ library and a model's weights.

`native/decoding.cpp` holds the search (queue, threads, hypotheses), `network.h` computes a step and `next_symbols.h`
the best symbols; `products.h`, `operands.h` and `tiles.h` multiply matrices in each precision.
`multihead.kernels.native` builds them, and `multihead.engine.search` calls them.

The weights are passed as sizes and a list of tensors, in the order in which ``decoding_model`` of decoding.cpp reads
them. Only the names of a Transformer's parts are used here; `models.transformer` defines what is computed with them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from multihead.attention import MultiHeadAttention, RelativeBias
from multihead.decoding.shortlist import Shortlist
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError
from multihead.kernels.native import Announce, Library, Native, load_library, pointer
from multihead.model_folder import round_matrix, without_values
from multihead.models.layers import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    LinearPositions,
    Residual,
    RMSNorm,
    sinusoid,
)
from multihead.models.network import Network
from multihead.models.stack_config import GATED, Activation
from multihead.models.transformer import Transformer

_FILES = ("decoding.cpp", "next_symbols.h", "network.h", "products.h", "operands.h", "tiles.h")
_SIGNATURES = {
    "decoding_model": "ppp:p",
    "decoding_model_free": "p",
    "decoding_positions": "plplpl:l",
    "decoding_shortlist": "pplpp:p",
    "decoding_shortlist_free": "p",
    "decoding_search": "ppppdplplpl:p",
    "decoding_search_free": "p",
    "decoding_add": "plplll:l",
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


def load_search_library(announce: Announce | None = None) -> Native:
    """The compiled search, or the reason why there is none.

    Args:
        announce: called with a line of text before a build, which takes some seconds.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and it cannot be built.
    """
    return load_library(DECODING, announce)


Precision = Literal["float32", "bfloat16", "int8"]
"""Precision of the matrix products: of their weights, which are rounded once (`multihead.model_folder`), and of their
inputs. Embeddings are rounded like weights."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_ACTIVATIONS = get_args(Activation)
"""In the order of network.h."""


class ModelWeights(NamedTuple):
    """A model as decoding.cpp takes it."""

    sizes: list[int]
    """The fields of ``Sizes`` in network.h."""
    scales: list[float]
    tensors: list[Tensor | None]
    """Contiguous float32; None for a missing bias."""


def why_not(model: Network) -> str | None:
    """Why compiled code cannot search a model here; None if it can."""
    return _unsupported(model) or (None if load_search_library().library is not None else load_search_library().reason)


def _unsupported(model: Network) -> str | None:
    if type(model) is not Transformer:
        return f"a {type(model).__name__} is not compiled, only a Transformer is"
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
        return "the weights are not float32 on a CPU"
    if has_hooks(model):
        return "hooks watch its modules, which compiled code would not call"
    skeleton = without_values(lambda: Transformer(model.config))
    if _module_types(model) != _module_types(skeleton):
        return "modules in it are not a Transformer's own"
    expected = {name: weight.shape for name, weight in _named(skeleton)}
    found = {name: weight.shape for name, weight in _named(model)}
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            shape, settings = (list(shapes.get(name, ())) or "no weight" for shapes in (found, expected))
            return f"{name} is {shape}, and the model's settings say {settings}"
    if not all(_finite(p) for p in model.parameters()):
        return "a weight is not a finite number"
    return None


def weights_version(model: Network) -> tuple[bool, tuple[tuple[int, int], ...]]:
    """Differs after a weight was changed in place or replaced, and after a hook was added.

    PyTorch does not count in-place changes of weights that were made in inference mode.
    """
    return has_hooks(model), tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())


def model_weights(model: Transformer, precision: Precision) -> ModelWeights:
    """The weights of a model; contiguous tensors are not copied.

    Raises:
        ShapeError: a weight has not the shape that follows from the sizes.
    """
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
        int(config.norm_kind == "rms"),
        config.reach if config.positions == "relative" else 0,
        int(not config.source_end),
        int(config.positions == "rotary"),
        int(config.positions == "alibi"),
        ("none", "layer", "rms").index(config.query_key_norm),
        config.encoder_window or 0,
        int(config.block == "parallel"),
        config.reach if config.positions == "shaw" else 0,
    ]
    shapes, gated = _Shapes(*sizes[1:7]), config.feed_forward in GATED
    parallel = config.block == "parallel"  # a layer has one norm
    tensors: list[Tensor | None] = []
    for embedding, vocabulary in zip((model.source_embedding, model.target_embedding), sizes[9:11], strict=True):
        table = _checked(embedding.table.weight, vocabulary, config.width)
        table = table if precision == "float32" else round_matrix(table, precision)
        tensors += [table, *(shapes.norm(embedding.norm) if embedded else ())]
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        tensors += [*shapes.self_attention(layer.self_residual, layer.self_attention)]
        residual = None if parallel else layer.feed_forward_residual
        tensors += [*shapes.feed_forward(residual, layer.feed_forward, gated)]
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        tensors += [*shapes.self_attention(layer.self_residual, layer.self_attention)]
        tensors += [*shapes.cross_attention(None if parallel else layer.cross_residual, layer.cross_attention)]
        residual = None if parallel else layer.feed_forward_residual
        tensors += [*shapes.feed_forward(residual, layer.feed_forward, gated)]
    if (len(model.encoder), len(model.decoder)) != (config.encoder_layers, config.decoder_layers):
        raise ShapeError(f"got {len(model.encoder)} and {len(model.decoder)} layers, and the settings say otherwise")
    if final:
        tensors += [*shapes.norm(model.encoder_norm), *shapes.norm(model.decoder_norm)]
    tensors += [*_linear(model.output, config.target_vocab, config.width), *_biases(model)]
    return ModelWeights(sizes, [model.source_embedding.scale, model.output_scale, config.norm_eps], tensors)


def _biases(model: Transformer) -> Iterator[Tensor]:
    """Relative biases by distance: of the encoder [heads, 2 reach + 1], of the decoder [reach + 1, heads].

    If positions are linear, their slopes [heads] instead, which encoder and decoder share.
    """
    encoder, decoder, config = model.encoder_positions, model.decoder_positions, model.config
    if isinstance(decoder, LinearPositions):
        yield _checked(decoder.slopes, config.heads)
    if isinstance(encoder, RelativeBias) and isinstance(decoder, RelativeBias):
        heads, reach = config.heads, config.reach
        tables = [_checked(side.table, config.relative_buckets, heads) for side in (encoder, decoder)]
        distances = torch.arange(-reach, reach + 1)
        yield _checked(tables[0][encoder.bucket(distances)].t(), heads, 2 * reach + 1)
        yield _checked(tables[1][decoder.bucket(distances[: reach + 1])], reach + 1, heads)


def position_table(model: Transformer, embedding: Embedding, length: int) -> Tensor:
    """Position vectors [positions, width]: ``length`` of them, all learned ones, or one of zeros if there are none.

    If positions are rotary, the turns of a head instead [positions, key] (`kernels.pointwise.Turns`).

    Raises:
        ShapeError: learned ones that are none, or not float32 on the CPU.
    """
    width, places = model.config.width, embedding.positions if model.rotary is None else model.rotary
    if isinstance(places, LearnedPositions):
        table = places.table.weight
        return _checked(table, max(1, len(table)), width)
    if places is None:
        return torch.zeros(1, width)
    return _checked(sinusoid(torch.arange(length), places.width, places.layout), length, places.width)


class PackedModel:
    """A model's weights as the library holds them: prepacked, but the embeddings, which are the model's own.

    Args:
        model: which `why_not` has nothing against.
        precision: of the matrix products.
        shortlist: for the vocabularies of the model.

    Raises:
        ConfigurationError: the shortlist is of another model.
        SurroundingsError: not enough memory.
    """

    def __init__(self, model: Transformer, precision: Precision, shortlist: Shortlist | None) -> None:
        library = load_search_library().library
        assert library is not None
        self.library, self._model = library, model
        weights = model_weights(model, precision)
        self._tables = weights.tensors[0], weights.tensors[3 if model.config.embedding_norm else 1]  # not copied
        self._tables_at = [table.data_ptr() for table in self._tables if table is not None]
        self._positions: tuple[int, Tensor, Tensor] | None = None
        handle: int | None = library.decoding_model(
            integers(weights.sizes),
            (ctypes.c_float * len(weights.scales))(*weights.scales),
            (ctypes.c_void_p * len(weights.tensors))(
                *[
                    None if tensor is None else pointer(tensor, tensor.numel(), torch.float32)
                    for tensor in weights.tensors
                ]
            ),
        )
        self.handle = require_handle(handle, "a second copy of the weights: use decoding.beam")
        self.shortlist_handle: int | None = None
        if shortlist is not None:
            shortlist.check(model.config.source_vocab, model.config.target_vocab)
            always, starts, more = shortlist.arrays
            addresses = always.ctypes.data, len(always), starts.ctypes.data, more.ctypes.data
            self.shortlist_handle = require_handle(library.decoding_shortlist(self.handle, *addresses), "a shortlist")

    def __del__(self) -> None:
        if hasattr(self, "shortlist_handle"):
            self.library.decoding_shortlist_free(self.shortlist_handle)
        if hasattr(self, "handle"):
            self.library.decoding_model_free(self.handle)

    def check_tables(self) -> None:
        """Raise ConfigurationError if the model's embeddings were moved."""
        if self._tables_at != [table.data_ptr() for table in self._tables if table is not None]:
            raise ConfigurationError("the memory of the model's embeddings was released: make another Engine")

    def positions(self, longest: int) -> tuple[Tensor, Tensor]:
        """Position vectors of source and target: at least ``longest`` of each, or all learned ones."""
        held = self._positions
        if held is None or held[0] < longest:
            reach, tables = max(512, 2 * longest), (self._model.source_embedding, self._model.target_embedding)
            one, other = (position_table(self._model, table, reach) for table in tables)
            # One assignment: another thread may replace it by a shorter one meanwhile.
            held = self._positions = reach, one, other
        return held[1:]


def require_handle(handle: int | None, what: str) -> int:
    """What the library made; SurroundingsError if there was not enough memory for it."""
    if handle is None:
        raise SurroundingsError(f"there is not enough memory for {what}")
    return handle


def integers(numbers: Sequence[int]) -> Any:
    """64-bit integers for the library."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


class _Shapes(NamedTuple):
    """The weights of a layer's parts, each checked to have the shape that the compiled code reads."""

    width: int
    heads: int
    kv_heads: int
    key: int
    value: int
    inner: int

    def self_attention(self, residual: Residual, attention: MultiHeadAttention) -> Iterator[Tensor | None]:
        packed = attention.in_projection
        assert packed is not None
        yield from self.norm(residual.norm)
        rows = self.heads * self.key + self.kv_heads * (self.key + self.value)
        yield _checked(packed.weight, rows, self.width)
        yield None if packed.bias is None else _checked(packed.bias, rows)
        yield from self.head_norms(attention)
        places = attention.relative_positions
        if places is not None:
            count = (1 if places.causal else 2) * places.distance + 1
            yield _checked(places.keys, count, self.key)
            yield _checked(places.values, count, self.value)
        yield from _linear(attention.output_projection, self.width, self.heads * self.value)

    def cross_attention(self, residual: Residual | None, attention: MultiHeadAttention) -> Iterator[Tensor | None]:
        packed = attention.in_projection
        assert packed is not None
        yield from () if residual is None else self.norm(residual.norm)
        queries, rest = self.heads * self.key, self.kv_heads * (self.key + self.value)
        for rows, count in ((slice(0, queries), queries), (slice(queries, None), rest)):
            yield _checked(packed.weight[rows], count, self.width)
            yield None if packed.bias is None else _checked(packed.bias[rows], count)
        yield from self.head_norms(attention)
        yield from _linear(attention.output_projection, self.width, self.heads * self.value)

    def head_norms(self, attention: MultiHeadAttention) -> Iterator[Tensor]:
        for norm in (attention.query_norm, attention.key_norm):
            if norm is not None:
                yield _checked(norm.weight, self.key)

    def feed_forward(self, residual: Residual | None, network: FeedForward, gated: bool) -> Iterator[Tensor | None]:
        yield from () if residual is None else self.norm(residual.norm)
        yield from _linear(network.expand, self.inner, self.width)
        if gated:
            assert isinstance(network, GatedFeedForward)
            yield from _linear(network.gate, self.inner, self.width)
        yield from _linear(network.contract, self.width, self.inner)

    def norm(self, norm: nn.Module) -> Iterator[Tensor | None]:
        assert isinstance(norm, (nn.LayerNorm, RMSNorm))
        yield _checked(norm.weight, self.width)
        yield _checked(norm.bias, self.width) if isinstance(norm, nn.LayerNorm) else None


def _linear(linear: nn.Module, outputs: int, inputs: int) -> Iterator[Tensor | None]:
    assert isinstance(linear, nn.Linear)
    yield _checked(linear.weight, outputs, inputs)
    yield None if linear.bias is None else _checked(linear.bias, outputs)


def _checked(weight: Tensor, *shape: int) -> Tensor:
    """A weight as contiguous float32 numbers on the CPU.

    Raises:
        ShapeError: it has another shape or type, or is elsewhere.
    """
    if tuple(weight.shape) != shape or weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise ShapeError(
            f"the compiled search expected a float32 weight {list(shape)} on the CPU, got {weight.dtype} "
            f"{list(weight.shape)} on {weight.device}"
        )
    return weight.detach().resolve_neg().contiguous()


def _attentions(model: Transformer) -> Iterator[MultiHeadAttention]:
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            yield module


def _finite(x: Tensor) -> bool:
    """Whether all elements are finite. Minimum and maximum are NaN if any element is; this needs no copy."""
    return all(bool(extreme.isfinite()) for extreme in x.detach().aminmax())


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights by name; a shared one under each of its names."""
    return model.named_parameters(remove_duplicate=False)


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks watch a module, which neither compiled code nor a graph would call."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _module_types(model: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in model.named_modules()]
