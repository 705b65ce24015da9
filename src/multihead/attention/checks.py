"""Whether what is handed to attention fits together: shapes, types, masks, biases. The messages say what to write."""

from __future__ import annotations

import torch
from torch import Tensor

from multihead.attention.biases import Bias
from multihead.attention.masks import Mask
from multihead.errors import ConfigurationError, MaskError, ShapeError


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | Bias | None = None, mask: Mask | None = None
) -> None:
    """Whether the tensors fit together: [B,H,Q,D], [B,Hk,K,D], [B,Hk,K,Dv], Hk a divisor of H, one type.

    Raises:
        ShapeError: they do not; both shapes are named.
        MaskError: the mask is none of ours, or the bias holds no floats.
    """
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ShapeError(f"attention takes four axes [batch, heads, length, width], got {shapes}")
    if key.shape[:3] != value.shape[:3]:
        raise ShapeError(f"key and value must have the same batch, heads and length, got {shapes}")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ShapeError(f"query and key must have the same batch and width, got {shapes}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ShapeError(f"the query's heads must be a multiple of the key's heads, got {shapes}")
    if not query.dtype == key.dtype == value.dtype and not under_autocast(query):
        raise ShapeError(
            f"query, key and value must have one type, got {query.dtype}, {key.dtype} and {value.dtype}: "
            "convert them, as in key.to(query.dtype)"
        )
    full = (*query.shape[:3], key.shape[2])
    if bias is not None:
        _check_bias(bias, full)
    if mask is not None and not isinstance(mask, Mask):
        raise MaskError(f"mask is a {type(mask).__name__}: for a boolean tensor, True = may attend, write Dense(mask)")


def _check_bias(bias: Tensor | Bias, full: tuple[int, ...]) -> None:
    if isinstance(bias, Bias):
        if bias.heads != full[1]:
            raise ShapeError(f"the bias {bias!r} has {bias.heads} heads, the query {full[1]}")
        return
    if not bias.is_floating_point():
        raise MaskError(
            f"got a bias of {bias.dtype}; a bias is added to the scores and holds floats. A boolean tensor, True = "
            "may attend, is a mask: write mask=Dense(bias)"
        )
    if bias.dim() not in (2, 4):
        raise ShapeError(
            f"the bias has shape {list(bias.shape)}; write bias[:, None] if it is [batch, queries, keys], "
            "bias[None] if it is [heads, queries, keys]"
        )
    check_broadcast("bias", bias, full)


def check_dropout(dropout: float, name: str = "dropout_p") -> None:
    """Whether it is a probability below 1; ``name`` is what the caller calls it.

    Raises:
        ConfigurationError: it is not.
    """
    if not 0.0 <= dropout < 1.0:
        raise ConfigurationError(f"{name}={dropout}: a probability from 0 up to (not including) 1 is needed")


def check_broadcast(name: str, tensor: Tensor, full: tuple[int, ...]) -> None:
    """Whether the tensor broadcasts to ``full``, the [batch, heads, queries, keys] of a call.

    Raises:
        ShapeError: it does not; both shapes are named.
    """
    shape = tensor.shape
    # Written out: `size in (1, want)` fails where sizes are symbols (torch.compile, torch.export).
    if any(size != 1 and size != want for size, want in zip(reversed(shape), reversed(full), strict=False)):
        raise ShapeError(
            f"the {name} has shape {list(shape)}, which does not broadcast to {list(full)}, "
            "the [batch, heads, queries, keys] of these tensors"
        )


def check_sizes(mask: Mask, batch: int, heads: int) -> None:
    """Whether the mask was made for so many sentences and heads, or for any number.

    Raises:
        ShapeError: it was made for others.
    """
    for name, size, want in zip(("sentences", "heads"), mask.sizes, (batch, heads), strict=True):
        if size is not None and size != 1 and size != want:
            raise ShapeError(f"the mask {mask!r} was made for {size} {name}, but there are {want}")


def under_autocast(query: Tensor) -> bool:
    """Whether autocast is on for the query's device."""
    kind = query.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
