"""Tokens and positions become vectors as the paper says, at any position, in one row or token by token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from multihead.models.embedding import Embedding, sinusoid

SINGLE = 2e-7  # encodings are float32 numbers below 1


def by_hand(position: int, width: int) -> list[float]:
    """3.5 of the paper, one number at a time."""
    angles = [position / 10000 ** (2 * (i // 2) / width) for i in range(width)]
    return [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]


def embedding(width: int = 6) -> Embedding:
    torch.manual_seed(0)
    return Embedding(nn.Embedding(11, width, padding_idx=0), 0.0).double()


@pytest.mark.parametrize("width", [2, 6, 64])
def test_sinusoids_are_the_formula(width: int) -> None:
    positions = [0, 1, 2, 17, 511, 512, 100_000]
    expected = torch.tensor([by_hand(position, width) for position in positions], dtype=torch.float64)
    torch.testing.assert_close(sinusoid(torch.tensor(positions), width).double(), expected, rtol=0, atol=SINGLE)


def test_a_shift_is_the_same_rotation_wherever_it_begins() -> None:
    width, shift = 8, 5
    pairs = sinusoid(torch.arange(700), width).double().unflatten(-1, (-1, 2))
    points = torch.complex(pairs[..., 1], pairs[..., 0])  # e^{i w t} of each frequency w
    rotations = points[shift:] / points[:-shift]
    torch.testing.assert_close(rotations, rotations[:1].expand_as(rotations), rtol=0, atol=4 * SINGLE)
    assert (rotations[0].abs() - 1).abs().max() < 4 * SINGLE
    assert len({round(float(angle), 4) for angle in rotations[0].angle()}) == width // 2  # each frequency its own


@pytest.mark.parametrize("length", [3, 511, 512, 513, 700])
def test_a_row_is_scaled_tokens_plus_positions(length: int) -> None:
    embed = embedding()
    tokens = torch.randint(1, 11, (2, length), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([by_hand(position, 6) for position in range(length)], dtype=torch.float64)
    expected = math.sqrt(6) * embed.table.weight[tokens] + positions
    torch.testing.assert_close(embed(tokens), expected, rtol=0, atol=SINGLE)


@pytest.mark.parametrize("limit", [512, 513, 700])
def test_one_token_a_row_is_what_it_is_in_the_whole_row(limit: int) -> None:
    embed = embedding()
    tokens = torch.randint(1, 11, (1, limit), generator=torch.Generator().manual_seed(1))
    whole = embed(tokens)[0]
    positions = torch.tensor([limit - 1, 0, 5, limit - 1])
    single = embed.at(tokens[0, positions], positions, limit)
    assert single.shape == (4, 1, 6)
    torch.testing.assert_close(single[:, 0], whole[positions], rtol=0, atol=SINGLE)


def test_rows_may_stand_at_different_positions() -> None:
    embed = embedding()
    tokens, positions = torch.tensor([4, 4, 7]), torch.tensor([0, 9, 3])
    for row in range(3):
        alone = embed.at(tokens[row : row + 1], positions[row : row + 1], 10)
        assert torch.equal(embed.at(tokens, positions, 10)[row : row + 1], alone)


def test_the_table_of_positions_is_not_saved() -> None:
    assert list(embedding().state_dict()) == ["table.weight"]
