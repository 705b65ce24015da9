"""The linear map by oneDNN equals PyTorch's, including second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.kernels import linear as module
from multihead.kernels.linear import (
    MIN_PRODUCTS,
    ONEDNN_ROWS,
    VARIABLE,
    _Linear,
    library_for_this_processor,
    linear,
    linear_cross_entropy,
    plain_linear_cross_entropy,
    weight_gradient,
)
from multihead.platforms import Processor

needs_onednn = pytest.mark.skipif(not module._has_onednn(), reason="this PyTorch has no oneDNN")

Calls = list[tuple[int, ...]]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Shapes of oneDNN's products, in order."""
    calls: Calls = []
    real = module._product

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append((x.shape[0], weight.shape[0]))
        return real(x, weight, bias)

    monkeypatch.setattr(module, "_product", watched)
    return calls


@pytest.fixture
def by_rule(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulates a processor on which large products use oneDNN."""
    monkeypatch.setenv(VARIABLE, "onednn")
    library_for_this_processor.cache_clear()
    yield
    library_for_this_processor.cache_clear()


def tensors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(function: Callable[..., Tensor], *inputs: Tensor | None) -> list[Tensor]:
    """Output and gradients of a loss that is not symmetric in its outputs."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
    y = function(*leaves)
    (y * torch.arange(y.numel()).view_as(y).to(y.dtype).cos()).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def assert_as_exact_as_float32(ours: list[Tensor], exact: list[Tensor], terms: int) -> None:
    """Close to float64, within the rounding of this many summed products."""
    for mine, reference in zip(ours, exact, strict=True):
        bound = (
            torch.finfo(torch.float32).eps * terms**0.5 * float(torch.linalg.vector_norm(reference, torch.inf) + 1)
            if reference.numel()
            else 0.0
        )
        torch.testing.assert_close(mine.double(), reference, rtol=0, atol=bound)


@needs_onednn
@pytest.mark.parametrize("rows", [1, 5, ONEDNN_ROWS - 1, ONEDNN_ROWS, 2 * ONEDNN_ROWS, 2 * ONEDNN_ROWS + 7])
@pytest.mark.parametrize(("width", "out"), [(24, 40), (40, 24)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_float64_forwards_and_backwards(rows: int, width: int, out: int, with_bias: bool) -> None:
    x, weight, bias = tensors(rows, width), tensors(out, width, seed=1), tensors(out, seed=2) if with_bias else None
    ours = gradients(lambda *given: linear(*given, library="onednn"), x, weight, bias)
    exact = gradients(F.linear, x.double(), weight.double(), None if bias is None else bias.double())
    assert_as_exact_as_float32(ours, exact, max(rows, width, out))
    assert all(tensor.dtype == torch.float32 for tensor in ours)


@needs_onednn
def test_onednn_gets_whole_multiples_and_pytorch_the_rest(products: Calls) -> None:
    gradients(lambda *given: linear(*given, library="onednn"), tensors(2 * ONEDNN_ROWS + 7, 24), tensors(40, 24))
    assert products == [
        (2 * ONEDNN_ROWS, 40),
        (2 * ONEDNN_ROWS, 24),
        (24, 40),
    ]  # y, dx and dW, the narrower factor copied
    products.clear()
    gradients(lambda *given: linear(*given, library="onednn"), tensors(ONEDNN_ROWS - 1, 24), tensors(40, 24))
    assert products == []


@needs_onednn
@pytest.mark.parametrize("shape", [(24,), (0, 24), (3, 0, 24), (2, ONEDNN_ROWS, 24), (2, 3, 50, 24)])
def test_any_axes(shape: tuple[int, ...]) -> None:
    x, weight, bias = tensors(*shape), tensors(8, 24, seed=1), tensors(8, seed=2)
    ours = gradients(lambda *given: linear(*given, library="onednn"), x, weight, bias)
    exact = gradients(F.linear, x.double(), weight.double(), bias.double())
    assert [tensor.shape for tensor in ours] == [tensor.shape for tensor in exact]
    assert_as_exact_as_float32(ours, exact, max(24, x.numel() // 24))


@needs_onednn
def test_strides_do_not_matter() -> None:
    x, weight = tensors(24, ONEDNN_ROWS).t(), tensors(24, 16, seed=1).t()[4:12]
    sliced = tensors(4, ONEDNN_ROWS, 48, seed=3)[:, :, 8:32]
    for given in (x, sliced):
        function = lambda *each: linear(*each, library="onednn").transpose(-2, -1)  # noqa: E731 - g has strides too
        ours = gradients(function, given, weight)
        exact = gradients(lambda *each: F.linear(*each).transpose(-2, -1), given.double(), weight.double())
        assert_as_exact_as_float32(ours, exact, 4 * ONEDNN_ROWS)


@needs_onednn
def test_only_the_gradients_that_are_wanted(products: Calls) -> None:
    x, weight = tensors(ONEDNN_ROWS, 8), tensors(16, 8).requires_grad_()
    linear(x, weight, library="onednn").sum().backward()
    assert weight.grad is not None
    assert len(products) == 2
    with torch.no_grad():
        assert not linear(x, weight, library="onednn").requires_grad
    frozen = linear(x.requires_grad_(), weight.detach(), library="onednn")
    frozen.sum().backward()
    assert x.grad is not None


def test_derivatives_of_derivatives() -> None:
    inputs = [tensors(*shape, seed=seed).double().requires_grad_() for seed, shape in enumerate([(3, 4), (5, 4), (5,)])]
    assert torch.autograd.gradcheck(_Linear.apply, inputs)
    assert torch.autograd.gradgradcheck(_Linear.apply, inputs)


@needs_onednn
def test_a_gradient_s_gradient_equals_pytorch_s() -> None:
    def of_gradient(function: Callable[..., Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        (first,) = torch.autograd.grad(function(x, weight).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (x, weight))

    x, weight = tensors(ONEDNN_ROWS, 8), tensors(6, 8, seed=1)
    ours = of_gradient(lambda *given: linear(*given, library="onednn"), x, weight)
    for mine, reference in zip(ours, of_gradient(F.linear, x.double(), weight.double()), strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=1e-4, atol=1e-3)


@needs_onednn
def test_backward_where_autocast_is_on_stays_float32() -> None:
    x, weight = tensors(ONEDNN_ROWS + 3, 8).requires_grad_(), tensors(6, 8, seed=1).requires_grad_()
    y = linear(x, weight, library="onednn")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y.sum().backward()
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(ONEDNN_ROWS + 3, -1))


@needs_onednn
@pytest.mark.usefixtures("by_rule")
def test_large_products_only(products: Calls) -> None:
    weight = tensors(256, 512)
    rows = MIN_PRODUCTS // weight.numel()
    assert rows == ONEDNN_ROWS
    linear(tensors(rows, 512), weight)
    assert len(products) == 1
    linear(tensors(rows - 1, 512), weight)  # too few rows
    linear(tensors(rows, 512), weight[:255])  # too little work
    linear(tensors(1, 512), weight)  # a decoding step
    assert len(products) == 1


@needs_onednn
@pytest.mark.usefixtures("by_rule")
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # PyTorch's own, of dual levels
def test_what_onednn_is_not_for_goes_to_pytorch(products: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = tensors(ONEDNN_ROWS, 512), tensors(256, 512, seed=1)
    expected = F.linear(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(x.double(), weight.double()).dtype == torch.float64
    torch.testing.assert_close(torch.func.vmap(lambda row: linear(row[None], weight)[0])(x), expected)
    torch.testing.assert_close(
        torch.func.functional_call(torch.nn.Linear(512, 256, bias=False), {"weight": weight}, x), expected
    )
    torch.testing.assert_close(torch.func.jvp(lambda given: linear(given, weight), (x,), (x,))[1], expected)
    with torch.autograd.forward_ad.dual_level():
        dual = linear(torch.autograd.forward_ad.make_dual(x, x), weight)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected)
    assert linear(x.to("meta"), weight.to("meta")).shape == (ONEDNN_ROWS, 256)
    # Not by torch.backends.mkldnn, whose flags PyTorch's own test helpers freeze once they are imported.
    torch._C._set_mkldnn_enabled(False)
    try:
        torch.testing.assert_close(linear(x, weight), expected)
    finally:
        torch._C._set_mkldnn_enabled(True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(linear(x, weight), expected)
    assert products == []


@pytest.mark.parametrize("wrong", ["float64", "autocast", "meta"])
def test_asked_for_by_name_it_says_what_it_cannot_do(wrong: str) -> None:
    x, weight = tensors(2, 8), tensors(3, 8)
    if wrong == "float64":
        x, weight = x.double(), weight.double()
    if wrong == "meta":
        x, weight = x.to("meta"), weight.to("meta")
    with torch.autocast("cpu", enabled=wrong == "autocast"), pytest.raises(ConfigurationError, match="library=None"):
        linear(x, weight, library="onednn")
    assert linear(x, weight, library="pytorch").shape == (2, 3)


def test_the_same_call_gives_the_same_bits() -> None:
    x, weight, bias = tensors(2 * ONEDNN_ROWS + 7, 64), tensors(48, 64, seed=1), tensors(48, seed=2)
    library = "onednn" if module._has_onednn() else "pytorch"
    runs = [gradients(lambda *given: linear(*given, library=library), x, weight, bias) for _ in range(2)]
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@pytest.mark.parametrize(
    ("facts", "feature", "faster"),
    [
        ({"vendor_id": INTEL, "cpu family": "6"}, "avx512f", False),
        ({"vendor_id": AMD, "cpu family": "25"}, "avx512f", False),  # Zen 4
        ({"vendor_id": AMD, "cpu family": "26"}, "avx512f", True),  # Zen 5
        ({"vendor_id": AMD, "cpu family": "26"}, "avx2", False),
        ({}, "avx512f", False),
        ({"BogoMIPS": "243.75"}, "asimd", False),
    ],
)
def test_the_rule(facts: dict[str, str], feature: str, faster: bool) -> None:
    assert Processor(facts, frozenset({"fpu", feature})).is_zen_5 == faster


def test_the_environment_overrules_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    library_for_this_processor.cache_clear()
    try:
        for word in ("pytorch", "onednn", "compiled"):
            monkeypatch.setenv(VARIABLE, word)
            assert library_for_this_processor() == word
            library_for_this_processor.cache_clear()
        monkeypatch.setenv(VARIABLE, "mkl")
        with pytest.raises(ConfigurationError, match="MULTIHEAD_LINEAR='mkl'"):
            library_for_this_processor()
    finally:
        library_for_this_processor.cache_clear()


@needs_onednn
def test_gradients_of_weights_and_the_loss_go_the_same_way(by_rule: None, products: Calls) -> None:
    g, x = torch.randn(2 * ONEDNN_ROWS + 5, 300), torch.randn(2 * ONEDNN_ROWS + 5, 256)
    torch.testing.assert_close(weight_gradient(g, x), g.t() @ x, rtol=1e-4, atol=1e-4)
    assert len(products) == 1
    assert torch.equal(weight_gradient(g[:9], x[:9]), g[:9].t() @ x[:9])
    assert torch.equal(weight_gradient(g.double(), x.double()), g.double().t() @ x.double())
    assert len(products) == 1
    hidden, weight = torch.randn(ONEDNN_ROWS, 256, requires_grad=True), torch.randn(600, 256, requires_grad=True)
    target = torch.randint(600, (ONEDNN_ROWS,))
    results = []
    for form in (linear_cross_entropy, plain_linear_cross_entropy):
        loss = form(hidden, weight, target, 0.1)
        results.append((loss.total, *torch.autograd.grad(loss.total / ONEDNN_ROWS, (hidden, weight))))
    assert len(products) == 4  # logits, dh, dW
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
