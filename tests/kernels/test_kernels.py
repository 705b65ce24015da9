"""Fast operations equal their plain forms."""

import pytest
import torch

from multihead.kernels.linear import LOSS_ROWS, linear_cross_entropy, plain_linear_cross_entropy
from multihead.kernels.random import Dropout, dropout


def gradients(loss_function, hidden, weight, target, smoothing, bias=None):
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    if bias is None:
        loss = loss_function(hidden, weight, target, smoothing)
    else:
        bias = bias.clone().requires_grad_()
        loss = loss_function(hidden, weight, target, smoothing, bias)
    (loss.total / len(target)).backward()
    return loss, hidden.grad, weight.grad, *(() if bias is None else (bias.grad,))


@pytest.mark.parametrize("rows", [1, 7, LOSS_ROWS, 2 * LOSS_ROWS + 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_cross_entropy_equals_the_plain_form(rows, smoothing, biased):
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 8, dtype=torch.float64, generator=generator)
    weight = torch.randn(33, 8, dtype=torch.float64, generator=generator)
    target = torch.randint(33, (rows,), generator=generator)
    bias = torch.randn(33, dtype=torch.float64, generator=generator) if biased else None
    ours = gradients(linear_cross_entropy, hidden, weight, target, smoothing, bias)
    theirs = gradients(plain_linear_cross_entropy, hidden, weight, target, smoothing, bias)
    torch.testing.assert_close(ours[0].total, theirs[0].total, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours[0].nll, theirs[0].nll, rtol=1e-12, atol=0)
    assert ours[0].correct == theirs[0].correct
    for gradient, expected in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)


def test_linear_cross_entropy_under_autocast_is_near_the_float32_one():
    hidden, weight, target = torch.randn(64, 16), torch.randn(50, 16), torch.randint(50, (64,))
    exact = gradients(linear_cross_entropy, hidden, weight, target, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = gradients(linear_cross_entropy, hidden, weight, target, 0.1)
    assert rough[0].total.dtype == torch.float32
    for ours, reference in zip(rough[1:], exact[1:], strict=True):
        torch.testing.assert_close(ours, reference, rtol=0.05, atol=0.02 * float(reference.abs().max()))
    assert not torch.equal(rough[1], exact[1])  # the products did run in bfloat16


def test_no_gradient_is_computed_where_none_is_wanted():
    loss = linear_cross_entropy(torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 4]), 0.1)
    assert not loss.total.requires_grad


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.999])
def test_dropout_keeps_the_mean_and_drops_the_share(p):
    torch.manual_seed(1)
    x = torch.ones(1_000_003)
    y = dropout(x, p)
    rounded = min(max(round(256 * p), 1), 255) / 256
    sigma = (rounded * (1 - rounded) / len(x)) ** 0.5
    assert abs((y == 0).double().mean() - rounded) < 4 * sigma
    torch.testing.assert_close(y.unique(), torch.tensor([0.0, 1 / (1 - rounded)]))


def test_dropout_is_the_same_function_forwards_and_backwards():
    torch.manual_seed(2)
    x = torch.randn(37, 5, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_dropout_follows_the_seed_and_rests_in_evaluation():
    layer, x = Dropout(0.4), torch.randn(9, 9)
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(first, layer(x))
    assert not torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
    assert dropout(x, 0.0) is x
