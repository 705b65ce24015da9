"""Alignments match their definitions, samples in expectation; REINFORCE gradients match exact enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multihead.attention.alignment import (
    BY_NAME,
    Alignment,
    Argmax,
    Gumbel,
    MovingBaseline,
    Sample,
    Softmax,
    StraightThrough,
    build_alignment,
    entropy,
    log_prob,
    reinforce_loss,
)
from multihead.errors import ConfigurationError, ShapeError

ALL: dict[str, Callable[[], Alignment]] = {
    **BY_NAME,
    "hard gumbel": lambda: Gumbel(hard=True),
    "cold": lambda: Gumbel(0.1),
}
ONE_HOT = ("argmax", "sample", "straight_through", "hard gumbel")
DISTRIBUTIONS = tuple(name for name in ALL if name != "sigmoid")
DRAWN = ("sample", "straight_through", "gumbel", "hard gumbel")


def scores() -> Tensor:
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def mask() -> Tensor:
    """Row 1 of every sentence may attend to nothing."""
    allowed = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    allowed[:, 1] = False
    allowed[:, 0, 2] = True
    return allowed


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("training", [True, False])
def test_weights_are_distributions_over_what_is_allowed(name: str, training: bool) -> None:
    align, allowed = ALL[name]().train(training), mask()
    weights = align(scores(), allowed, generator=seeded())
    assert weights.dtype == torch.float64
    assert (weights[~allowed] == 0).all()
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double(), rtol=1e-12, atol=1e-12)
    unmasked = align(scores(), generator=seeded())
    torch.testing.assert_close(unmasked.sum(-1), torch.ones(3, 4).double(), rtol=1e-12, atol=1e-12)
    if name in ONE_HOT:
        assert ((weights == 0) | (weights == 1)).all()


@pytest.mark.parametrize("name", ALL)
def test_nothing_allowed_has_no_gradient_and_no_nan(name: str) -> None:
    leaf, allowed = scores().requires_grad_(), mask()
    with torch.autograd.set_detect_anomaly(True):
        weights = ALL[name]()(leaf, allowed, generator=seeded())
        if weights.requires_grad:
            (weights * torch.linspace(-1, 1, 5)).sum().backward()
    if name in ("argmax", "sample"):
        assert not weights.requires_grad
        return
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[~allowed] == 0).all()
    assert (leaf.grad[allowed.sum(-1) > 1] != 0).any()


@pytest.mark.parametrize("name", DRAWN)
def test_evaluating_draws_nothing(name: str) -> None:
    align = ALL[name]().eval()
    values, allowed = scores(), mask()
    first, second = align(values, allowed), align(values, allowed)
    assert torch.equal(first, second)
    if name in ONE_HOT:
        assert torch.equal(first, Argmax()(values, allowed))
    else:
        torch.testing.assert_close(first, Softmax()(values, allowed), rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", DRAWN)
def test_a_generator_fixes_the_draw(name: str) -> None:
    align, values = ALL[name](), scores()
    state = torch.get_rng_state()
    first = align(values, generator=torch.Generator().manual_seed(5))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, align(values, generator=torch.Generator().manual_seed(5)))
    assert not torch.equal(first, align(values, generator=torch.Generator().manual_seed(6)))


@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_the_probabilities_of_the_softmax(name: str) -> None:
    """Gumbel-max: the arg-max of the soft weights is the sample."""
    count = 40_000
    row, allowed = scores()[0, :1], torch.tensor([True, True, False, True, True])
    weights = ALL[name]()(row.expand(1, count, 5), allowed[None, None], generator=seeded())
    frequency = torch.nn.functional.one_hot(weights.argmax(-1), 5).double().mean((0, 1))
    expected = row.masked_fill(~allowed, -torch.inf).softmax(-1)[0]
    error = (expected * (1 - expected) / count).sqrt()
    assert ((frequency - expected).abs() <= 4.5 * error).all()


def test_argmax_takes_the_first_of_equals_and_respects_the_mask() -> None:
    row = torch.tensor([[[1.0, 3.0, 3.0, 2.0]]])
    assert Argmax()(row).tolist() == [[[0, 1, 0, 0]]]
    assert Argmax()(row, torch.tensor([[[True, False, False, True]]])).tolist() == [[[0, 0, 0, 1]]]
    assert Argmax()(row[..., :0]).shape == (1, 1, 0)


def test_straight_through_is_exact_for_a_linear_loss_whatever_is_drawn() -> None:
    values, cost, allowed = scores().requires_grad_(), torch.linspace(-1, 2, 5).double(), mask()
    (expected,) = torch.autograd.grad((Softmax()(values, allowed) * cost).sum(), values)
    for seed in range(5):
        weights = StraightThrough()(values, allowed, generator=torch.Generator().manual_seed(seed))
        (gradient,) = torch.autograd.grad((weights * cost).sum(), values)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-15)
        drawn = Sample()(values, allowed, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(weights.detach(), drawn)


def test_gumbel_becomes_one_hot_as_it_cools_and_hard_has_the_soft_gradient() -> None:
    values = scores().requires_grad_()
    cold = Gumbel(tau=1e-4)(values, generator=seeded())
    hard = Gumbel(tau=0.7, hard=True)(values, generator=seeded())
    soft = Gumbel(tau=0.7)(values, generator=seeded())
    torch.testing.assert_close(cold, hard, rtol=0, atol=1e-9)
    cost = torch.linspace(-1, 2, 5).double()
    gradients = [torch.autograd.grad((weights * cost).sum(), values)[0] for weights in (hard, soft)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_large_gradient_of_the_entropy_stays_finite_where_keys_are_masked(dtype: torch.dtype) -> None:
    values = scores().to(dtype).requires_grad_()
    allowed = torch.tensor([True, False, True, True, False]).expand(3, 4, 5)
    (1000.0 * entropy(values, allowed).sum()).backward()
    kept = values.detach()[..., [0, 2, 3]].requires_grad_()
    (1000.0 * entropy(kept).sum()).backward()
    assert values.grad is not None
    assert kept.grad is not None
    torch.testing.assert_close(values.grad[..., [0, 2, 3]], kept.grad, rtol=0.02, atol=2.0)
    assert (values.grad[..., [1, 4]] == 0).all()


def test_log_prob_and_entropy_are_those_of_the_softmax() -> None:
    values, allowed = scores(), mask()
    weights = Sample()(values, allowed, generator=seeded())
    probabilities = Softmax()(values, allowed)
    there = allowed.any(-1)
    chosen = (weights * probabilities).sum(-1)
    torch.testing.assert_close(log_prob(weights, values, allowed)[there], chosen[there].log())
    assert (log_prob(weights, values, allowed)[~there] == 0).all()
    expected = -torch.special.xlogy(probabilities, probabilities).sum(-1)
    torch.testing.assert_close(entropy(values, allowed), expected)
    visible = allowed.sum(-1)
    uniform = entropy(torch.zeros_like(values), allowed)
    torch.testing.assert_close(uniform, visible.clamp(min=1).double().log())
    torch.testing.assert_close(entropy(values), -(values.softmax(-1) * values.log_softmax(-1)).sum(-1))


def test_their_gradients_are_right_and_clean() -> None:
    values, allowed = scores().requires_grad_(), mask()
    weights = Sample()(values, allowed, generator=seeded())
    with torch.autograd.set_detect_anomaly(True):
        assert torch.autograd.gradcheck(lambda s: log_prob(weights, s, allowed), (values,), fast_mode=True)
        assert torch.autograd.gradcheck(lambda s: entropy(s, allowed), (values,), fast_mode=True)


def estimates(baseline: float | None, count: int) -> tuple[Tensor, Tensor]:
    """REINFORCE estimates of the gradient of E[reward], [count, 5], and the exact gradient by enumeration."""
    row = scores()[0, 0]
    rewards = torch.tensor([3.0, 2.0, 5.0, 4.0, 3.5], dtype=torch.float64)
    leaf = row.expand(count, 1, 5).clone().requires_grad_()
    weights = Sample()(leaf, generator=seeded())
    reward = (weights[:, 0] * rewards).sum(-1)
    loss = reinforce_loss(log_prob(weights, leaf), reward, baseline)
    (gradient,) = torch.autograd.grad(loss, leaf)
    exact = row.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-(exact.softmax(-1) * rewards).sum(), exact)
    return gradient[:, 0] * count, expected


@pytest.mark.parametrize("baseline", [None, 3.4])
def test_reinforce_estimates_the_exact_gradient(baseline: float | None) -> None:
    gradients, expected = estimates(baseline, 40_000)
    error = gradients.std(0) / math.sqrt(len(gradients))
    assert ((gradients.mean(0) - expected).abs() <= 4.5 * error).all()


def test_a_baseline_lowers_the_variance() -> None:
    without, _ = estimates(None, 10_000)
    baseline, _ = estimates(3.4, 10_000)
    assert baseline.var(0).sum() < 0.2 * without.var(0).sum()


def test_reinforce_adds_up_the_steps_of_a_sentence() -> None:
    log_probs = torch.randn(3, 4, generator=seeded())
    reward, entropies = torch.tensor([1.0, -2.0, 0.5]), torch.rand(3, 4, generator=seeded())
    loss = reinforce_loss(log_probs, reward, torch.tensor(0.25), entropies, 0.1)
    expected = -((reward - 0.25) * log_probs.sum(1) + 0.1 * entropies.sum(1)).mean()
    torch.testing.assert_close(loss, expected)
    each = reinforce_loss(log_probs, reward[:, None].expand(3, 4), 0.25, entropies, 0.1)
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(reinforce_loss(log_probs[:, 0], reward), -(reward * log_probs[:, 0]).mean())


def test_reinforce_has_no_gradient_for_reward_and_baseline() -> None:
    log_probs, reward = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    baseline = torch.tensor(0.5, requires_grad=True)
    reinforce_loss(log_probs, reward, baseline).backward()
    assert reward.grad is None
    assert baseline.grad is None
    assert log_probs.grad is not None


def test_a_moving_baseline_is_a_value() -> None:
    start = MovingBaseline(decay=0.9)
    rewards = [torch.tensor([1.0, 3.0]), torch.tensor([5.0, 5.0])]
    once = start.update(rewards[0])
    twice = once.update(rewards[1])
    assert start.value == 0
    torch.testing.assert_close(once.value, torch.tensor(0.1 * 2))
    torch.testing.assert_close(twice.value, torch.tensor(0.9 * 0.2 + 0.1 * 5))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_stay_and_are_finite(name: str, dtype: torch.dtype) -> None:
    values = (scores() * 100).to(dtype)
    weights = ALL[name]()(values, mask(), generator=seeded())
    assert weights.dtype == dtype
    assert weights.isfinite().all()


def test_what_cannot_be_is_named(unchecked: None) -> None:
    with pytest.raises(ConfigurationError, match=r"align='hard'.*softmax, argmax.*Gumbel\(tau=0.5\)"):
        build_alignment("hard")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tau=0"):
        Gumbel(0.0)
    with pytest.raises(ConfigurationError, match=r"decay=1.5"):
        MovingBaseline(1.5)
    with pytest.raises(ShapeError, match=r"reward has shape \[2\].*\[3\].*\[3, 4\]"):
        reinforce_loss(torch.zeros(3, 4), torch.zeros(2))
