"""REINFORCE against enumeration of all choices of a small network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multihead.attention.alignment import Alignment, entropy, log_prob
from multihead.configuration import Launch
from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.kernels.linear import Loss
from multihead.models.config import RecurrentConfig
from multihead.models.network import token_loss
from multihead.models.recurrent.network import RecurrentTranslator, reinforced_loss
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.splitting import BothShares
from multihead.training.step import RejectedUpdateError, train_step

PADDING, VOCABULARY, WIDTH, KEYS = 0, 5, 3, 3
TARGET = torch.tensor([[3, 4, 2]])
SMOOTHING = 0.1


class Drawn(NamedTuple):
    """Results of a pass with given choices."""

    states: Tensor
    log_prob: Tensor
    entropy: Tensor


class Network(nn.Module):
    """A decoder that attends to one key per step; ``remembers``: that key enters the next state."""

    def __init__(self, remembers: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.remembers = remembers
        self.keys, self.first = (nn.Parameter(torch.randn(n, WIDTH, dtype=torch.float64)) for n in (KEYS, 1))
        self.recurrent, self.ask, self.joined = (
            nn.Linear(width, WIDTH, dtype=torch.float64) for width in (WIDTH, WIDTH, 2 * WIDTH)
        )
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, choices: Tensor) -> Drawn:
        """``choices``: [batch, target], positions."""
        state, states, log_probs, entropies = self.first.expand(len(choices), -1), [], [], []
        for choice in choices.unbind(1):
            scores = (self.ask(state) @ self.keys.t())[:, None]
            weights = nn.functional.one_hot(choice, KEYS)[:, None].double()
            context = (weights @ self.keys)[:, 0]
            states.append(torch.tanh(self.joined(torch.cat((state, context), -1))))
            log_probs.append(log_prob(weights, scores))
            entropies.append(entropy(scores))
            state = torch.tanh(self.recurrent(state) + (context if self.remembers else 0))
        return Drawn(torch.stack(states, 1), torch.cat(log_probs, 1), torch.cat(entropies, 1))

    def reinforced(self, drawn: Drawn, target: Tensor = TARGET, **changes: Any) -> Loss:
        settings: dict[str, Any] = {
            "baseline": None,
            "entropy_weight": 0.0,
            "to_go": True,
            "smoothing": SMOOTHING,
        } | changes
        return reinforced_loss(
            drawn.states,
            self.output.weight,
            target,
            PADDING,
            log_prob=drawn.log_prob,
            entropy=drawn.entropy,
            **settings,
        )

    def cross_entropy(self, drawn: Drawn, target: Tensor = TARGET, smoothing: float = SMOOTHING) -> Loss:
        return token_loss(drawn.states, self.output, target, PADDING, smoothing)

    def gradient(self, value: Tensor) -> Tensor:
        """One row for all parameters."""
        gradients = torch.autograd.grad(value, list(self.parameters()), materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients])


def every(network: Network, target: Tensor = TARGET) -> Iterator[tuple[Drawn, Tensor]]:
    """Every sequence of choices, and its probability."""
    real = (target != PADDING).double()
    length = int(real.sum())
    for choices in product(range(KEYS), repeat=length):
        drawn = network(torch.tensor([[*choices, *[0] * (target.shape[1] - length)]]))
        yield drawn, (drawn.log_prob * real).sum().exp()


def level(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value, dtype=torch.float64), requires_grad=False)


def estimates(network: Network, baseline: float | None, **changes: Any) -> tuple[Tensor, Tensor]:
    """The gradient of each sequence of choices [sequences, parameters], and its probability."""
    found, probabilities = [], []
    for drawn, probability in every(network):
        before = None if baseline is None else level(baseline)
        found.append(network.gradient(network.reinforced(drawn, baseline=before, **changes).total))
        probabilities.append(probability.detach())
    return torch.stack(found), torch.stack(probabilities)


def expected(network: Network, entropy_weight: float = 0.0) -> Tensor:
    """The gradient of E[total], and of the entropies of the visited states."""
    value = torch.zeros((), dtype=torch.float64)
    for drawn, probability in every(network):
        value = value + probability * network.cross_entropy(drawn).total
        value = value - entropy_weight * probability.detach() * drawn.entropy.sum()
    return network.gradient(value)


# ------------------------------------------------------------------------------------------ the mean


@pytest.mark.parametrize("baseline", [None, 0.0, -1.3, 5.0])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
@pytest.mark.parametrize("remembers", [True, False])
def test_the_mean_of_the_estimates_is_the_exact_gradient(
    baseline: float | None, entropy_weight: float, remembers: bool
) -> None:
    network = Network(remembers)
    gradients, probabilities = estimates(network, baseline, entropy_weight=entropy_weight)
    torch.testing.assert_close(probabilities.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(probabilities @ gradients, expected(network, entropy_weight))


@pytest.mark.parametrize("baseline", [None, -1.3])
def test_a_tokens_own_reward_is_enough_where_nothing_remembers_the_choice(baseline: float | None) -> None:
    network = Network(remembers=False)
    gradients, probabilities = estimates(network, baseline, to_go=False)
    torch.testing.assert_close(probabilities @ gradients, expected(network))


def test_a_tokens_own_reward_is_not_enough_where_a_state_remembers() -> None:
    network = Network(remembers=True)
    gradients, probabilities = estimates(network, None, to_go=False)
    assert ((probabilities @ gradients) - expected(network)).norm() > 0.01 * expected(network).norm()


# ------------------------------------------------------------------------------------------ the variance


def trace(gradients: Tensor, probabilities: Tensor) -> float:
    """The exact trace of the covariance: the sum of all variances."""
    return float(probabilities @ (gradients - probabilities @ gradients).square().sum(1))


def mean_reward(network: Network) -> float:
    """The mean reward of a token, which the moving average converges to."""
    return -sum(float((p * network.cross_entropy(drawn).total).detach()) for drawn, p in every(network)) / 3


@pytest.mark.parametrize("to_go", [True, False])
def test_the_baseline_lowers_the_variance(to_go: bool) -> None:
    network = Network(remembers=to_go)
    with_it = trace(*estimates(network, mean_reward(network), to_go=to_go))
    assert with_it < 0.5 * trace(*estimates(network, None, to_go=to_go))


def test_one_number_for_every_position_is_worse_than_one_times_the_tokens_left() -> None:
    """The mean return of three tokens of mean reward m is 3m, 2m and m: 2m is the best single number."""
    network = Network(remembers=True)
    mean, left = mean_reward(network), torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)

    def gradients(levels: Tensor) -> Tensor:
        """The gradient with these numbers instead of our baseline."""
        totals = (network.reinforced(drawn).total + (levels * drawn.log_prob).sum() for drawn, _ in every(network))
        return torch.stack([network.gradient(total) for total in totals])

    ours, probabilities = estimates(network, mean)
    torch.testing.assert_close(ours, gradients(mean * left))
    one = gradients(2 * mean * torch.ones_like(left))
    torch.testing.assert_close(probabilities @ one, expected(network))
    assert trace(ours, probabilities) < 0.5 * trace(one, probabilities)


# ------------------------------------------------------------------------------------------ the value


@pytest.mark.parametrize("to_go", [True, False])
def test_the_values_are_those_of_the_cross_entropy(to_go: bool) -> None:
    network = Network(remembers=True)
    drawn = network(torch.tensor([[2, 0, 1]]))
    ours = network.reinforced(drawn, baseline=level(-1.0), entropy_weight=0.5, to_go=to_go)
    for value, plain in zip(ours[:3], network.cross_entropy(drawn), strict=False):
        assert torch.equal(value, plain)


def test_with_equal_rewards_and_their_baseline_nothing_is_reinforced() -> None:
    """If every token's log-probability is -log V, the baseline -log V leaves the gradient of the cross-entropy."""
    network = Network(remembers=False)
    nn.init.zeros_(network.output.weight)
    drawn = network(torch.tensor([[2, 0, 1]]))
    baseline = level(-float(torch.tensor(float(VOCABULARY), dtype=torch.float64).log()))
    ours = network.gradient(network.reinforced(drawn, baseline=baseline).total)
    torch.testing.assert_close(ours, network.gradient(network.cross_entropy(network(torch.tensor([[2, 0, 1]]))).total))


# ------------------------------------------------------------------------------------------ padding and batches


def test_a_batch_is_the_sum_of_its_rows_without_their_padding() -> None:
    network = Network(remembers=True)
    target = torch.tensor([[3, 4, 2], [4, 2, PADDING], [1, 1, 2]])
    choices = torch.tensor([[2, 0, 1], [1, 2, 0], [0, 0, 2]])

    def total(chosen: Tensor, wanted: Tensor) -> Tensor:
        return network.reinforced(network(chosen), wanted, baseline=level(-1.3), entropy_weight=0.5).total

    rows = ((choices[row : row + 1, :length], target[row : row + 1, :length]) for row, length in enumerate((3, 2, 3)))
    one_by_one = torch.stack([network.gradient(total(*row)) for row in rows]).sum(0)
    torch.testing.assert_close(network.gradient(total(choices, target)), one_by_one)


@pytest.mark.parametrize("to_go", [True, False])
def test_what_stands_in_padding_is_not_looked_at(to_go: bool) -> None:
    network = Network(remembers=True)

    def total(extra: int, garbage: float) -> Tensor:
        drawn = network(torch.tensor([[2, 0, 1]]))
        tensors = (nn.functional.pad(x.transpose(1, -1), (0, extra), value=garbage).transpose(1, -1) for x in drawn)
        target = nn.functional.pad(TARGET, (0, extra), value=PADDING)
        options: dict[str, Any] = {"baseline": level(-1.3), "entropy_weight": 0.5, "to_go": to_go}
        return network.reinforced(Drawn(*tensors), target, **options).total

    assert torch.equal(total(0, 0.0), total(2, float("nan")))
    assert torch.equal(network.gradient(total(0, 0.0)), network.gradient(total(2, float("nan"))))


# ------------------------------------------------------------------------------------------ the baseline


def test_a_loss_leaves_the_baseline_as_it_was() -> None:
    """Whether the update will be applied is not known yet."""
    network, baseline = Network(remembers=True), level(-1.3)
    network.reinforced(network(torch.tensor([[2, 0, 1]])), baseline=baseline).total.backward()
    assert baseline.item() == -1.3
    assert baseline.grad is None


class AtFirst(Alignment):
    """Chooses the first word, so that the loss does not depend on how a batch is divided."""

    def forward(self, scores: Tensor, mask: Tensor | None = None, *, generator: object = None) -> Tensor:
        return nn.functional.one_hot(torch.zeros(scores.shape[:2], dtype=torch.long), scores.shape[2]).to(scores.dtype)


LEVEL = -1.3
TRAINING = TrainingConfig(updates=9)


def sampling() -> RecurrentTranslator:
    """A translator with this baseline."""
    torch.manual_seed(2)
    config = RecurrentConfig(source_vocab=13, target_vocab=13, width=8, alignment="sample", dropout=0.0)
    model = RecurrentTranslator(config).double()
    assert model.baseline is not None
    model.baseline.fill_(LEVEL)
    model.decoder.attention.align = AtFirst()
    return model


def some_pairs() -> Batch:
    sources, targets = [[5, 3, 7], [4], [9, 9]], [[6], [8, 3, 10, 4], [5, 5]]
    return collate(ParallelStore.from_lists(sources, targets), np.arange(3), pad_id=0, bos_id=1, eos_id=2)


@pytest.mark.parametrize(
    "division", [{}, {"max_cells": 1}, {"processes": BothShares(Launch())}], ids=["whole", "in pieces", "in shares"]
)
def test_an_update_moves_the_baseline_once_however_its_batches_are_divided(division: dict[str, Any]) -> None:
    model, whole = sampling(), sampling()
    sums = train_step(model, build_optimizer(model, TRAINING), [some_pairs()] * 2, TRAINING, 1, 1e-3, **division)
    assert sums.tokens == 2 * 10
    train_step(whole, build_optimizer(whole, TRAINING), [some_pairs()] * 2, TRAINING, 1, 1e-3)
    assert model.baseline is not None
    assert whole.baseline is not None
    assert model.baseline.item() == pytest.approx(0.9 * LEVEL - 0.1 * sums.loss / sums.tokens, rel=1e-9)
    assert model.baseline.item() == pytest.approx(whole.baseline.item(), rel=1e-9)


@pytest.mark.parametrize("most", [1e-9, math.inf])
def test_a_rejected_update_leaves_the_baseline_as_it_was(most: float) -> None:
    """Its gradient is too large, or it has no finite loss."""
    model = sampling()
    if most == math.inf:
        model.output.weight.data[5] = math.nan
    with pytest.raises(RejectedUpdateError):
        train_step(model, build_optimizer(model, TRAINING), [some_pairs()], TRAINING, 1, 1e-3, max_norm=most)
    assert model.baseline is not None
    assert model.baseline.item() == LEVEL


# ------------------------------------------------------------------------------------------ in a recurrent translator


class Scripted(Alignment):
    """Makes given choices and keeps their log-probabilities."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self.left, self.log_prob = list(choices), torch.zeros((), dtype=torch.float64)

    def forward(self, scores: Tensor, mask: Tensor | None = None, *, generator: object = None) -> Tensor:
        chosen = [self.left.pop(0) for _ in range(scores.shape[1])]
        weights = nn.functional.one_hot(torch.tensor([chosen]), scores.shape[2]).double()
        self.log_prob = self.log_prob + log_prob(weights, scores, mask).sum()
        return weights


WIRINGS: dict[str, dict[str, Any]] = {
    "before": {"attend": "before"},
    "after": {"attend": "after"},
    "fed": {"attend": "after", "input_feeding": True},
}


@pytest.mark.parametrize("baseline", ["none", "moving"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_recurrent_translators_loss_has_the_exact_gradient_on_average(
    wiring: str, baseline: Literal["none", "moving"]
) -> None:
    """Over all choices, from sampling in the decoder to the gradients of all parameters."""
    torch.manual_seed(1)
    config = RecurrentConfig(
        source_vocab=6,
        target_vocab=VOCABULARY,
        width=4,
        alignment="sample",
        baseline=baseline,
        entropy_weight=0.0,
        dropout=0.0,
        tie_embeddings=False,
        tie_output=False,
        **WIRINGS[wiring],
    )
    model = RecurrentTranslator(config).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    pair = torch.tensor([[3, 5, 2]]), torch.tensor([3]), torch.tensor([[1, 3, 4]]), TARGET
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradient(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, trained, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    mean, value = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for choices in product(range(3), repeat=3):
        script = model.decoder.attention.align = Scripted(choices)
        if model.baseline is not None:
            model.baseline.fill_(-1.3)
        estimate = gradient(model.train().loss(*pair, smoothing=SMOOTHING).total)
        mean = mean + script.log_prob.detach().exp() * estimate
        script = model.decoder.attention.align = Scripted(choices)
        total = model.eval().loss(*pair, smoothing=SMOOTHING).total
        value = value + script.log_prob.exp() * total
    torch.testing.assert_close(mean, gradient(value))
