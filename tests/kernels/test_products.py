"""The compiled linear maps equal float64, row by row, including second derivatives; where they are used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.kernels import linear as module
from multihead.kernels import products
from multihead.kernels.linear import VARIABLE, library_for_this_processor, linear, linear_cross_entropy
from multihead.kernels.native import load_kernels
from multihead.platforms import Processor

pytestmark = pytest.mark.skipif(load_kernels().library is None, reason="there are no compiled kernels here")


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(len(shapes))
    return [torch.randn(shape) for shape in shapes]


def gradients(given: list[Tensor], **library: str) -> list[Tensor]:
    """Output and gradients of a loss that is not symmetric in its outputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    y = linear(*leaves, **library)
    (y * torch.arange(y.numel()).view_as(y).cos()).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_close(found: list[Tensor], exact: list[Tensor]) -> None:
    for ours, reference in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), reference, rtol=0, atol=3e-6 * float(reference.abs().max()) + 1e-5)


@pytest.mark.parametrize("rows", [1, 7, 64, 300, 515])
@pytest.mark.parametrize(("width", "out"), [(64, 5), (64, 1100), (320, 16), (576, 37)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_float64_forwards_and_backwards(rows: int, width: int, out: int, with_bias: bool) -> None:
    given = tensors((rows, width), (out, width), *([(out,)] if with_bias else []))
    assert_close(gradients(given, library="compiled"), gradients([tensor.double() for tensor in given]))


def test_any_axes_and_strides() -> None:
    wide, weight, bias = tensors((3, 40, 128), (24, 64), (24,))
    given = [wide[:, ::2, 64:], weight, bias]
    assert_close(gradients(given, library="compiled"), gradients([tensor.double() for tensor in given]))
    one = [wide[0, 0, 64:], weight, bias]
    assert_close(gradients(one, library="compiled"), gradients([tensor.double() for tensor in one]))
    (empty,) = tensors((0, 64))
    found = gradients([empty, weight, bias], library="compiled")
    assert [tuple(tensor.shape) for tensor in found] == [(0, 24), (0, 64), (24, 64), (24,)]
    assert not found[2].any()
    assert not found[3].any()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_the_others(threads: int) -> None:
    x, weight, bias = tensors((530, 300), (333, 300), (333,))
    before = torch.get_num_threads()
    whole = products.product(x, weight, bias)
    torch.set_num_threads(threads)
    try:
        for first, last in ((0, 1), (5, 258), (252, 530)):
            assert torch.equal(products.product(x[first:last], weight, bias), whole[first:last])
        assert torch.equal(products.product(x, weight.t().contiguous().t(), bias), whole)
    finally:
        torch.set_num_threads(before)


def test_gradients_are_added_to_what_is_there() -> None:
    g, x, total = tensors((300, 10), (300, 64), (10, 64))
    expected = total.double() + g.double().t() @ x.double()
    found, sums = products.add_weight_gradient(g, x, total, with_bias=True)
    assert found is total
    assert sums is not None
    assert_close([found, sums], [expected, g.double().sum(0)])


def test_derivatives_of_derivatives() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in tensors((9, 64), (6, 64), (6,)))
    found = []
    for function in (lambda: linear(x, weight, bias, library="compiled"), lambda: F.linear(x, weight, bias)):
        (first,) = torch.autograd.grad((function() / 8).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), (x, weight, bias)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_only_the_gradients_that_are_wanted() -> None:
    x, weight, bias = tensors((70, 60), (64, 60), (64,))
    y = linear(x, weight, bias.requires_grad_(), library="compiled")  # 60 features: the weight is not trained
    y.sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((64,), 70.0))
    bias.grad = None
    linear(x[0], weight, bias, library="compiled").sum().backward()
    torch.testing.assert_close(bias.grad, torch.ones(64))
    with torch.no_grad():
        assert not linear(x, weight, bias, library="compiled").requires_grad


def test_asked_for_by_name_it_says_what_it_cannot_do() -> None:
    x, weight = tensors((70, 60), (64, 60))
    with pytest.raises(ConfigurationError, match=r"not torch\.float64 on cpu: write library=None"):
        linear(x.double(), weight.double(), library="compiled")
    with pytest.raises(ConfigurationError, match="multiple of 64 input features, not 60"):
        linear(x, weight.requires_grad_(), library="compiled")
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ConfigurationError, match="autocast"):
        linear(x, weight, library="compiled")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ConfigurationError, match="float32 or bfloat16"):
        linear(x.double(), weight.double(), library="compiled")


def loss_by_each_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Tensor, Tensor]]:
    """A loss and its gradients, by our kernel and by PyTorch's."""
    hidden, weight = tensors((600, 64), (501, 64))
    found = []
    for library in ("compiled", "pytorch"):
        monkeypatch.setenv(VARIABLE, library)
        library_for_this_processor.cache_clear()
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        loss = linear_cross_entropy(*leaves, torch.arange(600) % 501, 0.1)
        (loss.total / 600).backward()
        found.append([loss.total.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    library_for_this_processor.cache_clear()
    return zip(*found, strict=True)


def test_the_loss_by_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for ours, theirs in loss_by_each_library(monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


# --------------------------------------------------------------------------------------------- products of bfloat16

HALF = torch.bfloat16


def rounded(tensor: Tensor) -> Tensor:
    """What a product of bfloat16 multiplies, in float64."""
    return tensor.to(HALF).double()


def assert_equal_sums(found: Tensor, exact: Tensor) -> None:
    """Sums of the same products: they may differ by the rounding of sums in float32."""
    assert found.dtype == torch.float32
    bound = 2e-5 * float(exact.abs().max()) if exact.numel() else 0.0
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("rows", [0, 1, 12, 65, 530])
@pytest.mark.parametrize(("width", "out"), [(1, 3), (64, 33), (65, 32), (320, 577), (2048, 20), (30, 4000)])
@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (HALF, torch.float32), (HALF, HALF)])
def test_half_products_are_those_of_rounded_operands(
    rows: int, width: int, out: int, types: tuple[torch.dtype, torch.dtype]
) -> None:
    x, weight, bias = tensors((rows, width), (out, width), (out,))
    g = torch.randn(rows, out).to(HALF)
    x, weight = x.to(types[0]), weight.to(types[1])
    y = products.half_product(x, weight, bias, torch.float32)
    assert_equal_sums(y, rounded(x) @ rounded(weight).t() + bias.double())
    torch.testing.assert_close(products.half_product(x, weight, bias), y.to(HALF), rtol=0, atol=0)
    assert_equal_sums(products.half_product(g, weight.t(), dtype=torch.float32), g.double() @ rounded(weight))
    found, sums = products.add_weight_gradient(g, x, with_bias=True, half=True)
    assert_equal_sums(found, g.double().t() @ rounded(x))
    assert sums is not None
    assert_equal_sums(sums, g.double().sum(0))
    there = torch.randn_like(found)
    added, _ = products.add_weight_gradient(g, x, there.clone(), half=True)
    torch.testing.assert_close(added, there + found, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3, 40])
def test_a_row_of_a_half_product_does_not_depend_on_the_others(threads: int) -> None:
    x, weight, bias = tensors((530, 300), (333, 300), (333,))
    before = torch.get_num_threads()
    whole = products.half_product(x, weight, bias)
    gradient, _ = products.add_weight_gradient(whole, x, half=True)
    torch.set_num_threads(threads)
    try:
        for first, last in ((0, 1), (5, 258), (252, 530)):
            assert torch.equal(products.half_product(x[first:last], weight, bias), whole[first:last])
        assert torch.equal(products.half_product(x, weight.t().contiguous().t(), bias), whole)
        assert torch.equal(products.half_product(x.to(HALF), weight.to(HALF), bias), whole)
        divided, _ = products.add_weight_gradient(whole, x, half=True)
        torch.testing.assert_close(divided, gradient, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(before)


def test_few_rows_of_many_features_have_a_thread_without_rows() -> None:
    x, g = tensors((11, 16), (11, 76_000))
    before = torch.get_num_threads()
    torch.set_num_threads(100)
    try:
        found, sums = products.add_weight_gradient(g.to(HALF), x, with_bias=True, half=True)
    finally:
        torch.set_num_threads(before)
    assert_equal_sums(found, rounded(g).t() @ rounded(x))
    assert sums is not None
    assert_equal_sums(sums, rounded(g).sum(0))


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("with_bias", [True, False])
def test_autocast_gives_the_types_of_pytorch(low: bool, with_bias: bool) -> None:
    given = tensors((3, 40, 65), (24, 65), *([(24,)] if with_bias else []))
    given[0] = given[0].to(HALF) if low else given[0]
    with torch.autocast("cpu", dtype=HALF):
        ours, theirs = gradients(given, library="compiled"), gradients(given, library="pytorch")
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        bound = 0.02 * float(other.float().abs().max())  # PyTorch rounds the gradient of the weight
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=bound)


def test_half_parameters_get_half_gradients() -> None:
    given = [tensor.to(HALF) for tensor in tensors((70, 30), (24, 30), (24,))]
    ours, theirs = gradients(given, library="compiled"), gradients(given, library="pytorch")
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype == HALF
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0.02 * float(other.float().abs().max()))


def test_only_the_half_gradients_that_are_wanted() -> None:
    x, weight, bias = tensors((70, 60), (64, 60), (64,))
    with torch.autocast("cpu", dtype=HALF):
        linear(x, weight, bias.requires_grad_(), library="compiled").float().sum().backward()
        torch.testing.assert_close(bias.grad, torch.full((64,), 70.0))
        linear(x.requires_grad_(), weight, library="compiled").float().sum().backward()
        with torch.no_grad():
            assert not linear(x, weight, bias, library="compiled").requires_grad
    assert weight.grad is None
    assert x.grad is not None
    assert_equal_sums(x.grad, rounded(weight).sum(0).expand(70, 60))


def test_half_derivatives_of_derivatives() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in tensors((9, 64), (6, 64), (6,)))
    found = []
    for library in ("compiled", "pytorch"):
        with torch.autocast("cpu", dtype=HALF):
            y = linear(x, weight, bias, library=library)
        (first,) = torch.autograd.grad((y.float() / 8).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), (x, weight, bias)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * float(theirs.abs().max()))


def test_the_loss_in_half_by_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.autocast("cpu", dtype=HALF):
        found = loss_by_each_library(monkeypatch)
    for ours, theirs in found:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("vendor", "family", "features", "own"),
    [
        ("AuthenticAMD", "25", {"avx512f", "avx512_bf16"}, True),  # Zen 4
        ("AuthenticAMD", "25", {"avx2", "fma"}, False),  # Zen 3
        ("AuthenticAMD", "26", {"avx512f", "avx512_bf16"}, False),  # Zen 5
        ("GenuineIntel", "6", {"avx512f", "avx512_bf16"}, False),
    ],
)
def test_the_rule_for_half(
    vendor: str, family: str, features: set[str], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Processor({"vendor_id": vendor, "cpu family": family}, frozenset(features))
    assert found.is_zen_4 == own
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "processor", lambda: found)
    library_for_this_processor.cache_clear()
    try:
        for multiplies in (True, False):
            monkeypatch.setattr(module, "multiplies_half", lambda multiplies=multiplies: multiplies)
            expected = "compiled" if own and multiplies else "pytorch"
            assert library_for_this_processor(half=True) == expected
            library_for_this_processor.cache_clear()
    finally:
        library_for_this_processor.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "features", "own"),
    [
        ("AuthenticAMD", {"avx2", "fma"}, True),
        ("AuthenticAMD", {"avx2", "fma", "avx512f"}, False),
        ("AuthenticAMD", {"sse4_2"}, False),
        ("GenuineIntel", {"avx2", "fma"}, False),
    ],
)
def test_the_rule(vendor: str, features: set[str], own: bool) -> None:
    assert module._is_amd_avx2(Processor({"vendor_id": vendor}, frozenset(features))) == own
