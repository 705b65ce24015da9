"""Conversion from and to PyTorch's mask arguments, where True = ignore.

In ``attn_mask`` and ``key_padding_mask`` of PyTorch's modules (``nn.MultiheadAttention``, ``nn.Transformer``) True
means the opposite of what it means in this library and in ``scaled_dot_product_attention``. These functions invert it.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.masks.algebra import And, Device, Full, Mask
from multihead.attention.masks.custom import Dense
from multihead.errors import MaskError, ShapeError


class TorchMasks(NamedTuple):
    """The two mask arguments of PyTorch's modules, both boolean, True = ignore.

    Attributes:
        attn_mask: [queries, keys], or [batch * heads, queries, keys] where sentences or heads differ; or None.
        key_padding_mask: [batch, keys], or None.
    """

    attn_mask: Bool[Tensor, "*batch_heads query key"] | None
    key_padding_mask: Bool[Tensor, "batch key"] | None


def to_torch(
    mask: Mask | None, q_len: int, kv_len: int, *, batch: int, heads: int, device: Device = None
) -> TorchMasks:
    """The two arguments of ``torch.nn.MultiheadAttention`` that mean the same as ``mask``.

    Conditions on keys alone (``Padding``) become the ``key_padding_mask``, all others the ``attn_mask``::

        masks = to_torch(Causal() & Padding(lengths), 5, 5, batch=3, heads=2)
        module(x, x, x, **masks._asdict(), need_weights=False)

    With ``need_weights=True`` PyTorch returns NaN for a query that may attend to nothing.

    Args:
        mask: any mask; None = everything.
        q_len: the number of queries.
        kv_len: the number of keys.
        batch: the number of sentences.
        heads: the number of heads.
        device: of the result (default: that of the mask's tensors).

    Raises:
        ShapeError: the mask was made for other sizes.
    """
    if device is None and mask is not None:
        device = mask.device  # of all parts: one without tensors of its own would be lowered on the CPU
    key_masks: list[Tensor] = []
    others: list[Mask] = []
    for part in (Full() if mask is None else mask).conjuncts:
        allowed = part.dense(q_len, kv_len, device, batch=batch, heads=heads)
        if any(size not in (1, want) for size, want in zip(allowed.shape[:2], (batch, heads), strict=True)):
            raise ShapeError(
                f"{part!r} is a mask for [batch, heads] = {list(allowed.shape[:2])}, but there are {[batch, heads]}"
            )
        if allowed.shape[1] == 1 and allowed.shape[2] == 1:
            key_masks.append(allowed)
        else:
            others.append(part)
    padding = None if not key_masks else ~reduce(and_, key_masks)[:, 0, 0].expand(batch, kv_len)
    if not others:
        return TorchMasks(None, padding)
    allowed = And(*others).dense(q_len, kv_len, device, batch=batch, heads=heads)
    if allowed.shape[:2] == (1, 1):
        return TorchMasks(~allowed[0, 0].expand(q_len, kv_len), padding)
    return TorchMasks(~allowed.expand(batch, heads, q_len, kv_len).flatten(0, 1), padding)


def from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int
) -> tuple[Mask | None, Float[Tensor, "b h q k"] | None]:
    """Convert PyTorch's two mask arguments to a mask and a bias of this library. No values are read.

    Args:
        attn_mask: [queries, keys] or [batch * heads, queries, keys]: boolean, True = ignore; or numbers that are
            added to the scores, -inf = ignore.
        key_padding_mask: [batch, keys], of the same two kinds.
        heads: the module's number of heads.

    Returns:
        ``(mask, bias)`` for :func:`~multihead.attention.attention`; each may be None.

    Raises:
        MaskError: a mask of integers.
        ShapeError: wrong axes.
    """
    given: list[Tensor] = []
    for name, tensor in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if tensor is None:
            continue
        if tensor.dtype != torch.bool and not tensor.is_floating_point():
            raise MaskError(f"{name} is boolean, True = ignore, or of floats to be added; got {tensor.dtype}")
        given.append(_four_axes(name, tensor, heads))
    masks: list[Mask] = [Dense(~tensor) for tensor in given if tensor.dtype == torch.bool]
    terms = [tensor for tensor in given if tensor.dtype != torch.bool]
    return reduce(and_, masks) if masks else None, sum(terms[1:], terms[0]) if terms else None


def _four_axes(name: str, tensor: Tensor, heads: int) -> Tensor:
    if name == "key_padding_mask" and tensor.dim() == 2:
        return tensor[:, None, None, :]
    if name == "attn_mask" and tensor.dim() == 2:
        return tensor[None, None]
    if name == "attn_mask" and tensor.dim() == 3 and tensor.shape[0] % heads == 0:
        return tensor.view(tensor.shape[0] // heads, heads, *tensor.shape[1:])  # -1 is ambiguous for empty masks
    wanted = "[batch, keys]" if name == "key_padding_mask" else "[queries, keys] or [batch * heads, queries, keys]"
    raise ShapeError(f"{name} has the shape {wanted}, got {list(tensor.shape)} with {heads} heads")


def generate_square_subsequent_mask(
    size: int, device: Device = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "{size} {size}"]:
    """PyTorch's causal mask: floats, 0 on and below the diagonal, -inf above it (later keys).

    The same as ``torch.nn.Transformer.generate_square_subsequent_mask``, for code that needs that tensor: an
    ``attn_mask`` in PyTorch, or a ``bias`` here. As a mask write ``Causal()``, for which backends are faster.
    """
    return torch.full((size, size), -torch.inf, device=device, dtype=dtype).triu(1)
