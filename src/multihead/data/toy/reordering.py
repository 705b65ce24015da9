"""Copying and reversing: tasks of which it is known where each target symbol is to be read in the source.

    copy       x_1 ... x_n  ->  x_1 ... x_n      target position t is read at source position t
    reverse    x_1 ... x_n  ->  x_n ... x_1      target position t is read at source position n - 1 - t

Positions are counted from 0. No symbol stands in a source twice, so no other position would do as well as the right
one. Everything is a function of the seed. Learning the tasks is for others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import perm
from random import Random
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError

PADDING, BEGIN, END, FIRST = 0, 1, 2, 3
"""Ids: padding, begin symbol, end symbol, and the first of the symbols that are drawn."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Reordering:
    """One of the tasks, in one size.

    Args:
        name: what becomes of a source.
        symbols: how many different ones there are.
        shortest: the least symbols of a source, its end symbol not counted.
        longest: the most.

    Raises:
        ConfigurationError: a name or numbers that make no task.
    """

    name: Literal["copy", "reverse"]
    symbols: int = 10
    shortest: int = 3
    longest: int = 8

    def __post_init__(self) -> None:
        if self.name not in ("copy", "reverse"):
            raise ConfigurationError(f"name={self.name!r}: there are 'copy' and 'reverse'")
        if not 1 <= self.shortest <= self.longest <= self.symbols:
            raise ConfigurationError(
                f"symbols={self.symbols}, shortest={self.shortest}, longest={self.longest}: expected 1 <= shortest <= "
                "longest <= symbols, since no symbol is drawn twice"
            )

    @property
    def vocabulary(self) -> int:
        """Ids on either side: the symbols, padding, begin and end."""
        return FIRST + self.symbols

    def draw(self, random: Random) -> Ids:
        """A source: first its length, all being equally probable, then so many different symbols."""
        return tuple(random.sample(range(FIRST, self.vocabulary), k=random.randint(self.shortest, self.longest)))

    def target(self, source: Ids) -> Ids:
        """What a source becomes."""
        return source if self.name == "copy" else source[::-1]

    def held_out(self, count: int, seed: int) -> list[Ids]:
        """So many different sources, to test with; a function of the arguments alone.

        Raises:
            ConfigurationError: there are not so many different ones, or hardly.
        """
        possible = sum(perm(self.symbols, length) for length in range(self.shortest, self.longest + 1))
        if 2 * count > possible:
            raise ConfigurationError(
                f"{count} different sources of {possible} possible ones: at least half must remain to learn from; "
                "ask for fewer, or have more symbols or longer sources"
            )
        random, found = Random(f"held out {seed}"), dict[Ids, None]()
        while len(found) < count:
            found[self.draw(random)] = None
        return list(found)

    def batch(self, sources: list[Ids]) -> Batch:
        """Sources and their targets, in this order, as tensors."""
        store = ParallelStore.from_lists(sources, [self.target(source) for source in sources])
        return collate(store, np.arange(len(sources)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)

    def batches(self, rows: int, seed: int, without: Collection[Ids] = ()) -> Iterator[Batch]:
        """Batches of so many rows, without end: the same ones for the same seed, with none of the sources ``without``.

        They must leave some sources over.
        """
        random, unwanted = Random(f"batches {seed}"), frozenset(without)
        sources = (source for source in iter(lambda: self.draw(random), None) if source not in unwanted)
        while True:
            yield self.batch([next(sources) for _ in range(rows)])

    def alignment(self, batch: Batch) -> Int64[Tensor, "batch target"]:
        """The source position at which each target position of `batch`'s result is to be read.

        -1 where none is the right one: in padding, and for the end symbol, since that the sentence is over may be
        known from any position, or from none.
        """
        length = (batch.target_lengths - 1)[:, None]
        place = torch.arange(batch.target_output.shape[1], device=length.device).expand_as(batch.target_output)
        return (place if self.name == "copy" else length - 1 - place).where(place < length, -1)


def share_right(
    weights: Float[Tensor, "batch target source"], alignment: Int64[Tensor, "batch target"]
) -> tuple[int, int]:
    """For how many target positions the highest weight is at the right source position; and for how many there is one.

    Args:
        weights: of attention, target positions asking.
        alignment: the right position of each, or -1, as `Reordering.alignment` gives it.
    """
    known = alignment >= 0
    return int((weights.argmax(-1) == alignment)[known].sum()), int(known.sum())
