"""Latent attention equals its equations; the absorbed form with a cache of latents equals the plain one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import Causal, Full, LatentAttention, Mask, Padding
from multihead.errors import ConfigurationError, ShapeError

EXACT = {"rtol": 1e-9, "atol": 1e-10}
WIDTH, HEADS, RANK, D, R, LENGTH = 10, 3, 5, 4, 2, 6


def made() -> LatentAttention:
    torch.manual_seed(0)
    module = LatentAttention(WIDTH, HEADS, rank=RANK, head_width=D, rotary_width=R).double()
    torch.nn.init.normal_(module.norm.weight, mean=1.0, std=0.3)
    return module


def inputs() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def turned(x: Tensor) -> Tensor:
    """RoPE of width 2: the pair at position p is turned by the angle p."""
    angle = torch.arange(LENGTH).double()
    return torch.stack(
        (x[..., 0] * angle.cos() - x[..., 1] * angle.sin(), x[..., 0] * angle.sin() + x[..., 1] * angle.cos()), -1
    )


def by_hand(module: LatentAttention, x: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor]:
    """DeepSeek-V2, section 2.1, one head after the other."""
    allowed = (Full() if mask is None else mask).dense(LENGTH, LENGTH)[:, 0]
    w_uq, w_qr = module.query_projection.weight.split((HEADS * D, HEADS * R))
    w_dkv, w_kr = module.down_projection.weight.split((RANK, R))
    w_uk, w_uv = module.up_projection.weight.split(HEADS * D)
    latent = x @ w_dkv.T
    latent = module.norm.weight * latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    shared, outputs, weights = turned(x @ w_kr.T), [], []
    for head in range(HEADS):
        rows = slice(head * D, (head + 1) * D)
        query = torch.cat((x @ w_uq[rows].T, turned(x @ w_qr[head * R : (head + 1) * R].T)), -1)
        key = torch.cat((latent @ w_uk[rows].T, shared), -1)
        scores = (query @ key.transpose(1, 2) / math.sqrt(D + R)).masked_fill(~allowed, -1e300)
        weights.append(scores.softmax(-1) * allowed)
        outputs.append(weights[-1] @ (latent @ w_uv[rows].T))
    return torch.cat(outputs, -1) @ module.output_projection.weight.T, torch.stack(weights, 1)


@pytest.mark.parametrize("mask", [None, Causal(), Padding([6, 2]), Causal() & Padding([6, 0])], ids=repr)
def test_plain_and_absorbed_are_the_equations_with_their_gradients(mask: Mask | None) -> None:
    module, x = made(), inputs().requires_grad_()
    leaves = (x, *module.parameters())
    expected, weights = by_hand(module, x, mask)
    seed = torch.linspace(-1, 1, expected.numel()).double().view_as(expected)
    wanted = torch.autograd.grad(expected, leaves, seed, retain_graph=True)
    plain, absorbed = module(x, mask=mask, need_weights=True), module.step(x, mask=mask, need_weights=True)[:2]
    fused = (module(x, mask=mask)[0], weights)
    for output, returned in (plain, absorbed, fused):
        torch.testing.assert_close(output, expected, **EXACT)
        torch.testing.assert_close(returned, weights, **EXACT)
        for got, right in zip(torch.autograd.grad(output, leaves, seed, retain_graph=True), wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [2, 1, 3], [5, 1]])
def test_steps_with_the_cache_are_the_whole_pass(sizes: list[int]) -> None:
    module, x = made(), inputs()
    whole, _ = module(x, mask=Causal())
    cache, outputs = None, []
    for new in x.split(sizes, dim=1):
        output, weights, cache = module.step(new, cache, mask=Causal())
        outputs.append(output)
        assert weights is None
    torch.testing.assert_close(torch.cat(outputs, 1), whole, **EXACT)
    assert cache is not None
    assert (cache.length, cache.latent.shape, cache.rotated.shape) == (LENGTH, (2, LENGTH, RANK), (2, LENGTH, R))


def test_rows_of_a_cache_are_selected_and_appended() -> None:
    module, x = made(), inputs()
    _, _, cache = module.step(x[:, :4], mask=Causal())
    rows = torch.tensor([1, 1, 0])
    ours, _, _ = module.step(x[rows, 4:5], cache.select(rows))
    torch.testing.assert_close(ours, module.step(x[:, 4:5], cache)[0][rows], **EXACT)
    torch.testing.assert_close(module.compress(x[:, 2:], 2).latent, module.compress(x).latent[:, 2:], **EXACT)
    with pytest.raises(ShapeError, match=r"cannot append \[3, 4, 5\] to \[2, 4, 5\]"):
        cache.append(cache.select(rows))


def test_nothing_to_attend_to_is_zero_with_zero_gradients() -> None:
    for absorbed in (False, True):
        module, x = made(), inputs().requires_grad_()
        output = module.step(x, mask=Padding([6, 0]))[0] if absorbed else module(x, mask=Padding([6, 0]))[0]
        output[1].sum().backward()
        assert (output[1] == 0).all()
        assert x.grad is not None
        assert (x.grad == 0).all()


def test_under_autocast_the_latents_have_its_type() -> None:
    """With a gain of another type, PyTorch's norm would warn, and return float32."""
    module, x = made().float(), inputs().float()
    exact, _ = module(x, mask=Causal())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _, cache = module.step(x, mask=Causal())
    assert cache.latent.dtype == cache.rotated.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, rtol=0.1, atol=0.1)


def test_half_types_empty_axes_and_sizes() -> None:
    expected = made()(inputs())[0]
    half = made().bfloat16()
    for output in (half(inputs().bfloat16())[0], half.step(inputs().bfloat16())[0]):
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output.double(), expected, rtol=0.1, atol=0.1)
    for empty in (inputs()[:, :0], inputs()[:0]):
        assert made()(empty)[0].shape == empty.shape
        assert made().step(empty)[0].shape == empty.shape
    assert LatentAttention(12, 3, rank=4).head_width == 4
    for wrong in ({"rank": 0}, {"rank": 4, "rotary_width": 3}, {"rank": 4, "head_width": 0}):
        with pytest.raises(ConfigurationError, match="even rotary_width"):
            LatentAttention(12, 3, **wrong)
