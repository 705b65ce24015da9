"""Embeddings of tokens and positions, for whole rows and single tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from multihead.errors import ShapeError
from multihead.models.config import TransformerConfig
from multihead.models.layers import Embedding, sinusoid

SINGLE = 2e-7  # encodings are float32 numbers below 1


def by_hand(position: int, width: int) -> list[float]:
    """Section 3.5 of the paper, one number at a time."""
    angles = [position / 10000 ** (2 * (i // 2) / width) for i in range(width)]
    return [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]


def embedding(**changes: Any) -> Embedding:
    torch.manual_seed(0)
    sizes = {"source_vocab": 11, "target_vocab": 11, "width": 6, "heads": 1, "dropout": 0.0}
    return Embedding(nn.Embedding(11, 6, padding_idx=0), TransformerConfig(**(sizes | changes))).double()


def some_tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, 11, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("width", [2, 6, 64])
def test_sinusoids_are_the_formula(width: int) -> None:
    positions = [0, 1, 2, 17, 511, 512, 100_000]
    expected = torch.tensor([by_hand(position, width) for position in positions], dtype=torch.float64)
    torch.testing.assert_close(sinusoid(torch.tensor(positions), width).double(), expected, rtol=0, atol=SINGLE)


def test_other_programs_sinusoids_are_their_formulas() -> None:
    """Marian's and fairseq's timescales end at 10,000 itself; fairseq's first position is 2."""
    width, positions = 10, torch.tensor([0, 3, 600])
    table = {name: sinusoid(positions, width, name) for name in ("interleaved", "halves", "marian", "fairseq")}
    assert torch.equal(table["halves"], torch.cat((table["interleaved"][:, ::2], table["interleaved"][:, 1::2]), 1))
    for time, row in zip(positions.tolist(), table["marian"].double(), strict=True):
        angles = [time / 10000 ** (i / (width / 2 - 1)) for i in range(width // 2)]
        expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        torch.testing.assert_close(row, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=SINGLE)
    assert torch.equal(table["fairseq"], sinusoid(positions + 2, width, "marian"))


@pytest.mark.parametrize(("width", "even"), [(7, 8), (1, 2), (0, 2), (-3, 2)])
@pytest.mark.parametrize("layout", ["interleaved", "halves", "marian", "fairseq"])
def test_a_width_that_has_no_whole_pairs_is_refused(layout: Any, width: int, even: int) -> None:
    """`TransformerConfig` refuses it too; a vector of any other width could not be added."""
    with pytest.raises(ShapeError, match=rf"width must be even and at least 2, got {width}: take {even}$"):
        sinusoid(torch.arange(3), width, layout)
    assert sinusoid(torch.arange(3), even, layout).shape == (3, even)


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
    tokens = some_tokens(2, length)
    positions = torch.tensor([by_hand(position, 6) for position in range(length)], dtype=torch.float64)
    expected = math.sqrt(6) * embed.table.weight[tokens] + positions
    torch.testing.assert_close(embed(tokens), expected, rtol=0, atol=SINGLE)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("limit", [512, 513, 700])
def test_one_token_a_row_is_what_it_is_in_the_whole_row(limit: int, positions: str) -> None:
    embed = embedding(positions=positions)
    tokens = some_tokens(1, limit)
    whole = embed(tokens)[0]
    places = torch.tensor([limit - 1, 0, 5, limit - 1])
    single = embed.at(tokens[0, places], places, limit)
    assert single.shape == (4, 1, 6)
    torch.testing.assert_close(single[:, 0], whole[places], rtol=0, atol=SINGLE)


def test_rows_may_stand_at_different_positions() -> None:
    embed = embedding()
    tokens, positions = torch.tensor([4, 4, 7]), torch.tensor([0, 9, 3])
    for row in range(3):
        alone = embed.at(tokens[row : row + 1], positions[row : row + 1], 10)
        assert torch.equal(embed.at(tokens, positions, 10)[row : row + 1], alone)


def test_the_table_of_positions_is_not_saved() -> None:
    assert list(embedding().state_dict()) == ["table.weight"]


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("length", [1, 4, 5, 6, 40])
def test_learned_positions_are_a_table_whose_last_row_is_for_all_that_follow(length: int) -> None:
    embed = embedding(positions="learned", max_positions=5)
    tokens = some_tokens(2, length)
    table = embed.positions.table.weight
    rows = torch.stack([table[min(position, 4)] for position in range(length)])
    expected = math.sqrt(6) * embed.table.weight[tokens] + rows
    torch.testing.assert_close(embed(tokens), expected, rtol=1e-12, atol=1e-12)


def test_every_learned_position_is_trained_by_what_stands_there() -> None:
    embed = embedding(positions="learned", max_positions=5)
    embed(some_tokens(2, 3)).sum().backward()
    assert embed.positions.table.weight.grad.ne(0).any(1).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(("scale", "factor"), [("embedding", math.sqrt(6)), ("projection", 1.0), ("none", 1.0)])
def test_tokens_are_scaled_here_or_not(scale: str, factor: float) -> None:
    tokens = some_tokens(2, 7)
    embed = embedding(embedding_scale=scale)
    positions = sinusoid(torch.arange(7), 6).double()
    torch.testing.assert_close(embed(tokens), factor * embed.table.weight[tokens] + positions, rtol=1e-12, atol=1e-12)


def test_the_norm_stands_behind_the_sum_and_its_dropout() -> None:
    tokens = some_tokens(3, 20)
    plain, normed = embedding(), embedding(embedding_norm=True, norm_eps=0.25)
    with torch.no_grad():
        normed.norm.weight += torch.randn(6)
        normed.norm.bias += torch.randn(6)
    summed = plain(tokens)
    centred = summed - summed.mean(-1, keepdim=True)
    unit = centred / (centred.square().mean(-1, keepdim=True) + 0.25).sqrt()
    torch.testing.assert_close(normed(tokens), unit * normed.norm.weight + normed.norm.bias, rtol=1e-12, atol=1e-12)

    dropped = embedding(embedding_norm=True, embedding_dropout=0.5).train()(tokens)
    torch.testing.assert_close(dropped.mean(-1), torch.zeros(3, 20).double(), rtol=0, atol=1e-12)  # so no zeros behind


def test_the_dropout_is_its_own_or_that_of_all() -> None:
    assert [embedding(**changes).dropout.p for changes in ({"dropout": 0.3}, {"embedding_dropout": 0.2})] == [0.3, 0.2]
    tokens = some_tokens(4, 50)
    dropped = embedding(embedding_dropout=0.5).train()(tokens)
    share = dropped.eq(0).double().mean().item()
    assert share == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(dropped, embedding()(tokens) * 2 * dropped.ne(0), rtol=1e-6, atol=1e-6)
