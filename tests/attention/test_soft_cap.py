"""Capped scores equal their equation on every backend that takes them; the others refuse by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Causal,
    Dense,
    Mask,
    Padding,
    SlidingWindow,
    SoftCap,
    attention,
    choose,
    explain,
    explicit_attention,
)
from multihead.attention.scores import Dot
from multihead.errors import ConfigurationError

CAP = 0.7
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def inputs(dtype: torch.dtype = torch.float64, kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 5, 8), (2, kv_heads, 6, 8), (2, kv_heads, 6, 3))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return query, key, value


def by_hand(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | float) -> Tensor:
    scores = CAP * torch.tanh(query @ key.transpose(2, 3) / 8**0.5 / CAP) + bias
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("mask", [Causal(), Padding([6, 2]), SlidingWindow(2) & Padding([6, 4])], ids=repr)
@pytest.mark.parametrize("biased", [False, True])
def test_the_scores_are_capped_before_the_bias(mask: Mask, biased: bool) -> None:
    bias = ALiBi(4) if biased else None
    dense = 0.0 if bias is None else bias.dense(5, 6, torch.float64)
    leaves = tuple(tensor.requires_grad_() for tensor in inputs())
    expected = by_hand(*leaves, mask.dense(5, 6), dense)
    ours, _ = attention(*leaves, mask=mask, bias=bias, soft_cap=CAP)
    torch.testing.assert_close(ours, expected, **EXACT)
    seed = torch.linspace(-1, 1, ours.numel()).double().view_as(ours)
    for got, wanted in zip(
        torch.autograd.grad(ours, leaves, seed), torch.autograd.grad(expected, leaves, seed), strict=True
    ):
        torch.testing.assert_close(got, wanted, **EXACT)
    _, weights = attention(*leaves, mask=mask, bias=bias, soft_cap=CAP, need_weights=True)
    torch.testing.assert_close(weights @ leaves[2], ours, **EXACT)
    plain = tuple(tensor.detach().float() for tensor in inputs())
    flexible, _ = attention(*plain, mask=mask, bias=bias, soft_cap=CAP, backend="flex_eager")
    torch.testing.assert_close(flexible, expected.detach().float(), rtol=1e-5, atol=1e-6)


def test_grouped_heads_half_types_and_a_cap_that_is_never_reached() -> None:
    query, key, value = inputs(kv_heads=2)
    ours, _ = attention(query, key, value, soft_cap=CAP)
    repeated = attention(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), soft_cap=CAP)[0]
    torch.testing.assert_close(ours, repeated, **EXACT)
    for dtype in (torch.bfloat16, torch.float16):
        half, _ = attention(*inputs(dtype), soft_cap=CAP)
        assert half.dtype == dtype
        torch.testing.assert_close(half.double(), attention(*inputs(), soft_cap=CAP)[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(attention(*inputs(), soft_cap=1e6)[0], attention(*inputs())[0], rtol=1e-9, atol=1e-9)


def test_no_weight_is_more_than_the_cap_allows() -> None:
    query, key, value = inputs()
    _, weights = explicit_attention(100 * query, key, value, soft_cap=CAP)
    ratio = weights.amax(-1) / weights.amin(-1)
    assert (ratio <= math.exp(2 * CAP) * (1 + 1e-12)).all()
    assert (SoftCap(Dot(), 3.0)(100 * query[:, 0], key[:, 0]).abs() <= 3).all()


@pytest.mark.parametrize("garbage", [0.0, float("nan")])
def test_nothing_to_attend_to_is_zero_and_padding_stays_out(garbage: float) -> None:
    mask = Padding([6, 0]) & Dense(torch.tensor([True, False, True, True, True])[:, None].expand(5, 6))
    query, key, value = inputs()
    key[1], value[1] = garbage, garbage
    leaves = tuple(tensor.requires_grad_() for tensor in (query, key, value))
    output, weights = attention(*leaves, mask=mask, soft_cap=CAP, need_weights=True)
    output.sum().backward()
    assert weights is not None
    for tensor in (output, weights, leaves[0].grad):
        assert tensor is not None
        assert (tensor[1] == 0).all()
        assert (tensor[0, :, 1] == 0).all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


def test_what_can_cap_is_chosen_and_the_rest_refuse() -> None:
    query, key, value = inputs(torch.float32)
    assert choose(query, key, value, soft_cap=CAP).kernel == "explicit"
    assert "soft_cap is set" in explain(query, key, value, soft_cap=CAP)
    with torch.no_grad():
        assert choose(query, key, value, soft_cap=CAP, backend="flex").kernel == "flex"
    for backend in ("sdpa", "blockwise", "short", "long", "varlen"):
        with pytest.raises(ConfigurationError, match=r"soft_cap=0.7: write backend='explicit' or 'flex'"):
            attention(query, key, value, soft_cap=CAP, backend=backend)  # type: ignore[arg-type]
    for cap in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match=r"soft_cap=.*above 0"):
            attention(query, key, value, soft_cap=cap)
        with pytest.raises(ConfigurationError, match=r"^cap=.*above 0"):
            SoftCap(Dot(), cap)
