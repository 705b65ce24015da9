"""Soft targets: the fused loss is its definition, and what follows from the equation holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multihead.errors import ShapeError
from multihead.kernels.linear import Loss, linear_cross_entropy, plain_linear_cross_entropy
from multihead.kernels.soft_targets import SoftTargets, plain_soft_cross_entropy

TYPES = [torch.float32, torch.bfloat16]
ROWS = 700
"""More rows than one piece has."""


class Case:
    """Random states and weights, labels, and the ``symbols`` best symbols of a random teacher."""

    def __init__(self, vocabulary: int, symbols: int, weight: float, seed: int = 1) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(ROWS, 24, generator=draw).requires_grad_()
        self.weight = torch.randn(vocabulary, 24, generator=draw).requires_grad_()
        self.bias = torch.randn(vocabulary, generator=draw).requires_grad_()
        self.target = torch.randint(vocabulary, (ROWS,), generator=draw)
        self.teacher = torch.randn(ROWS, vocabulary, generator=draw).mul(3).softmax(-1)
        best = self.teacher.topk(symbols)
        self.soft = SoftTargets(best.indices, best.values, weight)

    def gradients(self, loss: Loss) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss.total / ROWS, (self.hidden, self.weight, self.bias))


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    scale = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale, check_dtype=False)


def written(case: Case, smoothing: float) -> Tensor:
    """The equation, with a distribution over the whole vocabulary, in float64."""
    logits = case.hidden.double() @ case.weight.double().t() + case.bias.double()
    log_q, vocabulary = logits.log_softmax(-1), logits.shape[-1]
    ids, probabilities, w = case.soft
    soft = (1 - probabilities.double().sum(-1, keepdim=True)).expand_as(logits) / vocabulary
    soft = soft.scatter_add(-1, ids, probabilities.double())
    one_hot = torch.nn.functional.one_hot(case.target, vocabulary)
    labels = (1 - smoothing) * one_hot + smoothing / vocabulary
    return -(((1 - w) * labels + w * soft) * log_q).sum()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("vocabulary", "symbols"), [(2, 1), (33, 33), (1000, 8)])
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_compiled_plain_and_written_are_equal(dtype, smoothing, vocabulary, symbols, weight, compiled) -> None:
    case = Case(vocabulary, symbols, weight)
    arguments = (case.hidden, case.weight, case.target, smoothing, case.bias, case.soft)
    results = []
    for form in ("compiled", "pieces", "plain"):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            if form == "compiled":
                loss = linear_cross_entropy(*arguments)
            elif form == "pieces":
                with compiled():
                    loss = linear_cross_entropy(*arguments)
            else:
                loss = plain_linear_cross_entropy(*arguments)
        results.append((*loss[:5], *case.gradients(loss)))
    exact = written(case, smoothing)
    if dtype == torch.float32:
        gradients = torch.autograd.grad(exact / ROWS, (case.hidden, case.weight, case.bias))
        results.append((exact, *results[-1][1:5], *gradients))
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    for result in results[:-1]:
        for ours, theirs in zip(result, results[-1], strict=True):
            close(ours, theirs, tolerance)
    assert results[0][2] == results[1][2]


def test_gradients_are_those_of_finite_differences() -> None:
    draw = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=draw, requires_grad=True) for shape in ((5, 4), (7, 4), (7,))
    )
    teacher = torch.randn(5, 7, generator=draw).softmax(-1).topk(3)
    soft, target = SoftTargets(teacher.indices, teacher.values, 0.4), torch.tensor([0, 3, 6, 2, 2])
    assert torch.autograd.gradcheck(
        lambda h, w, b: linear_cross_entropy(h, w, target, 0.1, b, soft).total, (hidden, weight, bias)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_weight_it_is_the_loss_of_the_labels(smoothing: float) -> None:
    case = Case(100, 8, 0.0)
    plain = linear_cross_entropy(case.hidden, case.weight, case.target, smoothing, case.bias)
    soft = linear_cross_entropy(case.hidden, case.weight, case.target, smoothing, case.bias, case.soft)
    assert plain.labels is None
    assert plain.soft is None
    assert soft.labels is not None
    assert (soft.total, soft.nll, soft.correct) == (soft.labels, plain.nll, plain.correct)
    close(soft.total, plain.total)
    for ours, theirs in zip(case.gradients(soft), case.gradients(plain), strict=True):
        close(ours, theirs)


def test_a_certain_teacher_is_a_label_without_smoothing() -> None:
    case = Case(50, 4, 1.0)
    certain = torch.zeros(ROWS, 4)
    certain[:, 0] = 1.0
    taught = SoftTargets(case.soft.ids, certain, 1.0)
    soft = linear_cross_entropy(case.hidden, case.weight, case.target, 0.1, case.bias, taught)
    plain = linear_cross_entropy(case.hidden, case.weight, taught.ids[:, 0], 0.0, case.bias)
    close(soft.total, plain.total)
    for ours, theirs in zip(case.gradients(soft), case.gradients(plain), strict=True):
        close(ours, theirs)


def test_a_student_that_is_its_teacher_learns_nothing(compiled) -> None:
    """The gradient of sum_v p(v) (-log q(v)) is q - p, so 0 at q = p; and there the loss is the entropy of p."""
    case = Case(40, 40, 1.0)
    with torch.no_grad():
        own = torch.nn.functional.linear(case.hidden, case.weight, case.bias).softmax(-1)
    best = own.topk(40)
    taught = SoftTargets(best.indices, best.values, 1.0)
    for context in (torch.enable_grad, compiled):
        with context():
            loss = linear_cross_entropy(case.hidden, case.weight, case.target, 0.1, case.bias, taught)
        close(loss.total, torch.special.entr(own).sum())
        for gradient in case.gradients(loss):
            assert float(gradient.abs().max()) < 1e-5
    assert (
        float(
            case.gradients(linear_cross_entropy(case.hidden, case.weight, case.target, 0.0, case.bias))[0].abs().max()
        )
        > 1e-3
    )


def test_all_symbols_are_the_whole_distribution() -> None:
    case = Case(30, 30, 0.5)
    logits = torch.randn(ROWS, 30)
    dense = -(case.teacher * logits.log_softmax(-1)).sum()
    close(plain_soft_cross_entropy(logits, case.soft).sum(), dense)


def test_the_loss_is_at_least_the_entropy_of_the_soft_targets() -> None:
    """Gibbs' inequality, for distributions whose remaining probability is spread over the other symbols."""
    case = Case(60, 5, 1.0)
    rest = (1 - case.soft.probabilities.sum(-1, keepdim=True)).expand(ROWS, 60) / 60
    entropy = torch.special.entr(rest.scatter_add(-1, case.soft.ids, case.soft.probabilities)).sum()
    loss = linear_cross_entropy(case.hidden, case.weight, case.target, 0.0, case.bias, case.soft)
    assert float(loss.total.detach()) > float(entropy)


def test_parts_add_up() -> None:
    case = Case(30, 4, 0.7)
    whole = linear_cross_entropy(case.hidden, case.weight, case.target, 0.1, case.bias, case.soft)
    parts = [
        linear_cross_entropy(
            case.hidden[one:two], case.weight, case.target[one:two], 0.1, case.bias, case.soft.rows(one, two)
        )
        for one, two in ((0, 123), (123, ROWS))
    ]
    for name in ("total", "nll", "labels", "soft"):
        close(sum(getattr(part, name) for part in parts), getattr(whole, name))
    assert whole.labels is not None
    assert whole.soft is not None
    close(whole.total, 0.3 * whole.labels + 0.7 * whole.soft)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_symbol_outside_the_vocabulary_is_an_error(wrong: int) -> None:
    soft = SoftTargets(torch.tensor([[0, 1], [2, wrong]]), torch.full((2, 2), 0.5), 0.5)
    with pytest.raises(IndexError, match="from 0 to 4"):
        linear_cross_entropy(torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, 1]), soft=soft)


def test_too_few_rows_are_an_error() -> None:
    soft = SoftTargets(torch.tensor([[0, 1]]), torch.full((1, 2), 0.5), 0.5)
    with pytest.raises(ShapeError, match="each of 2 rows"):
        linear_cross_entropy(torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, 1]), soft=soft)


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_multiply_the_loss_and_the_gradient_of_their_rows(taught, dtype) -> None:
    """Against the definition, in more than one piece; float32 is computed by the compiled kernel."""
    draw = torch.Generator().manual_seed(5)
    hidden, weight = (torch.randn(n, 8, generator=draw, dtype=dtype, requires_grad=True) for n in (ROWS, 30))
    target = torch.randint(0, 30, (ROWS,), generator=draw)
    factors = torch.rand(ROWS, generator=draw).to(dtype) * (torch.arange(ROWS) % 3)
    soft = Case(30, 4, 0.5).soft if taught else None
    ours = linear_cross_entropy(hidden, weight, target, 0.1, None, soft, factors)
    theirs = plain_linear_cross_entropy(hidden, weight, target, 0.1, None, soft, factors)
    plain = linear_cross_entropy(hidden, weight, target, 0.1, None, soft)
    for name in ("total", "nll", "labels") + (("soft",) if taught else ()):
        close(getattr(ours, name), getattr(theirs, name))
    close(ours.labels, plain.total if plain.labels is None else plain.labels)
    assert ours.correct == theirs.correct == plain.correct
    for one, other in zip(*(torch.autograd.grad(loss.total, (hidden, weight)) for loss in (ours, theirs)), strict=True):
        close(one, other)
