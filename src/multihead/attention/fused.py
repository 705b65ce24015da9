"""PyTorch's fused ``scaled_dot_product_attention``, called so that it is right on every device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def fused_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    is_causal: bool = False,
    mask: Bool[Tensor, "#batch #heads #query #key"] | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "batch heads query value_dim"]:
    """:func:`multihead.attention.attention`'s equation in one call; with a bias ``is_causal`` must be False."""
    term = mask
    if bias is not None:
        # A kernel takes one term only, and in the query's type: cuDNN has misread a float32 one as half.
        term = bias.to(query.dtype)
        term = term if mask is None else torch.where(mask, term, -torch.inf)
        term = term[None, None] if term.dim() == 2 else term
    with _kernels_for(query.device.type, term):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=term,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )


def _kernels_for(device_type: str, mask: Tensor | None) -> AbstractContextManager[object]:
    """Without cuDNN where a dense mask goes to a CUDA device.

    Its backward pass has returned NaN there in PyTorch 2.11 to 2.13 (issue 196678 of pytorch/pytorch).
    From reading only: not yet checked on a GPU.
    """
    if device_type != "cuda" or mask is None:
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
