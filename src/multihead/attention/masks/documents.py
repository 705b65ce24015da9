"""Masks of packed rows: texts in one row that do not see each other.

Packing (Krell et al. 2021) fills rows without padding. If the borders of the documents are known on the host, a
backend can compute one document after the other (:mod:`multihead.attention.backends.blockwise`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from multihead.attention.masks.algebra import Device, Mask, Rule
from multihead.attention.masks.intervals import Intervals
from multihead.attention.masks.standard import as_lengths
from multihead.errors import MaskError, ShapeError


class _Ids(NamedTuple):
    """The number of the document at each position."""

    tensor: Int[Tensor, "rows length"]
    host: NDArray[np.int64] | None
    """The same numbers on the host; None if they are on another device."""


class _Documents(Mask):
    """A query sees the keys that have the same id. A subclass says which ids there are."""

    @abstractmethod
    def _sides(self) -> tuple[_Ids, _Ids]:
        """The ids of queries and keys; the same object if keys have those of the queries."""

    @property
    def ids(self) -> Int[Tensor, "rows length"]:
        """The ids of the queries."""
        return self._sides()[0].tensor

    @property
    def key_ids(self) -> Int[Tensor, "rows length"]:
        """The ids of the keys."""
        return self._sides()[1].tensor

    @property
    def device(self) -> torch.device | None:
        """The device of the ids."""
        return self.ids.device

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """One sentence per row of ids; any number of heads."""
        return max(self.ids.shape[0], self.key_ids.shape[0]), 1

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """ids[b, q] == key_ids[b, k].

        Raises:
            ShapeError: the numbers of ids differ from those of queries or keys.
        """
        self._check(q_len, kv_len)
        device = self.device if device is None else device
        ids, key_ids = self.ids.to(device), self.key_ids.to(device)
        row, key_row = int(len(ids) > 1), int(len(key_ids) > 1)  # 0 = one row of ids for all
        return lambda b, h, q, k: ids[b * row, q] == key_ids[b * key_row, k]  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:
        """The first and last key of each query's document, if every document is one stretch of known keys."""
        self._check(q_len, kv_len)
        (_, query_ids), (_, key_ids) = self._sides()
        if query_ids is None or key_ids is None:
            return None
        runs = [_runs(row) for row in key_ids]
        if any(row is None for row in runs):
            return None
        rows = max(len(query_ids), len(runs))
        low, high = np.zeros((2, rows, q_len), np.int64)
        for row in range(rows):
            documents = runs[row % len(runs)]
            assert documents is not None
            ids = query_ids[row % len(query_ids)]
            # The place of each query's id among the sorted ids of the documents; a query without keys sees nothing.
            place = np.searchsorted(documents.ids, ids).clip(max=max(len(documents.ids) - 1, 0))
            if len(documents.ids):
                here = documents.ids[place] == ids
                low[row] = np.where(here, documents.starts[place], 0)
                high[row] = np.where(here, documents.stops[place], 0)
        return Intervals(low, high)

    def _check(self, q_len: int, kv_len: int) -> None:
        queries, keys = self.ids.shape[1], self.key_ids.shape[1]
        if (queries, keys) != (q_len, kv_len):
            hint = (
                ": give key_ids for the keys, and in ids those of the queries alone" if self.key_ids is self.ids else ""
            )
            raise ShapeError(
                f"there are ids for {queries} queries and {keys} keys, but {q_len} queries and {kv_len} keys{hint}"
            )


class Document(_Documents):
    """A query sees the keys of its own document: those with the same id.

    Add ``& Causal()`` for language models, ``& Padding(lengths)`` if what is behind the last document is padding.

    Args:
        ids: [batch, length], or [length] if all rows are packed alike: the number of the document that each
            position belongs to, as a tensor or as plain numbers. Plain numbers and tensors on the CPU are read when the
            mask is made; tensors on another device never are.
        key_ids: the ids of the keys where those are not the queries' own positions (a cache, another text).

    Raises:
        MaskError: the ids are not integers.
        ShapeError: they have other axes, or different numbers of rows.
    """

    def __init__(
        self,
        ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
        key_ids: Tensor | Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> None:
        queries = _as_ids(ids, "ids")
        self._given = queries, queries if key_ids is None else _as_ids(key_ids, "key_ids")
        rows, key_rows = (len(side.tensor) for side in self._given)
        if rows != key_rows and rows != 1 and key_rows != 1:
            raise ShapeError(f"ids has {rows} rows and key_ids {key_rows}: give as many of each")

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Sequence[Sequence[int]], length: int | None = None) -> Document:
        """Documents of these lengths, one after the other: [3, 5, 2] in every row, or [[3, 5, 2], [10]] by row.

        Args:
            lengths: of the documents.
            length: of the rows (default: the longest sum); the remainder of a row is one more document.

        Raises:
            ShapeError: they do not fit into ``length``.
        """
        rows: list[Any] = list(lengths)
        if not any(isinstance(row, Sequence) for row in rows):
            rows = [rows]
        longest = max((sum(row) for row in rows), default=0)
        length = longest if length is None else length
        if longest > length or any(count < 0 for row in rows for count in row):
            raise ShapeError(f"documents of the lengths {lengths} do not fit into rows of {length}")
        full = [[*row, length - sum(row)] for row in rows]
        return cls([[number for number, count in enumerate(row) for _ in range(count)] for row in full])

    def _sides(self) -> tuple[_Ids, _Ids]:
        return self._given

    def __repr__(self) -> str:
        ids = f"<{list(self.ids.shape)}>" if self.ids.numel() > 32 else self.ids.tolist()
        if self.key_ids is self.ids:
            return f"Document({ids})"
        keys = f"<{list(self.key_ids.shape)}>" if self.key_ids.numel() > 32 else self.key_ids.tolist()
        return f"Document({ids}, key_ids={keys})"


class EndToEnd(_Documents):
    """Sequences end to end in a single row: queries of the n-th sequence see its keys and no others.

    Args:
        lengths: [sequences], the number of queries of each, on the CPU; positions behind the last sequence see nothing.
        queries: the length of the row.
        key_lengths: the number of keys of each sequence where keys are in a row of their own (default: ``lengths``).
        keys: the length of that row (default: ``queries``).

    Raises:
        MaskError: the lengths are not integers.
        ShapeError: a length is negative, the sequences do not fit into the row, or the numbers of sequences differ.
    """

    def __init__(
        self,
        lengths: Int[Tensor, " _"],
        queries: int,
        key_lengths: Int[Tensor, " _"] | None = None,
        keys: int | None = None,
    ) -> None:
        self._extents = queries, queries if keys is None else keys
        self.row = PackedRow(lengths, lengths if key_lengths is None else key_lengths)
        """The sequences as a kernel takes them."""
        for total, length in zip(self.row.totals, self._extents, strict=True):
            if total > length:
                raise ShapeError(f"sequences of {total} positions do not fit into a row of {length}")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def sizes(self) -> tuple[int, int]:
        return 1, 1

    def _sides(self) -> tuple[_Ids, _Ids]:
        """Made when they are read, which is seldom: the kernel for packed rows takes `row` instead."""
        (length, key_length), row = self._extents, self.row
        return self.cached(
            "ids",
            None,
            lambda: (_sequence_ids(row.query_lengths, length, -1), _sequence_ids(row.key_lengths, key_length, -2)),
        )

    def __repr__(self) -> str:
        (length, key_length), row = self._extents, self.row
        return f"EndToEnd({row.query_lengths.tolist()}, {length}, {row.key_lengths.tolist()}, {key_length})"


class PackedRow:
    """Where each of the sequences of a packed row begins and ends; computed once for all layers.

    Args:
        query_lengths: the number of queries of each sequence, on the CPU.
        key_lengths: the number of keys of each.

    Raises:
        MaskError: the lengths are not integers.
        ShapeError: a length is negative or above 2^31, or the numbers of sequences differ.
    """

    def __init__(self, query_lengths: Int[Tensor, " _"], key_lengths: Int[Tensor, " _"]) -> None:
        # NumPy takes a fraction of PyTorch's time for so few numbers.
        queries = _checked_lengths(query_lengths)
        keys = queries if key_lengths is query_lengths else _checked_lengths(key_lengths)
        if len(queries) != len(keys):
            raise ShapeError(f"{len(queries)} sequences of queries and {len(keys)} of keys")
        self.query_lengths, self.key_lengths = torch.from_numpy(queries), torch.from_numpy(keys)
        self.query_starts, self.key_starts = (torch.from_numpy(own.cumsum() - own) for own in (queries, keys))
        self.longest_query, self.longest_key = (int(own.max(initial=0)) for own in (queries, keys))
        self.totals = int(queries.sum()), int(keys.sum())
        self.aligned = np.array_equal(queries, keys)

    @property
    def longest(self) -> int:
        """The largest number of queries or keys of any sequence."""
        return max(self.longest_query, self.longest_key)


def _checked_lengths(lengths: Tensor) -> NDArray[np.int64]:
    """A copy of lengths on the CPU, which no one else can change.

    Raises:
        MaskError: they are not integers.
        ShapeError: they do not have one axis, or one is negative or so large that sums would overflow.
    """
    copied: NDArray[np.int64] = as_lengths(lengths, "lengths")[0].to("cpu", torch.int64).numpy()
    if not (copied.min(initial=0) >= 0 and copied.max(initial=0) < 1 << 31):
        raise ShapeError(f"lengths are from 0 to 2^31 - 1, got {copied.min()} to {copied.max()}")
    return copied


def _sequence_ids(lengths: Tensor, length: int, rest: int) -> _Ids:
    """The number of the sequence at each position of a row, and ``rest`` behind the last one."""
    ids, own = np.full((1, length), rest, np.int64), np.arange(len(lengths)).repeat(lengths.numpy())
    ids[0, : len(own)] = own
    return _Ids(torch.from_numpy(ids), ids)


class _Runs:
    """The documents of one row, sorted by id, with the position where each begins and ends."""

    def __init__(self, ids: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        self.ids, self.starts, self.stops = ids, starts, stops


def _runs(row: NDArray[np.int64]) -> _Runs | None:
    """The documents of a row of ids; None if one of them is in several pieces."""
    starts = np.flatnonzero(np.diff(row, prepend=row[:1] - 1))
    stops = np.append(starts[1:], len(row))[: len(starts)]
    ids = row[starts]
    order = np.argsort(ids)
    ids = ids[order]
    return None if np.any(ids[1:] == ids[:-1]) else _Runs(ids, starts[order], stops[order])


def _as_ids(ids: Any, name: str) -> _Ids:
    """The ids as a tensor of the mask's own, and as NumPy numbers if they are on the host."""
    try:
        tensor = ids.clone() if isinstance(ids, Tensor) else torch.tensor(ids)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"{name} must be numbers in rows of one length: {error}") from error
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise MaskError(f"{name} must be integers, the number of each position's document, got {tensor.dtype}")
    if tensor.dim() not in (1, 2):
        raise ShapeError(f"{name} must have the shape [batch, length] or [length], got {list(tensor.shape)}")
    tensor = tensor[None] if tensor.dim() == 1 else tensor
    # Tensors that a compiler traces with have no values, nor have subclasses (fake, functional).
    readable = type(tensor) is Tensor and tensor.device.type == "cpu" and not torch.compiler.is_compiling()
    return _Ids(tensor, tensor.numpy().astype(np.int64) if readable else None)
