"""An ensemble is the mean of its models, step by step; the ensemble of a model with itself is that model."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.ensemble import Ensemble, EnsembleState
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.sampling import sample
from multihead.decoding.scoring import force
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, ShapeError

MEANS: list[Literal["probabilities", "log-probabilities"]] = ["probabilities", "log-probabilities"]


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[(h.tokens, h.finished) for h in row] for row in one] == [
        [(h.tokens, h.finished) for h in r] for r in other
    ]
    for ours, theirs in zip(one, other, strict=True):
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-9)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_of_a_model_with_itself_it_is_that_model(toys: Any, mean: Any, copies: int) -> None:
    arguments = toys.padded(toys.sources)
    for seed in range(3):
        model = toys.stepper(toys.random(seed))
        twin = Ensemble([toys.stepper(toys.random(seed)) for _ in range(copies)], mean)
        settings: dict[str, Any] = {"max_lengths": [6, 3, 7, 1, 5]}
        same(
            beam_search(twin, *arguments, *toys.split(toys.symbols, **settings, beam=3, n_best=3)),
            beam_search(model, *arguments, *toys.split(toys.symbols, **settings, beam=3, n_best=3)),
        )
        same(
            [greedy_search(twin, *arguments, *toys.split(toys.symbols, **settings))],
            [greedy_search(model, *arguments, *toys.split(toys.symbols, **settings))],
        )
        same(
            sample(twin, *arguments, *toys.split(toys.symbols, **settings, n_best=3), seed=seed),
            sample(model, *arguments, *toys.split(toys.symbols, **settings, n_best=3), seed=seed),
        )


@pytest.mark.parametrize("mean", MEANS)
def test_it_is_the_model_whose_table_is_the_mean(toys: Any, mean: Any) -> None:
    tables, weights = [toys.random(1), toys.random(2), toys.random(3)], [0.5, 0.2, 0.3]

    def averaged(source: Any, prefix: Any) -> torch.Tensor:
        rows = [w * (t(source, prefix).exp() if mean == "probabilities" else t(source, prefix))
                for w, t in zip(weights, tables, strict=True)]  # fmt: skip
        total = torch.stack(rows).sum(dim=0)
        return total.log() if mean == "probabilities" else total - total.exp().sum().log()

    ensemble = Ensemble([toys.stepper(table) for table in tables], mean, [5.0, 2.0, 3.0])
    arguments = toys.padded(toys.sources)
    same(
        beam_search(ensemble, *arguments, *toys.split(toys.symbols, max_lengths=6, beam=4, n_best=4)),
        beam_search(toys.stepper(averaged), *arguments, *toys.split(toys.symbols, max_lengths=6, beam=4, n_best=4)),
    )
    targets = [(3,), (4, 5), (), (3, 3, 3), (5,)]
    scores = force(ensemble, *toys.padded(toys.sources), targets, toys.symbols)
    expected = force(toys.stepper(averaged), *toys.padded(toys.sources), targets, toys.symbols)
    for ours, theirs in zip(scores, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_what_one_model_excludes_only_the_mean_of_logarithms_excludes(toys: Any) -> None:
    def always(source: Any, prefix: Any) -> torch.Tensor:
        return torch.tensor([0.0, 0, 0.25, 0.25, 0.25, 0.25]).log()

    def without(source: Any, prefix: Any) -> torch.Tensor:
        return torch.tensor([0.0, 0, 0.5, 0.0, 0.25, 0.25]).log()

    for mean, value in zip(MEANS, (0.125, 0.0), strict=True):
        ensemble = Ensemble([toys.stepper(without), toys.stepper(always)], mean)
        row, _ = ensemble.step(torch.tensor([1]), ensemble.start(*toys.padded([(3,)])))
        assert row.exp().sum().item() == pytest.approx(1.0)
        assert row[0, 3].exp().item() == pytest.approx(value)


def test_its_state_is_the_states_of_its_models(toys: Any) -> None:
    ensemble = Ensemble([toys.stepper(toys.random(1)), toys.stepper(toys.random(2))])
    assert isinstance(ensemble, Stepper)
    state = ensemble.start(*toys.padded(toys.sources))
    assert isinstance(state, State)
    _, state = ensemble.step(torch.tensor([1] * 5), state)
    picked = state.select(torch.tensor([4, 4, 0]))
    assert (state.rows, picked.rows) == (5, 3)
    joined = picked.join(ensemble.start(*toys.padded([(5,)])))
    assert isinstance(joined, EnsembleState)
    assert [own.sources for own in joined.states] == [[(5, 3), (5, 3), (3, 4), (5,)]] * 2
    assert joined.rows == 4


def test_models_that_do_not_fit_are_refused(toys: Any) -> None:
    def small(source: Any, prefix: Any) -> torch.Tensor:
        return torch.full((5,), 0.2).log()

    ensemble = Ensemble([toys.stepper(toys.random(1, torch.float32)), toys.stepper(small)])
    with pytest.raises(ShapeError, match=r"one vocabulary, got sizes \[6, 5\]"):
        greedy_search(ensemble, *toys.padded(toys.sources), SearchTask(toys.symbols, max_lengths=3))
    with pytest.raises(ConfigurationError, match="at least one model"):
        Ensemble([])
    for weights in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")]):
        with pytest.raises(ConfigurationError, match="2 models needs as many positive weights"):
            Ensemble([toys.stepper(small)] * 2, weights=weights)
