"""PyTorch's mask arguments: their checks and their conversion.

In calls of ``torch.nn.MultiheadAttention``, True and -inf mean "ignore", and any other number is added to the scores.
Only this module converts such arguments to masks (True = may attend) and biases of the library. ``to_torch`` converts
in the opposite direction. :mod:`multihead.attention.torch_compatible.functional` has the computation.
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
    """A :class:`~multihead.errors.ShapeError` where PyTorch raises an AssertionError, with PyTorch's message."""


class DropInSizeError(ShapeError, RuntimeError):
    """A :class:`~multihead.errors.ShapeError` where PyTorch raises a RuntimeError, with PyTorch's message."""


class Masks(NamedTuple):
    """The arguments of one call that say which query may attend to which key.

    Attributes:
        key_padding_mask: [batch, keys], PyTorch's meaning.
        attn_mask: [queries, keys] or [batch * heads, queries, keys], PyTorch's meaning.
        is_causal: without ``attn_mask``: no query attends to a later key. With it: the caller's promise that
            ``attn_mask`` is the causal mask.
        mask: a mask of the library, True = may attend.
        bias: added to the scores, [queries, keys] or four axes.
    """

    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    is_causal: bool
    mask: Mask | None
    bias: Tensor | None

    def unsqueeze(self) -> Masks:
        """The masks of one sentence as those of a batch of one."""
        padding = self.key_padding_mask
        return self if padding is None else self._replace(key_padding_mask=padding[None])


class Sizes(NamedTuple):
    """The sizes that the masks of one call must match.

    Attributes:
        batch: number of sentences.
        heads: number of query heads.
        queries: number of queries.
        given: number of keys passed by the caller; PyTorch's ``attn_mask`` covers these.
        keys: number of keys that are attended to: ``static_k``'s, or those passed; all other masks cover these.
        extra: number of further keys visible to all queries (``add_bias_kv``, ``add_zero_attn``), after the others.
    """

    batch: int
    heads: int
    queries: int
    given: int
    keys: int
    extra: int


def expect(condition: bool, message: str) -> None:
    """Raise :class:`DropInError`, PyTorch's AssertionError, unless the condition holds."""
    if not condition:
        raise DropInError(message)


def check_ranks(query: Tensor, key: Tensor, value: Tensor, masks: Masks, num_heads: int) -> None:
    """Check the number of axes: three, or two for one sentence without the batch axis.

    Raises:
        DropInError: the number of axes does not match the query's.
    """
    key_padding_mask, attn_mask = masks.key_padding_mask, masks.attn_mask
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


def check_types(masks: Masks) -> None:
    """Check that PyTorch's masks have a type that PyTorch accepts: boolean or floating.

    Raises:
        DropInError: a mask contains integers; the message says what to write.
        MaskError: a `Mask` is passed in place of a tensor.
    """
    tensors: dict[str, object] = {"key_padding_mask": masks.key_padding_mask, "attn_mask": masks.attn_mask}
    for name, mask in tensors.items():
        if isinstance(mask, Mask):
            raise MaskError(f"{name} is the mask {mask!r}; {name} takes PyTorch's tensors: write mask={mask!r}")
        if isinstance(mask, Tensor):
            expect(
                mask.dtype == torch.bool or mask.is_floating_point(),
                f"only bool and floating types of {name} are supported; got {mask.dtype}. True = ignore here: if 1 "
                f"means attend, write {name}={name} == 0; if 1 means ignore, {name}={name}.bool()",
            )


def lower(masks: Masks, sizes: Sizes, *, trust_hint: bool, device: torch.device) -> tuple[Mask | None, Tensor | None]:
    """The masks of a call as one mask and one bias.

    Args:
        masks: the arguments of the call.
        sizes: the sizes they must match.
        trust_hint: whether ``is_causal`` replaces ``attn_mask`` without reading it.
        device: the device of the tensors.

    Raises:
        DropInSizeError: ``attn_mask`` has another size, or covers keys that static ones of another number replace.
        DropInError: ``key_padding_mask`` has another size.
    """
    key_padding_mask, attn_mask = masks.key_padding_mask, masks.attn_mask
    conditions: list[Mask] = [] if masks.mask is None else [masks.mask]
    terms: list[Tensor] = [] if masks.bias is None else [masks.bias]
    causal = masks.is_causal and (attn_mask is None or (trust_hint and key_padding_mask is None))
    if causal:
        conditions.append(Causal(align="start"))  # PyTorch aligns the first query with the first key
    if attn_mask is not None and not causal:
        _append(_four_axes(attn_mask, sizes), conditions, terms)
    if key_padding_mask is not None:
        _check_key_padding(key_padding_mask, sizes)
        _append(key_padding_mask[:, None, None, :], conditions, terms)
    if sizes.extra:
        conditions = [_with_extra_keys(condition, sizes, device) for condition in conditions]
        terms = [F.pad(term.expand(*term.shape[:-1], sizes.keys), (0, sizes.extra)) for term in terms]
    return reduce(and_, conditions) if conditions else None, sum(terms[1:], terms[0]) if terms else None


def _append(tensor: Tensor, conditions: list[Mask], terms: list[Tensor]) -> None:
    if tensor.dtype == torch.bool:
        conditions.append(Dense(~tensor))
    else:
        terms.append(tensor)


def _four_axes(attn_mask: Tensor, sizes: Sizes) -> Tensor:
    two = (sizes.queries, sizes.given)
    wanted = two if attn_mask.dim() == 2 else (sizes.batch * sizes.heads, *two)
    if attn_mask.shape != wanted:
        raise DropInSizeError(
            f"The shape of the {attn_mask.dim()}D attn_mask is {attn_mask.shape}, but should be {wanted}."
        )
    if sizes.given != sizes.keys and sizes.given != 1:
        raise DropInSizeError(
            f"attn_mask covers the {sizes.given} keys of the call, but static_k has {sizes.keys}: pass a key of this "
            "length, or write mask= and bias=, which cover the static keys"
        )
    return attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.reshape(sizes.batch, sizes.heads, *two)


def _check_key_padding(key_padding_mask: Tensor, sizes: Sizes) -> None:
    for axis, (size, wanted) in enumerate(zip(key_padding_mask.shape, (sizes.batch, sizes.keys), strict=True)):
        extra = axis * sizes.extra  # PyTorch's message counts the extra keys
        expect(
            size == wanted,
            f"Expected key_padded_mask.shape[{axis}] to be {wanted + extra}, but got {size + extra}",
        )


def _with_extra_keys(condition: Mask, sizes: Sizes, device: torch.device) -> Mask:
    allowed = condition.dense(sizes.queries, sizes.keys, device, batch=sizes.batch, heads=sizes.heads)
    return Dense(F.pad(allowed.expand(*allowed.shape[:-1], sizes.keys), (0, sizes.extra), value=True))
