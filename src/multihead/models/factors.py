"""The embedding of tokens with factors: a sum of two (`text.case_factors`)

    e(f V + i) = E[i] + F[f],    F[0] = 0

with V pieces and a few factors (Sennrich and Haddow 2016, who concatenate the vectors). `weight` is the table of all
sums, in which compiled code looks ids up as in any embedding.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn


class FactoredEmbedding(nn.Module):
    """The embedding of ids that are each a piece and a factor.

    Args:
        entries: number of ids: pieces times factors.
        factors: number of factors.
        width: of the vectors.
        padding_id: id of padding, a piece with factor 0; both vectors are zero and not trained.
    """

    def __init__(self, entries: int, factors: int, width: int, padding_id: int) -> None:
        super().__init__()
        self.pieces = nn.Embedding(entries // factors, width, padding_idx=padding_id)
        self.factors = nn.Embedding(factors, width, padding_idx=0)

    def forward(self, tokens: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        size = self.pieces.num_embeddings
        pieces: Tensor = self.pieces(tokens % size)
        factors: Tensor = self.factors(tokens // size)
        return pieces + factors

    @property
    def weight(self) -> Float[Tensor, "entries width"]:
        """The vector of every id; a new tensor."""
        return (self.factors.weight[:, None] + self.pieces.weight).flatten(0, 1)
