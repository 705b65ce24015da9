"""How a mask shows itself: as text, and as a picture. The drawing is done in :mod:`multihead.attention.drawing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.attention.drawing import draw_grid, plot_grid
from multihead.errors import ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Device = torch.device | str | None


class Drawn(ABC):
    """Something that can be written out as booleans for queries and keys."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int | None, int | None]:
        """For how many sentences and heads it was made: 1 = for any number; None = it cannot tell."""

    @abstractmethod
    def dense(
        self, q_len: int, kv_len: int, device: Device = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        """The booleans; they broadcast to [batch, heads, q_len, kv_len]."""

    def show(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int = 0,
        head: int = 0,
        query_labels: Sequence[str] | None = None,
        key_labels: Sequence[str] | None = None,
    ) -> str:
        """A drawing, one line a query and one column a key: ■ may attend, · may not.

        Args:
            q_len: the number of queries.
            kv_len: the number of keys (default: as many as queries).
            batch: which sentence of the batch.
            head: which head.
            query_labels: tokens to write in front of the lines.
            key_labels: tokens to write above the columns.

        Raises:
            ShapeError: there is no such sentence or head, or the labels are not as many as the tokens.
        """
        return draw_grid(self._grid(q_len, kv_len, batch, head, query_labels, key_labels), query_labels, key_labels)

    def plot(
        self,
        q_len: int,
        kv_len: int | None = None,
        ax: Axes | None = None,
        batch: int = 0,
        head: int = 0,
        query_labels: Sequence[str] | None = None,
        key_labels: Sequence[str] | None = None,
    ) -> Axes:
        """The same as :meth:`show` as a picture: a dark cell = may attend. Needs matplotlib.

        Args:
            q_len: the number of queries.
            kv_len: the number of keys (default: as many as queries).
            ax: matplotlib's axes to draw into; None = those of a new figure, ``axes.figure.savefig("mask.png")``.
            batch: which sentence of the batch.
            head: which head.
            query_labels: tokens to write beside the rows.
            key_labels: tokens to write above the columns.

        Raises:
            ShapeError: there is no such sentence or head, or the labels are not as many as the tokens.
            MissingDependencyError: matplotlib, or a font with the labels' characters, is not installed.
        """
        return plot_grid(self._grid(q_len, kv_len, batch, head, query_labels, key_labels), ax, query_labels, key_labels)

    def _grid(
        self,
        q_len: int,
        kv_len: int | None,
        batch: int,
        head: int,
        query_labels: Sequence[str] | None,
        key_labels: Sequence[str] | None,
    ) -> list[list[bool]]:
        keys = q_len if kv_len is None else kv_len
        for name, labels, count in (("query", query_labels, q_len), ("key", key_labels, keys)):
            if labels is not None and len(labels) != count:
                raise ShapeError(f"{len(labels)} {name} labels for {count} {name} positions: give one label each")
        known = self.sizes
        for name, index, size in (("batch", batch, known[0]), ("head", head, known[1])):
            if index < 0 or (size is not None and size > 1 and index >= size):
                raise ShapeError(f"{name}={index}, but the mask has only 0 to {(size or 1) - 1}")
        allowed = self.dense(q_len, keys, "cpu", batch=batch + 1, heads=head + 1)
        row = allowed[batch if allowed.shape[0] > 1 else 0, head if allowed.shape[1] > 1 else 0]
        return row.expand(q_len, keys).tolist()
