"""Queries, keys and values as in torch.nn.MultiheadAttention.

Its projection parameters, its extra keys and its checks. :mod:`multihead.attention.torch_compatible.functional` uses
the results; :class:`multihead.attention.multihead.MultiHeadAttention` projects with
:class:`multihead.attention.multihead.PackedLinear` instead.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.attention.torch_compatible.arguments import expect


class InProjection(NamedTuple):
    """The maps from inputs to queries, keys and values: one packed matrix, or three.

    Attributes:
        packed: W^Q, W^K and W^V stacked, [width + 2 * kv_width, width]; None if they are separate.
        separate: W^Q [width, width], W^K [kv_width, kdim] and W^V [kv_width, vdim]; None if they are packed.
        bias: the three biases, [width + 2 * kv_width], or None.
    """

    packed: Tensor | None
    separate: tuple[Tensor, Tensor, Tensor] | None
    bias: Tensor | None


class ExtraKeys(NamedTuple):
    """Keys and values that belong to no input and are visible to all queries.

    Attributes:
        key: a learned key of kv_width numbers (``bias_k``), or None.
        value: its value (``bias_v``), or None.
        zero: whether a zero key and a zero value follow (``add_zero_attn``).
    """

    key: Tensor | None
    value: Tensor | None
    zero: bool

    @property
    def number(self) -> int:
        return (self.key is not None) + self.zero


def choose_matrices(
    separate: bool,
    packed: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
) -> InProjection:
    """The projection selected by ``separate``, from the arguments of the function.

    Raises:
        DropInError: a required matrix is missing.
    """
    if not separate:
        expect(packed is not None, "use_separate_proj_weight is False but in_proj_weight is None")
        return InProjection(packed, None, bias)
    for name, weight in (("q", query), ("k", key), ("v", value)):
        expect(weight is not None, f"use_separate_proj_weight is True but {name}_proj_weight is None")
    assert query is not None
    assert key is not None
    assert value is not None
    return InProjection(None, (query, key, value), bias)


def project(
    query: Tensor, key: Tensor, value: Tensor, projection: InProjection, kv_width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Q W^Q, K W^K and V W^V for all heads; inputs that are the same tensor share one product.

    A bias of a narrower type, such as half precision beside float64, is converted. In PyTorch's module it depends on
    the layout of the inputs in memory whether that works.

    Raises:
        DropInError: a matrix or bias has another shape.
    """
    width, bias = query.shape[-1], projection.bias
    if bias is not None and bias.dtype != query.dtype == torch.promote_types(bias.dtype, query.dtype):
        bias = bias.to(query.dtype)
    sizes = (width, kv_width, kv_width)
    if projection.packed is None:
        assert projection.separate is not None
        _check_separate(query, key, value, projection.separate, bias, sizes)
        weights = projection.separate
    elif key is value and query is key:
        q, k, v = F.linear(query, projection.packed, bias).split_with_sizes(sizes, -1)
        return q, k, v
    elif key is value:
        q = F.linear(query, projection.packed[:width], None if bias is None else bias[:width])
        both = F.linear(key, projection.packed[width:], None if bias is None else bias[width:])
        k, v = both.split_with_sizes(sizes[1:], -1)
        return q, k, v
    else:
        w_q, w_k, w_v = projection.packed.split_with_sizes(sizes)
        weights = (w_q, w_k, w_v)
    biases = (None, None, None) if bias is None else bias.split_with_sizes(sizes)
    q, k, v = (F.linear(*each) for each in zip((query, key, value), weights, biases, strict=True))
    return q, k, v


def _check_separate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    sizes: tuple[int, int, int],
) -> None:
    names = ("query", "key", "value")
    for name, x, weight, size in zip(names, (query, key, value), weights, sizes, strict=True):
        shape = (size, x.shape[-1])
        expect(weight.shape == shape, f"expecting {name} weights shape of {shape}, but got {weight.shape}")
    if bias is not None:
        expect(bias.shape == (sum(sizes),), f"expecting bias shape of {(sum(sizes),)}, but got {bias.shape}")


def use_static(projected: Tensor, static: Tensor | None, name: str, heads: int) -> Tensor:
    """``static`` [batch * heads, keys, head_dim] as [batch, heads, keys, head_dim], or ``projected`` if it is None.

    Raises:
        DropInError: ``static`` has another size.
    """
    if static is None:
        return projected
    batch, head_dim = projected.shape[0], projected.shape[-1]
    for axis, wanted in ((0, batch * heads), (2, head_dim)):
        expect(
            static.size(axis) == wanted,
            f"expecting static_{name}.size({axis}) of {wanted}, but got {static.size(axis)}",
        )
    return static.view(batch, heads, -1, head_dim)


def append_extra_keys(
    key: Tensor, value: Tensor, extra: ExtraKeys, static: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Keys and values [batch, heads, keys, head_dim] followed by the extra ones.

    Raises:
        DropInError: a learned key has no value, or comes with static keys.
    """
    if extra.key is not None and extra.value is not None:
        for tensor, name in zip(static, ("key", "value"), strict=True):
            expect(tensor is None, f"bias cannot be added to static {name}.")
    expect(extra.key is None or extra.value is not None, "bias_k is set but bias_v is None")
    expect(extra.value is None or extra.key is not None, "bias_v is set but bias_k is None")
    return _append(key, extra.key, extra.zero), _append(value, extra.value, extra.zero)


def _append(tensor: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
    batch, heads, _, head_dim = tensor.shape
    parts = [tensor]
    if learned is not None:
        parts.append(learned.to(tensor.dtype).reshape(1, heads, 1, head_dim).expand(batch, -1, -1, -1))
    if zero:
        parts.append(tensor.new_zeros(batch, heads, 1, head_dim))
    return torch.cat(parts, dim=2) if len(parts) > 1 else tensor
