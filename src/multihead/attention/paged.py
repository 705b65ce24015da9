"""A paged cache: keys and values in pages of a pool, which rows share.

Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4. A row
is a list of pages, so rows of any lengths need no padding in memory, selecting rows copies nothing, and hypotheses
with a common beginning hold it once. As every cache here, a `PagedKeyValue` is a value: a position that another row has
written is never overwritten; the page is copied first. A page returns to the pool when no cache refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from multihead.attention.cache import KeyValue
from multihead.attention.masks import Mask, Padding
from multihead.errors import ConfigurationError, ShapeError


class PagePool:
    """The memory of paged caches: ``pages`` pages of ``page_size`` positions each.

    Args:
        pages: the number of pages.
        page_size: positions of a page.
        kv_heads: heads of keys and values.
        key_width: of a head.
        value_width: of a head (default: ``key_width``).
        dtype: of keys and values.
        device: where they lie.

    Raises:
        ConfigurationError: a size is below 1.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        *,
        kv_heads: int,
        key_width: int,
        value_width: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_width = key_width if value_width is None else value_width
        if min(pages, page_size, kv_heads, key_width, value_width) < 1:
            raise ConfigurationError(
                f"pages={pages}, page_size={page_size}, kv_heads={kv_heads}, key_width={key_width}, "
                f"value_width={value_width}: expected at least 1 of each"
            )
        self.page_size = page_size
        self.key = torch.zeros(pages, page_size, kv_heads, key_width, dtype=dtype, device=device)
        self.value = torch.zeros(pages, page_size, kv_heads, value_width, dtype=dtype, device=device)
        self._free = list(range(pages))

    @property
    def used(self) -> int:
        """The number of pages that caches refer to."""
        return len(self.key) - len(self._free)

    def _take(self) -> _Page:
        if not self._free:
            raise ConfigurationError(
                f"all {len(self.key)} pages are in use: make a PagePool of more pages, or drop caches that are finished"
            )
        return _Page(self._free.pop(), self._free)


class _Page:
    """One page of a pool, for as long as this object lives."""

    def __init__(self, number: int, free: list[int]) -> None:
        self.number, self.filled = number, 0
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.number)


@dataclass(frozen=True)
class PagedKeyValue:
    """The keys and values of one attention layer, in pages. For decoding: gradients do not reach it.

    Attributes:
        pool: where the pages are.
        tables: the pages of each row, in order.
        lengths: positions of each row.
    """

    pool: PagePool
    tables: tuple[tuple[_Page, ...], ...]
    lengths: tuple[int, ...]

    @classmethod
    def begin(cls, pool: PagePool, rows: int) -> PagedKeyValue:
        """A cache of so many rows without positions."""
        return cls(pool, ((),) * rows, (0,) * rows)

    def append(self, new: KeyValue) -> PagedKeyValue:
        """The same rows, each with the new positions appended; they may have different lengths.

        Raises:
            ShapeError: the numbers of rows or heads or the widths differ from those of this cache.
            ConfigurationError: the pool has too few pages.
        """
        pool, rows = self.pool, len(self.lengths)
        wanted = [(rows, pages.shape[2], pages.shape[3]) for pages in (pool.key, pool.value)]
        if [(t.shape[0], t.shape[1], t.shape[3]) for t in (new.key, new.value)] != wanted:
            raise ShapeError(
                f"cannot append keys {list(new.key.shape)} and values {list(new.value.shape)} to {rows} rows of heads "
                f"and widths {wanted[0][1:]} and {wanted[1][1:]}"
            )
        tables, places = [], []
        before = [(table[-1], table[-1].filled) for table in self.tables if table]
        try:
            for table, length in zip(self.tables, self.lengths, strict=True):
                grown, slots = self._grow(table, length, new.length)
                tables.append(grown)
                places += slots
        except ConfigurationError:
            for page, filled in before:
                page.filled = filled
            raise
        where = torch.tensor(places, dtype=torch.long, device=pool.key.device)
        for pages, positions in ((pool.key, new.key), (pool.value, new.value)):
            pages.flatten(0, 1)[where] = positions.detach().transpose(1, 2).flatten(0, 1).to(pages.dtype)
        return PagedKeyValue(pool, tuple(tables), tuple(length + new.length for length in self.lengths))

    def _grow(self, table: tuple[_Page, ...], length: int, count: int) -> tuple[tuple[_Page, ...], list[int]]:
        """The pages of a row with room for ``count`` more positions, and the places of those in the pool."""
        pool, size, pages, places = self.pool, self.pool.page_size, list(table), []
        for position in range(length, length + count):
            page, slot = divmod(position, size)
            if page == len(pages):
                pages.append(pool._take())
            elif pages[page].filled != slot:  # another row has gone on from here
                copied = pool._take()
                for tensor in (pool.key, pool.value):
                    tensor[copied.number, :slot] = tensor[pages[page].number, :slot]
                pages[page] = copied
            pages[page].filled = slot + 1
            places.append(pages[page].number * size + slot)
        return tuple(pages), places

    def select(self, rows: Sequence[int]) -> PagedKeyValue:
        """These rows, in this order; a row may occur several times or not at all. Nothing is copied."""
        return PagedKeyValue(
            self.pool, tuple(self.tables[row] for row in rows), tuple(self.lengths[row] for row in rows)
        )

    def join(self, other: PagedKeyValue) -> PagedKeyValue:
        """The rows of both caches, these first. Nothing is copied.

        Raises:
            ConfigurationError: the caches have different pools.
        """
        if other.pool is not self.pool:
            raise ConfigurationError("caches of different pools cannot be joined: begin both with one PagePool")
        return PagedKeyValue(self.pool, self.tables + other.tables, self.lengths + other.lengths)

    def dense(self) -> tuple[KeyValue, Mask]:
        """Keys and values for `multihead.attention.attention`, and the mask of the padding.

        Shorter rows are padded on the left, so the last positions coincide: a call with new queries takes this mask,
        with ``& Causal()`` if there are several.
        """
        pool, longest = self.pool, max(self.lengths, default=0)
        pads = [longest - length for length in self.lengths]
        device = pool.key.device
        numbers = torch.zeros(len(self.tables), max(map(len, self.tables), default=0), dtype=torch.long)
        for row, table in enumerate(self.tables):
            numbers[row, : len(table)] = torch.tensor([page.number for page in table], dtype=torch.long)
        position = (torch.arange(longest) - torch.tensor(pads, dtype=torch.long)[:, None]).clamp(min=0)
        page, slot = position // pool.page_size, position % pool.page_size
        places = (numbers.gather(1, page) * pool.page_size + slot).to(device)
        key, value = (pages.flatten(0, 1)[places].transpose(1, 2) for pages in (pool.key, pool.value))
        return KeyValue(key, value), ~Padding(pads)
