"""Near ties: where no decision is near, noise within its bound changes no translation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.interop.near_ties import closest_decision, token_decision

WORDS, BEGIN, END = 5, 0, 1
SYMBOLS = Symbols(BEGIN, END, (BEGIN,))
SOURCE = (2, END)


@dataclass(frozen=True)
class Written:
    """What each row has written."""

    histories: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        return len(self.histories)

    def select(self, rows: torch.Tensor) -> Written:
        return Written(tuple(self.histories[i] for i in rows.tolist()))

    def join(self, other: Written) -> Written:
        return Written(self.histories + other.histories)


@dataclass(frozen=True)
class Noisy:
    """A model of random log-probabilities for each history, to which noise of at most ``delta`` is added."""

    seed: int
    delta: float = 0.0

    def start(self, source: torch.Tensor, lengths: torch.Tensor) -> Written:
        return Written(((),) * len(source))

    def step(self, tokens: torch.Tensor, state: Written) -> tuple[torch.Tensor, Written]:
        histories = tuple((*old, token) for old, token in zip(state.histories, tokens.tolist(), strict=True))
        return torch.stack([self._row(history) for history in histories]), Written(histories)

    def _row(self, history: tuple[int, ...]) -> torch.Tensor:
        draw = torch.Generator().manual_seed(hash((self.seed, history)) % 2**31)
        row = torch.randn(WORDS, generator=draw, dtype=torch.float64).log_softmax(0)
        return row + self.delta * (2 * torch.rand(WORDS, generator=draw, dtype=torch.float64) - 1)


def task(beam: int) -> SearchTask:
    return SearchTask(SYMBOLS, max_lengths=6, n_best=beam)


def best(model: Noisy, search: Search) -> tuple[int, ...]:
    (found,) = beam_search(model, torch.tensor([SOURCE]), torch.tensor([2]), task(search.beam), search)
    return max(found, key=lambda one: one.score).tokens


@pytest.mark.parametrize(("stopping", "alpha"), [("patience", 1.0), ("exact", 0.0), ("exact", 1.0), ("ahead", 1.0)])
def test_only_a_near_tie_lets_noise_change_a_beam_search(stopping: str, alpha: float) -> None:
    search = Search(beam=3, alpha=alpha, stopping=stopping)
    outcomes = set()
    for seed in range(20):
        decision, own = closest_decision(Noisy(seed), SOURCE, task(3), search, 0), best(Noisy(seed), search)
        for delta in (0.001, 0.1):
            near, changed = decision.is_near_tie(delta), own != best(Noisy(seed, delta), search)
            assert near or not changed, f"seed {seed}: another translation without a near tie"
            outcomes.add((near, changed))
    assert outcomes >= {(False, False), (True, True)}, "the noise is too small or too large to show anything"


def test_only_a_near_tie_lets_noise_change_a_greedy_search() -> None:
    delta, changes = 0.3, 0
    for seed in range(40):
        source, lengths = torch.tensor([SOURCE]), torch.tensor([2])
        one, other = (greedy_search(Noisy(seed, d), source, lengths, task(1))[0].tokens for d in (0.0, delta))
        if one != other:
            changes += 1
            decision = token_decision(Noisy(seed), SOURCE, (*one, END), (*other, END), task(1), 0)
            assert decision.is_near_tie(delta)
            assert "near tie at token" in decision.explain(delta)
    assert changes > 3


def test_a_clear_decision_is_no_near_tie() -> None:
    decision = closest_decision(Noisy(1), SOURCE, task(3), Search(beam=3, stopping="patience"), 0)
    assert not decision.is_near_tie(decision.margin / decision.slack * 0.99)
    assert decision.is_near_tie(decision.margin / decision.slack * 1.01)
