"""Weights in fewer bits, as they lie on disk and as the compiled search multiplies with them.

Of a matrix W of float32, row by row:

    bfloat16    the nearest number with 8 bits of precision
    int8        q_ij = round(127 w_ij / m_i), m_i = max_j |w_ij|        what is left of w_ij is q_ij m_i / 127

(Rounding is to the nearest, ties to even.) Rounding twice is rounding once: whoever reads rounded weights and rounds
them again has the same bytes. Vectors (biases, gains, shifts) stay float32, and so do positions that were learned. A
file keeps a bfloat16 matrix as such; an int8 matrix NAME as bytes, with its m as NAME + `LARGEST`. A row whose m is
below 1e-30 is a row of zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Rounding = Literal["bfloat16", "int8"]

LARGEST = ":largest"


def rounded(matrix: Float[Tensor, "out in"], precision: Rounding) -> Float[Tensor, "out in"]:
    """What is left of a matrix, in float32."""
    if precision == "bfloat16":
        return matrix.bfloat16().float()
    return _restored(*_steps(matrix))


def pack(tensors: Mapping[str, Tensor], names: Collection[str], precision: Rounding) -> dict[str, Tensor]:
    """The tensors for a file: the matrices of these names rounded, the others as they are."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names:
            packed[name] = tensor.detach()
        elif precision == "bfloat16":
            packed[name] = tensor.detach().bfloat16()
        else:
            packed[name], packed[name + LARGEST] = _steps(tensor.detach())
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, those that `pack` rounded in float32 again.

    Raises:
        ValueError: they are not as `pack` leaves them; names one.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(LARGEST) and name.removesuffix(LARGEST) in tensors:
            continue
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.dtype == torch.int8:
            largest = tensors.get(name + LARGEST)
            if largest is None or largest.dtype != torch.float32 or largest.shape != tensor.shape[:1]:
                raise ValueError(f"{name} has bytes, but not a largest number for each of its {len(tensor)} rows")
            tensor = _restored(tensor, largest)
        found[name] = tensor
    return found


def _steps(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """q and m."""
    largest = matrix.abs().amax(1)
    largest = torch.where(largest < 1e-30, 0.0, largest)  # 127 / m would run over
    # Tensor by tensor: PyTorch divides a number by a tensor in two steps, and rounds twice.
    steps = torch.where(largest > 0, torch.full_like(largest, 127.0) / largest, 0.0)
    return (matrix * steps[:, None]).round().to(torch.int8), largest


def _restored(steps: Tensor, largest: Tensor) -> Tensor:
    """q m / 127; the largest ones exactly, so that they are found again."""
    values = steps.float() * (largest / torch.full_like(largest, 127.0))[:, None]
    return torch.where(steps.abs() == 127, steps.sign() * largest[:, None], values)
