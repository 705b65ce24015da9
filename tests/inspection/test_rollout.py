"""Rollout is the product of the layers, written out: the sum over all paths through the layers."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from multihead.errors import ConfigurationError, InputError
from multihead.inspection.capture import capture
from multihead.inspection.rollout import decoder_rollout, rollout
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer


def weights(layers: int, queries: int, keys: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(2, 3, queries, keys, generator=draw, dtype=torch.float64).softmax(-1) for _ in range(layers)]


@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_the_product_written_out(residual: float) -> None:
    layers, length = weights(3, 4, 4, 0), 4
    found = rollout(layers, residual=residual)
    for row in range(2):
        matrices = [
            [
                [
                    residual * (i == j) + (1 - residual) * sum(float(layer[row, h, i, j]) for h in range(3)) / 3
                    for j in range(length)
                ]
                for i in range(length)
            ]
            for layer in layers
        ]
        for last, first in product(range(length), repeat=2):
            paths = product(range(length), repeat=2)
            expected = sum(matrices[2][last][b] * matrices[1][b][a] * matrices[0][a][first] for a, b in paths)
            assert float(found[row, last, first]) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, length, dtype=torch.float64))


def test_a_decoder_is_one_rollout_of_a_graph_of_all_inputs() -> None:
    """Source and target positions in one matrix, with a matrix for each residual sum."""
    encoder, decoder, cross = weights(2, 3, 3, 1), weights(2, 4, 4, 2), weights(2, 4, 3, 3)
    found = decoder_rollout(encoder, decoder, cross)
    for row in range(2):
        total = torch.eye(7, dtype=torch.float64)  # 3 source positions, then 4 target positions
        half = 0.5 * torch.eye(7, dtype=torch.float64)
        for layer in encoder:
            step = torch.eye(7, dtype=torch.float64)
            step[:3, :3] = 0.5 * torch.eye(3) + 0.5 * layer[row].mean(0)
            total = step @ total
        for own, other in zip(decoder, cross, strict=True):
            step = torch.eye(7, dtype=torch.float64)
            step[3:, 3:] = half[3:, 3:] + 0.5 * own[row].mean(0)
            total = step @ total
            step = torch.eye(7, dtype=torch.float64)
            step[3:, 3:] = half[3:, 3:]
            step[3:, :3] = 0.5 * other[row].mean(0)
            total = step @ total
        torch.testing.assert_close(found.source[row], total[3:, :3])
        torch.testing.assert_close(found.target[row], total[3:, 3:])
    sums = found.source.sum(-1) + found.target.sum(-1)
    torch.testing.assert_close(sums, torch.ones(2, 4, dtype=torch.float64))


def test_of_what_was_captured() -> None:
    """No share comes from padding or from later target inputs."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(source_vocab=9, target_vocab=9, width=8, heads=2, inner=8)).eval()
    with torch.no_grad(), capture(model) as seen:
        model(torch.tensor([[4, 5, 6], [7, 0, 0]]), torch.tensor([3, 1]), torch.tensor([[1, 5], [1, 6]]))
    stacks = [seen.weights_of(pattern) for pattern in ("encoder.*", "decoder.*.self_*", "decoder.*.cross_*")]
    found = decoder_rollout(*stacks)
    assert found.source[1, :, 1:].count_nonzero() == 0
    assert found.target[:, 0, 1].count_nonzero() == 0
    torch.testing.assert_close(found.source.sum(-1) + found.target.sum(-1), torch.ones(2, 2))


def test_what_has_no_rollout() -> None:
    one = weights(1, 2, 2, 0)
    with pytest.raises(InputError, match="at least one layer, got none"):
        rollout([])
    with pytest.raises(InputError, match="as many decoder as cross layers, got 1 and 2"):
        decoder_rollout(one, one, one * 2)
    with pytest.raises(ConfigurationError, match=r"residual: expected a number from 0 to 1, got 1.5"):
        rollout(one, residual=1.5)
