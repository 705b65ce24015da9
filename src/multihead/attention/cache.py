"""Projected keys and values, kept between the steps of a decoder (or for the whole of a source sentence).

A value, never an attribute: every method returns a new one. What has been padded on the left is the caller's
to remember and to mask, with ``~Padding(pad)`` where ``pad`` counts the positions in front of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from multihead.errors import ShapeError


@dataclass(frozen=True)
class KeyValue:
    """The keys and values of one attention layer, split into heads.

    Attributes:
        key: [batch, kv_heads, length, dim].
        value: [batch, kv_heads, length, value_dim].
    """

    key: Float[Tensor, "batch kv_heads length dim"]
    value: Float[Tensor, "batch kv_heads length value_dim"]

    @property
    def length(self) -> int:
        """How many positions are kept, padding included."""
        return self.key.shape[2]

    def append(self, other: KeyValue) -> KeyValue:
        """The same rows, with the later positions ``other`` behind these.

        Raises:
            ShapeError: other rows, heads or widths.
        """
        self._check_same(other, "append", axes=(0, 1, 3))
        return KeyValue(torch.cat([self.key, other.key], dim=2), torch.cat([self.value, other.value], dim=2))

    def select(self, rows: Int[Tensor, " rows"]) -> KeyValue:
        """The given rows of the batch, in that order; a row may be taken several times, or not at all."""
        return KeyValue(self.key.index_select(0, rows), self.value.index_select(0, rows))

    def pad_left(self, count: int) -> KeyValue:
        """The same with ``count`` positions of zeros in front, to be masked by the caller."""
        if count == 0:
            return self
        return KeyValue(F.pad(self.key, (0, 0, count, 0)), F.pad(self.value, (0, 0, count, 0)))

    def join(self, other: KeyValue) -> KeyValue:
        """The rows of both, these first. The shorter is padded on the left: the last positions coincide.

        A row's padding grows by ``joined.length`` minus the length of the cache that it came from.

        Raises:
            ShapeError: other heads or widths.
        """
        self._check_same(other, "join", axes=(1, 3))
        length = max(self.length, other.length)
        first, second = self.pad_left(length - self.length), other.pad_left(length - other.length)
        return KeyValue(torch.cat([first.key, second.key]), torch.cat([first.value, second.value]))

    def _check_same(self, other: KeyValue, action: str, axes: tuple[int, ...]) -> None:
        for name, ours, theirs in (("keys", self.key, other.key), ("values", self.value, other.value)):
            if any(ours.shape[axis] != theirs.shape[axis] for axis in axes):
                raise ShapeError(
                    f"cannot {action} {name} of shape {list(theirs.shape)} to {name} of shape "
                    f"{list(ours.shape)}: as [batch, heads, length, width] they differ in more than they may"
                )
