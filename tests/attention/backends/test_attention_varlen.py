"""Packing sequences end to end and unpacking them again is exact; masks that cannot be packed are refused.

The kernel itself needs CUDA and has not been run; a plain one with the same arguments replaces it here.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from multihead.attention import (
    ALiBi,
    Causal,
    Document,
    Full,
    Mask,
    Padding,
    PrefixLM,
    SlidingWindow,
    attention,
    choose,
    explain,
    sequence_offsets,
)
from multihead.attention.backends.varlen import VarlenPlan, packed_attention, sequences_of
from multihead.errors import ConfigurationError

BATCH, HEADS, LENGTH, DIM = 3, 4, 6, 4


def plain_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """The kernel as PyTorch documents it: one sequence after the other, ends aligned, (left, right) windows."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert (cu_seq_q.diff().max(), cu_seq_k.diff().max()) == (max_q, max_k)
    assert enable_gqa == (query.shape[1] != key.shape[1])
    left, right = (10**6 if size < 0 else size for size in window_size)
    pieces = []
    for q, k, v in zip(
        query.tensor_split(cu_seq_q[1:-1].long()),
        key.tensor_split(cu_seq_k[1:-1].long()),
        value.tensor_split(cu_seq_k[1:-1].long()),
        strict=True,
    ):
        heads = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        output, _ = attention(*heads, mask=SlidingWindow(left, right), scale=scale, backend="explicit")  # type: ignore[misc]
        pieces.append(output[0].transpose(0, 1))
    return torch.cat(pieces)


def inputs(queries: int = LENGTH, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((HEADS, queries), (kv_heads, LENGTH), (kv_heads, LENGTH))
    query, key, value = (
        torch.randn(BATCH, *shape, DIM, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return query, key, value


IDS = [[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, 5, 5], [3, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("mask", "queries"),
    [
        (None, 4),
        (Full(), 6),
        (Causal(), 6),
        (Causal(), 2),
        (SlidingWindow(1, 2), 4),
        (SlidingWindow(1, 2) & SlidingWindow(3) & Causal(), 6),
        (Padding([6, 1, 3]), 4),
        (Padding([6, 0, 3], [6, 2, 0]), 6),
        (Padding([6, 1, 3], [6, 1, 3]) & Causal(), 6),
        (Document(IDS), 6),
        (Document(IDS) & Causal() & SlidingWindow(1), 6),
        (Document([row[4:] for row in IDS], IDS) & Causal(), 2),
        (Document(IDS) & Padding([6, 4, 3], [6, 4, 3]), 6),
    ],
    ids=repr,
)
def test_packed_equals_padded(mask: Mask | None, queries: int) -> None:
    results = []
    for packed in (False, True):
        tensors = inputs(queries)
        if packed:
            sequences = sequences_of(mask, BATCH, queries, LENGTH)
            output = packed_attention(*tensors, sequences, scale=0.3, kernel=plain_kernel)
        else:
            output, _ = attention(*tensors, mask=mask, scale=0.3, backend="explicit")
        results.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    for exact, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize(
    "mask",
    [
        Padding(torch.tensor([6, 1, 3])),
        Padding([6, 1, 3]) & Causal(),  # padded queries see a whole sentence, so the ends are not aligned
        PrefixLM([1, 2, 3]),
        Causal(align="start") & Full(),
        ~Causal(),
        Document([0, 1, 0, 1, 0, 1]),
    ],
    ids=repr,
)
def test_what_cannot_be_packed_is_refused(mask: Mask) -> None:
    with pytest.raises(ConfigurationError, match="varlen"):
        sequences_of(mask, BATCH, LENGTH, LENGTH)


def test_offsets() -> None:
    assert sequence_offsets([3, 0, 2]).tolist() == [0, 3, 3, 5]
    assert sequence_offsets([]).tolist() == [0]


def test_on_a_cpu_it_is_refused_with_what_to_write() -> None:
    query, key, value = inputs()
    for call in (attention, choose, explain):
        with pytest.raises(ConfigurationError, match=r"CUDA kernel.*on cpu.*blockwise"):
            call(query, key, value, backend="varlen")


def test_what_it_can_and_cannot_do_on_cuda() -> None:
    """The choice reads no values, so fake tensors suffice."""
    mask = Causal() & Document(IDS)
    with FakeTensorMode():
        query = torch.empty(BATCH, HEADS, LENGTH, DIM, device="cuda", dtype=torch.bfloat16)
        plan = choose(query, query, query, mask=mask, backend="varlen")
        assert isinstance(plan, VarlenPlan)
        assert plan.sequences.window == (-1, 0)
        assert "varlen of 7 sequences" in explain(query, query, query, mask=mask, backend="varlen")
        assert choose(query, query, query, mask=Causal()).kernel == "sdpa"  # never picked: it has not been run
        for call, why in (
            ({"bias": ALiBi(HEADS)}, "takes no bias"),
            ({"dropout_p": 0.1}, r"dropout_p=0\.1"),
            ({"need_weights": True}, "does not return weights"),
        ):
            with pytest.raises(ConfigurationError, match=why):
                choose(query, query, query, mask=mask, backend="varlen", **call)  # type: ignore[arg-type]
        wide = query.float()
        with pytest.raises(ConfigurationError, match="float32"):
            choose(wide, wide, wide, backend="varlen")
