"""PyTorch's variable-length kernel: sequences without padding.

It runs on CUDA in half precision. Sequences lie end to end, and instead of a mask the kernel takes where each begins
and ends. Padding with lengths and packed documents, known on the host, become that; ``Causal`` and ``SlidingWindow``
are its own. It takes no bias and no dropout. **Not yet run on a GPU**: the packing around the kernel is tested with a
stand-in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention.backends.call import (
    HALF_TYPES,
    Backend,
    Call,
    Kernel,
    Plan,
    compute_dtype,
    refuse_weights_and_cap,
    refuse_weights_and_dropout,
)
from multihead.attention.biases import Bias
from multihead.attention.masks import And, Causal, Full, Mask, SlidingWindow
from multihead.attention.masks.intervals import equal_rows, stretches
from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Sequences:
    """What the kernel takes in place of a mask.

    Attributes:
        queries: for each sequence, its row and the positions of its queries there.
        keys: the same of its keys.
        window: how many keys before and after its own place a query sees; -1 = all.
    """

    queries: tuple[tuple[int, range], ...]
    keys: tuple[tuple[int, range], ...]
    window: tuple[int, int]


@dataclass(frozen=True)
class VarlenPlan(Plan):
    """One call of the variable-length kernel.

    Attributes:
        sequences: the mask.
    """

    sequences: Sequences = field(repr=False)

    @property
    def details(self) -> str:
        return f" of {len(self.sequences.queries)} sequences"

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | Bias | None,  # noqa: ARG002
        scale: float | None,
        dropout_p: float,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        return packed_attention(query, key, value, self.sequences, scale=scale), None


class Varlen(Backend):
    """PyTorch's variable-length kernel."""

    name: Kernel = "varlen"

    def refuse(self, call: Call) -> str | None:
        refusal = refuse_weights_and_dropout(call) or refuse_weights_and_cap(call)
        if refusal is not None:
            return refusal
        device, dtype = call.query.device.type, call.query.dtype
        if device != "cuda":
            return f"is a CUDA kernel, and the tensors are on {device}: write backend='blockwise'"
        if dtype not in HALF_TYPES:
            return f"computes in bfloat16 or float16, and the tensors are {dtype}: convert them, or write 'sdpa'"
        return None if call.bias is None else "takes no bias: write backend='sdpa'"

    def plan(self, call: Call, why: str) -> VarlenPlan:
        dtype, why_dtype = compute_dtype(call)
        batch, _, q_len, kv_len = call.sizes
        mask = Full() if call.mask is None else call.mask
        sequences = mask.cached("sequences", call.sizes, lambda: sequences_of(mask, batch, q_len, kv_len))
        return VarlenPlan(self.name, dtype, (why, *why_dtype), sequences)


def sequence_offsets(lengths: list[int] | tuple[int, ...], device: torch.device | str | None = None) -> Tensor:
    """Where each sequence begins and the last one ends, [0, n_1, n_1 + n_2, ...]: what kernels call cu_seqlens.

    int32, as the kernels need them.
    """
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def sequences_of(mask: Mask | None, batch: int, q_len: int, kv_len: int) -> Sequences:
    """The mask as sequences.

    Raises:
        ConfigurationError: it is none of ``Padding`` with plain numbers, ``Document`` and, with them or alone,
            ``Causal()`` and ``SlidingWindow``; or the kernel would align those otherwise.
    """
    left, right = -1, -1
    borders: list[Mask] = []
    for part in (Full() if mask is None else mask).conjuncts:
        if isinstance(part, Causal) and part.align == "end":
            right = 0
        elif isinstance(part, SlidingWindow):
            left = part.left if left < 0 else min(left, part.left)
            right = part.right if right < 0 else min(right, part.right)
        else:
            borders.append(part)
    intervals, unknown = (And(*borders) if borders else Full()).known_intervals(batch, q_len, kv_len)
    if unknown:
        raise ConfigurationError(
            f"backend='varlen' takes sequences whose ends the host knows, and {unknown[0]!r} has none: Padding with "
            "plain numbers, Document on the CPU, Causal() and SlidingWindow do"
        )
    queries: list[tuple[int, range]] = []
    keys: list[tuple[int, range]] = []
    for rows, low, high in equal_rows(intervals, batch):
        found = [stretch for stretch in stretches(low, high) if len(stretch.keys)] if q_len else []
        for row in rows:
            queries += [(row, stretch.queries) for stretch in found]
            keys += [(row, stretch.keys) for stretch in found]
        for stretch in found:
            # The kernel aligns the ends of each sequence's queries and keys.
            aligned = stretch.keys.stop - stretch.queries.stop == kv_len - q_len
            if stretch.pattern != "same" or not (aligned or (left < 0 and right < 0)):
                raise ConfigurationError(
                    "backend='varlen' aligns the last query of each sequence with its last key, which is not what "
                    f"{mask!r} says here: with padded queries give Padding both lengths and q_lengths"
                )
    return Sequences(tuple(queries), tuple(keys), (left, right))


def packed_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    sequences: Sequences,
    *,
    scale: float | None = None,
    kernel: Callable[..., Tensor] | None = None,
) -> Float[Tensor, "batch heads query value_dim"]:
    """The equation of :func:`multihead.attention.attention` on sequences end to end.

    Queries that belong to no sequence yield zeros.

    Args:
        query: as there.
        key: as there.
        value: as there.
        sequences: the mask.
        scale: as there.
        kernel: default: ``torch.nn.attention.varlen.varlen_attn``.

    Raises:
        ConfigurationError: this PyTorch has no such kernel.
    """
    run = _kernel() if kernel is None else kernel
    q_places, k_places = _places(sequences.queries, query), _places(sequences.keys, key)
    q_lengths, k_lengths = ([len(span) for _, span in side] for side in (sequences.queries, sequences.keys))
    packed = run(
        _pack(query, q_places),
        _pack(key, k_places),
        _pack(value, k_places),
        sequence_offsets(q_lengths, query.device),
        sequence_offsets(k_lengths, query.device),
        max(q_lengths, default=0),
        max(k_lengths, default=0),
        scale=scale,
        window_size=sequences.window,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    batch, heads, q_len, _ = query.shape
    spread = packed.new_zeros(batch * q_len, heads, value.shape[-1]).index_copy(0, q_places, packed)
    return spread.view(batch, q_len, *spread.shape[1:]).transpose(1, 2)


def _kernel() -> Callable[..., Tensor]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise ConfigurationError(
            f"backend='varlen' needs a PyTorch with torch.nn.attention.varlen, this is {torch.__version__}"
        ) from error
    return varlen_attn  # type: ignore[return-value]


def _places(spans: tuple[tuple[int, range], ...], tensor: Tensor) -> Int[Tensor, " positions"]:
    """Indices of the sequences' positions in the tensor with rows and positions flattened to one axis."""
    length = tensor.shape[2]
    pieces = [torch.arange(span.start, span.stop) + row * length for row, span in spans]
    return torch.cat(pieces or [torch.zeros(0, dtype=torch.long)]).to(tensor.device)


def _pack(tensor: Tensor, places: Tensor) -> Tensor:
    """[batch, heads, length, dim] -> [positions, heads, dim]."""
    return tensor.transpose(1, 2).flatten(0, 1).index_select(0, places)
