"""Key-value attention of Daniluk et al. equals its equations; steps equal the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multihead.attention.key_value import KeyValueAttention
from multihead.errors import ConfigurationError, ShapeError

DIM, WINDOW, LENGTH = 3, 2, 6


def made(parts: int = 2, window: int = WINDOW) -> tuple[KeyValueAttention, Tensor]:
    torch.manual_seed(0)
    attention = KeyValueAttention(DIM, window, parts).double()  # type: ignore[arg-type]
    return attention, torch.randn(2, LENGTH, parts * DIM).double()


def by_hand(attention: KeyValueAttention, states: Tensor, t: int, window: int) -> tuple[Tensor, Tensor]:
    """h*_t of one sequence and its weights, from the equations."""
    parts = states.chunk(attention.parts, -1)
    keys, values, last = parts[0], parts[1], parts[-1]
    start = max(0, t - window)
    context, weights = torch.zeros(DIM).double(), torch.zeros(0).double()
    if t > 0:
        matrix = torch.stack(
            [
                torch.tanh(
                    attention.score.key_projection.weight @ k + attention.score.query_projection.weight @ keys[t]
                )
                for k in keys[start:t]
            ]
        )
        weights = (matrix @ attention.score.energy).softmax(0)
        context = weights @ values[start:t]
    result = torch.tanh(attention.context_projection.weight @ context + attention.state_projection.weight @ last[t])
    return result, weights


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_it_is_the_equations(parts: int, window: int) -> None:
    attention, states = made(parts, window)
    output, weights = attention(states, need_weights=True)
    assert weights is not None
    for t in range(LENGTH):
        expected, expected_weights = by_hand(attention, states[1], t, window)
        torch.testing.assert_close(output[1, t], expected)
        seen = len(expected_weights)
        torch.testing.assert_close(weights[1, t, window - seen :], expected_weights)
        assert (weights[1, t, : window - seen] == 0).all()
    assert torch.equal(attention(states)[0], output)
    assert attention(states)[1] is None


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_few_steps_at_a_time_give_the_whole(size: int) -> None:
    attention, states = made()
    whole, weights = attention(states, need_weights=True)
    for past in (None, states[:, :0]):
        pieces, seen = [], past
        for start in range(0, LENGTH, size):
            piece = states[:, start : start + size]
            pieces.append(attention(piece, past=seen, need_weights=True))
            seen = piece if seen is None else torch.cat((seen, piece), 1)
        torch.testing.assert_close(torch.cat([piece[0] for piece in pieces], 1), whole)
        torch.testing.assert_close(torch.cat([piece[1] for piece in pieces], 1), weights)


def test_no_state_sees_a_later_one_nor_one_beyond_the_window() -> None:
    attention, states = made()
    output, _ = attention(states)
    changed = states.clone()
    changed[:, 4:] = torch.nan
    assert torch.equal(attention(changed)[0][:, :4], output[:, :4])
    changed = states.clone()
    changed[:, 0] += 1
    moved = (attention(changed)[0] != output).any(-1).any(0)
    assert moved.tolist() == [True, True, True, False, False, False]


def test_keys_and_values_are_halves_with_jobs_of_their_own() -> None:
    """The weights come from keys alone, and permuting the features of all values permutes r alone."""
    attention, states = made()
    changed = states.clone()
    changed[..., DIM:] = 0
    assert torch.equal(attention(changed, need_weights=True)[1], attention(states, need_weights=True)[1])
    order = torch.tensor([2, 0, 1])
    permuted = torch.cat((states[..., :DIM], states[..., DIM:][..., order]), -1)
    with torch.no_grad():
        expected, _ = attention(states)
        for projection in (attention.context_projection, attention.state_projection):
            projection.weight.copy_(projection.weight[:, order])
    torch.testing.assert_close(attention(permuted)[0], expected)


def test_gradients() -> None:
    attention, states = made()
    states.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: attention(x)[0], (states,), fast_mode=True)
    with torch.autograd.set_detect_anomaly(True):
        attention(states)[0].sum().backward()


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    attention, states = made()
    with pytest.raises(ShapeError, match=r"states has shape \[2, 6, 5\].*\[batch, length, 6\]: 2 parts of 3"):
        attention(states[..., :5])
    with pytest.raises(ShapeError, match=r"past has shape \[1, 6, 6\]"):
        attention(states, past=states[:1])
    with pytest.raises(ShapeError, match="expected at least one state"):
        attention(states[:, :0])
    with pytest.raises(ConfigurationError, match="parts=4"):
        KeyValueAttention(3, 2, 4)  # type: ignore[arg-type]
