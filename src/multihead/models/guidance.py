"""The loss of a head of attention that learns to align, in a network.

`DecoderLayer` calls a `Guidance` with the queries and keys of its attention to the source, which are packed or padded;
`kernels.guided` has the equation. The attention itself is computed as always, by the fused kernels.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int, Int64
from torch import Tensor

from multihead.kernels.guided import Links, guided_cross_entropy

HEAD = 0
"""The head that is guided."""


@runtime_checkable
class Rows(Protocol):
    """Tokens of a batch, row after row, as `models.transformer.Packed`."""

    @property
    def rows(self) -> Int64[Tensor, " packed"]:
        """Row of each token in the batch."""

    @property
    def positions(self) -> Int64[Tensor, " packed"]:
        """Position of each token in its row."""

    @property
    def total(self) -> int:
        """Number of tokens without padding."""


class Guidance(NamedTuple):
    """What a layer needs to compute the loss."""

    links: Links
    """The alignment."""
    lengths: Int[Tensor, " batch"]
    """Real keys of each row."""
    weights: Float[Tensor, " batch"] | None = None
    """By what the loss of each row is multiplied."""
    packed: tuple[Rows, Rows] | None = None
    """Where the tokens of source and target are in a packed batch."""

    def __call__(
        self, query: Float[Tensor, "batch heads target dim"], key: Float[Tensor, "batch kv_heads source dim"]
    ) -> Float[Tensor, ""]:
        """The loss of the guided head, summed over the target tokens of the batch."""
        q, k = query[:, HEAD], key[:, HEAD]
        if self.packed is not None:
            source, target = self.packed
            q, k = _padded(q, target, len(self.lengths)), _padded(k, source, len(self.lengths))
        return guided_cross_entropy(q, k, self.lengths, self.links, self.weights)


def _padded(x: Float[Tensor, "1 packed dim"], tokens: Rows, batch: int) -> Float[Tensor, "batch time dim"]:
    rows, positions = tokens.rows[: tokens.total], tokens.positions[: tokens.total]
    padded = x.new_zeros(batch, int(positions.max()) + 1, x.shape[-1])
    return padded.index_put((rows, positions), x[0, : tokens.total])
