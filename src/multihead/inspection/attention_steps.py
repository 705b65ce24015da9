"""Describe modules, and the steps inside multi-head attention.

Shapes are those that `inspection.shapes` recorded. Only the projections of `torch.nn.MultiheadAttention` are computed
here: its queries, keys and values exist inside a single function call, out of reach of hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention import MultiHeadAttention
from multihead.attention.multihead import PackedLinear
from multihead.kernels.random import Dropout

Shape = tuple[int, ...]


def format_shape(shape: Shape) -> str:
    """A shape in brackets: ``[2, 5, 32]``."""
    return str(list(shape))


class AttentionStep(NamedTuple):
    """A tensor inside an attention, its shape, and how it is computed."""

    name: str
    shape: Shape
    what: str


def describe_module(module: nn.Module) -> str:
    """A module in a few words: its class, and what it computes."""
    name = type(module).__name__
    match module:
        case PackedLinear():
            return f"{name}: project {module.in_features} to {' + '.join(map(str, module.sizes))}"
        case nn.Linear():
            return f"{name}: project {module.in_features} to {module.out_features}"
        case nn.Embedding():
            return f"{name}: look up {module.num_embeddings:,} vectors, {module.embedding_dim} wide"
        case nn.LayerNorm():
            return f"{name}: normalize over the last {' x '.join(map(str, module.normalized_shape))}"
        case nn.Dropout() | Dropout():
            return f"{name}: drops {module.p:g} in training, nothing here"
        case nn.Identity():
            return f"{name}: returns its input"
        case MultiHeadAttention():
            key, value = module.key_width // module.heads, module.value_width // module.heads
            return f"{name}: {_heads(module.heads, module.kv_heads)}, width {module.width}, d_k {key}, d_v {value}"
        case nn.MultiheadAttention():
            each = module.head_dim
            heads = _heads(module.num_heads, _memory_width(module) // each)
            return f"{name}: {heads}, width {module.embed_dim}, d_k {each}, d_v {each}"
        case _ if next(module.children(), None) is None:
            return f"{name}({module.extra_repr()})"
        case _:
            return name


def _heads(count: int, kv_heads: int | None = None) -> str:
    words = f"{count} head" + "s" * (count != 1)
    return words if kv_heads in (None, count) else f"{words} ({kv_heads} of keys and values)"


# --------------------------------------------------------------------------------------- inside an attention


_ROLES = {"q": "query: what asks", "k": "key: what is looked at", "v": "value: what is taken from there"}


def projection_steps(
    attention: MultiHeadAttention, maps: PackedLinear, first: int, given: Shape, made: tuple[Shape, ...]
) -> list[AttentionStep]:
    """Input, matrix and result of the maps from number ``first`` on; ``given`` and ``made`` are their shapes."""
    letters = "qkv" if maps is attention.in_projection else "q" if maps is attention.query_projection else "kv"
    called = next(name for name, child in attention.named_children() if child is maps)
    steps: list[AttentionStep] = []
    for number, shape in enumerate(made, start=first):
        start, stop = maps.starts[number], maps.starts[number + 1]
        origin = _rows_of(f"{called}.weight", tuple(maps.weight.shape), start, stop)
        heads = attention.heads if letters[number] == "q" else attention.kv_heads
        matrix = (stop - start, maps.in_features)
        layout = "batch, {}, width"
        steps += _map_steps(letters[number], given, matrix, origin, shape, heads, maps.bias is not None, layout)
    return steps


def mixing_steps(name: str, linear: nn.Linear, key_width: int, given: Shape, made: Shape) -> list[AttentionStep]:
    """The concatenated heads, W_o and the output; ``key_width`` is d_k."""
    bias = "" if linear.bias is None else " + b_o"
    return [
        AttentionStep("stacked", given, f"softmax(Q K^T / sqrt({key_width})) V of every head, side by side"),
        AttentionStep("W_o", tuple(linear.weight.shape), f"{name}.weight"),
        AttentionStep("output", made, f"stacked W_o^T{bias}"),
    ]


def torch_steps(attention: nn.MultiheadAttention, inputs: Mapping[str, Tensor], output: Shape) -> list[AttentionStep]:
    """All steps of PyTorch's module, or of one that replaces it, from its parameters and inputs."""
    packed: Tensor | None = attention.in_proj_weight
    layout = "batch, {}, width" if attention.batch_first else "{}, batch, width"
    steps: list[AttentionStep] = []
    start = 0
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        x = inputs[name]
        rows = attention.embed_dim if letter == "q" else _memory_width(attention)
        if packed is not None:
            matrix = packed[start : start + rows]
            origin = _rows_of("in_proj_weight", tuple(packed.shape), start, start + rows)
        else:
            matrix = attention.get_parameter(f"{letter}_proj_weight")
            origin = f"{letter}_proj_weight"
        start += rows
        sizes = (tuple(x.shape), tuple(matrix.shape), origin, tuple(F.linear(x, matrix).shape))
        bias = attention.in_proj_bias is not None
        steps += _map_steps(letter, *sizes, rows // attention.head_dim, bias, layout if x.dim() == 3 else "{}, width")
    stacked = (*output[:-1], attention.out_proj.in_features)
    return steps + mixing_steps("out_proj", attention.out_proj, attention.head_dim, stacked, output)


def _map_steps(
    letter: str, given: Shape, matrix: Shape, origin: str, made: Shape, heads: int, bias: bool, layout: str
) -> list[AttentionStep]:
    """An input, the matrix that multiplies it, and the result."""
    name, _, role = _ROLES[letter].partition(": ")
    time = "query" if letter == "q" else "key"
    product = f"{name} W_{letter}^T" + f" + b_{letter}" * bias
    parts = f"{_heads(heads)}, each {made[-1] // heads} wide, side by side" if heads > 1 else f"1 head {made[-1]} wide"
    return [
        AttentionStep(name, given, f"{role}: [{layout.format(time)}]"),
        AttentionStep(f"W_{letter}", matrix, origin),
        AttentionStep(letter.upper(), made, f"{product}: {parts}"),
    ]


def _memory_width(attention: nn.MultiheadAttention) -> int:
    """Total width of the keys of all heads, which is smaller than that of the queries if heads share keys."""
    if attention.in_proj_weight is None:
        return int(attention.k_proj_weight.shape[0])
    return int(attention.in_proj_weight.shape[0] - attention.embed_dim) // 2


def _rows_of(name: str, shape: Shape, start: int, stop: int) -> str:
    return name if (start, stop) == (0, shape[0]) else f"rows {start} to {stop - 1} of {name} {format_shape(shape)}"
