"""A restriction: some symbols of each sentence appear exactly once.

They are the placeholders of a source (`text.placeholders`). A row may not write one again, nor one of another sentence;
it may not end before it has written all of its own, and when no more symbols fit into its limit, it writes these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.decoding.restrictions import Rows
from multihead.decoding.search import Symbols
from multihead.errors import ConfigurationError, ShapeError


class Once:
    """Each symbol of a sentence appears exactly once, and no other symbol of the same kind.

    Args:
        wanted: those of each sentence.
        kind: all symbols of the kind.
        limits: maximum number of symbols of each sentence, including the end symbol: that of the search.
        end: the end symbol.

    Raises:
        ShapeError: not one limit per sentence.
        ConfigurationError: a sentence's symbols do not fit into its limit.
    """

    def __init__(self, wanted: Sequence[Sequence[int]], kind: Sequence[int], limits: Sequence[int], end: int) -> None:
        if len(wanted) != len(limits):
            raise ShapeError(f"got {len(limits)} limits for the symbols of {len(wanted)} sentences: give one each")
        for number, (own, limit) in enumerate(zip(wanted, limits, strict=True), 1):
            if len(own) >= limit:
                raise ConfigurationError(
                    f"sentence {number}: its {len(own)} symbols and the end symbol do not fit into a length limit of "
                    f"{limit}: raise the limit to {len(own) + 1}"
                )
        self._kind, self._end = torch.tensor(sorted(kind)), end
        self._wanted = torch.stack([torch.isin(self._kind, torch.tensor(own, dtype=torch.long)) for own in wanted])
        self._limits = torch.tensor(limits)

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:  # noqa: ARG002
        """Raise ShapeError if the sentences are not as many as here."""
        if len(limits) != len(self._limits):
            raise ShapeError(f"got symbols of {len(self._limits)} sentences for {len(limits)}: give one list for each")

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """Exclude what is written already, the end while something is missing, and all else when room is short."""
        device, time = permitted.device, rows.written.shape[1]
        kind = self._kind.to(device)
        written = (rows.written[:, :, None] == kind).any(1)  # [rows, kind]
        missing = self._wanted.to(device)[rows.sentences] & ~written
        count, room = missing.sum(1), self._limits.to(device)[rows.sentences] - time
        permitted = permitted.clone()
        permitted[:, kind] = permitted[:, kind].masked_fill(~missing, -torch.inf)
        permitted[:, self._end] = permitted[:, self._end].masked_fill(count > 0, -torch.inf)
        only = torch.full_like(permitted, -torch.inf)
        only[:, kind] = rows.log_probabilities[:, kind].masked_fill(~missing, -torch.inf)
        return torch.where(((count > 0) & (room <= count + 1))[:, None], only, permitted)
