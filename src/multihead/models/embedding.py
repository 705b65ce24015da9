"""Tokens and positions become vectors; what is done with them is left to the layers.

x_t = dropout( sqrt(D) E[token_t] + p_t )                                   (Vaswani et al. 2017, 3.4 and 3.5)

On request a layer norm follows, and sqrt(D) stands elsewhere (`TransformerConfig.embedding_scale`).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.kernels.dropout import Dropout
from multihead.models.config import TransformerConfig

_TABLE_LENGTH = 512
"""Sinusoidal positions looked up; those beyond are computed when they come, so no length is too long."""


def sinusoid(positions: Int[Tensor, " length"], width: int) -> Float[Tensor, "length {width}"]:
    """The sinusoidal encoding of given positions, in float32 from float64 angles.

    p_{t,2i} = sin(t / 10000^{2i/D}),   p_{t,2i+1} = cos(t / 10000^{2i/D})                    (3.5)
    """
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) * (-math.log(10000.0) / width)
    )
    angle = positions.double()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).float()


class SinusoidalPositions(nn.Module):
    """`sinusoid` as a layer without parameters, for any length.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoid(torch.arange(_TABLE_LENGTH), width), persistent=False)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Looks positions up where the table reaches ``limit`` (known on the host) and computes them elsewhere."""
        table: Tensor = self.table  # type: ignore[assignment]
        return table[positions] if limit <= len(table) else sinusoid(positions, self.width)


class LearnedPositions(nn.Module):
    """p_t = P[min(t, M - 1)]: a trained vector for each of M positions; those beyond share the last one.

    So a longer sentence is no error, but the model cannot tell the order of what stands there: see
    `Transformer.max_positions`.

    Args:
        count: M.
        width: D.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, positions: Int[Tensor, " length"], limit: int) -> Float[Tensor, "length width"]:
        """Looks positions up; all are below ``limit``, which is known on the host."""
        count = self.table.num_embeddings
        found: Tensor = self.table(positions if limit <= count else positions.clamp(max=count - 1))
        return found


class Embedding(nn.Module):
    """x_t = norm( dropout( s E[token_t] + p_t ) ), where scale s, positions p and norm are as ``config`` has them.

    Args:
        table: the token embedding E, which may be shared with others; positions and norm never are.
        config: of the model.
    """

    def __init__(self, table: nn.Embedding, config: TransformerConfig) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(config.width) if config.embedding_scale == "embedding" else 1.0
        self.positions = (
            LearnedPositions(config.max_positions, config.width)
            if config.positions == "learned"
            else SinusoidalPositions(config.width)
        )
        self.dropout = Dropout(config.dropout_of("embedding"))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.embedding_norm else nn.Identity()

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """Embeds whole rows that begin at position 0."""
        time = tokens.size(1)
        return self._sum(tokens, self.positions(torch.arange(time, device=tokens.device), time))

    def packed(
        self, tokens: Int[Tensor, " packed"], positions: Int[Tensor, " packed"]
    ) -> Float[Tensor, "1 packed width"]:
        """Embeds tokens of many rows as one, each at its own position."""
        return self.at(tokens, positions, int(positions.max()) + 1).transpose(0, 1)

    def at(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], limit: int
    ) -> Float[Tensor, "rows 1 width"]:
        """Embeds one token a row, each at its own position; all positions are below ``limit``."""
        return self._sum(tokens, self.positions(positions, limit))[:, None]

    def _sum(self, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded: Tensor = self.table(tokens)
        scaled = embedded if self.scale == 1.0 else embedded * self.scale
        summed: Tensor = self.norm(self.dropout(scaled + positions.to(embedded.dtype)))
        return summed
