"""Which kernel computes an attention, and why, in words.

The choice is a function of kinds, shapes, types and flags alone, never of values on the device: the same call
always takes the same path, and nothing waits for an accelerator. What the kernels compute is defined in
:mod:`multihead.attention.functional`; they agree, also where a query may attend to nothing (zeros).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.masks import And, Causal, Mask
from multihead.errors import ConfigurationError, MaskError, ShapeError

Backend = Literal["auto", "explicit", "sdpa"]
Kernel = Literal["explicit", "sdpa"]

HALF_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Plan:
    """How one attention will be computed.

    Attributes:
        kernel: ``"explicit"`` = scores, softmax and sum one after the other; ``"sdpa"`` = PyTorch's fused
            function.
        is_causal: the kernel applies the causal mask itself (then ``mask`` is None).
        mask: the boolean mask, as small as it can be and still broadcast to [batch, heads, query, key].
        compute_dtype: the type to compute in, if it is not that of the inputs.
        reasons: why, in words. No sizes are named: where a compiler traces with symbols for sizes, writing
            one down would tie the compiled code to it.
    """

    kernel: Kernel
    is_causal: bool
    mask: Bool[Tensor, "b h q k"] | None
    compute_dtype: torch.dtype | None
    reasons: tuple[str, ...]

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
    bias: Float[Tensor, ...] | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "auto",
) -> Plan:
    """The plan for a call of :func:`multihead.attention.attention` with the same arguments.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`.
        ConfigurationError: an unknown backend, one that cannot do what is asked, or an impossible dropout.
    """
    check_inputs(query, key, value, bias)
    kernel, why_kernel = _choose_kernel(dropout_p, need_weights, backend)
    is_causal, lowered, why_mask = _lower(mask, query, key, native_causal=kernel == "sdpa" and bias is None)
    compute_dtype, why_dtype = _compute_dtype(query, key, value, bias)
    reasons = (why_kernel, why_mask, *why_dtype)
    if kernel == "sdpa" and query.device.type == "cpu":
        reasons += _why_unfused(value.shape[-1] != query.shape[-1], dropout_p, bias)
    return Plan(kernel, is_causal, lowered, compute_dtype, reasons)


def explain(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | None = None,
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
    mask_shape = "" if plan.mask is None else f" with a boolean mask {list(plan.mask.shape)}"
    return f"{call}: {plan.kernel}{mask_shape}. Why: {plan.reason}"


def check_inputs(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> None:
    """Whether the tensors fit together: [B,H,Q,D], [B,Hk,K,D], [B,Hk,K,Dv], Hk a divisor of H, one type.

    Raises:
        ShapeError: they do not; both shapes are named.
    """
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ShapeError(f"attention takes four axes [batch, heads, length, width], got {shapes}")
    if key.shape[:3] != value.shape[:3]:
        raise ShapeError(f"key and value must have the same batch, heads and length, got {shapes}")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ShapeError(f"query and key must have the same batch and width, got {shapes}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ShapeError(f"the query's heads must be a multiple of the key's heads, got {shapes}")
    if not query.dtype == key.dtype == value.dtype and not _under_autocast(query):
        raise ShapeError(
            f"query, key and value must have one type, got {query.dtype}, {key.dtype} and {value.dtype}: "
            "convert them, as in key.to(query.dtype)"
        )
    if bias is None:
        return
    if bias.dim() not in (2, 4):
        raise ShapeError(
            f"the bias has shape {list(bias.shape)}; write bias[:, None] if it is [batch, queries, keys], "
            "bias[None] if it is [heads, queries, keys]"
        )
    _check_broadcast("bias", bias, (*query.shape[:3], key.shape[2]))


def _choose_kernel(dropout_p: float, need_weights: bool, backend: Backend) -> tuple[Kernel, str]:
    if not 0.0 <= dropout_p < 1.0:
        raise ConfigurationError(f"dropout_p={dropout_p}: a probability from 0 up to (not including) 1 is needed")
    match backend:
        case "explicit":
            return "explicit", "asked for by name"
        case "sdpa" if need_weights:
            raise ConfigurationError(
                "backend='sdpa' never has the weights: write backend='auto', or need_weights=False"
            )
        case "sdpa":
            return "sdpa", "asked for by name"
        case "auto" if need_weights:
            return "explicit", "the weights are wanted, and the fused kernel never has them"
        case "auto":
            return "sdpa", "no weights are wanted, so the fused scaled_dot_product_attention does it"
        case _:
            raise ConfigurationError(f"backend={backend!r}: there are {', '.join(get_args(Backend))}")


def _lower(mask: Mask | None, query: Tensor, key: Tensor, native_causal: bool) -> tuple[bool, Tensor | None, str]:
    """(is_causal, boolean mask, why): the least that means the same for these lengths."""
    if mask is None:
        return False, None, "no mask"
    if not isinstance(mask, Mask):
        raise MaskError(f"mask is a {type(mask).__name__}: for a boolean tensor, True = may attend, write Dense(mask)")
    batch, heads, q_len, _ = query.shape
    kv_len = key.shape[2]
    parts = [part for part in mask.conjuncts if not (q_len == 1 and _is_causal_at_end(part))]
    dropped = len(parts) < len(mask.conjuncts)
    if not parts:
        why = "one query at the end may see every key" if dropped else "the mask allows everything"
        return False, None, f"{why}, so no mask"
    if native_causal and q_len == kv_len and all(isinstance(part, Causal) for part in parts):
        return True, None, "causal with as many queries as keys is the kernel's own is_causal"
    lowered = And(*parts).dense(q_len, kv_len, query.device)
    _check_broadcast("mask", lowered, (batch, heads, q_len, kv_len))
    why = "the mask in its smallest boolean form"
    return False, lowered, f"{why}, without the causal part: one query at the end" if dropped else why


def _is_causal_at_end(mask: Mask) -> bool:
    return isinstance(mask, Causal) and mask.align == "end"


def _compute_dtype(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """The type to compute in (None = as it is), and why.

    On a CPU the fused kernel's backward pass in bfloat16 takes sixteen times as long as in float32 (measured:
    50 ms against 3 ms on a processor with AMX), so training computes in float32 there. Forward alone, half
    types are fine.
    """
    wanted = query.dtype
    reasons: tuple[str, ...] = ()
    if _under_autocast(query) and query.dtype != torch.float64:
        wanted = torch.get_autocast_dtype(query.device.type)
        reasons = (f"in autocast's {wanted}",)
    tensors = (query, key, value) if bias is None else (query, key, value, bias)
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if training and query.device.type == "cpu" and wanted in HALF_TYPES:
        reasons = (f"in float32, because on a CPU the backward pass is many times slower in {wanted}",)
        wanted = torch.float32
    changes = not query.dtype == key.dtype == value.dtype == wanted
    return wanted if changes else None, reasons


def _under_autocast(query: Tensor) -> bool:
    kind = query.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _why_unfused(unequal_width: bool, dropout_p: float, bias: Tensor | None) -> tuple[str, ...]:
    """On a CPU PyTorch has one fused kernel and a plain path behind it: why it is the plain one, if it is."""
    reasons: tuple[str, ...] = ()
    if dropout_p > 0:
        reasons += ("unfused on a CPU: dropout on the weights",)
    if unequal_width:
        reasons += ("unfused on a CPU: values of another width than keys",)
    if bias is not None and bias.requires_grad:
        reasons += ("unfused on a CPU: a bias that is learned",)
    return reasons


def _check_broadcast(name: str, tensor: Tensor, full: tuple[int, ...]) -> None:
    shape = tensor.shape
    # Written out: `size in (1, want)` fails where sizes are symbols (torch.compile, torch.export).
    if any(size != 1 and size != want for size, want in zip(reversed(shape), reversed(full), strict=False)):
        raise ShapeError(
            f"the {name} has shape {list(shape)}, which does not broadcast to {list(full)}, "
            "the [batch, heads, queries, keys] of these tensors"
        )
