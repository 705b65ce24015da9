"""The cache of a decoder: projected keys and values.

They are those of earlier positions, or of a source. A cache is a value, never an attribute of a module: every method
returns a new one. The caller keeps count of padding on the left and masks it, with ``~Padding(pad)`` where ``pad``
holds the number of padded positions of each row.
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
        """The number of cached positions, including padding."""
        return self.key.shape[2]

    def append(self, other: KeyValue) -> KeyValue:
        """The same rows, with the later positions ``other`` appended.

        Raises:
            ShapeError: the numbers of rows or heads or the widths differ.
        """
        self._check_same(other, "append", axes=(0, 1, 3))
        return KeyValue(torch.cat([self.key, other.key], dim=2), torch.cat([self.value, other.value], dim=2))

    def select(self, rows: Int[Tensor, " rows"]) -> KeyValue:
        """These rows of the batch, in this order; a row may occur several times or not at all."""
        return KeyValue(self.key.index_select(0, rows), self.value.index_select(0, rows))

    def pad_left(self, count: int) -> KeyValue:
        """The cache with ``count`` positions of zeros in front, which the caller has to mask."""
        if count == 0:
            return self
        return KeyValue(F.pad(self.key, (0, 0, count, 0)), F.pad(self.value, (0, 0, count, 0)))

    def join(self, other: KeyValue) -> KeyValue:
        """The rows of both caches, these first. The shorter one is padded on the left, so the last positions coincide.

        A row's padding grows by ``joined.length`` minus the length of the cache that it came from.

        Raises:
            ShapeError: the numbers of heads or the widths differ.
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
