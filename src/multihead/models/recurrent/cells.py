r"""One recurrent layer, over a whole sequence or one step at a time, with room for what is known only at that step.

GRU (Cho et al. 2014, in the form of PyTorch):          LSTM (Hochreiter & Schmidhuber 1997; Gers et al. 2000):

    r = sigmoid(a_r + U_r h)                                i, f, o = sigmoid(a + U h)
    z = sigmoid(a_z + U_z h)                                g       = tanh(a_g + U_g h)
    n = tanh(a_n + r * (U_n h))                             c'      = f * c + i * g
    h' = (1 - z) * n + z * h                                h'      = o * tanh(c')

where a = W x + b, and V e besides if the layer is told something in each step: the context, or the state before.
Weights are those of `torch.nn.GRU` and `torch.nn.LSTM`, whose kernels run whatever does not wait for attention.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention import PackedLinear

CellState = tuple[Float[Tensor, "rows width"], ...]
"""What a layer remembers: (h,) of a GRU, (h, c) of an LSTM."""

GATES = {"gru": 3, "lstm": 4}
"""Matrices of each kind of cell, stored one below the other."""


class Recurrent(nn.Module):
    """One layer in one direction.

    Args:
        cell: which unit.
        input_width: of what it reads.
        width: of its state.
        told_width: of what enters in each step besides (e above); 0 = nothing does.
    """

    def __init__(self, cell: Literal["gru", "lstm"], input_width: int, width: int, told_width: int = 0) -> None:
        super().__init__()
        kind = nn.GRU if cell == "gru" else nn.LSTM
        self.layer: nn.GRU | nn.LSTM = kind(input_width, width, batch_first=True)
        self.told = PackedLinear(told_width, (width,) * GATES[cell], bias=False) if told_width else None

    @property
    def parts(self) -> int:
        """Tensors in what it remembers."""
        return 1 if isinstance(self.layer, nn.GRU) else 2

    def forward(self, x: Float[Tensor, "batch time input"], held: CellState) -> Float[Tensor, "batch time width"]:
        """h after each position, for a layer that is told nothing."""
        before = tuple(part[None].to(x.dtype) for part in held)
        states, _ = self.layer(x, before[0] if isinstance(self.layer, nn.GRU) else before)
        return states  # type: ignore[no-any-return]

    def project(self, x: Float[Tensor, "*axes input"]) -> Float[Tensor, "*axes gates"]:
        """a = W x + b, which waits for no state: to be computed for all positions at once."""
        weight, _, bias, _ = self._weights
        return F.linear(x, weight, bias)

    def step(
        self,
        projected: Float[Tensor, "rows gates"],
        held: CellState,
        told: Float[Tensor, "rows told"] | None = None,
    ) -> CellState:
        """One position. The states have the type of ``held``, whatever autocast makes of the products.

        Args:
            projected: `project` of what is read.
            held: what is remembered.
            told: what enters besides.
        """
        h = held[0]
        if self.told is not None and told is not None:
            projected = torch.addmm(projected, told, self.told.weight.t())
        projected = projected.to(h.dtype)
        _, weight, _, bias = self._weights
        recurrent = F.linear(h, weight, bias).to(h.dtype)
        width = h.shape[1]
        if len(held) == 1:
            reset, update = (projected[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid().chunk(2, 1)
            candidate = torch.addcmul(projected[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh()
            return (torch.lerp(candidate, h, update),)
        entry, forget, candidate, out = (projected + recurrent).chunk(4, 1)
        cell = forget.sigmoid() * held[1] + entry.sigmoid() * candidate.tanh()
        return out.sigmoid() * cell.tanh(), cell

    @property
    def _weights(self) -> list[nn.Parameter]:
        """W, U, and a bias of each."""
        weights: list[nn.Parameter] = self.layer.all_weights[0]
        return weights
