"""The masks that the kernel for short sequences knows: right padding, or sequences end to end, and causal or not.

The kernel is :mod:`multihead.kernels.attention`; whether a call is one for it is decided in
:mod:`multihead.attention.backends`.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention.masks import Causal, EndToEnd, Mask, Padding
from multihead.kernels.attention import EndToEnd as Sequences
from multihead.kernels.attention import packed_short_attention, short_attention, takes


class Limits(NamedTuple):
    """What of each row is looked at; None = all of it."""

    key_lengths: Int[Tensor, " batch"] | None
    query_lengths: Int[Tensor, " batch"] | None
    sequences: Sequences | None
    """They stand end to end in one row."""
    causal: bool


def limits_of(mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> Limits | None:
    """The mask as lengths and a flag; None where it cannot be said so, or the kernel does not take the tensors."""
    conjuncts = () if mask is None else mask.conjuncts
    rest = [part for part in conjuncts if not isinstance(part, Causal)]
    causal = len(rest) < len(conjuncts)
    if len(rest) > 1 or (causal and query.shape[2] != key.shape[2]):
        return None
    if rest and isinstance(rest[0], EndToEnd):
        sequences = rest[0].sequences
        fits = len(query) == 1 and sequences is not None and (sequences.aligned or not causal)
        if not fits or sequences is None or not takes(query, key, value, sequences.longest):
            return None
        return Limits(None, None, sequences, causal)
    if not takes(query, key, value):
        return None
    if not rest:
        return Limits(None, None, None, causal)
    (padding,) = rest
    if not isinstance(padding, Padding) or padding.lengths.shape[0] != len(query) or padding.lengths.is_cuda:
        return None
    return Limits(padding.lengths, padding.q_lengths, None, causal)


def limited_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads key dim"],
    value: Float[Tensor, "batch heads key dim"],
    limits: Limits,
    scale: float | None,
) -> Float[Tensor, "batch heads query dim"]:
    """Attention by that kernel, which reads no padding: nothing has to be kept out of it."""
    keys, queries, sequences, causal = limits
    if sequences is not None:
        return packed_short_attention(query, key, value, sequences, causal=causal, scale=scale)
    return short_attention(query, key, value, key_lengths=keys, query_lengths=queries, causal=causal, scale=scale)
