"""Our Transformer as ONNX graphs: encoder and decoders.

The equations are those of `multihead.models.layers`; a test compares their results. Which files the graphs become is in
`multihead.interop.formats.onnx`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from multihead.attention import MultiHeadAttention
from multihead.interop.formats.onnx_graph import Graph
from multihead.models.layers import DecoderLayer, Embedding, EncoderLayer, FeedForward, GatedFeedForward, Residual
from multihead.models.transformer import Transformer

Kind = Literal["first", "with_past", "merged"]
"""A decoder without a past, with one, or with either."""

_HIDDEN = -1e9
"""Added to the scores of keys that are not attended to."""

_BATCH, _SOURCE, _TARGET = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
_PAST, _WHOLE = "past_decoder_sequence_length", "past_decoder_sequence_length + decoder_sequence_length"

_ACTIVATIONS = {"relu": "relu", "reglu": "relu", "gelu": "gelu", "geglu": "gelu", "silu": "silu", "swiglu": "silu"}


def encoder_graph(model: Transformer, length: int, int8: bool) -> Graph:
    """input_ids and attention_mask to last_hidden_state.

    Args:
        model: with learned or rotary positions.
        length: number of rotary positions.
        int8: whether matrices are 8-bit integers.
    """
    graph = Graph("encoder", int8)
    parts = _Parts(model, graph, length)
    ids, mask = (graph.input(name, [_BATCH, _SOURCE]) for name in ("input_ids", "attention_mask"))
    hidden = parts.hide_padding(mask)
    x = parts.embed(ids, model.source_embedding, graph.integer(0))
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        x = parts.encoder_layer(x, layer, hidden)
    graph.output(parts.last_norm(x, model.encoder_norm), "last_hidden_state", [_BATCH, _SOURCE, model.config.width])
    return graph


def decoder_graph(model: Transformer, length: int, kind: Kind, int8: bool) -> Graph:
    """input_ids, encoder_hidden_states, encoder_attention_mask and a past to logits and the present.

    Args:
        model: with learned or rotary positions.
        length: number of rotary positions.
        kind: with which past; a merged decoder has the input use_cache_branch, whose value decides.
        int8: whether matrices are 8-bit integers.
    """
    graph, config = Graph(f"decoder_{kind}", int8), model.config
    parts = _Parts(model, graph, length)
    mask, ids = graph.input("encoder_attention_mask", [_BATCH, _SOURCE]), graph.input("input_ids", [_BATCH, _TARGET])
    memory = (
        "" if kind == "with_past" else graph.input("encoder_hidden_states", [_BATCH, _SOURCE, config.width], "FLOAT")
    )
    pasts = [] if kind == "first" else [parts.past_inputs(i) for i in range(config.decoder_layers)]
    cached = graph.input("use_cache_branch", [1], "BOOL") if kind == "merged" else ""
    start = parts.length_of(pasts[0][0], cached) if pasts else graph.integer(0)
    causal, hidden = parts.hide_future(ids, start), parts.hide_padding(mask)
    y = parts.embed(ids, model.target_embedding, start)
    presents = []
    for i, layer in enumerate(model.decoder):
        assert isinstance(layer, DecoderLayer)
        past = pasts[i] if pasts else None
        y, present = parts.decoder_layer(y, layer, causal, hidden, memory, past, cached, start)
        presents.append(present)
    logits = graph.linear(
        parts.last_norm(y, model.decoder_norm),
        parts.name_of(model.output.weight),
        model.output.weight,
        model.output.bias,
    )
    graph.output(logits, "logits", [_BATCH, _TARGET, config.target_vocab])
    for i, present in enumerate(presents):
        parts.present_outputs(i, present if kind != "with_past" else present[:2])
    return graph


class _Parts:
    """The parts of a Transformer, as nodes of a graph."""

    def __init__(self, model: Transformer, graph: Graph, length: int) -> None:
        self._graph, self._config = graph, model.config
        self._turns = None if model.rotary is None else model.rotary(torch.arange(length), length)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._modules = {id(module): name for name, module in model.named_modules()}

    def name_of(self, one: Tensor | nn.Module) -> str:
        """The name of a parameter or module; a shared parameter has one."""
        return self._names[id(one)] if isinstance(one, Tensor) else self._modules[id(one)]

    def embed(self, ids: str, layer: Embedding, start: str) -> str:
        """The embedding of ids at the positions from ``start`` on."""
        graph = self._graph
        x = graph.look_up(ids, self.name_of(layer.table.weight), layer.table.weight)
        if layer.scale != 1.0:
            x = graph.op("Mul", x, graph.number(layer.scale))
        if layer.positions is not None:  # else they are rotary
            table = layer.positions.get_parameter("table.weight")
            places = self._range(start, graph.op("Add", start, self._size(ids, 1)))
            x = graph.op("Add", x, graph.op("Gather", graph.weight(self.name_of(table), table), places))
        return self.last_norm(x, layer.norm)

    def _rotated(self, heads: list[str], start: str) -> list[str]:
        """Queries and keys [batch, heads, time, channels] at the positions from ``start`` on (`kernels.pointwise`)."""
        if self._turns is None:
            return heads
        graph = self._graph
        places = self._range(start, graph.op("Add", start, self._size(heads[0], 2)))
        turns = graph.op("Gather", graph.weight("rotary.turns", self._turns), places)
        sine, cosine = graph.ops("Split", 2, turns, axis=-1)
        rotated = []
        for x in heads:
            first, second = graph.ops("Split", 2, x, axis=-1)
            one = graph.op("Sub", graph.op("Mul", first, cosine), graph.op("Mul", second, sine))
            other = graph.op("Add", graph.op("Mul", first, sine), graph.op("Mul", second, cosine))
            rotated.append(graph.op("Concat", one, other, axis=-1))
        return rotated

    def last_norm(self, x: str, layer: nn.Module) -> str:
        """A norm that may be missing."""
        return self._graph.norm(x, self.name_of(layer), layer) if isinstance(layer, nn.LayerNorm) else x

    def encoder_layer(self, x: str, layer: EncoderLayer, hidden: str) -> str:
        """Self-attention, then the feed-forward network."""

        def attend(z: str) -> str:
            query, key, value = self._project(z, layer.self_attention, 0, 3)
            query, key = self._rotated([query, key], self._graph.integer(0))
            return self._attend(layer.self_attention, query, key, value, hidden)

        x = self._residual(x, layer.self_residual, attend)
        return self._residual(x, layer.feed_forward_residual, lambda z: self._feed_forward(z, layer.feed_forward))

    def decoder_layer(
        self,
        y: str,
        layer: DecoderLayer,
        causal: str,
        hidden: str,
        memory: str,
        past: list[str] | None,
        cached: str,
        start: str,
    ) -> tuple[str, list[str]]:
        """A decoder layer, and its keys and values: of self-attention, of cross-attention."""
        present: list[str] = []

        def attend_self(z: str) -> str:
            query, key, value = self._project(z, layer.self_attention, 0, 3)
            query, key = self._rotated([query, key], start)
            if past is not None:
                before = [self._cut(one, start) for one in past[:2]] if cached else past[:2]
                key, value = (self._graph.op("Concat", *two, axis=2) for two in zip(before, (key, value), strict=True))
            present.extend((key, value))
            return self._attend(layer.self_attention, query, key, value, causal)

        def attend_memory(z: str) -> str:
            (query,) = self._project(z, layer.cross_attention, 0, 1)
            key, value = self._memory(layer.cross_attention, memory, past, cached)
            present.extend((key, value))
            return self._attend(layer.cross_attention, query, key, value, hidden)

        y = self._residual(y, layer.self_residual, attend_self)
        y = self._residual(y, layer.cross_residual, attend_memory)
        y = self._residual(y, layer.feed_forward_residual, lambda z: self._feed_forward(z, layer.feed_forward))
        return y, present

    def past_inputs(self, i: int) -> list[str]:
        """The inputs with the keys and values of earlier steps."""
        shape = self._shape(_PAST), self._shape(_SOURCE)
        return [
            self._graph.input(f"past_key_values.{i}.{side}.{part}", shape[side == "encoder"], "FLOAT")
            for side in ("decoder", "encoder")
            for part in ("key", "value")
        ]

    def present_outputs(self, i: int, present: list[str]) -> None:
        """The outputs with the keys and values of all steps."""
        names = [f"present.{i}.{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
        for value, name in zip(present, names, strict=False):
            self._graph.output(value, name, self._shape(_SOURCE if "encoder" in name else _WHOLE))

    def length_of(self, past: str, cached: str) -> str:
        """The number of earlier steps; 0 if they are not to be used."""
        length = self._size(past, 2)
        if not cached:
            return length
        flag = self._graph.op("Cast", self._graph.op("Squeeze", cached), to=7)  # to integers
        return self._graph.op("Mul", length, flag)

    def hide_padding(self, mask: str) -> str:
        """What is added to the scores [batch, 1, 1, key] for a mask with 1 for every real key."""
        graph = self._graph
        real = graph.op("Cast", graph.op("Unsqueeze", mask, graph.ints(1, 2)), to=9)  # to booleans
        return graph.op("Where", real, graph.number(0.0), graph.number(_HIDDEN))

    def hide_future(self, ids: str, start: str) -> str:
        """What is added to the scores [query, key] so that no query sees a later key."""
        graph = self._graph
        stop = graph.op("Add", start, self._size(ids, 1))
        queries = graph.op("Unsqueeze", self._range(start, stop), graph.ints(1))
        past = graph.op("LessOrEqual", self._range(graph.integer(0), stop), queries)
        return graph.op("Where", past, graph.number(0.0), graph.number(_HIDDEN))

    def _memory(self, layer: MultiHeadAttention, memory: str, past: list[str] | None, cached: str) -> list[str]:
        """Keys and values of the source, computed or from the past."""
        if past is None:
            return self._project(memory, layer, 1, 3)
        if not cached:
            return past[2:]
        graph = self._graph
        self._graph = other = graph.branch()
        computed = self._project(memory, layer, 1, 3)
        self._graph = graph
        return graph.choose(cached, past[2:], other, computed)

    def _project(self, z: str, layer: MultiHeadAttention, first: int, last: int) -> list[str]:
        """Some of queries, keys and values, in heads [batch, heads, time, channels]."""
        packed, name = layer.in_projection, self.name_of(layer)
        assert packed is not None
        rows = slice(packed.starts[first], packed.starts[last])
        bias = None if packed.bias is None else packed.bias[rows]
        y = self._graph.linear(z, f"{name}.in_projection_{first}_{last}", packed.weight[rows], bias)
        count, shape = last - first, self._graph.ints(0, 0, layer.heads, layer.width // layer.heads)
        parts = self._graph.ops("Split", count, y, axis=-1) if count > 1 else [y]
        return [self._graph.op("Transpose", self._graph.op("Reshape", one, shape), perm=[0, 2, 1, 3]) for one in parts]

    def _attend(self, layer: MultiHeadAttention, query: str, key: str, value: str, hidden: str) -> str:
        graph, size = self._graph, layer.width // layer.heads
        query = graph.op("Mul", query, graph.number(size**-0.5))
        scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
        weights = graph.op("Softmax", graph.op("Add", scores, hidden), axis=-1)
        heads = graph.op("Transpose", graph.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = graph.op("Reshape", heads, graph.ints(0, 0, layer.width))
        return self._linear(joined, layer.output_projection)

    def _residual(self, x: str, layer: Residual, inner: Callable[[str], str]) -> str:
        assert isinstance(layer.norm, nn.LayerNorm)  # others are refused
        name = self.name_of(layer.norm)
        if layer.pre:
            return self._graph.op("Add", x, inner(self._graph.norm(x, name, layer.norm)))
        return self._graph.norm(self._graph.op("Add", x, inner(x)), name, layer.norm)

    def _feed_forward(self, z: str, layer: FeedForward) -> str:
        hidden = self._linear(z, layer.expand)
        if isinstance(layer, GatedFeedForward):
            hidden = self._graph.op("Mul", self._activate(self._linear(z, layer.gate), layer.kind), hidden)
        else:
            hidden = self._activate(hidden, layer.kind)
        return self._linear(hidden, layer.contract)

    def _activate(self, z: str, kind: str) -> str:
        graph, name = self._graph, _ACTIVATIONS[kind]
        if name == "relu":
            return graph.op("Relu", z)
        if name == "silu":
            return graph.op("Mul", z, graph.op("Sigmoid", z))
        normal = graph.op("Erf", graph.op("Mul", z, graph.number(0.5**0.5)))
        return graph.op("Mul", z, graph.op("Add", graph.op("Mul", normal, graph.number(0.5)), graph.number(0.5)))

    def _linear(self, x: str, layer: nn.Linear) -> str:
        return self._graph.linear(x, self.name_of(layer), layer.weight, layer.bias)

    def _size(self, value: str, axis: int) -> str:
        return self._graph.op("Gather", self._graph.op("Shape", value), self._graph.integer(axis))

    def _range(self, start: str, stop: str) -> str:
        return self._graph.op("Range", start, stop, self._graph.integer(1))

    def _cut(self, past: str, length: str) -> str:
        """The first positions of a past."""
        end = self._graph.op("Unsqueeze", length, self._graph.ints(0))
        return self._graph.op("Slice", past, self._graph.ints(0), end, self._graph.ints(2))

    def _shape(self, length: str) -> list[str | int]:
        return [_BATCH, self._config.heads, length, self._config.width // self._config.heads]
