"""Rotary positions (Su et al. 2021, "RoFormer", section 3.2.2).

A pair of features (x, y) at position p is rotated by the angle p * base^(-2i/d). The product of a query and a key then
depends on their contents and their distance, not on their absolute positions. Apply it to projected queries and keys,
before :func:`multihead.attention.attention`; a cache holds rotated keys.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.errors import ConfigurationError, ShapeError


def rotary(
    x: Float[Tensor, "batch heads length dim"],
    offset: int | Int[Tensor, " batch"] = 0,
    *,
    base: float | int = 10000.0,
    layout: Literal["interleaved", "halves"] = "interleaved",
) -> Float[Tensor, "batch heads length dim"]:
    r"""Queries or keys, rotated by their positions ``offset``, ``offset + 1``, ...

    .. math::
        \begin{pmatrix} x'_{2i} \\ x'_{2i+1} \end{pmatrix} =
        \begin{pmatrix} \cos p\theta_i & -\sin p\theta_i \\ \sin p\theta_i & \cos p\theta_i \end{pmatrix}
        \begin{pmatrix} x_{2i} \\ x_{2i+1} \end{pmatrix}, \qquad \theta_i = \mathrm{base}^{-2i/d}

    With a cache: ``rotary(new_keys, cache.length)``; if rows are padded on the left by ``pad`` positions,
    ``rotary(new_keys, cache.length - pad)``, one offset per row.

    Args:
        x: split into heads; an even width.
        offset: the position of the first column, one for all rows or one per row.
        base: the slowest angle is about 1 / base.
        layout: which features form a pair: ``"interleaved"`` = neighbors (the paper, GPT-J), ``"halves"`` = i and
            i + d/2 (GPT-NeoX, LLaMA in Hugging Face's format).

    Returns:
        The same shape and type; the angles are computed in float32 at least.

    Raises:
        ShapeError: an odd width, or not one offset per row.
        ConfigurationError: an unknown layout.
    """
    batch, _, length, dim = x.shape
    if dim % 2:
        raise ShapeError(f"x has shape {list(x.shape)}: features are rotated in pairs, so the width must be even")
    if layout not in ("interleaved", "halves"):
        raise ConfigurationError(f"layout={layout!r}: pairs are 'interleaved' or 'halves'")
    if isinstance(offset, Tensor) and offset.shape != (batch,):
        raise ShapeError(f"offset has shape {list(offset.shape)}, but x {list(x.shape)}: give one for each of its rows")
    work = torch.promote_types(x.dtype, torch.float32)
    positions = torch.arange(length, device=x.device)
    positions = positions + (offset[:, None] if isinstance(offset, Tensor) else offset)
    rates = base ** (-torch.arange(0, dim, 2, device=x.device, dtype=work) / dim)
    angles = positions[..., None].to(work) * rates
    if isinstance(offset, Tensor):
        angles = angles[:, None]
    cosine, sine = angles.cos(), angles.sin()
    if layout == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    rotated = (first * cosine - second * sine, first * sine + second * cosine)
    if layout == "interleaved":
        return torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)
    return torch.cat(rotated, dim=-1).to(x.dtype)
