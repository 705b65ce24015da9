"""Tokens and positions become vectors; what is done with them is left to the layers.

x_t = dropout( sqrt(D) E[token_t] + p_t )                                   (Vaswani et al. 2017, 3.4 and 3.5)
p_{t,2i} = sin(t / 10000^{2i/D}),   p_{t,2i+1} = cos(t / 10000^{2i/D})
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.kernels.dropout import Dropout

_TABLE_LENGTH = 512
"""Positions looked up; those beyond are computed when they come, so no length is too long."""


def sinusoid(positions: Int[Tensor, " length"], width: int) -> Float[Tensor, "length {width}"]:
    """The sinusoidal encoding of given positions, in float32 from float64 angles."""
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) * (-math.log(10000.0) / width)
    )
    angle = positions.double()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).float()


class Embedding(nn.Module):
    """Token embedding, scaled, plus sinusoidal positions.

    Args:
        table: the token embedding, which may be shared with others.
        dropout: probability of dropping an element of the sum.
    """

    def __init__(self, table: nn.Embedding, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.width = table.embedding_dim
        self.scale = math.sqrt(self.width)
        self.dropout = Dropout(dropout)
        self.register_buffer("positions", sinusoid(torch.arange(_TABLE_LENGTH), self.width), persistent=False)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """Embeds whole rows that begin at position 0."""
        positions = self._encode(torch.arange(tokens.size(1), device=tokens.device), tokens.size(1))
        return self._sum(tokens, positions)

    def at(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], limit: int
    ) -> Float[Tensor, "rows 1 width"]:
        """Embeds one token a row, each at its own position; all positions are below ``limit``."""
        return self._sum(tokens, self._encode(positions, limit))[:, None]

    def _sum(self, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded: Tensor = self.table(tokens) * self.scale
        summed: Tensor = self.dropout(embedded + positions.to(embedded.dtype))
        return summed

    def _encode(self, positions: Tensor, limit: int) -> Tensor:
        """Looks positions up where the table reaches ``limit`` (known on the host) and computes them elsewhere."""
        table: Tensor = self.positions  # type: ignore[assignment]
        return table[positions] if limit <= len(table) else sinusoid(positions, self.width)
