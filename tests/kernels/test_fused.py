"""Fused operations equal their plain forms: masks, values, gradients."""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.errors import ShapeError
from multihead.kernels.linear import LOSS_ROWS, linear_cross_entropy, plain_linear_cross_entropy
from multihead.kernels.pointwise import activated_linear, activation_dropout, add, add_norm, layer_norm, product_type
from multihead.kernels.random import dropout, step
from multihead.kernels.soft_targets import SoftTargets

TYPES = [torch.float32, torch.bfloat16]
WIDTHS = [1, 6, 16, 37, 128]


def made(width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(width)
    shape = (5, 7, width)
    named = {
        "x": torch.randn(shape, generator=generator),
        "branch": torch.randn(shape, generator=generator).to(dtype),
        "bias": torch.randn(width, generator=generator),
        "gain": torch.randn(width, generator=generator),
        "shift": torch.randn(width, generator=generator),
    }
    return {name: tensor.requires_grad_() for name, tensor in named.items()}


def compare(compute, tensors: dict[str, Tensor], tolerance: float, plainly) -> None:
    """Values and gradients of the compiled form, compared with the plain form in float64."""
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}
    results = []
    for given in (tensors, exact):
        with step(3):
            outputs = compute(given)
        weights = [torch.randn(o.shape, generator=torch.Generator().manual_seed(i)) for i, o in enumerate(outputs)]
        total = sum((o * w.to(o.dtype)).sum() for o, w in zip(outputs, weights, strict=True))
        gradients = torch.autograd.grad(total, list(given.values()), allow_unused=True)
        results.append((*outputs, *gradients))
    for ours, reference in zip(*results, strict=True):
        if reference is None:
            assert ours is None or not ours.any()
            continue
        assert ours.shape == reference.shape
        scale = float(reference.detach().abs().max())
        torch.testing.assert_close(ours.double(), reference, rtol=tolerance, atol=tolerance * max(scale, 1.0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_dropout_residual_norm(dtype, width, p, compiled) -> None:
    wanted = {torch.float32: torch.float32, torch.bfloat16: torch.bfloat16}[dtype]

    def both(t):
        low = wanted if t["x"].dtype == torch.float32 else None
        return add_norm(t["x"], t["branch"], t["gain"], t["shift"], 1e-5, p, dtype=low)

    def sum_alone(t):
        return (add(t["x"], t["branch"], p),)

    def norm_alone(t):
        return (
            layer_norm(t["x"], t["gain"], t["shift"], 1e-5, dtype=wanted if t["x"].dtype != torch.float64 else None),
        )

    def post(t):
        return (add_norm(t["x"], t["branch"], t["gain"], None, 1e-5, p).normed,)

    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    if width > 1:
        for compute in (both, norm_alone, post):
            compare(compute, made(width, dtype), tolerance, compiled)
    compare(sum_alone, made(width, dtype), tolerance, compiled)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["relu", "gelu"])
@pytest.mark.parametrize("width", [3, 64, 130])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_bias_activation_dropout(dtype, kind, width, p, compiled) -> None:
    tensors = {name: made(width, dtype)[name] for name in ("branch", "bias")}
    compare(
        lambda t: (activation_dropout(t["branch"], t["bias"], kind, p),),
        tensors,
        1e-5 if dtype == torch.float32 else 0.02,
        compiled,
    )
    alone = {"branch": tensors["branch"]}
    compare(
        lambda t: (activation_dropout(t["branch"], None, kind, p),),
        alone,
        1e-5 if dtype == torch.float32 else 0.02,
        compiled,
    )


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("kind", ["relu", "gelu"])
def test_a_hidden_layer_is_its_plain_form(low, kind, compiled) -> None:
    torch.manual_seed(6)
    z, weight, bias = torch.randn(3, 4, 10), torch.randn(24, 10) / 10, 2.0 * torch.randn(24).sign()
    for tensor in (z, weight, bias):  # no value is so close to the rectifier's corner that rounding moves it across
        tensor.requires_grad_()
    results = []
    for compute in ("compiled", "plain", "evaluation"):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low), step(5):
            if compute == "compiled":
                y = activated_linear(z, weight, bias, kind, 0.2)
            elif compute == "plain":
                with compiled():
                    y = activated_linear(z, weight, bias, kind, 0.2)
            else:
                with torch.no_grad():
                    y = activated_linear(z, weight, bias, kind, 0.2)
        assert y.dtype == (torch.bfloat16 if low else torch.float32)
        results.append(
            (y.detach(), *(torch.autograd.grad(y.float().sum(), (z, weight, bias)) if y.requires_grad else ()))
        )
    tolerance = 0.03 if low else 1e-5
    for ours, theirs in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
    torch.testing.assert_close(results[2][0], results[1][0])


@pytest.mark.parametrize("dtype", TYPES)
def test_dropout_is_bit_for_bit_the_plain_one(dtype, compiled) -> None:
    x = torch.randn(6, 11, 70).to(dtype).requires_grad_()
    results = []
    for context in (None, compiled):
        with step(4):
            if context is None:
                y = dropout(x, 0.2)
                results.append((y, *torch.autograd.grad(y.sum(), x)))
            else:
                with context():
                    y = dropout(x, 0.2)
                    results.append((y, *torch.autograd.grad(y.sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_sum_drops_the_same_and_is_equal_to_one_rounding(compiled) -> None:
    """A processor may use fused multiply-add, which does not round the product."""
    t = made(64, torch.bfloat16)
    with step(4):
        ours = add(t["x"], t["branch"], 0.2)
    with step(4), compiled():
        theirs = add(t["x"], t["branch"], 0.2)
    assert torch.equal(ours == t["x"], theirs == t["x"])
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_slice_and_a_transposed_tensor_are_taken_as_they_are_meant(threads, compiled) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        wide = torch.randn(40, 90, 33)
        x, branch = wide.transpose(0, 1)[..., 1:], wide.transpose(0, 1)[..., :32].bfloat16()
        gain = torch.randn(32)
        with step(1):
            ours = add_norm(x, branch, gain, None, 1e-6, 0.1)
        with step(1), compiled():
            theirs = add_norm(x, branch, gain, None, 1e-6, 0.1)
        torch.testing.assert_close(ours, theirs)
    finally:
        torch.set_num_threads(before)


def test_gradients_come_back_along_one_branch_only(compiled) -> None:
    t = made(16, torch.float32)
    arguments = (t["x"], t["branch"], t["gain"], t["shift"], 1e-6, 0.25)
    for index, used in ((0, ("x", "branch")), (1, ("x", "branch", "gain", "shift"))):
        with step(2):
            output = add_norm(*arguments)[index]
        with step(2), compiled():
            reference = add_norm(*arguments)[index]
        wanted = [t[name] for name in used]
        weight = torch.randn_like(output)
        ours = torch.autograd.grad((output * weight).sum(), wanted)
        theirs = torch.autograd.grad((reference * weight).sum(), wanted)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_infinity_and_nan_are_passed_on(compiled) -> None:
    for bad in (float("nan"), float("inf")):
        x, branch = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
        branch[1, 2, 5] = bad
        result = add_norm(x, branch, torch.ones(16), None, 1e-6, 0.0)
        assert not result.total[1, 2, 5].isfinite()
        assert result.normed[1, 2].isnan().any()
        assert result.normed[0].isfinite().all()
        assert not activation_dropout(branch, None, "relu", 0.0)[1, 2, 5].isfinite()
        assert not activation_dropout(branch.bfloat16(), None, "gelu", 0.0)[1, 2, 5].isfinite()
        hidden = torch.randn(4, 8)
        hidden[2, 3] = bad
        assert not linear_cross_entropy(hidden, torch.randn(9, 8), torch.tensor([1, 2, 3, 4]), 0.1).total.isfinite()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [2, 33, 1000])
def test_cross_entropy_with_compiled_and_plain_pieces(dtype, smoothing, vocabulary, compiled) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(700, 24, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, 24, generator=generator).requires_grad_()
    target = torch.randint(vocabulary, (700,), generator=generator)
    results = []
    for form in ("compiled", "pieces", "plain"):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            if form == "compiled":
                loss = linear_cross_entropy(hidden, weight, target, smoothing)
            elif form == "pieces":
                with compiled():
                    loss = linear_cross_entropy(hidden, weight, target, smoothing)
            else:
                loss = plain_linear_cross_entropy(hidden, weight, target, smoothing)
        results.append((*loss[:3], *torch.autograd.grad(loss.total / 700, (hidden, weight))))
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    for reference in results[1:]:
        for a, b in zip(results[0], reference, strict=True):
            scale = float(b.detach().abs().max())
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale)
    assert results[0][2] == results[1][2]


def test_a_target_outside_the_vocabulary_is_an_error(compiled) -> None:
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="from 0 to 4"):
            linear_cross_entropy(torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, wrong]))


def test_rows_without_a_target_are_refused() -> None:
    """Of whole pieces, too: the gradient of rows that no piece holds would be whatever was in memory."""
    unchecked = inspect.unwrap(linear_cross_entropy)  # as outside of the tests, where no signature is checked
    rows = torch.zeros(2 * LOSS_ROWS, dtype=torch.long)
    hidden, weight = torch.randn(len(rows), 3, requires_grad=True), torch.randn(5, 3)
    soft = SoftTargets(rows[:LOSS_ROWS, None], torch.ones(LOSS_ROWS, 1), 0.5)
    for name, target, others in (
        ("targets", rows[:LOSS_ROWS], {}),
        ("soft targets", rows, {"soft": soft}),
        ("factors", rows, {"factors": torch.ones(2 * len(rows))}),
    ):
        with pytest.raises(ShapeError, match=f"expected {name} for each of {len(rows)} rows, got"):
            unchecked(hidden, weight, target, **others)


def test_what_the_compiled_forms_are_not_for_goes_the_plain_way(compiled) -> None:
    x, gain = torch.randn(2, 3, 8), torch.randn(8)
    reference = F.layer_norm(x, (8,), gain)
    by_row = torch.func.vmap(lambda row: layer_norm(row, gain, None, 1e-5))(x)
    torch.testing.assert_close(by_row, reference)
    assert layer_norm(x.double(), gain.double(), None, 1e-5).dtype == torch.float64
    assert layer_norm(x.bfloat16(), gain.bfloat16(), None, 1e-5).dtype == torch.bfloat16
    assert add(x[:0], x[:0], 0.5).shape == (0, 3, 8)
    exact = x.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: _seeded(lambda: add_norm(z, z * z, gain.double(), None, 1e-5, 0.3)), (exact,)
    )


def _seeded(compute):
    with step(1):
        return compute()


def test_types_under_autocast(compiled) -> None:
    x, gain = torch.randn(2, 3, 8), torch.randn(8)
    assert product_type(x) == torch.float32
    for context in (None, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert product_type(x) == torch.bfloat16
            if context is None:
                assert layer_norm(x, gain, None, 1e-5).dtype == torch.float32
            else:
                with context():
                    assert layer_norm(x, gain, None, 1e-5).dtype == torch.float32


TWICE = {
    "norm": lambda t: layer_norm(t["x"], t["gain"], t["shift"], 1e-5),
    "norm without a shift, of a part of wider rows": lambda t: layer_norm(t["x"][..., 4:], t["gain"][4:], None, 1e-5),
    "sum": lambda t: add(t["x"], t["branch"], 0.3),
    "sum and norm": lambda t: torch.cat(add_norm(t["x"], t["branch"], t["gain"], t["shift"], 1e-5, 0.3)),
    "norm of the sum": lambda t: add_norm(t["x"], t["branch"], t["gain"], t["shift"], 1e-5, 0.3).normed,
    "norm of the sum, in bfloat16": lambda t: add_norm(
        t["x"], t["branch"], t["gain"], t["shift"], 1e-5, 0.3, dtype=torch.bfloat16
    ).normed.float(),
    "relu": lambda t: activation_dropout(t["branch"], t["shift"], "relu", 0.3),
    "gelu": lambda t: activation_dropout(t["branch"], t["shift"], "gelu", 0.3),
    "gelu without a bias, of a part of wider rows": lambda t: activation_dropout(t["x"][..., 4:], None, "gelu", 0.3),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_those_of_the_plain_form(name, dtype, compiled) -> None:
    """With the same dropout masks, which are drawn again."""
    results = []
    for context in (nullcontext, compiled):
        tensors = made(16, dtype)
        leaves = list(tensors.values())
        with context(), step(3):
            y = TWICE[name](tensors)
            weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
            first = torch.autograd.grad((y.square() * weight).sum(), leaves, create_graph=True, allow_unused=True)
            total = sum(gradient.float().square().sum() for gradient in first if gradient is not None)
            second = torch.autograd.grad(total, leaves, allow_unused=True)
        results.append([*first, *second])
    tolerance = 1e-4 if dtype == torch.float32 and "bfloat16" not in name else 0.03
    for ours, theirs in zip(*results, strict=True):
        if ours is None or theirs is None:
            assert all(one is None or not one.any() for one in (ours, theirs))
            continue
        assert ours.dtype == theirs.dtype
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TWICE)
def test_the_layout_of_a_gradient_does_not_matter(name, dtype, compiled) -> None:
    """Explicit attention, for example, returns gradients whose heads lie before the positions."""
    results = []
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        tensors = made(16, dtype)
        with step(3):
            y = TWICE[name](tensors)
        gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
        turned = gradient.permute(order).contiguous().permute(order)
        results.append(torch.autograd.grad(y, list(tensors.values()), turned, allow_unused=True))
    for first, *others in zip(*results, strict=True):
        assert all(one is first is None or torch.equal(one, first) for one in others)


def test_dropout_is_differentiable_twice(compiled) -> None:
    x = torch.randn(2, 3, 8, requires_grad=True)
    with step(1):
        y = dropout(x, 0.5)
    (gradient,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    mask = torch.where(y.detach() == 0, 0.0, 2.0)
    torch.testing.assert_close(second, 6 * x.detach() * mask**3)


def test_a_compiler_and_a_trace_get_pytorchs_operations(compiled, monkeypatch) -> None:
    x = torch.randn(3, 4, 8)
    with step(1) as stream:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        y = dropout(x, 0.5)
        normed = layer_norm(x, torch.ones(8), None, 1e-5)
    monkeypatch.undo()
    assert stream.site == 0
    assert ((y == 0) | (y == 2 * x)).all()
    torch.testing.assert_close(normed, F.layer_norm(x, (8,)))


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 60)], ids=["plain", "bias"])
def test_a_loss_without_gradients_is_one_product_a_piece(bias: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit the same, without the products of the backward pass."""
    from multihead.kernels import linear as module

    weight = torch.nn.Parameter(torch.randn(60, 16, generator=torch.Generator().manual_seed(1)))
    bias = None if bias is None else torch.nn.Parameter(bias)
    hidden, target = torch.randn(9, 16, requires_grad=True), torch.arange(9)
    expected = linear_cross_entropy(hidden, weight, target, 0.1, bias)
    shapes = []
    monkeypatch.setattr(module, "linear", lambda *given: shapes.append(given[1].shape) or F.linear(*given))
    with torch.no_grad():
        found = linear_cross_entropy(hidden, weight, target, 0.1, bias)
    assert shapes == [weight.shape]
    assert expected.total.requires_grad
    assert not found.total.requires_grad
    assert [part.item() for part in found[:3]] == [part.item() for part in expected[:3]]
