"""Decoding step by step equals the forward pass, also after selections."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from multihead.decoding.stepper import State, Stepper
from multihead.models.transformer import Transformer


@pytest.fixture(scope="module", params=["post", "pre", "shaw", "parallel", "unusual"])
def model(small: Any, request: pytest.FixtureRequest) -> Transformer:
    parallel = {"norm": "pre", "block": "parallel"}
    kinds = {"parallel": parallel, "shaw": {"positions": "shaw", "relative_distance": 2}, "unusual": small.unusual}
    changes = kinds.get(request.param, {"norm": request.param})
    made: Transformer = small.model(**changes).requires_grad_(False)
    return made


def test_a_transformer_is_a_stepper(small: Any, model: Transformer) -> None:
    assert isinstance(model, Stepper)
    assert isinstance(small.begin(model, 0).state, State)


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
    rows = small.begin(model, 0, 1, 3).step([1, 1, 1])
    rows = rows.select(0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (0, 1, 3)]  # a sentence once
    rows = rows.step([3, 4, 5, 6, 7, 8, 9, 10, 3])
    rows = rows.select(2, 0, 0, 4, 4, 5, 8, 7, 6).step([3, 4, 5, 6, 7, 8, 9, 10, 3])  # reordered within sentences
    rows = rows.select(6, 7, 8, 0, 1, 2)  # the sentence in the middle is finished, the others change places
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (3, 0)]
    rows.step([4, 5, 6, 7, 8, 9]).select(5).step([3])


def test_groups_may_become_unequal_and_mixed(small: Any, model: Transformer) -> None:
    rows = small.begin(model, 0, 1, 2).step([1, 1, 1]).select(0, 0, 1, 1, 2, 2).step([3, 4, 5, 6, 7, 8])
    rows = rows.select(0, 0, 1, 3, 5, 4).step([3, 4, 5, 6, 7, 8])  # three, one and two rows
    rows = rows.select(5, 0, 3, 1, 4).step([3, 4, 5, 6, 7])  # and in no order
    rows.select(1, 1, 3, 3).step([9, 8, 7, 6])


def test_states_begun_apart_can_be_joined(small: Any, model: Transformer) -> None:
    early = small.begin(model, 0, 3).step([1, 1]).select(0, 0, 1, 1).step([3, 4, 5, 6]).step([6, 5, 4, 3])
    late = small.begin(model, 1, 2, extra=7).step([1, 1])
    assert early.state.time != late.state.time
    for rows in (early.join(late), late.join(early)):
        assert rows.state.time == early.state.time
        rows = rows.step([3, 4, 5, 6, 7, 8]).step([8, 7, 6, 5, 4, 3])
        rows = rows.select(5, 0, 1, 4, 2).step([3, 4, 5, 6, 7])
        rows.join(small.begin(model, 2)).step([3, 4, 5, 6, 7, 1]).step([4, 4, 4, 4, 4, 4])  # a third, unstepped


def test_unstepped_states_can_be_joined(small: Any, model: Transformer) -> None:
    rows = small.begin(model, 1).join(small.begin(model, 3, 0))
    assert rows.state.padding is None
    rows.step([1, 1, 1]).step([3, 4, 5])


def test_a_state_is_a_value(small: Any, model: Transformer) -> None:
    origin = small.begin(model, 0, 1)
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


def test_a_state_without_rows_can_be_stepped_and_joined(small: Any, model: Transformer) -> None:
    rows = small.begin(model, 0, 1).step([1, 1]).select(0, 0, 1, 1).step([3, 4, 5, 6])
    nothing = rows.select()
    assert nothing.state.rows == 0
    nothing = nothing.step([]).select().join(nothing)
    fresh = small.begin(model, 3, 2)
    for joined in (nothing.join(fresh), fresh.join(nothing), small.begin(model, 0).select().join(fresh)):
        assert joined.state.time == 0  # nothing to be aligned with
        joined.step([1, 1]).select(1, 0).step([3, 4])
    rows.join(nothing).step([7, 8, 9, 10])


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_steps_selections_and_joins(small: Any, seed: int) -> None:
    changes = small.unusual if seed == 3 else {"norm": ("post", "pre")[seed % 2]}
    model = small.model(seed, **changes).requires_grad_(False)
    choose = random.Random(seed)

    def fresh() -> Any:
        which = choose.sample(range(len(small.sources)), choose.randint(1, 3))
        return small.begin(model, *which, extra=choose.randint(0, 3))

    def tokens(rows: Any) -> list[int]:
        return [choose.randint(1, 10) for _ in rows.rows]

    pool: list[Any] = [fresh()]
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
