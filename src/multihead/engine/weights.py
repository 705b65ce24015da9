"""What the compiled search needs: its C++ library and a model's weights.

`native/decoding.cpp` holds the search (queue, threads, hypotheses), `network.h` computes a step and `next_symbols.h`
the best symbols. The network of `model.h` is made of the attention of `attention.h` and of products: `products.h`,
`operands.h` and `tiles.h` multiply matrices in each precision, with what `vectors.h` has for every processor.
`multihead.kernels.native` builds them, and `multihead.engine.search` calls them.

The weights are passed as sizes and a list of tensors, in the order in which ``decoding_model`` of decoding.cpp reads
them. Only the settings and the names of a Transformer's weights are used here; `models.transformer` defines what is
computed with them. They come from a network (`engine.networks`), or from a model folder without PyTorch
(`engine.stored`), so nothing here imports it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from multihead.errors import ConfigurationError, ShapeError, SurroundingsError
from multihead.kernels.native import Announce, Library, Native, load_library
from multihead.models.config import TransformerConfig
from multihead.models.stack_config import GATED, Activation, Sinusoid

if TYPE_CHECKING:
    from multihead.decoding.shortlist import Shortlist

Weight = Any
"""A tensor of PyTorch, or an array: numbers with an address and rows."""

_FILES = (
    *("decoding.cpp", "datastore.h", "drawing.h", "forcing.h", "next_symbols.h", "network.h", "attention.h", "model.h"),
    *("helper.h", "products.h", "operands.h", "tiles.h", "buffers.h", "functions.h", "vectors.h"),
)
_SIGNATURES = {
    "decoding_model": "ppp:p",
    "decoding_model_free": "p",
    "decoding_positions": "plplpl:l",
    "decoding_shortlist": "pplpp:p",
    "decoding_shortlist_free": "p",
    "decoding_search": "ppppdplplpl:p",
    "decoding_search_free": "p",
    "decoding_draft": "ppldplpl:l",
    "decoding_datastore": "l:p",
    "decoding_datastore_add": "ppppl:l",
    "decoding_datastore_cells": "pppl:l",
    "decoding_datastore_free": "p",
    "decoding_nearest": "ppllllpp:l",
    "decoding_neighbours": "pplldd:l",
    "decoding_force": "pplpllpppppllp:l",
    "decoding_guesses": "pp",
    "decoding_add": "plplll:l",
    "decoding_add_all": "plppppp:l",
    "decoding_sharpen": "pdlddd:l",
    "decoding_add_samples": "plppppppp:l",
    "decoding_drop": "pl:l",
    "decoding_leading": "plp:l",
    "decoding_run": "pd:l",
    "decoding_seconds": "pp",
    "decoding_matrix_unit": "l:l",
    "decoding_large": "l:l",
    "decoding_next": "plp:l",
    "decoding_take": "plppppp",
}
_BRIEF = {
    "add",
    "add_all",
    "add_samples",
    "draft",
    "drop",
    "guesses",
    "leading",
    "next",
    "positions",
    "seconds",
    "take",
}

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
"""In the order of model.h."""


class ModelWeights(NamedTuple):
    """A model as decoding.cpp takes it."""

    sizes: list[int]
    """The fields of ``Sizes`` in model.h."""
    scales: list[float]
    tensors: list[Weight | None]
    """Contiguous float32; None for a missing bias."""
    decoder: int
    """Numbers in the layers of the decoder and the matrix of the output projection."""


@runtime_checkable
class Source(Protocol):
    """Where the weights of a Transformer come from."""

    config: TransformerConfig

    def scales(self) -> tuple[float, float]:
        """What the embeddings of the source, and the states before the output projection, are multiplied by."""

    def weight(self, name: str, *shape: int) -> Weight | None:
        """A weight as contiguous float32 numbers on the CPU; None if there is none of this name.

        Raises:
            ShapeError: it has another shape or type, or is elsewhere.
        """

    def rounded(self, table: Weight, precision: Precision) -> Weight:
        """A matrix after rounding, in float32."""

    def biases(self) -> Sequence[Weight]:
        """Biases by distance of encoder [heads, 2 reach + 1] and decoder [reach + 1, heads].

        If positions are linear, their slopes [heads] alone.
        """

    def taken(self, array: npt.NDArray[np.float32]) -> Weight:
        """A computed array as a weight."""

    def address(self, tensor: Weight) -> int:
        """Where contiguous float32 numbers begin."""


def model_weights(source: Source, precision: Precision) -> ModelWeights:
    """The weights of a model; contiguous tensors are not copied.

    Raises:
        ShapeError: a weight is missing, or has not the shape that follows from the settings.
    """
    config = source.config
    embedded, parallel = config.embedding_norm, config.block == "parallel"  # a layer of parallel blocks has one norm
    sizes = [
        PRECISIONS.index(precision),
        config.width,
        config.heads,
        config.kv_heads or config.heads,
        config.key_width // config.heads,
        config.value_width // config.heads,
        config.inner,
        config.encoder_layers,
        config.decoder_layers,
        config.source_vocab,
        config.target_vocab,
        _ACTIVATIONS.index(config.feed_forward),
        int(config.norm == "pre"),
        int(config.has_final_norm),
        int(embedded),
        int(config.norm_kind == "rms"),
        config.reach if config.positions == "relative" else 0,
        int(not config.source_end),
        int(config.positions == "rotary"),
        int(config.positions == "alibi"),
        ("none", "layer", "rms").index(config.query_key_norm),
        config.encoder_window or 0,
        int(parallel),
        config.reach if config.positions == "shaw" else 0,
    ]
    parts = _Parts(source)
    tensors: list[Weight | None] = []
    for side, vocabulary in (("source", config.source_vocab), ("target", config.target_vocab)):
        table = parts.required(f"{side}_embedding.table.weight", vocabulary, config.width)
        tensors.append(table if precision == "float32" else source.rounded(table, precision))
        tensors += parts.norm(f"{side}_embedding.norm") if embedded else ()
    for number in range(config.encoder_layers):
        layer = f"encoder.{number}"
        tensors += parts.self_attention(layer, 2 * config.reach + 1)
        tensors += parts.feed_forward(layer, with_norm=not parallel)
    size = config.target_vocab * config.width
    for number in range(config.decoder_layers):
        layer = f"decoder.{number}"
        start = len(tensors)
        tensors += parts.self_attention(layer, config.reach + 1)
        tensors += parts.cross_attention(layer, with_norm=not parallel)
        tensors += parts.feed_forward(layer, with_norm=not parallel)
        size += sum(math.prod(tensor.shape) for tensor in tensors[start:] if tensor is not None)
    if config.has_final_norm:
        tensors += [*parts.norm("encoder_norm"), *parts.norm("decoder_norm")]
    tensors += [*parts.linear("output", config.target_vocab, config.width, bias=config.output_bias), *source.biases()]
    return ModelWeights(sizes, [*source.scales(), config.norm_eps], tensors, size)


def position_table(source: Source, side: Literal["source", "target"], length: int) -> Weight:
    """Position vectors [positions, width]: ``length`` of them, all learned ones, or one of zeros if there are none.

    If positions are rotary, the turns of a head instead [positions, key] (`kernels.pointwise.Turns`).

    Raises:
        ShapeError: learned ones that are none, or not float32 on the CPU.
    """
    config = source.config
    if config.positions == "learned":
        return _Parts(source).required(f"{side}_embedding.positions.table.weight", config.max_positions, config.width)
    if config.positions == "rotary":
        return source.taken(sinusoids(length, config.key_width // config.heads, "halves"))
    if config.positions == "sinusoidal":
        return source.taken(sinusoids(length, config.width, config.sinusoid))
    return source.taken(np.zeros((1, config.width), np.float32))


def sinusoids(length: int, width: int, layout: Sinusoid) -> npt.NDArray[np.float32]:
    """`models.layers.sinusoid` of the first positions; the last bit of a number can differ."""
    half = np.arange(width // 2, dtype=np.float64)
    steps = width / 2 if layout in ("interleaved", "halves") else max(width / 2 - 1, 1)
    angle = (np.arange(length, dtype=np.float64) + (2 if layout == "fairseq" else 0))[:, None]
    angle = angle * np.exp(half * (-math.log(10000.0) / steps))
    if layout == "interleaved":
        return np.stack((np.sin(angle), np.cos(angle)), axis=-1).reshape(length, width).astype(np.float32)
    return np.concatenate((np.sin(angle), np.cos(angle)), axis=-1).astype(np.float32)


class PackedModel:
    """A model's weights as the library holds them: prepacked, but the embeddings, which are the model's own.

    Args:
        source: the weights, which `Source.why_not` has nothing against.
        precision: of the matrix products.
        shortlist: for the vocabularies of the model.

    Raises:
        ConfigurationError: the shortlist is of another model.
        SurroundingsError: not enough memory.
    """

    def __init__(self, source: Source, precision: Precision, shortlist: Shortlist | None) -> None:
        library = load_search_library().library
        assert library is not None
        self.library, self._source = library, source
        weights = model_weights(source, precision)
        self.decoder_size = weights.decoder
        self._tables = weights.tensors[0], weights.tensors[3 if source.config.embedding_norm else 1]  # not copied
        self._tables_at = self.addresses(*self._tables)
        self._positions: tuple[int, Weight, Weight] | None = None
        handle: int | None = library.decoding_model(
            integers(weights.sizes),
            (ctypes.c_float * len(weights.scales))(*weights.scales),
            (ctypes.c_void_p * len(weights.tensors))(
                *[None if tensor is None else source.address(tensor) for tensor in weights.tensors]
            ),
        )
        self.handle = require_handle(handle, "a second copy of the weights: use decoding.beam")
        self.shortlist_handle: int | None = None
        if shortlist is not None:
            shortlist.check(source.config.source_vocab, source.config.target_vocab)
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
        if self._tables_at != self.addresses(*self._tables):
            raise ConfigurationError("the memory of the model's embeddings was released: make another Engine")

    def positions(self, longest: int) -> tuple[Weight, Weight]:
        """Position vectors of source and target: at least ``longest`` of each, or all learned ones."""
        held = self._positions
        if held is None or held[0] < longest:
            reach = max(512, 2 * longest)
            one, other = position_table(self._source, "source", reach), position_table(self._source, "target", reach)
            # One assignment: another thread may replace it by a shorter one meanwhile.
            held = self._positions = reach, one, other
        return held[1:]

    def addresses(self, *tables: Weight) -> list[int]:
        """Where tables begin."""
        return [self._source.address(table) for table in tables]


def require_handle(handle: int | None, what: str) -> int:
    """What the library made; SurroundingsError if there was not enough memory for it."""
    if handle is None:
        raise SurroundingsError(f"there is not enough memory for {what}")
    return handle


def integers(numbers: Sequence[int]) -> Any:
    """64-bit integers for the library."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


class _Parts:
    """The weights of a model's parts by name, each checked to have the shape that the compiled code reads."""

    def __init__(self, source: Source) -> None:
        self.source, self.config = source, source.config
        heads, self.kv_heads = self.config.heads, self.config.kv_heads or self.config.heads
        self.key, self.value = self.config.key_width // heads, self.config.value_width // heads

    def required(self, name: str, *shape: int) -> Weight:
        """A weight that the model must have."""
        found = self.source.weight(name, *shape)
        if found is None:
            raise ShapeError(f"the compiled search expected a weight {name} {list(shape)}, and there is none")
        return found

    def self_attention(self, layer: str, distances: int) -> Iterator[Weight | None]:
        """Norm and self-attention; ``distances``: the number of Shaw's vectors."""
        name = f"{layer}.self_attention"
        yield from self.norm(f"{layer}.self_residual.norm")
        rows = self.config.heads * self.key + self.kv_heads * (self.key + self.value)
        yield from self.linear(f"{name}.in_projection", rows, self.config.width, bias=self.config.attention_bias)
        yield from self.head_norms(name)
        if self.config.positions == "shaw":
            yield self.required(f"{name}.relative_positions.keys", distances, self.key)
            yield self.required(f"{name}.relative_positions.values", distances, self.value)
        yield from self.output_projection(name)

    def cross_attention(self, layer: str, *, with_norm: bool) -> Iterator[Weight | None]:
        name, queries = f"{layer}.cross_attention", self.config.heads * self.key
        yield from self.norm(f"{layer}.cross_residual.norm") if with_norm else ()
        total = queries + self.kv_heads * (self.key + self.value)
        weight, bias = self.linear(f"{name}.in_projection", total, self.config.width, bias=self.config.attention_bias)
        for rows in (slice(0, queries), slice(queries, None)):
            yield None if weight is None else weight[rows]
            yield None if bias is None else bias[rows]
        yield from self.head_norms(name)
        yield from self.output_projection(name)

    def output_projection(self, name: str) -> Iterator[Weight | None]:
        inputs = self.config.heads * self.value
        yield from self.linear(f"{name}.output_projection", self.config.width, inputs, bias=self.config.attention_bias)

    def head_norms(self, name: str) -> Iterator[Weight]:
        if self.config.query_key_norm != "none":
            yield self.required(f"{name}.query_norm.weight", self.key)
            yield self.required(f"{name}.key_norm.weight", self.key)

    def feed_forward(self, layer: str, *, with_norm: bool) -> Iterator[Weight | None]:
        name, width, inner = f"{layer}.feed_forward", self.config.width, self.config.inner
        bias = self.config.feed_forward_bias
        yield from self.norm(f"{layer}.feed_forward_residual.norm") if with_norm else ()
        yield from self.linear(f"{name}.expand", inner, width, bias=bias)
        if self.config.feed_forward in GATED:
            yield from self.linear(f"{name}.gate", inner, width, bias=bias)
        yield from self.linear(f"{name}.contract", width, inner, bias=bias)

    def norm(self, name: str) -> Iterator[Weight | None]:
        yield self.required(f"{name}.weight", self.config.width)
        yield None if self.config.norm_kind == "rms" else self.required(f"{name}.bias", self.config.width)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Iterator[Weight | None]:
        yield self.required(f"{name}.weight", outputs, inputs)
        yield self.required(f"{name}.bias", outputs) if bias else None
