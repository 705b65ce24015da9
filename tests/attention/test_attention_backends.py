"""The choice of a backend and its reasons follow from kinds, shapes, types and flags alone."""

from __future__ import annotations

import sys

import processes
import pytest
import torch
from torch import Tensor
from versions import combined_masks

from multihead.attention import (
    Causal,
    Dense,
    Document,
    Full,
    Mask,
    MaskFunction,
    Padding,
    PrefixLM,
    SlidingWindow,
    attention,
    choose,
    explain,
)
from multihead.attention.backends.blockwise import BlockwisePlan
from multihead.attention.backends.explicit import ExplicitPlan
from multihead.attention.backends.sdpa import LONG, SdpaPlan


def tensors(queries: int, keys: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, ...]:
    query = torch.zeros(2, 4, queries, 8, dtype=dtype, device=device)
    key = torch.zeros(2, 4, keys, 8, dtype=dtype, device=device)
    return query, key, key


@pytest.mark.parametrize(
    ("mask", "queries", "is_causal", "shape"),
    [
        (None, 5, False, None),
        (Full(), 5, False, None),
        (Causal(), 5, True, None),
        (Causal(align="start"), 5, True, None),
        (Causal() & Full() & Causal(), 5, True, None),
        (Causal(), 1, False, None),
        (Causal(align="start"), 1, False, [1, 1, 1, 5]),
        (Causal(), 3, False, [1, 1, 3, 5]),
        (Padding([1, 2]), 5, False, [2, 1, 1, 5]),
        (Causal() & Padding([1, 2]), 5, False, [2, 1, 5, 5]),
        (Causal() & Padding([1, 2]), 1, False, [2, 1, 1, 5]),
        (Causal() | Padding([1, 2]), 1, False, [2, 1, 1, 5]),
        (~Causal(), 5, False, [1, 1, 5, 5]),
    ],
    ids=repr,
)
def test_lowering(mask: Mask | None, queries: int, is_causal: bool, shape: list[int] | None) -> None:
    plan = choose(*tensors(queries, 5), mask=mask)
    assert plan.kernel == "sdpa"
    assert isinstance(plan, SdpaPlan)
    assert plan.is_causal == is_causal
    assert (None if plan.mask is None else list(plan.mask.shape)) == shape


def test_the_choice_reads_no_values() -> None:
    """Tensors on the meta device have no values to read."""
    query, key, value = tensors(5, 5, device="meta")
    lengths = torch.ones(2, dtype=torch.long, device="meta")
    dense = Dense(torch.ones(5, 5, dtype=torch.bool, device="meta"))
    ids = torch.ones(2, 5, dtype=torch.long, device="meta")
    for mask in (
        Causal() & Padding(lengths, lengths),
        Causal() | ~Padding(lengths),
        dense,
        SlidingWindow(1) & PrefixLM(lengths),
        Document(ids) & Causal(),
        MaskFunction(lambda b, h, q, k: q >= k + b),
    ):
        for need_weights in (False, True):
            output, _ = attention(query, key, value, mask=mask, need_weights=need_weights)
            assert output.shape == query.shape
            plan = choose(query, key, value, mask=mask, backend="blockwise")
            assert isinstance(plan, BlockwisePlan)
            assert plan.blocks


def test_weights_and_names_pick_the_kernel() -> None:
    assert choose(*tensors(5, 5), need_weights=True).kernel == "explicit"
    assert choose(*tensors(5, 5), backend="explicit").kernel == "explicit"
    assert choose(*tensors(5, 5), backend="sdpa").kernel == "sdpa"


def test_the_explicit_path_and_a_bias_get_the_causal_mask_written_out() -> None:
    explicit = choose(*tensors(5, 5), mask=Causal(), backend="explicit")
    assert isinstance(explicit, ExplicitPlan)
    assert explicit.mask is not None
    plan = choose(*tensors(5, 5), mask=Causal(), bias=torch.zeros(5, 5))
    assert isinstance(plan, SdpaPlan)
    assert not plan.is_causal
    assert plan.mask is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_in_float32_on_a_cpu(dtype: torch.dtype) -> None:
    query, key, value = tensors(5, 5, dtype)
    assert choose(query, key, value).compute_dtype is None
    learned = key.clone().requires_grad_()
    assert choose(query, learned, value, bias=torch.zeros(5, 5)).compute_dtype == torch.float32
    short = choose(query, learned, value)  # its kernel reads bfloat16 and sums in float32
    assert short.compute_dtype == (None if short.kernel == "short" else torch.float32)
    with torch.no_grad():
        assert choose(query, key.clone().requires_grad_(), value).compute_dtype is None


def test_autocast_decides_the_type_except_for_training_on_a_cpu() -> None:
    query, key, value = tensors(5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose(query, key, value).compute_dtype == torch.bfloat16
        assert choose(query.bfloat16(), key, value).compute_dtype == torch.bfloat16
        bias = torch.zeros(5, 5)  # a bias, which the short backend refuses
        assert choose(query.requires_grad_(), key, value, bias=bias).compute_dtype is None
        assert choose(query.bfloat16(), key, value, bias=bias).compute_dtype == torch.float32
        short = choose(query, key, value)
        assert short.compute_dtype == (torch.bfloat16 if short.kernel == "short" else None)
    double = tensors(5, 5, torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose(*double).compute_dtype is None


def test_explain_says_what_and_why() -> None:
    assert "is_causal" in explain(*tensors(5, 5), mask=Causal())
    assert "no mask" in explain(*tensors(5, 5))
    assert "one query" in explain(*tensors(1, 5), mask=Causal())
    padded = explain(*tensors(1, 5), mask=Causal() & Padding([1, 2]))
    assert "[2, 1, 1, 5]" in padded
    assert "without the causal part" in padded
    assert "weights are requested" in explain(*tensors(5, 5), need_weights=True)
    assert "requested by name" in explain(*tensors(5, 5), backend="explicit", scale=1.0)
    assert "dropout" in explain(*tensors(5, 5), dropout_p=0.1)
    query, key, value = tensors(5, 5, torch.bfloat16)
    assert "float32" in explain(query.requires_grad_(), key, value, bias=torch.zeros(5, 5))
    assert "another width" in explain(query, key, value[..., :3])
    assert "learned" in explain(query, key, value, bias=torch.zeros(5, 5, requires_grad=True))


COMPILED = """
import torch
from multihead.attention import ALiBi, Causal, MultiHeadAttention, Padding, SlidingWindow

traces = 0

def count(graph, _):
    global traces
    traces += 1
    return graph

module = MultiHeadAttention(8, 2).eval()
calls = (
    lambda x, lengths: module(x, mask=Causal() & Padding(lengths))[0],
    lambda x, lengths: module(x, mask=SlidingWindow(2) & Padding(lengths), bias=ALiBi(2))[0],
)
for forward in calls:
    traces = 0
    compiled = torch.compile(forward, backend=count, fullgraph=True, dynamic=True)
    for batch, length in ((2, 5), (3, 7), (4, 9)):
        x, lengths = torch.randn(batch, length, 8), torch.arange(1, batch + 1)
        torch.testing.assert_close(compiled(x, lengths), forward(x, lengths))
    assert traces == 1, traces
"""


@combined_masks
def test_one_compilation_serves_every_length() -> None:
    """Compiled code is not specialized to sizes. In a fresh interpreter, because shape checks cannot be compiled."""
    result = processes.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("length", "wanted"), [(LONG - 1, torch.float32), (LONG, torch.bfloat16)])
def test_short_sequences_train_in_float32_on_a_cpu_and_long_ones_as_autocast_says(
    length: int, wanted: torch.dtype
) -> None:
    query, key = (torch.zeros(1, 1, n, 2, requires_grad=True) for n in (LONG, length))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plan = choose(query, key, key, backend="sdpa")
        assert (plan.compute_dtype or query.dtype) == wanted
        with torch.no_grad():
            assert choose(query, key, key, backend="sdpa").compute_dtype == torch.bfloat16
