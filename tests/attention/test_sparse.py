"""Sparse alignments against brute force: every support, every point of a grid of distributions; exact gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations

import pytest
import torch
from torch import Tensor

from multihead.attention.alignment import Sigmoid
from multihead.attention.composition import Attention
from multihead.attention.masks import Padding
from multihead.attention.scores import ScaledDot
from multihead.attention.sparse import entmax15, sparsemax

Projection = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("project", [sparsemax, entmax15], ids=["sparsemax", "entmax15"])
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def scores(*shape: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def supports(size: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(size), count) for count in range(1, size + 1))


def by_enumeration(project: Projection, row: Tensor) -> Tensor:
    """[s - tau]_+ or [s / 2 - tau]_+^2, with the tau of the one support that lies above its own tau."""
    values = row if project is sparsemax else row / 2
    for support in supports(len(row)):
        chosen = values[list(support)]
        if project is sparsemax:
            tau = (chosen.sum() - 1) / len(chosen)
        else:
            rest = 1 / len(chosen) - chosen.var(correction=0)
            if rest < 0:
                continue
            tau = chosen.mean() - rest.sqrt()
        above = {place for place, value in enumerate(values) if value > tau}
        if above == set(support):
            return (values - tau).clamp(min=0) ** (1 if project is sparsemax else 2)
    raise AssertionError("no support is consistent")


@BOTH
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_values_and_gradients_are_those_of_the_right_support(project: Projection, spread: float) -> None:
    values = scores(8, 6, spread=spread).requires_grad_()
    cost = scores(8, 6, seed=1)
    expected = torch.stack([by_enumeration(project, row) for row in values])
    ours = project(values)
    torch.testing.assert_close(ours, expected, **EXACT)
    (gradient,) = torch.autograd.grad((ours * cost).sum(), values)
    (wanted,) = torch.autograd.grad((expected * cost).sum(), values)
    torch.testing.assert_close(gradient, wanted, **EXACT)
    assert (ours == 0).any() == (spread > 0.1)


@BOTH
def test_no_distribution_of_a_grid_is_better(project: Projection) -> None:
    """The definitions: the nearest distribution, and the greatest p . s + H_1.5(p)."""

    def objective(p: Tensor, row: Tensor) -> Tensor:
        return -(p - row).square().sum(-1) if project is sparsemax else p @ row + 4 / 3 * (p - p**1.5).sum(-1)

    step = 100
    grid = torch.tensor([(a, b, step - a - b) for a in range(step + 1) for b in range(step + 1 - a)]).double() / step
    for row in scores(12, 3, spread=1.5):
        best = objective(grid, row)
        ours = objective(project(row), row)
        assert ours >= best.max()
        assert (project(row) - grid[best.argmax()]).abs().max() <= 1.5 / step


@BOTH
def test_gradients_are_finite_differences_also_behind_a_mask(project: Projection) -> None:
    allowed = torch.tensor([[True] * 5, [True, False, True, True, False], [False] * 5])
    leaf = scores(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: project(s, allowed), (leaf,))
    with torch.autograd.set_detect_anomaly(True):
        weights = project(leaf, allowed)
        (weights * scores(3, 5, seed=1)).sum().backward()
    assert leaf.grad is not None
    assert (weights[~allowed] == 0).all()
    assert (leaf.grad[~allowed] == 0).all()
    assert leaf.grad[0].any()
    torch.testing.assert_close(project(leaf[1], allowed[1])[allowed[1]], project(leaf[1][allowed[1]]), **EXACT)


@BOTH
def test_constants_move_nothing_and_distances_decide(project: Projection) -> None:
    reach = 1.0 if project is sparsemax else 2.0
    values = scores(4, 7)
    torch.testing.assert_close(project(values + 1000), project(values), rtol=1e-9, atol=1e-9)
    assert project(torch.tensor([0.0, -reach])).tolist() == [1.0, 0.0]
    assert (project(torch.tensor([0.0, -reach + 1e-2])) > 0).all()
    torch.testing.assert_close(project(torch.zeros(5)), torch.full((5,), 0.2))
    assert project(torch.tensor([3e38, 0.0, -3e38])).tolist() == [1.0, 0.0, 0.0]
    assert project(torch.tensor([3e38, 0.0]), torch.tensor([False, True])).tolist() == [0.0, 1.0]


@BOTH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_is_nan_as_with_softmax(project: Projection, bad: float) -> None:
    values = scores(3, 5)
    clean = project(values)
    values[1, 2] = bad
    values[2] = bad
    values.requires_grad_()
    found = project(values)
    assert torch.equal(found.isnan(), values.softmax(-1).isnan())
    assert torch.equal(found[0], clean[0])
    (gradient,) = torch.autograd.grad(found[0, 0], values)
    assert gradient[0].isfinite().all()


def test_entmax_lies_between_softmax_and_sparsemax() -> None:
    values = scores(50, 9)
    dense, sparse = ((project(values) > 0).sum() for project in (entmax15, sparsemax))
    assert sparse < dense < values.numel()


@BOTH
@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_long_rows_sum_to_one_in_single_precision(project: Projection, spread: float) -> None:
    values = scores(2, 5000, spread=spread)
    found = project(values.float())
    torch.testing.assert_close(found.sum(-1), torch.ones(2), rtol=0, atol=2e-5)
    torch.testing.assert_close(found.double(), project(values), rtol=0, atol=1e-5)


@BOTH
def test_empty_axes_half_types_and_vmap(project: Projection) -> None:
    for shape in ((0, 4), (3, 0), (2, 0, 0)):
        leaf = torch.zeros(shape, requires_grad=True)
        project(leaf).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.shape == shape
    values = scores(3, 4, 6)
    for dtype in (torch.bfloat16, torch.float16):
        half = values.to(dtype)
        assert project(half).dtype == dtype
        torch.testing.assert_close(project(half), project(half.float()).to(dtype))
    torch.testing.assert_close(torch.func.vmap(project)(values), project(values), **EXACT)
    one = torch.func.grad(lambda row: project(row)[0])
    for row, got in zip(values[0], torch.func.vmap(one)(values[0]), strict=True):
        torch.testing.assert_close(got, one(row), **EXACT)


def test_sigmoid_attention_is_its_equation_and_padding_changes_nothing() -> None:
    query, key = scores(2, 3, 4), scores(2, 5, 4, seed=1)
    attention = Attention(ScaledDot(), "sigmoid")
    expected = 1 / (1 + 5 * torch.exp(-query @ key.transpose(1, 2) / 2))  # sigmoid(s - log 5)
    output, weights = attention(query, key, need_weights=True)
    torch.testing.assert_close(weights, expected, **EXACT)
    torch.testing.assert_close(output, expected @ key, **EXACT)
    padded, _ = attention(query, key, mask=Padding([5, 2]))
    torch.testing.assert_close(padded[0], output[0], **EXACT)
    torch.testing.assert_close(padded[1:], attention(query[1:], key[1:, :2])[0], **EXACT)
    fixed = Attention(ScaledDot(), Sigmoid(bias=-1.0))(query, key, need_weights=True)[1]
    torch.testing.assert_close(fixed, (query @ key.transpose(1, 2) / 2 - 1).sigmoid(), **EXACT)
    torch.testing.assert_close(Sigmoid()(torch.zeros(1, 1, 9)).sum(-1), torch.tensor([[0.9]]))  # 9 / (1 + 9)
    assert Sigmoid()(torch.zeros(1, 2, 0)).shape == (1, 2, 0)
