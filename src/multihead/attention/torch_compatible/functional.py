"""``multi_head_attention_forward``: PyTorch's function on this library.

It has the arguments, results and errors of ``torch.nn.functional.multi_head_attention_forward``. The intended
differences are listed at :class:`multihead.attention.torch_compatible.module.MultiheadAttention`, which computes with
`attend` too. :mod:`multihead.attention.torch_compatible.arguments` reads the masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from multihead.attention.backends.call import check_mask
from multihead.attention.functional import attention
from multihead.attention.masks import Mask
from multihead.attention.masks.standard import KnownPadding
from multihead.attention.torch_compatible.arguments import (
    DropInSizeError,
    Masks,
    Sizes,
    check_ranks,
    check_types,
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


class AttentionParameters(NamedTuple):
    """Everything of a multi-head attention but its output projection.

    Attributes:
        width: width of the queries.
        heads: number of query heads.
        kv_heads: number of key and value heads.
        projection: the maps to queries, keys and values.
        extra: learned and zero keys after those of the input.
        static: keys and values that replace the projected ones.
    """

    width: int
    heads: int
    kv_heads: int
    projection: InProjection
    extra: ExtraKeys
    static: tuple[Tensor | None, Tensor | None] = (None, None)


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
    r"""Multi-head attention with given parameters, length first, as PyTorch's function of the same name.

    .. math::
        \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O \\
        \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)

    Args:
        query: [queries, batch, width]. All inputs may lack the batch axis; they are then one sentence.
        key: [keys, batch, kdim].
        value: [keys, batch, vdim].
        embed_dim_to_check: the expected width of the query.
        num_heads: number of query heads.
        in_proj_weight: W^Q, W^K and W^V stacked, unless ``use_separate_proj_weight``.
        in_proj_bias: the three biases, or None.
        bias_k: a learned key after the others, or None.
        bias_v: its value, or None.
        add_zero_attn: whether a zero key and a zero value follow.
        dropout_p: probability of dropping a weight if ``training``.
        out_proj_weight: W^O [width, width].
        out_proj_bias: its bias, or None.
        training: whether dropout is active.
        key_padding_mask: [batch, keys], **True = ignore**; a floating mask is added to the scores.
        need_weights: return the weights, **after dropout** as in PyTorch, so that their rows sum to 1 only in
            expectation.
        attn_mask: [queries, keys] or [batch * heads, queries, keys], **True = ignore**; a floating mask is added to
            the scores.
        use_separate_proj_weight: use the next three arguments instead of ``in_proj_weight``.
        q_proj_weight: W^Q [width, width].
        k_proj_weight: W^K [width, kdim].
        v_proj_weight: W^V [width, vdim].
        static_k: keys that replace the projected ones, [batch * heads, keys, head_dim].
        static_v: values that replace the projected ones.
        average_attn_weights: return the mean over heads [batch, queries, keys] instead of the weights of every head
            [batch, heads, queries, keys].
        is_causal: without ``attn_mask``: no query attends to a later key (the first query is at the first key). With
            ``attn_mask``: PyTorch's hint, a promise that ``attn_mask`` is causal, which is then not read unless
            weights are returned or there is a key padding mask.
        num_kv_heads: number of key and value heads (default: ``num_heads``); fewer = grouped queries. W^K, W^V and the
            extra keys and values are then num_kv_heads * head_dim wide.
        mask: a mask of this library, **True = may attend**; a key must be allowed by all masks.
        bias: added to the scores, [queries, keys] or four axes that broadcast to [batch, heads, queries, keys].

    Returns:
        The output, shaped like the query, and the weights or None.

    Raises:
        DropInError: where PyTorch raises an AssertionError; a subclass of it and of ShapeError.
        DropInSizeError: where PyTorch raises a RuntimeError; a subclass of it and of ShapeError.
        MaskError: a `Mask` is passed in place of a tensor.
    """
    masks = Masks(key_padding_mask, attn_mask, is_causal, mask, bias)
    check_types(masks)
    check_ranks(query, key, value, masks, num_heads)
    parameters = AttentionParameters(
        embed_dim_to_check,
        num_heads,
        num_heads if num_kv_heads is None else num_kv_heads,
        choose_matrices(
            use_separate_proj_weight, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias
        ),
        ExtraKeys(bias_k, bias_v, add_zero_attn),
        (static_k, static_v),
    )
    batched = query.dim() == 3
    if not batched:
        query, key, value = insert_batch(query, key, value, axis=1)
        masks = masks.unsqueeze()
    dropout = float(dropout_p) if training else 0.0
    heads, weights = attend(query, key, value, parameters, masks, dropout_p=dropout, need_weights=need_weights)
    output = F.linear(heads, out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if batched:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def mix_heads(
    query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float = 0.0, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`attention`, which also takes a ``dropout_p`` of 1: as in PyTorch, all weights are dropped.

    Returns:
        The heads [batch, heads, query, value_dim], and the weights before dropout or None.
    """
    if dropout_p != 1:
        return attention(query, key, value, dropout_p=dropout_p, **options)
    output, weights = attention(query, key, value, **options)
    return F.dropout(output, dropout_p), weights


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: AttentionParameters,
    masks: Masks,
    *,
    batch_first: bool = False,
    dropout_p: float,
    need_weights: bool,
    mix: Callable[..., tuple[Tensor, Tensor | None]] = mix_heads,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention of batched inputs up to W^O: projections, heads, extra keys, masks, concatenation.

    Both layouts are views of the same products, so neither needs a copy before the kernel. Another ``mix`` than
    `mix_heads` returns the weights as they are, without dropout.

    Returns:
        The concatenated outputs of the heads, laid out like the query, and the weights of every head after dropout.
    """
    heads, kv_heads, extra = parameters.heads, parameters.kv_heads, parameters.extra.number
    batch, queries, given = _check_sizes(query, key, value, parameters, batch_first)
    projected = project(query, key, value, parameters.projection, parameters.width // heads * kv_heads)
    q, k, v = (
        _split_heads(x, count, batch_first) for x, count in zip(projected, (heads, kv_heads, kv_heads), strict=True)
    )
    k, v = (use_static(x, kept, name, kv_heads) for x, kept, name in zip((k, v), parameters.static, "kv", strict=True))
    sizes = Sizes(batch, heads, queries, given, k.shape[2], extra)
    weights_first = mix is mix_heads and dropout_p > 0 and need_weights
    if masks.mask is not None:
        check_mask(masks.mask, batch, heads)
        if extra or weights_first:
            # `attention` hides the padding of a mask with lengths. But with extra keys it gets a dense mask, and values
            # that are summed below it does not get at all.
            q, k, v = KnownPadding(masks.mask).hide(q, k, v)
    k, v = append_extra_keys(k, v, parameters.extra, parameters.static)
    mask, bias = lower(masks, sizes, trust_hint=not need_weights, device=query.device)
    weights: Tensor | None
    if weights_first:
        # PyTorch returns the weights after dropout, so dropout is applied here, and the values are summed afterwards.
        _, before = attention(q, k, v[..., :0], mask=mask, bias=bias, need_weights=True)
        assert before is not None
        dropped = F.dropout(before, dropout_p)
        output, weights = dropped @ v.repeat_interleave(heads // kv_heads, dim=1), dropped
    else:
        output, weights = mix(q, k, v, mask=mask, bias=bias, dropout_p=dropout_p, need_weights=need_weights)
    order = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
    return output.permute(order).flatten(2), weights


def insert_batch(query: Tensor, key: Tensor, value: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs as a batch of one; inputs that are the same tensor remain the same tensor."""
    new_query = query.unsqueeze(axis)
    new_key = new_query if key is query else key.unsqueeze(axis)
    return new_query, new_key, new_key if value is key else value.unsqueeze(axis)


def _check_sizes(
    query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters, batch_first: bool
) -> tuple[int, int, int]:
    """Check the inputs against each other and the parameters; return the numbers of sentences, queries and keys."""
    width, heads = parameters.width, parameters.heads
    expect(query.shape[-1] == width, f"was expecting embedding dimension of {width}, but got {query.shape[-1]}")
    expect(width % heads == 0, f"embed_dim {width} not divisible by num_heads {heads}")
    if parameters.projection.packed is not None:
        expect(key.shape == value.shape, f"key shape {key.shape} does not match value shape {value.shape}")
    expect(
        key.shape[:2] == value.shape[:2],
        f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}",
    )
    length_axis, batch_axis = (1, 0) if batch_first else (0, 1)
    batch = query.shape[batch_axis]
    if key.shape[batch_axis] != batch:
        raise DropInSizeError(
            f"query has a batch of {batch} and key one of {key.shape[batch_axis]}: query {list(query.shape)}, "
            f"key {list(key.shape)}, {'[batch, length, width]' if batch_first else '[length, batch, width]'}"
        )
    return batch, query.shape[length_axis], key.shape[length_axis]


def _split_heads(x: Tensor, heads: int, batch_first: bool) -> Tensor:
    """[batch, length, heads * dim] or [length, batch, heads * dim] -> [batch, heads, length, dim], without a copy."""
    split = x.view(*x.shape[:2], heads, x.shape[-1] // heads)
    return split.transpose(1, 2) if batch_first else split.permute(1, 2, 0, 3)
