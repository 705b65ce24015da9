"""PyTorch's mask arguments and its checks of them, for the drop-in functions and modules.

In the calls of ``torch.nn.MultiheadAttention`` True means "ignore", -inf means "ignore" too, and any other number is
added to the scores. Here, and nowhere else, that is turned into the library's masks (True = may attend) and biases.
What is then computed is in :mod:`multihead.attention.torch_compatible.functional`; the opposite direction is
``to_torch``.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.attention.masks import Causal, Dense, Mask
from multihead.errors import MaskError, ShapeError


class DropInError(ShapeError, AssertionError):
    """A :class:`~multihead.errors.ShapeError` where PyTorch raises an AssertionError, with PyTorch's words."""


class DropInSizeError(ShapeError, RuntimeError):
    """A :class:`~multihead.errors.ShapeError` where PyTorch raises a RuntimeError, with PyTorch's words."""


class Sizes(NamedTuple):
    """What the masks of one call have to fit.

    Attributes:
        batch: sentences.
        heads: of the queries.
        queries: their number.
        keys: those that the caller handed over, which the masks speak about.
        extra: further keys that everybody may attend to (``add_bias_kv``, ``add_zero_attn``), after the others.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    extra: int


def expect(condition: bool, message: str) -> None:
    """Raises PyTorch's AssertionError (as a :class:`DropInError`) unless the condition holds."""
    if not condition:
        raise DropInError(message)


def check_ranks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> bool:
    """Whether the call is batched: three axes; two are one sentence without its batch axis.

    Raises:
        DropInError: a number of axes that does not go with the query's.
    """
    expect(
        query.dim() in (2, 3),
        f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor",
    )
    batched = query.dim() == 3
    rank = query.dim()
    found = f"For {'batched' if batched else 'unbatched'} ({rank}-D) `query`, expected"
    expect(
        key.dim() == rank and value.dim() == rank,
        f"{found} `key` and `value` to be {rank}-D but found {key.dim()}-D and {value.dim()}-D tensors respectively",
    )
    if key_padding_mask is not None:
        expect(
            key_padding_mask.dim() == rank - 1,
            f"{found} `key_padding_mask` to be `None` or {rank - 1}-D but found {key_padding_mask.dim()}-D tensor "
            "instead",
        )
    if attn_mask is not None:
        expect(
            attn_mask.dim() in (2, 3),
            f"{found} `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D tensor instead",
        )
        if not batched and attn_mask.dim() == 3:
            shape = (num_heads, query.shape[0], key.shape[0])
            expect(attn_mask.shape == shape, f"Expected `attn_mask` shape to be {shape} but got {attn_mask.shape}")
    return batched


def check_mask_types(**masks: object) -> None:
    """Whether PyTorch's masks are tensors of a type that PyTorch takes: boolean or floating.

    Raises:
        DropInError: integers.
        MaskError: one of our masks in the place of PyTorch's.
    """
    for name, mask in masks.items():
        if isinstance(mask, Mask):
            raise MaskError(f"{name} is the mask {mask!r}; {name} takes PyTorch's tensors: write mask={mask!r}")
        if isinstance(mask, Tensor):
            expect(
                mask.dtype == torch.bool or mask.is_floating_point(),
                f"only bool and floating types of {name} are supported",
            )


def lower(
    sizes: Sizes,
    *,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    trust_hint: bool,
    mask: Mask | None,
    bias: Tensor | None,
    device: torch.device,
) -> tuple[Mask | None, Tensor | None]:
    """All that was said about who may attend to whom, as one mask and one bias.

    Args:
        sizes: what they have to fit.
        attn_mask: [queries, keys] or [batch * heads, queries, keys], PyTorch's meaning.
        key_padding_mask: [batch, keys], PyTorch's meaning.
        is_causal: without ``attn_mask``: no query sees a later key. With it: the caller's word that ``attn_mask`` is
            that very mask.
        trust_hint: with ``attn_mask``, whether to take that word and not read the mask.
        mask: ours, True = may attend.
        bias: ours, [queries, keys] or four axes.
        device: where the tensors are.

    Raises:
        DropInSizeError: an ``attn_mask`` of another size.
        DropInError: a ``key_padding_mask`` of another size.
    """
    conditions: list[Mask] = [] if mask is None else [mask]
    terms: list[Tensor] = [] if bias is None else [bias]
    causal = is_causal and (attn_mask is None or (trust_hint and key_padding_mask is None))
    if causal:
        # PyTorch's: the first query stands at the first key.
        conditions.append(Causal(align="start"))
    if attn_mask is not None and not causal:
        _sort(_four_axes(attn_mask, sizes), conditions, terms)
    if key_padding_mask is not None:
        _check_key_padding(key_padding_mask, sizes)
        _sort(key_padding_mask[:, None, None, :], conditions, terms)
    if sizes.extra:
        conditions = [_with_extra_keys(condition, sizes, device) for condition in conditions]
        terms = [F.pad(term.expand(*term.shape[:-1], sizes.keys), (0, sizes.extra)) for term in terms]
    return reduce(and_, conditions) if conditions else None, sum(terms[1:], terms[0]) if terms else None


def _sort(tensor: Tensor, conditions: list[Mask], terms: list[Tensor]) -> None:
    if tensor.dtype == torch.bool:
        conditions.append(Dense(~tensor))
    else:
        terms.append(tensor)


def _four_axes(attn_mask: Tensor, sizes: Sizes) -> Tensor:
    two = (sizes.queries, sizes.keys)
    wanted = two if attn_mask.dim() == 2 else (sizes.batch * sizes.heads, *two)
    if attn_mask.shape != wanted:
        raise DropInSizeError(
            f"The shape of the {attn_mask.dim()}D attn_mask is {attn_mask.shape}, but should be {wanted}."
        )
    return attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.reshape(sizes.batch, sizes.heads, *two)


def _check_key_padding(key_padding_mask: Tensor, sizes: Sizes) -> None:
    for axis, (size, wanted) in enumerate(zip(key_padding_mask.shape, (sizes.batch, sizes.keys), strict=True)):
        extra = axis * sizes.extra  # PyTorch counts the extra keys in
        expect(
            size == wanted,
            f"Expected key_padded_mask.shape[{axis}] to be {wanted + extra}, but got {size + extra}",
        )


def _with_extra_keys(condition: Mask, sizes: Sizes, device: torch.device) -> Mask:
    allowed = condition.dense(sizes.queries, sizes.keys, device)
    return Dense(F.pad(allowed.expand(*allowed.shape[:-1], sizes.keys), (0, sizes.extra), value=True))
