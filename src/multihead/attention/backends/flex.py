"""PyTorch's FlexAttention, which skips the blocks that a mask hides.

Dong et al. 2024, "Flex Attention: a programming model for generating optimized attention kernels". The mask is a
function of indices. Compiled, each *kind* of mask and bias has a kernel of its own: lengths, offsets and ids reach it
as tensors, so other values need no new one. On a CPU it runs forwards only; on CUDA it trains too (from reading: not
yet run on a GPU).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attention.backends.call import (
    Backend,
    Call,
    Kernel,
    Plan,
    compute_dtype,
    refuse_weights_and_dropout,
)
from multihead.attention.biases import Bias, ScoreRule
from multihead.attention.masks import Mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True)
class FlexPlan(Plan):
    """One call of FlexAttention.

    Attributes:
        block_mask: the mask; None = everything.
        soft_cap: the bound of the scores before the bias, or None.
    """

    block_mask: BlockMask | None = field(repr=False)
    soft_cap: float | None = None

    @property
    def details(self) -> str:
        if self.block_mask is None:
            return ""
        return f" with {self.block_mask.sparsity():.0f}% of the blocks left out"

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        output = flexible_attention(
            query,
            key,
            value,
            self.block_mask,
            bias=bias,
            scale=scale,
            soft_cap=self.soft_cap,
            compiled=self.kernel == "flex",
        )
        return output, None


class Flex(Backend):
    """FlexAttention.

    Args:
        name: ``"flex"``, compiled, or ``"flex_eager"``, not compiled.
    """

    def __init__(self, name: Kernel) -> None:
        self.name = name

    def refuse(self, call: Call) -> str | None:
        refusal = refuse_weights_and_dropout(call)
        if refusal is None and call.query.device.type == "mps":
            refusal = "does not run on MPS: write backend='blockwise'"
        if refusal is None and call.training and call.query.device.type == "cpu":
            refusal = (
                "cannot train on a CPU, where FlexAttention has no backward pass: write backend='blockwise', or call "
                "it under torch.no_grad()"
            )
        return refusal

    def plan(self, call: Call, why: str) -> FlexPlan:
        dtype, why_dtype = compute_dtype(call)
        batch, heads, q_len, kv_len = call.sizes
        mask, device, made = call.mask, call.query.device, None
        if mask is not None and mask.conjuncts:
            made = mask.cached(
                "block mask",
                (call.sizes, device),
                lambda: block_mask(mask, q_len, kv_len, batch=batch, heads=heads, device=device),
            )
        return FlexPlan(self.name, dtype, (why, *why_dtype), made, call.soft_cap)


def block_mask(
    mask: Mask,
    q_len: int,
    kv_len: int,
    *,
    batch: int = 1,
    heads: int = 1,
    device: torch.device | str | None = None,
    block_size: int = 128,
) -> BlockMask:
    """The mask as FlexAttention's ``BlockMask``: which blocks are seen whole, in part, or not at all.

    Args:
        mask: any mask.
        q_len: the number of queries.
        kv_len: the number of keys.
        batch: sentences; the result has as many, or 1 where the mask is the same for all.
        heads: heads; likewise.
        device: of the result (default: that of the mask's tensors, or the CPU).
        block_size: queries and keys of a block.

    Raises:
        ShapeError: the mask was made for other lengths.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    where = torch.device(mask.device or "cpu") if device is None else torch.device(device)
    known, rule = mask.sizes, mask.rule(q_len, kv_len, where)
    return create_block_mask(
        lambda b, h, q, k: rule(b, h, q, k),  # `create_block_mask` counts the arguments of a plain function
        1 if known[0] == 1 else batch,
        1 if known[1] == 1 else heads,
        q_len,
        kv_len,
        device=where,
        BLOCK_SIZE=block_size,
    )


def flexible_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    blocks: BlockMask | None,
    *,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    compiled: bool = True,
) -> Float[Tensor, "batch heads query value_dim"]:
    """The equation of :func:`multihead.attention.attention` by FlexAttention.

    Args:
        query: as there.
        key: as there.
        value: as there.
        blocks: the mask, from :func:`block_mask`; None = everything.
        bias: as there.
        scale: as there.
        soft_cap: as there.
        compiled: compile it (once for each kind of mask, which takes half a minute on a CPU); otherwise PyTorch
            computes all scores, as it documents: for inspecting small ones.
    """
    if not torch.is_grad_enabled():
        # On a CPU it refuses tensors that require gradients, even where none are computed.
        query, key, value = query.detach(), key.detach(), value.detach()
    rule = _capped_rule(None if bias is None else _score_rule(bias, query, key), soft_cap, query.device)

    def compute(function: Callable[..., Any]) -> Tensor:
        grouped = query.shape[1] != key.shape[1]
        result: Tensor = function(query, key, value, score_mod=rule, block_mask=blocks, scale=scale, enable_gqa=grouped)
        return result

    with warnings.catch_warnings():
        # It warns that it computes all scores when it is not compiled, which the caller asked for.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        try:
            return compute(_function(compiled))
        except Exception as error:
            if not (compiled and _names_collide(error)):
                raise
            return compute(_function(compiled, any_length=False))


@cache
def _function(compiled: bool, any_length: bool = True) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    function: Any = flex_attention
    return torch.compile(function, dynamic=None if any_length else False) if compiled else function


def _names_collide(error: Exception) -> bool:
    """Whether compiling has failed because names of sizes are replaced in C++ where they begin other names.

    PyTorch 2.13 does so on a CPU (``CppFlexAttentionTemplate.modification``): the size of a block is called ks8, as the
    beginning of ks84. It happens to rules that read a tensor, once lengths have become symbols; a kernel for one length
    has no such names.
    """
    return "cur_kvSplitSize" in str(error) or "cur_qSplitSize" in str(error)


def _capped_rule(rule: ScoreRule | None, soft_cap: float | None, device: torch.device) -> ScoreRule | None:
    """The rule for scores that are capped first."""
    if soft_cap is None:
        return rule
    cap = torch.full((), soft_cap, device=device)  # a tensor, so that no number is compiled into the kernel
    if rule is None:
        return lambda score, b, h, q, k: cap * torch.tanh(score / cap)  # noqa: ARG005
    return lambda score, b, h, q, k: rule(cap * torch.tanh(score / cap), b, h, q, k)


def _score_rule(bias: Tensor | Bias, query: Tensor, key: Tensor) -> ScoreRule:
    q_len, kv_len = query.shape[2], key.shape[2]
    if isinstance(bias, Bias):
        return bias.score_rule(q_len, kv_len, query.device)
    four = bias[None, None] if bias.dim() == 2 else bias
    whole = four.to(query.dtype).expand(query.shape[0], query.shape[1], q_len, kv_len)
    return lambda score, b, h, q, k: score + whole[b, h, q, k]
