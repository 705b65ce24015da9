"""One call of attention, checked, and what a backend makes of it.

A :class:`Backend` is one file of this package: it refuses a call or plans it, and its :class:`Plan` computes the call.
A plan follows from kinds, shapes, types and flags alone, and from what the host knows of a mask, never from values on
a device: equal calls take equal paths, and nothing waits for an accelerator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attention.biases import Bias
from multihead.attention.masks import Mask
from multihead.errors import ConfigurationError, MaskError, ShapeError

Kernel = Literal["explicit", "sdpa", "blockwise", "short", "long", "flex", "flex_eager", "varlen"]

HALF_TYPES = (torch.bfloat16, torch.float16)


def at_least_float32(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """A tensor of a half type in float32; any other as it is."""
    return x.float() if x.dtype in HALF_TYPES else x


class Sizes(NamedTuple):
    """The sizes of one call."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


class Call(NamedTuple):
    """The arguments of one call, which fit together.

    Attributes:
        query: [batch, heads, query, dim].
        key: [batch, kv_heads, key, dim].
        value: [batch, kv_heads, key, value_dim].
        mask: which query may attend to which key; None = all of them.
        bias: added to the scores, or None.
        dropout_p: the probability with which a weight is dropped.
        need_weights: whether the weights are to be returned.
        soft_cap: the bound of the scores before the bias, or None.
        sizes: of the scores.
        training: whether a gradient may be asked for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Tensor | Bias | None
    dropout_p: float
    need_weights: bool
    soft_cap: float | None
    sizes: Sizes
    training: bool


@dataclass(frozen=True)
class Plan(ABC):
    """How one call will be computed; each backend has a subclass with its own form of the mask.

    Attributes:
        kernel: the backend's name.
        compute_dtype: the type to compute in; None = that of the inputs.
        reasons: why, in words. They name no sizes: where a compiler traces with symbolic sizes, formatting one would
            specialize the compiled code to it.
    """

    kernel: Kernel
    compute_dtype: torch.dtype | None
    reasons: tuple[str, ...]

    reads_padding: ClassVar[bool] = True
    """Whether the kernel reads positions that the mask hides, so that a NaN there could spread."""

    @property
    def reason(self) -> str:
        """The reasons as one sentence."""
        return "; ".join(self.reasons)

    @property
    def details(self) -> str:
        """The form of the mask, as `explain` prints it behind the kernel's name."""
        return ""

    @abstractmethod
    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,
        scale: float | None,
        dropout_p: float,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights before dropout if this backend has them."""


class Backend(ABC):
    """One way to compute attention.

    Attributes:
        name: as in ``attention(..., backend=name)``.
    """

    name: Kernel

    @abstractmethod
    def refuse(self, call: Call) -> str | None:
        """Why it cannot compute this call, as the end of a sentence that begins with its name; None if it can."""

    @abstractmethod
    def plan(self, call: Call, why: str) -> Plan:
        """The plan for a call that it does not refuse.

        Args:
            call: the call.
            why: why this backend was chosen: the plan's first reason.
        """


def describe_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | Bias | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    soft_cap: float | None = None,
) -> Call:
    """Check the arguments of a call and collect them.

    Raises:
        ShapeError: tensors, mask or bias do not fit together.
        MaskError: the mask is not a :class:`~multihead.attention.masks.Mask`, or the bias holds no floats.
        ConfigurationError: an impossible dropout, or a soft cap that is not above 0 and finite.
    """
    _check_tensors(query, key, value)
    sizes = Sizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if bias is not None:
        _check_bias(bias, sizes)
    check_dropout(dropout_p)
    if soft_cap is not None:
        check_soft_cap(soft_cap)
    if mask is not None:
        check_mask(mask, sizes.batch, sizes.heads)
    training = _is_training(query, key, value, bias)
    return Call(query, key, value, mask, bias, dropout_p, need_weights, soft_cap, sizes, training)


def refuse_weights(call: Call) -> str | None:
    """The refusal of a backend that does not return weights."""
    return "does not return weights: write backend='auto', or need_weights=False" if call.need_weights else None


def refuse_weights_and_cap(call: Call) -> str | None:
    """The refusal of a backend that neither returns weights nor caps the scores."""
    if call.soft_cap is None or call.need_weights:
        return refuse_weights(call)
    return f"does not support soft_cap, got soft_cap={call.soft_cap}: write backend='explicit' or 'flex'"


def refuse_weights_and_dropout(call: Call) -> str | None:
    """The refusal of a backend that neither returns the weights nor drops any."""
    if call.dropout_p == 0 or call.need_weights:
        return refuse_weights(call)
    return (
        f"does not support dropout of the weights, got dropout_p={call.dropout_p}: write backend='sdpa', or dropout_p=0"
    )


def compute_dtype(call: Call, fast_halves: tuple[torch.dtype, ...] = ()) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """The type to compute in (None = that of the inputs), and why.

    On a CPU the fused kernel's backward pass in bfloat16 takes many times as long as in float32 for the short
    sequences of translation (measured: 50 ms against 3 ms on a processor with AMX), so training computes in float32
    there. Forward alone, half types are fast.

    Args:
        call: the call.
        fast_halves: half types in which this backend trains fast on a CPU.
    """
    query = call.query
    wanted = query.dtype
    reasons: tuple[str, ...] = ()
    if under_autocast(query) and query.dtype != torch.float64:
        wanted = torch.get_autocast_dtype(query.device.type)
        reasons = (f"in autocast's {wanted}",)
    slow = call.training and query.device.type == "cpu" and wanted in HALF_TYPES
    if slow and wanted not in fast_halves:
        reasons = (f"in float32, because on a CPU the backward pass is many times slower in {wanted}",)
        wanted = torch.float32
    changes = not query.dtype == call.key.dtype == call.value.dtype == wanted
    return wanted if changes else None, reasons


def dense_bias(bias: Tensor | Bias | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The bias as a tensor that broadcasts to the scores."""
    if isinstance(bias, Bias):
        return bias.dense(query.shape[2], key.shape[2], query.dtype, query.device)
    return bias


def is_learned(bias: Tensor | Bias) -> bool:
    """Whether the bias needs a gradient."""
    return bias.learned if isinstance(bias, Bias) else bias.requires_grad


def under_autocast(query: Tensor) -> bool:
    """Whether autocast is on for the query's device."""
    kind = query.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def check_dropout(dropout: float, name: str = "dropout_p") -> None:
    """Check that it is a probability below 1; ``name`` is what the caller calls it.

    Raises:
        ConfigurationError: it is not.
    """
    if not 0.0 <= dropout < 1.0:
        raise ConfigurationError(f"{name}={dropout}: a probability from 0 up to (not including) 1 is needed")


def check_soft_cap(cap: float, name: str = "soft_cap") -> None:
    """Check that it is above 0 and finite.

    Raises:
        ConfigurationError: it is not.
    """
    if not 0 < cap < math.inf:  # infinity would multiply a tanh of 0
        raise ConfigurationError(
            f"{name}={cap}: a finite bound above 0 is needed; for scores without a bound leave it out"
        )


def check_broadcast(name: str, tensor: Tensor, sizes: Sizes) -> None:
    """Check that the tensor broadcasts to the scores.

    Raises:
        ShapeError: it does not; both shapes are named.
    """
    shape = tensor.shape
    # Written out: `size in (1, want)` fails where sizes are symbols (torch.compile, torch.export).
    if any(size != 1 and size != want for size, want in zip(reversed(shape), reversed(sizes), strict=False)):
        raise ShapeError(
            f"the {name} has shape {list(shape)}, which does not broadcast to {list(sizes)}, "
            "the [batch, heads, queries, keys] of these tensors"
        )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that they are [B, H, Q, D], [B, Hk, K, D] and [B, Hk, K, Dv], Hk a divisor of H, of one type."""
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ShapeError(f"attention takes four axes [batch, heads, length, width], got {_shapes(query, key, value)}")
    if key.shape[:3] != value.shape[:3]:
        raise ShapeError(f"key and value must have the same batch, heads and length, got {_shapes(query, key, value)}")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ShapeError(f"query and key must have the same batch and width, got {_shapes(query, key, value)}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ShapeError(f"the query's heads must be a multiple of the key's heads, got {_shapes(query, key, value)}")
    if not query.dtype == key.dtype == value.dtype and not under_autocast(query):
        raise ShapeError(
            f"query, key and value must have one type, got {query.dtype}, {key.dtype} and {value.dtype}: "
            "convert them, as in key.to(query.dtype)"
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"


def check_floats(bias: Tensor) -> None:
    """Raise MaskError if a bias holds no floats."""
    if not bias.is_floating_point():
        raise MaskError(
            f"got a bias of {bias.dtype}; a bias is added to the scores and holds floats. A boolean tensor, True = "
            "may attend, is a mask: write mask=Dense(bias)"
        )


def _check_bias(bias: Tensor | Bias, sizes: Sizes) -> None:
    if isinstance(bias, Bias):
        if bias.heads != sizes.heads:
            raise ShapeError(f"the bias {bias!r} has {bias.heads} heads, the query {sizes.heads}")
        return
    check_floats(bias)
    if bias.dim() not in (2, 4):
        raise ShapeError(
            f"the bias has shape {list(bias.shape)}; write bias[:, None] if it is [batch, queries, keys], "
            "bias[None] if it is [heads, queries, keys]"
        )
    check_broadcast("bias", bias, sizes)


def check_mask(mask: object, batch: int | Tensor, heads: int | Tensor) -> None:
    """Check that it is a mask, of which each part was made for so many sentences and heads or for any number of them.

    Sizes are tensors in a trace of `torch.jit`.

    Raises:
        MaskError: it is not a mask.
        ShapeError: a part was made for other numbers.
    """
    if not isinstance(mask, Mask):
        raise MaskError(f"mask is a {type(mask).__name__}: for a boolean tensor, True = may attend, write Dense(mask)")
    for part in mask.conjuncts:
        for name, size, want in zip(("sentences", "heads"), part.sizes, (batch, heads), strict=True):
            if size is not None and size != 1 and size != want:
                raise ShapeError(f"the mask {part!r} was made for {size} {name}, but there are {want}")


def _is_training(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | Bias | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    if bias is not None and is_learned(bias):
        return True
    return query.requires_grad or key.requires_grad or value.requires_grad
