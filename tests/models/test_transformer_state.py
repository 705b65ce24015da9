"""Step by step equals all at once, whatever is selected and joined on the way: a row is its source and its target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.decoding.stepper import State, Stepper
from multihead.models.transformer import Transformer, TransformerState

Ids = tuple[int, ...]


@dataclass
class Checked:
    """A state, and beside it what it stands for: the source and the target so far of each row."""

    model: Transformer
    state: TransformerState
    rows: list[tuple[Ids, Ids]]
    known: dict[tuple[Ids, Ids], Tensor] = field(default_factory=dict)

    def step(self, tokens: Sequence[int]) -> Checked:
        """Takes a step and compares every row with a forward pass over that row alone."""
        before, state = self.state.positions.clone(), self.state
        log_probabilities, following = self.model.step(torch.tensor(tokens), state)
        rows = [(source, (*target, token)) for (source, target), token in zip(self.rows, tokens, strict=True)]
        expected = torch.stack([self._alone(row) for row in rows])
        torch.testing.assert_close(log_probabilities, expected, rtol=1e-10, atol=1e-10)
        assert following.rows == len(rows)
        assert following.positions.tolist() == [len(target) for _, target in rows]
        assert torch.equal(state.positions, before)
        return Checked(self.model, following, rows, self.known)

    def select(self, *rows: int) -> Checked:
        return Checked(self.model, self.state.select(torch.tensor(rows)), [self.rows[row] for row in rows], self.known)

    def join(self, other: Checked) -> Checked:
        return Checked(self.model, self.state.join(other.state), self.rows + other.rows, self.known)

    def _alone(self, row: tuple[Ids, Ids]) -> Tensor:
        if row not in self.known:
            source, target = (torch.tensor([ids]) for ids in row)
            logits = self.model(source, torch.tensor([source.size(1)]), target).logits
            self.known[row] = logits[0, -1].log_softmax(-1)
        return self.known[row]


def begin(small: Any, model: Transformer, *which: int, extra: int = 0) -> Checked:
    """A state of some of the sources, before the first step."""
    sources = [small.sources[index] for index in which]
    with torch.no_grad():
        return Checked(model, model.start(*small.padded(sources, extra)), [(source, ()) for source in sources])


@pytest.fixture(params=["post", "pre"])
def model(small: Any, request: pytest.FixtureRequest) -> Transformer:
    made: Transformer = small.model(norm=request.param).requires_grad_(False)
    return made


def test_a_transformer_is_a_stepper(small: Any, model: Transformer) -> None:
    assert isinstance(model, Stepper)
    assert isinstance(begin(small, model, 0).state, State)


def test_steps_equal_the_forward_pass_position_by_position(small: Any, model: Transformer) -> None:
    source, lengths = small.padded(small.sources, 2)
    target = torch.randint(3, 11, (len(source), 7), generator=torch.Generator().manual_seed(1))
    expected = model(source, lengths, target).logits.log_softmax(-1)
    state = model.start(source, lengths)
    for time in range(target.size(1)):
        log_probabilities, state = model.step(target[:, time], state)
        torch.testing.assert_close(log_probabilities, expected[:, time], rtol=1e-10, atol=1e-10)
    assert state.time == target.size(1)


def test_hypotheses_of_a_sentence_share_its_memory(small: Any, model: Transformer) -> None:
    rows = begin(small, model, 0, 1, 3).step([1, 1, 1])
    rows = rows.select(0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (0, 1, 3)]  # a sentence once
    rows = rows.step([3, 4, 5, 6, 7, 8, 9, 10, 3])
    rows = rows.select(2, 0, 0, 4, 4, 5, 8, 7, 6).step([3, 4, 5, 6, 7, 8, 9, 10, 3])  # reordered within sentences
    rows = rows.select(6, 7, 8, 0, 1, 2)  # the sentence in the middle is finished, the others change places
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (3, 0)]
    rows.step([4, 5, 6, 7, 8, 9]).select(5).step([3])


def test_groups_may_become_unequal_and_mixed(small: Any, model: Transformer) -> None:
    rows = begin(small, model, 0, 1, 2).step([1, 1, 1]).select(0, 0, 1, 1, 2, 2).step([3, 4, 5, 6, 7, 8])
    rows = rows.select(0, 0, 1, 3, 5, 4).step([3, 4, 5, 6, 7, 8])  # three, one and two rows
    rows = rows.select(5, 0, 3, 1, 4).step([3, 4, 5, 6, 7])  # and in no order
    rows.select(1, 1, 3, 3).step([9, 8, 7, 6])


def test_states_begun_apart_can_be_joined(small: Any, model: Transformer) -> None:
    early = begin(small, model, 0, 3).step([1, 1]).select(0, 0, 1, 1).step([3, 4, 5, 6]).step([6, 5, 4, 3])
    late = begin(small, model, 1, 2, extra=7).step([1, 1])
    assert early.state.time != late.state.time
    for rows in (early.join(late), late.join(early)):
        assert rows.state.time == early.state.time
        rows = rows.step([3, 4, 5, 6, 7, 8]).step([8, 7, 6, 5, 4, 3])
        rows = rows.select(5, 0, 1, 4, 2).step([3, 4, 5, 6, 7])
        rows.join(begin(small, model, 2)).step([3, 4, 5, 6, 7, 1]).step([4, 4, 4, 4, 4, 4])  # a third, unstepped


def test_unstepped_states_can_be_joined(small: Any, model: Transformer) -> None:
    rows = begin(small, model, 1).join(begin(small, model, 3, 0))
    assert rows.state.padding is None
    rows.step([1, 1, 1]).step([3, 4, 5])


def test_a_state_is_a_value(small: Any, model: Transformer) -> None:
    origin = begin(small, model, 0, 1)
    once = origin.step([1, 1])
    one, other = once.step([3, 4]), once.step([9, 10])
    one.step([5, 6])
    other.step([5, 6])
    joined, picked = one.join(origin), one.select(1, 0)
    picked.step([7, 7])
    joined.step([7, 7, 1, 1])
    for _ in range(2):
        once.step([3, 4]).step([5, 6])
        origin.step([1, 1])
    first, second = (model.step(torch.tensor([3, 4]), once.state)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_steps_selections_and_joins(small: Any, seed: int) -> None:
    model = small.model(seed, norm=("post", "pre")[seed % 2]).requires_grad_(False)
    choose = random.Random(seed)

    def fresh() -> Checked:
        which = choose.sample(range(len(small.sources)), choose.randint(1, 3))
        return begin(small, model, *which, extra=choose.randint(0, 3))

    def tokens(rows: Checked) -> list[int]:
        return [choose.randint(1, 10) for _ in rows.rows]

    pool = [fresh()]
    for _ in range(20):
        rows = choose.choice(pool)
        match choose.choice(["step", "step", "select", "join"]):
            case "step":
                rows = rows.step(tokens(rows))
            case "select":
                count = choose.randint(1, 6)
                picked = [choose.randrange(len(rows.rows)) for _ in range(count)]
                rows = rows.select(*(sorted(picked) if choose.random() < 0.5 else picked))
            case "join" if len(rows.rows) < 8:
                rows = rows.join(choose.choice([*pool, fresh()]))
        pool = [*pool[-3:], rows.step(tokens(rows))]


def test_beyond_the_table_of_positions(small: Any) -> None:
    model = small.model(width=4, heads=1, inner=4, encoder_layers=1, decoder_layers=1).requires_grad_(False)
    source, lengths = small.padded([tuple(range(3, 13)) * 55])  # longer than the table, as is the target
    target = torch.randint(3, 11, (1, 516), generator=torch.Generator().manual_seed(1))
    expected = model(source, lengths, target).logits.log_softmax(-1)
    state = model.start(source, lengths)
    for time in range(target.size(1)):
        log_probabilities, state = model.step(target[:, time], state)
        if time >= 505:
            torch.testing.assert_close(log_probabilities, expected[:, time], rtol=1e-9, atol=1e-9)
