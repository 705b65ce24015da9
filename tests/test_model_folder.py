"""Rounded weights: accuracy, idempotence, and damaged files."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multihead.model_folder import LARGEST, dequantize_tensors, quantize_tensors, round_matrix


def matrices() -> list[torch.Tensor]:
    """Rows of all magnitudes, of zeros, with ties, and of a single number."""
    torch.manual_seed(1)
    sizes = 10.0 ** torch.randint(-30, 30, (200, 1))
    ties = (torch.arange(-127, 128) / 2)[None] * torch.tensor([[1.0], [0.3]])
    return [torch.randn(200, 17) * sizes, ties, torch.zeros(3, 5), torch.tensor([[3.7], [-1e-38], [0.0]])]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rounding_twice_is_rounding_once(precision: Any) -> None:
    """Writing a file that was read gives the same bytes."""
    for matrix in matrices():
        first = quantize_tensors({"w": matrix}, ["w"], precision)
        assert torch.equal(dequantize_tensors(first)["w"], round_matrix(matrix, precision))
        second = quantize_tensors(dequantize_tensors(first), ["w"], precision)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_byte_is_at_most_half_a_step_away() -> None:
    for matrix in matrices():
        step = matrix.abs().amax(1, keepdim=True) / 127
        assert ((round_matrix(matrix, "int8") - matrix).abs() <= 0.5001 * step + 1e-30).all()
        assert ((round_matrix(matrix, "bfloat16") - matrix).abs() <= matrix.abs() / 256).all()


def test_only_what_is_named_is_rounded() -> None:
    tensors = {"w": torch.randn(4, 6), "v": torch.randn(4, 6), "bias": torch.randn(4)}
    for precision in ("bfloat16", "int8"):
        found = dequantize_tensors(quantize_tensors(tensors, ["w"], precision))
        assert found.keys() == tensors.keys()
        assert torch.equal(found["v"], tensors["v"])
        assert torch.equal(found["bias"], tensors["bias"])
        assert not torch.equal(found["w"], tensors["w"])
    assert dequantize_tensors(tensors).keys() == tensors.keys()


@pytest.mark.parametrize("change", ["gone", "short", "whole numbers"])
def test_bytes_without_their_largest_are_refused(change: str) -> None:
    packed = quantize_tensors({"w": torch.randn(4, 6)}, ["w"], "int8")
    largest = packed.pop("w" + LARGEST)
    if change != "gone":
        packed["w" + LARGEST] = largest[:3] if change == "short" else largest.long()
    with pytest.raises(ValueError, match="each of its 4 rows"):
        dequantize_tensors(packed)
