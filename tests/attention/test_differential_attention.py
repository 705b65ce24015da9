"""Differential attention equals its equations head by head, and keeps the rules of masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import Causal, DifferentialAttention, Full, Mask, Padding
from multihead.errors import ConfigurationError

EXACT = {"rtol": 1e-9, "atol": 1e-10}
WIDTH, HEADS, DEPTH = 12, 2, 3
D = WIDTH // HEADS // 2


def made() -> DifferentialAttention:
    torch.manual_seed(0)
    module = DifferentialAttention(WIDTH, HEADS, depth=DEPTH).double()
    torch.nn.init.normal_(module.lambdas, std=0.5)
    torch.nn.init.normal_(module.norm.weight, mean=1.0, std=0.3)
    return module


def inputs() -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_hand(module: DifferentialAttention, x: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor]:
    """Ye et al. 2024, equations 1 to 3, one head after the other."""
    allowed = (Full() if mask is None else mask).dense(x.shape[1], x.shape[1])[:, 0]
    queries, keys, values = module.in_projection.weight.split(WIDTH)
    initial = 0.8 - 0.6 * math.exp(-0.3 * DEPTH)
    q_1, k_1, q_2, k_2 = module.lambdas
    factor = torch.exp((q_1 * k_1).sum()) - torch.exp((q_2 * k_2).sum()) + initial
    heads, weights = [], []
    for head in range(HEADS):
        maps = []
        for part in (0, 1):
            rows = slice((2 * head + part) * D, (2 * head + part + 1) * D)
            scores = (x @ queries[rows].T) @ (x @ keys[rows].T).transpose(1, 2) / math.sqrt(D)
            maps.append(scores.masked_fill(~allowed, -1e300).softmax(-1) * allowed)
        weights.append(maps[0] - factor * maps[1])
        mixed = weights[-1] @ (x @ values[2 * D * head : 2 * D * (head + 1)].T)
        norm = (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        heads.append((1 - initial) * module.norm.weight * mixed / norm)
    return torch.cat(heads, -1) @ module.output_projection.weight.T, torch.stack(weights, 1)


@pytest.mark.parametrize("mask", [None, Causal(), Padding([5, 2]), Causal() & Padding([5, 0])], ids=repr)
def test_it_is_its_equations_with_their_gradients(mask: Mask | None) -> None:
    module, x = made(), inputs().requires_grad_()
    expected, weights = by_hand(module, x, mask)
    output, returned = module(x, mask=mask, need_weights=True)
    torch.testing.assert_close(returned, weights, **EXACT)
    fused, nothing = module(x, mask=mask)
    assert nothing is None
    leaves = (x, *module.parameters())
    seed = torch.linspace(-1, 1, output.numel()).double().view_as(output)
    wanted = torch.autograd.grad(expected, leaves, seed)
    for ours in (output, fused):
        torch.testing.assert_close(ours, expected, **EXACT)
        for got, right in zip(torch.autograd.grad(ours, leaves, seed), wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-7, atol=1e-9)


def test_rows_sum_to_one_less_lambda_and_equal_maps_cancel() -> None:
    module, x = made(), inputs()
    _, weights = module(x, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), (1 - module.factor).expand(2, HEADS, 5), **EXACT)
    assert (weights < 0).any()
    with torch.no_grad():
        for part in module.in_projection.weight.split(WIDTH)[:2]:
            part.view(HEADS, 2, D, WIDTH)[:, 1] = part.view(HEADS, 2, D, WIDTH)[:, 0]
    _, same = module(x, need_weights=True)
    assert same.sign().unique().numel() == 1  # (1 - lambda) times a softmax


def test_nothing_to_attend_to_is_zero_with_zero_gradients() -> None:
    module, x = made(), inputs().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        output, weights = module(x, mask=Padding([5, 0]), need_weights=True)
        output[1].sum().backward()
    assert weights is not None
    assert (output[1] == 0).all()
    assert (weights[1] == 0).all()
    assert x.grad is not None
    assert (x.grad == 0).all()


def test_under_autocast_the_norm_has_the_type_of_its_input() -> None:
    """With a gain of another type, PyTorch's norm would warn, and return float32."""
    module, x = made().float(), inputs().float()
    exact, _ = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.norm(x[..., : 2 * D].bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(module(x)[0].float(), exact, rtol=0.1, atol=0.1)


def test_half_types_empty_axes_and_sizes() -> None:
    expected = made()(inputs())[0]
    half = made().bfloat16()(inputs().bfloat16())[0]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.1, atol=0.1)
    assert made()(inputs()[:, :0])[0].shape == (2, 0, WIDTH)
    assert made()(inputs()[:0])[0].shape == (0, 5, WIDTH)
    assert DifferentialAttention(8, 2).lambda_init == pytest.approx(0.2)
    for width, heads, depth in ((10, 2, 0), (8, 0, 0), (8, 2, -1)):
        with pytest.raises(ConfigurationError, match=f"width={width}, heads={heads}, depth={depth}"):
            DifferentialAttention(width, heads, depth=depth)
