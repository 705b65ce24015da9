"""Rotation of queries and keys: the compiled kernel equals the plain form, `multihead.attention.rotary`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multihead.attention import rotary
from multihead.errors import ShapeError
from multihead.kernels import pointwise
from multihead.kernels.pointwise import rotate
from multihead.models.layers import sinusoid

HEADS, DIM = 3, 10
SHAPES = [(1, 700), (4, 9), (5, 1), (1, 1), (0, 4), (3, 0)]


def turns_of(places: Tensor, dim: int = DIM) -> Tensor:
    return sinusoid(places, dim, "halves")


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_it_is_rotary_by_halves(dtype: torch.dtype, batch: int, length: int) -> None:
    x = torch.randn(batch, length, HEADS * DIM).to(dtype)
    rotated = rotate(x, turns_of(torch.arange(length)))
    assert rotated.dtype == dtype
    torch.testing.assert_close(heads_of(rotated), rotary(heads_of(x), layout="halves"), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1)])
def test_of_a_single_position_or_sentence_the_stride_says_nothing(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, HEADS * DIM).transpose(0, 1)
    turns = turns_of(torch.arange(3, 3 + x.shape[1]))
    assert torch.equal(rotate(x, turns), rotate(x.clone(memory_format=torch.contiguous_format), turns))


def both_forms(
    compute: Callable[[], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, Tensor]]:
    """What the compiled form computes, and what the plain one does."""
    results = [compute()]
    with monkeypatch.context() as patch:
        patch.setattr(pointwise, "library_for", lambda *_: None)
        results.append(compute())
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_compiled_and_plain_are_equal(
    dtype: torch.dtype, batch: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients; of parts of wider rows, as a packed projection returns them; each row at its own positions."""
    wide = torch.randn(batch, length, HEADS * DIM + 7).to(dtype)
    upstream = torch.randn(batch, length, HEADS * DIM).to(dtype)
    for turns in (turns_of(torch.arange(length)), turns_of(torch.randint(0, 600, (batch * length,)))):

        def rotated(turns: Tensor = turns) -> tuple[Tensor, Tensor]:
            given = wide.clone().requires_grad_()
            result = rotate(given[..., 7:], turns)
            return result, *torch.autograd.grad(result, given, upstream)

        (one, one_gradient), (other, other_gradient) = both_forms(rotated, monkeypatch)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2)
        torch.testing.assert_close(one_gradient, other_gradient, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2)


def test_the_gradient_is_rotated_back() -> None:
    """Rotations keep lengths, so rotating the result's gradient back gives the input."""
    x = torch.randn(2, 30, HEADS * DIM, requires_grad=True)
    rotated = rotate(x, turns_of(torch.arange(30)))
    (0.5 * rotated.square().sum()).backward()
    torch.testing.assert_close(x.grad, x.detach(), rtol=1e-5, atol=1e-5)


def test_second_derivatives_are_those_of_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, turns = torch.randn(2, 9, HEADS * DIM + 7), turns_of(torch.arange(9))

    def derivatives() -> tuple[Tensor, Tensor]:
        given = wide.clone().requires_grad_()
        loss = rotate(given[..., 7:], turns).pow(3).sum()
        (first,) = torch.autograd.grad(loss, given, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), given)

    for ours, plain in zip(*both_forms(derivatives, monkeypatch), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-3)


def test_products_depend_on_distances() -> None:
    x, y = torch.randn(1, 1, DIM), torch.randn(1, 1, DIM)
    at = [(rotate(x, turns_of(torch.tensor([t + 5]))) * rotate(y, turns_of(torch.tensor([t])))).sum() for t in (0, 90)]
    torch.testing.assert_close(*at, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "places"), [((1, 4, 30), 3), ((2, 4, 30), 5), ((1, 4, 35), 4)])
def test_sizes_that_do_not_fit_are_named(shape: tuple[int, int, int], places: int) -> None:
    with pytest.raises(ShapeError, match=r"expected one for each of 4 positions"):
        rotate(torch.randn(shape), turns_of(torch.arange(places)))
