r"""A recurrent layer, GRU or LSTM, for whole sequences or single steps.

A step may have a second input e that is known only at that step, such as the attention's context.

GRU (Cho et al. 2014, in PyTorch's form):               LSTM (Hochreiter & Schmidhuber 1997; Gers et al. 2000):

    r = sigmoid(a_r + U_r h)                                i, f, o = sigmoid(a + U h)
    z = sigmoid(a_z + U_z h)                                g       = tanh(a_g + U_g h)
    n = tanh(a_n + r * (U_n h))                             c'      = f * c + i * g
    h' = (1 - z) * n + z * h                                h'      = o * tanh(c')

where a = W x + b, plus V e if there is a second input. The weights are those of `torch.nn.GRU` and `torch.nn.LSTM`,
whose kernels process whole sequences where no step depends on attention.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multihead.attention import PackedLinear
from multihead.kernels.native.tensors import without_autocast

CellState = tuple[Float[Tensor, "rows width"], ...]
"""State of a layer: (h,) of a GRU, (h, c) of an LSTM."""

GATES = {"gru": 3, "lstm": 4}
"""Number of matrices of each kind of cell, stored as one."""


def run_layers(layers: nn.Module, x: Tensor | PackedSequence, state: Any = None) -> tuple[Any, Any]:
    """What ``layers(x, state)`` returns; in float32 where a processor has no LSTM in bfloat16.

    Under autocast PyTorch calls oneDNN's LSTM in bfloat16, which fails on a processor without AVX-512 ("could not
    create a primitive descriptor").
    """
    data = x.data if isinstance(x, PackedSequence) else x
    if (
        isinstance(layers, nn.GRU)
        or data.device.type != "cpu"
        or not torch.is_autocast_enabled("cpu")
        or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return layers(x, state)  # type: ignore[no-any-return]
    with without_autocast("cpu"):
        return layers(x.float(), state if state is None else tuple(part.float() for part in state))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """One layer in one direction.

    Args:
        cell: kind of cell.
        input_width: width of the input x.
        width: width of the state.
        context_width: width of the second input e of a step; 0 = none.
    """

    def __init__(self, cell: Literal["gru", "lstm"], input_width: int, width: int, context_width: int = 0) -> None:
        super().__init__()
        kind = nn.GRU if cell == "gru" else nn.LSTM
        self.layer: nn.GRU | nn.LSTM = kind(input_width, width, batch_first=True)
        # V above; "told" is its name in existing checkpoints.
        self.told = PackedLinear(context_width, (width,) * GATES[cell], bias=False) if context_width else None

    @property
    def parts(self) -> int:
        """Number of tensors in the state."""
        return 1 if isinstance(self.layer, nn.GRU) else 2

    def forward(self, x: Float[Tensor, "batch time input"], state: CellState) -> Float[Tensor, "batch time width"]:
        """h after each position, for a layer without a second input."""
        before = tuple(part[None].to(x.dtype) for part in state)
        states: Tensor
        states, _ = run_layers(self.layer, x, before[0] if isinstance(self.layer, nn.GRU) else before)
        return states

    def project(self, x: Float[Tensor, "*axes input"]) -> Float[Tensor, "*axes gates"]:
        """a = W x + b, which does not depend on the state and can be computed for all positions at once."""
        weight, _, bias, _ = self._weights
        return F.linear(x, weight, bias)

    def step(
        self,
        projected: Float[Tensor, "rows gates"],
        state: CellState,
        context: Float[Tensor, "rows context"] | None = None,
    ) -> CellState:
        """One position. The new state has the dtype of ``state``, also under autocast.

        Args:
            projected: `project` of the input; gates = 3 or 4 times the width.
            state: the state before.
            context: the second input e.
        """
        h = state[0]
        if self.told is not None and context is not None:
            projected = torch.addmm(projected, context, self.told.weight.t())
        projected = projected.to(h.dtype)
        _, weight, _, bias = self._weights
        recurrent = F.linear(h, weight, bias).to(h.dtype)  # U h + its bias: [rows, gates]
        width = h.shape[1]
        if len(state) == 1:
            # PyTorch stores the gates as r, z, n. r multiplies U_n h, so n's two parts cannot be added beforehand.
            reset, update = (projected[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid().chunk(2, 1)
            candidate = torch.addcmul(projected[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh()
            return (torch.lerp(candidate, h, update),)
        entry, forget, candidate, out = (projected + recurrent).chunk(4, 1)  # PyTorch's order: i, f, g, o
        cell = forget.sigmoid() * state[1] + entry.sigmoid() * candidate.tanh()
        return out.sigmoid() * cell.tanh(), cell

    @property
    def _weights(self) -> list[nn.Parameter]:
        """W, U, and a bias of each."""
        weights: list[nn.Parameter] = self.layer.all_weights[0]
        return weights
