"""Which kernel computes an attention, and why, in words.

The choice is a function of kinds, shapes, types and flags alone, and of what the host knows of a mask from its making,
never of values on the device: the same call always takes the same path, and nothing waits for an accelerator. What
the kernels compute is defined in :mod:`multihead.attention.functional`; they agree, also where a query may attend to
nothing (zeros). A kernel that is asked for by name is taken, or an error says why it cannot be: never another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.biases import Bias
from multihead.attention.blocks import Block
from multihead.attention.checks import check_dropout, check_inputs, check_sizes, under_autocast
from multihead.attention.flex import block_mask
from multihead.attention.lowering import Sizes, blocks_of, blocks_pay, lower
from multihead.attention.masks import Full, Mask
from multihead.attention.short import Limits, limits_of
from multihead.attention.variable_length import Sequences, sequences_of
from multihead.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Kernel = Literal["explicit", "sdpa", "blockwise", "short", "flex", "flex_eager", "varlen"]
Backend = Literal["auto", "explicit", "sdpa", "blockwise", "short", "flex", "flex_eager", "varlen"]

_BACKENDS: tuple[str, ...] = get_args(Backend)

HALF_TYPES = (torch.bfloat16, torch.float16)

LONG = 1024
"""Queries and keys from which training in bfloat16 is faster than in float32 on a CPU (measured on one with AVX512-BF16
and no AMX: attention takes 1.2 times as long as in float32 at 64, as long at 256, 0.83 times at 1,024)."""


@dataclass(frozen=True)
class Plan:
    """How one attention will be computed.

    Attributes:
        kernel: ``"explicit"`` = scores, softmax and sum one after the other; ``"sdpa"`` = PyTorch's fused
            function; ``"blockwise"`` = the same, once for each of ``blocks``; ``"flex"`` = FlexAttention, compiled
            (``"flex_eager"``: not compiled); ``"varlen"`` = the variable-length kernel; ``"short"`` = our own for
            short sequences on a CPU.
        is_causal: the kernel applies the causal mask itself (then ``mask`` is None).
        mask: the boolean mask, as small as it can be and still broadcast to [batch, heads, query, key].
        compute_dtype: the type to compute in, if it is not that of the inputs.
        reasons: why, in words. No sizes are named: where a compiler traces with symbols for sizes, writing
            one down would tie the compiled code to it.
        blocks: the mask of ``"blockwise"``.
        block_mask: the mask of ``"flex"``; None = everything.
        sequences: the mask of ``"varlen"``.
        limits: the mask of ``"short"``.
    """

    kernel: Kernel
    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None
    compute_dtype: torch.dtype | None
    reasons: tuple[str, ...]
    blocks: tuple[Block, ...] = field(default=(), repr=False)
    block_mask: BlockMask | None = field(default=None, repr=False)
    sequences: Sequences | None = field(default=None, repr=False)
    limits: Limits | None = field(default=None, repr=False)

    @property
    def reason(self) -> str:
        """The reasons as one sentence."""
        return "; ".join(self.reasons)


def choose(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "auto",
) -> Plan:
    """The plan for a call of :func:`multihead.attention.attention` with the same arguments.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`, or the bias holds no floats.
        ConfigurationError: an unknown backend, one that cannot do what is asked, or an impossible dropout.
    """
    check_inputs(query, key, value, bias, mask)
    check_dropout(dropout_p)
    if backend not in _BACKENDS:
        raise ConfigurationError(f"backend={backend!r}: there are {', '.join(_BACKENDS)}")
    sizes = Sizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if mask is not None:
        check_sizes(mask, sizes.batch, sizes.heads)
    training = _is_training(query, key, value, bias)
    limits = None
    if backend == "short" or (backend == "auto" and training and not need_weights and dropout_p == 0):
        limits = _limits(query, key, value, mask, bias)
    kernel: Kernel
    if backend == "auto" and limits is not None:
        kernel, why = "short", "a short sequence is learned from on a CPU, and the mask is lengths or causal"
    elif backend == "auto":
        kernel, why = _choose_kernel(mask, sizes, query.device, need_weights, bias is None)
    else:
        kernel, why = backend, "asked for by name"
        refusal = _refusal(backend, query, bias, dropout_p, need_weights, training)
        if backend == "short" and refusal is None and limits is None:
            refusal = (
                "is compiled for a CPU, for float32 or bfloat16, equal heads and widths, few positions, and masks of "
                "lengths or causal ones: write backend='auto'"
            )
        if refusal:
            raise ConfigurationError(f"backend={backend!r} {refusal}")
    compute_dtype, why_dtype = _compute_dtype(query, key, value, kernel, training)
    reasons = (why, *why_dtype)
    if query.device.type == "cpu" and kernel in ("sdpa", "blockwise"):
        reasons += _why_unfused(value.shape[-1] != query.shape[-1], dropout_p, bias)
    if kernel in ("explicit", "sdpa"):
        lowered = lower(mask, sizes, query.device, native_causal=kernel == "sdpa" and bias is None)
        return Plan(kernel, lowered.is_causal, lowered.mask, compute_dtype, (reasons[0], lowered.why, *reasons[1:]))
    if kernel == "blockwise":
        blocks = blocks_of(Full() if mask is None else mask, sizes, query.device, native_causal=bias is None)
        return Plan(kernel, False, None, compute_dtype, reasons, blocks=blocks)
    if kernel == "short":
        return Plan(kernel, False, None, compute_dtype, reasons, limits=limits)
    return _with_structure(kernel, mask, sizes, query.device, compute_dtype, reasons)


def _limits(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | Bias | None) -> Limits | None:
    """The mask as the kernel for short sequences takes it; None where the call is not one for that kernel."""
    if bias is not None:
        return None
    if under_autocast(query) and torch.get_autocast_dtype(query.device.type) not in (query.dtype, torch.bfloat16):
        return None
    return limits_of(mask, query, key, value)


def _with_structure(
    kernel: Kernel,
    mask: Mask | None,
    sizes: Sizes,
    device: torch.device,
    compute_dtype: torch.dtype | None,
    reasons: tuple[str, ...],
) -> Plan:
    """The plan of a kernel that takes the mask in another form than a boolean tensor."""
    batch, heads, q_len, kv_len = sizes
    some = Full() if mask is None else mask
    if kernel == "varlen":
        sequences = some.remembered("sequences", sizes, lambda: sequences_of(mask, batch, q_len, kv_len))
        return Plan(kernel, False, None, compute_dtype, reasons, sequences=sequences)
    made = None
    if some.conjuncts:
        made = some.remembered(
            "block mask",
            (sizes, device),
            lambda: block_mask(some, q_len, kv_len, batch=batch, heads=heads, device=device),
        )
    return Plan(kernel, False, None, compute_dtype, reasons, block_mask=made)


def explain(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,  # noqa: ARG001 - so that it takes every call that `attention` takes
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "auto",
) -> str:
    """Which kernel ``attention`` takes for these arguments, and why; computes nothing.

    Raises:
        InputError: whatever ``attention`` would raise for the same arguments.
    """
    plan = choose(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        backend=backend,
    )
    batch, heads, q_len, _ = query.shape
    call = f"{batch} x {heads} heads, {q_len} queries, {key.shape[2]} keys, {query.dtype} on {query.device.type}"
    how = ""
    if plan.mask is not None:
        how = f" with a boolean mask {list(plan.mask.shape)}"
    elif plan.blocks:
        how = f" in {len(plan.blocks)} {'block' if len(plan.blocks) == 1 else 'blocks'}"
    elif plan.sequences is not None:
        how = f" of {len(plan.sequences.queries)} sequences"
    elif plan.block_mask is not None:
        how = f" with {plan.block_mask.sparsity():.0f}% of the blocks left out"
    return f"{call}: {plan.kernel}{how}. Why: {plan.reason}"


def _choose_kernel(
    mask: Mask | None, sizes: Sizes, device: torch.device, need_weights: bool, native_causal: bool
) -> tuple[Kernel, str]:
    if need_weights:
        return "explicit", "the weights are wanted, and the fused kernels never have them"
    # A compiler would unroll the blocks and tie its code to them; on CUDA they have not been measured.
    looks = device.type == "cpu" and not torch.compiler.is_compiling()
    if mask is not None and looks and blocks_pay(mask, sizes, device, native_causal=native_causal):
        return "blockwise", "the mask leaves so little to see that block by block is less work"
    return "sdpa", "no weights are wanted, so the fused scaled_dot_product_attention does it"


def _refusal(
    kernel: str, query: Tensor, bias: Tensor | Bias | None, dropout_p: float, need_weights: bool, training: bool
) -> str | None:
    """Why this kernel cannot do what is asked; None if it can."""
    if kernel == "explicit":
        return None
    if need_weights:
        return "never has the weights: write backend='auto', or need_weights=False"
    if kernel in ("sdpa", "blockwise"):
        return None
    if dropout_p > 0:
        return f"has no dropout on the weights, and dropout_p={dropout_p}: write backend='sdpa', or dropout_p=0"
    if kernel in ("flex", "flex_eager"):
        if training and query.device.type == "cpu":
            return (
                "cannot train on a CPU, where FlexAttention has no backward pass: write backend='blockwise', or call "
                "it under torch.no_grad()"
            )
        return None
    if kernel == "short":
        return None
    if query.device.type != "cuda":
        return f"is a CUDA kernel, and the tensors are on {query.device.type}: write backend='blockwise'"
    if query.dtype not in HALF_TYPES:
        return f"computes in bfloat16 or float16, and the tensors are {query.dtype}: convert them, or write 'sdpa'"
    if bias is not None:
        return "takes no bias: write backend='sdpa'"
    return None


def _is_training(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | Bias | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    learned = isinstance(bias, Bias) and bias.learned
    tensors = (query, key, value, bias) if isinstance(bias, Tensor) else (query, key, value)
    return learned or any(tensor.requires_grad for tensor in tensors)


def _compute_dtype(
    query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, training: bool
) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """The type to compute in (None = as it is), and why.

    On a CPU the fused kernel's backward pass in bfloat16 takes many times as long as in float32 for the short
    sequences of translation (measured: 50 ms against 3 ms on a processor with AMX), so training computes in float32
    there; only from `LONG` positions on does the kernel make up for it. Forward alone, half types are fine.
    """
    wanted = query.dtype
    reasons: tuple[str, ...] = ()
    if under_autocast(query) and query.dtype != torch.float64:
        wanted = torch.get_autocast_dtype(query.device.type)
        reasons = (f"in autocast's {wanted}",)
    if kernel == "short":
        pass  # which reads either type, and computes in float32
    elif training and query.device.type == "cpu" and wanted in HALF_TYPES and not _is_long(query, key, kernel, wanted):
        reasons = (f"in float32, because on a CPU the backward pass is many times slower in {wanted}",)
        wanted = torch.float32
    changes = not query.dtype == key.dtype == value.dtype == wanted
    return wanted if changes else None, reasons


def _is_long(query: Tensor, key: Tensor, kernel: Kernel, wanted: torch.dtype) -> bool:
    """Whether bfloat16 pays in spite of its backward pass; a compiler is spared the question, which it would guard."""
    if kernel != "sdpa" or wanted != torch.bfloat16 or torch.compiler.is_compiling():
        return False
    return min(query.shape[2], key.shape[2]) >= LONG


def _why_unfused(unequal_width: bool, dropout_p: float, bias: Tensor | Bias | None) -> tuple[str, ...]:
    """On a CPU PyTorch has one fused kernel and a plain path behind it: why it is the plain one, if it is."""
    reasons: tuple[str, ...] = ()
    if dropout_p > 0:
        reasons += ("unfused on a CPU: dropout on the weights",)
    if unequal_width:
        reasons += ("unfused on a CPU: values of another width than keys",)
    if bias is not None and (bias.learned if isinstance(bias, Bias) else bias.requires_grad):
        reasons += ("unfused on a CPU: a bias that is learned",)
    return reasons
