"""PyTorch's fused function, and masks as the booleans that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from multihead.attention.backends.call import (
    Backend,
    Call,
    Kernel,
    Plan,
    Sizes,
    check_broadcast,
    compute_dtype,
    dense_bias,
    is_learned,
    refuse_weights_and_cap,
)
from multihead.attention.biases import Bias
from multihead.attention.masks import And, Causal, Mask

LONG = 1024
"""Queries and keys from which training in bfloat16 is faster than in float32 on a CPU (measured on one with AVX512-BF16
and no AMX: attention takes 1.2 times as long as in float32 at 64, as long at 256, 0.83 times at 1,024)."""


@dataclass(frozen=True)
class SdpaPlan(Plan):
    """One call of the fused function.

    Attributes:
        is_causal: the kernel applies the causal mask itself; then ``mask`` is None.
        mask: as small as it can be and still broadcast to [batch, heads, query, key]; None = everything.
    """

    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None

    @property
    def details(self) -> str:
        return "" if self.mask is None else f" with a boolean mask {list(self.mask.shape)}"

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,
    ) -> tuple[Tensor, Tensor | None]:
        output = fused_attention(
            query,
            key,
            value,
            is_causal=self.is_causal,
            mask=self.mask,
            bias=dense_bias(bias, query, key),
            scale=scale,
            dropout_p=dropout_p,
        )
        return output, None


class Sdpa(Backend):
    """PyTorch's fused function, which computes everything but the weights."""

    name: Kernel = "sdpa"

    def refuse(self, call: Call) -> str | None:
        return refuse_weights_and_cap(call)

    def plan(self, call: Call, why: str) -> SdpaPlan:
        dtype, why_dtype = compute_dtype(call, (torch.bfloat16,) if _is_long(call.sizes) else ())
        lowered = lower(call.mask, call.sizes, call.query.device, native_causal=call.bias is None)
        reasons = (why, lowered.why, *why_dtype, *why_unfused(call))
        return SdpaPlan(self.name, dtype, reasons, lowered.is_causal, lowered.mask)


def _is_long(sizes: Sizes) -> bool:
    """Whether bfloat16 pays in spite of its backward pass; not asked under a compiler, which would guard the sizes."""
    return not torch.compiler.is_compiling() and bool(min(sizes.q_len, sizes.kv_len) >= LONG)


def why_unfused(call: Call) -> tuple[str, ...]:
    """Why PyTorch takes its unfused path for this call, if it does: on a CPU it has a single fused kernel."""
    if call.query.device.type != "cpu":
        return ()
    reasons: tuple[str, ...] = ()
    if call.dropout_p > 0:
        reasons += ("unfused on a CPU: dropout on the weights",)
    if call.value.shape[-1] != call.query.shape[-1]:
        reasons += ("unfused on a CPU: values of another width than keys",)
    if call.bias is not None and is_learned(call.bias):
        reasons += ("unfused on a CPU: a bias that is learned",)
    return reasons


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
    """The equation of :func:`multihead.attention.attention` in one call, correct on every device.

    With a bias, ``is_causal`` must be False.
    """
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
            # bool: torch.jit.trace makes the comparison a tensor
            enable_gqa=bool(query.shape[1] != key.shape[1]),
        )


def _kernels_for(device_type: str, mask: Tensor | None) -> AbstractContextManager[object]:
    """Exclude cuDNN where a dense mask goes to a CUDA device.

    Its backward pass has returned NaN there in PyTorch 2.11 to 2.13 (issue 196678 of pytorch/pytorch).
    From reading only: not yet checked on a GPU.
    """
    if device_type != "cuda" or mask is None:
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Lowered(NamedTuple):
    """The mask for one call of a dense kernel.

    Attributes:
        is_causal: the kernel applies the causal mask itself; then ``mask`` is None.
        mask: the boolean mask, as small as it can be and still broadcast to [batch, heads, query, key].
        why: why it has this form, in words.
    """

    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None
    why: str


def lower(mask: Mask | None, sizes: Sizes, device: torch.device, *, native_causal: bool) -> Lowered:
    """Reduce a mask to the least that means the same for these sizes: nothing, a flag, or a small boolean.

    The mask keeps the result (:meth:`~multihead.attention.masks.algebra.Mask.cached`), so the layers of a network
    share it.

    Args:
        mask: any mask; None = everything.
        sizes: of the scores.
        device: where the boolean is needed.
        native_causal: whether the kernel has a causal mask of its own.

    Raises:
        ShapeError: the mask was made for other sizes.
    """
    if mask is None:
        return Lowered(False, None, "no mask")
    return mask.cached("lowered", (sizes, device, native_causal), lambda: _lower(mask, sizes, device, native_causal))


def _lower(mask: Mask, sizes: Sizes, device: torch.device, native_causal: bool) -> Lowered:
    conjuncts = mask.conjuncts
    batch, heads, q_len, kv_len = sizes
    # A single query at the end sees every key, so there a causal mask forbids nothing.
    parts = [part for part in conjuncts if not (q_len == 1 and isinstance(part, Causal) and part.align == "end")]
    dropped = len(parts) < len(conjuncts)
    if not parts:
        why = "one query at the end may see every key" if dropped else "the mask allows everything"
        return Lowered(False, None, f"{why}, so no mask")
    if native_causal and is_causal(parts, sizes):
        return Lowered(True, None, "causal with as many queries as keys is the kernel's own is_causal")
    lowered = And(*parts).dense(q_len, kv_len, device, batch=batch, heads=heads)
    check_broadcast("mask", lowered, sizes)
    why = "the mask in its smallest boolean form"
    return Lowered(False, lowered, f"{why}, without the causal part: one query at the end" if dropped else why)


def is_causal(conjuncts: Sequence[Mask], sizes: Sizes) -> bool:
    """Whether these masks are together the kernel's own causal mask, and nothing else."""
    return sizes.q_len == sizes.kv_len and all(isinstance(part, Causal) for part in conjuncts)
