"""``multi_head_attention_forward``: the function behind ``torch.nn.MultiheadAttention``, on our attention.

The same arguments in the same order as ``torch.nn.functional.multi_head_attention_forward``, the same results, the
same errors; what differs on purpose is listed at
:class:`multihead.attention.torch_compatible.module.MultiheadAttention`, whose
parameters these are. Masks are read in :mod:`multihead.attention.torch_compatible.arguments`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from multihead.attention.functional import attention
from multihead.attention.masks import Mask
from multihead.attention.torch_compatible.arguments import (
    DropInSizeError,
    Sizes,
    check_mask_types,
    check_ranks,
    expect,
    lower,
)
from multihead.attention.torch_compatible.projection import (
    ExtraKeys,
    InProjection,
    append_extra_keys,
    choose_matrices,
    project,
    use_static,
)


class Heads(NamedTuple):
    """How many heads queries have, and keys and values."""

    query: int
    kv: int


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float | int,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    num_kv_heads: int | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    r"""Multi-head attention with given parameters, time first, as PyTorch's function of the same name.

    .. math::
        \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O \\
        \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)

    Args:
        query: [queries, batch, width]; without the batch axis it is one sentence (this holds for all inputs).
        key: [keys, batch, kdim].
        value: [keys, batch, vdim].
        embed_dim_to_check: the width that the query must have.
        num_heads: heads of the queries.
        in_proj_weight: W^Q, W^K, W^V one below the other, unless ``use_separate_proj_weight``.
        in_proj_bias: the biases of all three, or None.
        bias_k: a learned key after the others, or None.
        bias_v: its value.
        add_zero_attn: whether a key and a value of zeros follow.
        dropout_p: the probability with which a weight is dropped while ``training``.
        out_proj_weight: W^O [width, width].
        out_proj_bias: its bias, or None.
        training: whether to drop weights.
        key_padding_mask: [batch, keys], **True = ignore**; numbers are added to the scores.
        need_weights: return the weights. They are taken **after dropout**, as PyTorch does, so that their rows sum
            to 1 on average only.
        attn_mask: [queries, keys] or [batch * heads, queries, keys], **True = ignore**; numbers are added.
        use_separate_proj_weight: whether the next three are used instead of ``in_proj_weight``.
        q_proj_weight: W^Q [width, width].
        k_proj_weight: W^K [width, kdim].
        v_proj_weight: W^V [width, vdim].
        static_k: [batch * heads, keys, head_dim]: keys to use instead of the projected ones.
        static_v: the same for values.
        average_attn_weights: whether to return the mean over heads [batch, queries, keys] or every head's weights
            [batch, heads, queries, keys].
        is_causal: alone: no query sees a later key (the first query stands at the first key). With ``attn_mask``:
            PyTorch's hint, the promise that ``attn_mask`` is that mask; it is then not read if neither weights nor
            a key padding mask are wanted.
        num_kv_heads: heads of keys and values (default: as many); fewer = grouped queries. W^K, W^V and what is added
            to keys and values are then num_kv_heads * head_dim wide.
        mask: one of our masks, **True = may attend**; what it forbids is forbidden whatever the others say.
        bias: added to the scores, [queries, keys] or four axes that broadcast to [batch, heads, queries, keys].

    Returns:
        The output, shaped like the query, and the weights or None.

    Raises:
        DropInError: where PyTorch raises an AssertionError; it is one, and a ShapeError.
        DropInSizeError: where PyTorch raises a RuntimeError; it is one, and a ShapeError.
        MaskError: a mask in the wrong place.
    """
    check_mask_types(key_padding_mask=key_padding_mask, attn_mask=attn_mask)
    batched = check_ranks(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = insert_batch(query, key, value, axis=1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    projection = choose_matrices(
        use_separate_proj_weight, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias
    )
    heads, weights = attend(
        query,
        key,
        value,
        projection,
        ExtraKeys(bias_k, bias_v, add_zero_attn),
        Heads(num_heads, num_heads if num_kv_heads is None else num_kv_heads),
        width=embed_dim_to_check,
        batch_first=False,
        dropout_p=float(dropout_p) if training else 0.0,
        key_padding_mask=key_padding_mask,
        attn_mask=attn_mask,
        is_causal=is_causal,
        mask=mask,
        bias=bias,
        static=(static_k, static_v),
        need_weights=need_weights,
    )
    output = F.linear(heads, out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if batched:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projection: InProjection,
    extra: ExtraKeys,
    heads: Heads,
    *,
    width: int,
    batch_first: bool,
    dropout_p: float,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    mask: Mask | None,
    bias: Tensor | None,
    static: tuple[Tensor | None, Tensor | None] = (None, None),
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """All of it up to (not including) W^O: projections, heads, extra keys, masks, attention, concatenation.

    Both layouts are views of the same products, so neither costs a copy before the kernel.

    Returns:
        The heads' outputs side by side, laid out like the query, and the weights of every head after dropout.
    """
    expect(query.shape[-1] == width, f"was expecting embedding dimension of {width}, but got {query.shape[-1]}")
    expect(width % heads.query == 0, f"embed_dim {width} not divisible by num_heads {heads.query}")
    if projection.packed is not None:
        expect(key.shape == value.shape, f"key shape {key.shape} does not match value shape {value.shape}")
    expect(
        key.shape[:2] == value.shape[:2],
        f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}",
    )
    length_axis, batch_axis = (1, 0) if batch_first else (0, 1)
    batch, queries, keys = query.shape[batch_axis], query.shape[length_axis], key.shape[length_axis]
    if key.shape[batch_axis] != batch:
        raise DropInSizeError(
            f"query has a batch of {batch} and key one of {key.shape[batch_axis]}: query {list(query.shape)}, "
            f"key {list(key.shape)}, {'[batch, length, width]' if batch_first else '[length, batch, width]'}"
        )
    projected = project(query, key, value, projection, width // heads.query * heads.kv)
    q, k, v = (
        _split_heads(x, count, batch_first)
        for x, count in zip(projected, (heads.query, heads.kv, heads.kv), strict=True)
    )
    k, v = (use_static(x, kept, name, heads.kv) for x, kept, name in zip((k, v), static, "kv", strict=True))
    k, v = append_extra_keys(k, v, extra, static)
    lowered, term = lower(
        Sizes(batch, heads.query, queries, keys, extra.number),
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        trust_hint=not need_weights,
        mask=mask,
        bias=bias,
        device=query.device,
    )
    if need_weights and dropout_p > 0:
        # PyTorch returns the weights that were used, so they are dropped here. No values: their sum comes after.
        _, weights = attention(q, k, v[..., :0], mask=lowered, bias=term, need_weights=True)
        assert weights is not None
        weights = F.dropout(weights, dropout_p)
        output = weights @ v.repeat_interleave(heads.query // heads.kv, dim=1)
    else:
        output, weights = attention(q, k, v, mask=lowered, bias=term, dropout_p=dropout_p, need_weights=need_weights)
    order = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
    return output.permute(order).flatten(2), weights


def insert_batch(query: Tensor, key: Tensor, value: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs as a batch of one; inputs that are the same tensor stay so."""
    new_query = query.unsqueeze(axis)
    new_key = new_query if key is query else key.unsqueeze(axis)
    return new_query, new_key, new_key if value is key else value.unsqueeze(axis)


def _split_heads(x: Tensor, heads: int, batch_first: bool) -> Tensor:
    """[batch, length, heads * dim] or [length, batch, heads * dim] -> [batch, heads, length, dim], without a copy."""
    apart = x.view(*x.shape[:2], heads, x.shape[-1] // heads)
    return apart.transpose(1, 2) if batch_first else apart.permute(1, 2, 0, 3)
