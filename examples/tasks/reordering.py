"""Copying and reversing sequences, with the correct alignment.

    copy       x_1 ... x_n  ->  x_1 ... x_n      target position t aligns with source position t
    reverse    x_1 ... x_n  ->  x_n ... x_1      target position t aligns with source position n - 1 - t

Positions are counted from 0. No symbol occurs twice in a source, so only one source position is correct. All data are a
function of the seed.
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
"""Ids of padding, begin symbol and end symbol, and the first id of the drawn symbols."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Reordering:
    """One of the tasks, with its sizes.

    Args:
        name: ``"copy"`` or ``"reverse"``.
        symbols: number of different symbols.
        shortest: minimum number of symbols of a source, without the end symbol.
        longest: maximum number of symbols of a source, without the end symbol.

    Raises:
        ConfigurationError: the name is unknown, or the sizes do not make a task.
    """

    name: Literal["copy", "reverse"]
    symbols: int = 10
    shortest: int = 3
    longest: int = 8

    def __post_init__(self) -> None:
        if self.name not in ("copy", "reverse"):
            raise ConfigurationError(f"name={self.name!r}: expected 'copy' or 'reverse'")
        if not 1 <= self.shortest <= self.longest <= self.symbols:
            raise ConfigurationError(
                f"symbols={self.symbols}, shortest={self.shortest}, longest={self.longest}: expected 1 <= shortest <= "
                "longest <= symbols, since no symbol is drawn twice"
            )

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: the symbols, padding, begin and end."""
        return FIRST + self.symbols

    def draw(self, random: Random) -> Ids:
        """Draw a source: its length uniformly, then that many different symbols."""
        return tuple(random.sample(range(FIRST, self.vocabulary), k=random.randint(self.shortest, self.longest)))

    def target(self, source: Ids) -> Ids:
        """The target of a source."""
        return source if self.name == "copy" else source[::-1]

    def held_out(self, count: int, seed: int) -> list[Ids]:
        """``count`` different sources for testing; a function of the arguments alone.

        Raises:
            ConfigurationError: ``count`` is more than half of all possible sources.
        """
        possible = sum(perm(self.symbols, length) for length in range(self.shortest, self.longest + 1))
        if 2 * count > possible:
            raise ConfigurationError(
                f"{count} different sources of {possible} possible ones: at least half must remain for training; hold "
                "out fewer, or use more symbols or longer sources"
            )
        random, found = Random(f"held out {seed}"), dict[Ids, None]()
        while len(found) < count:
            found[self.draw(random)] = None
        return list(found)

    def batch(self, sources: list[Ids]) -> Batch:
        """Sources and their targets as tensors, in the given order."""
        store = ParallelStore.from_lists(sources, [self.target(source) for source in sources])
        return collate(store, np.arange(len(sources)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)

    def batches(self, rows: int, seed: int, without: Collection[Ids] = ()) -> Iterator[Batch]:
        """An endless stream of batches of ``rows`` sources, determined by the seed.

        Sources in ``without`` are left out; other sources must exist.
        """
        random, excluded = Random(f"batches {seed}"), frozenset(without)
        sources = (source for source in iter(lambda: self.draw(random), None) if source not in excluded)
        while True:
            yield self.batch([next(sources) for _ in range(rows)])

    def alignment(self, batch: Batch) -> Int64[Tensor, "batch target"]:
        """The source position that each target position of a batch aligns with.

        -1 for padding and for the end symbol, which can be predicted from any position.
        """
        length = (batch.target_lengths - 1)[:, None]
        place = torch.arange(batch.target_output.shape[1], device=length.device).expand_as(batch.target_output)
        return (place if self.name == "copy" else length - 1 - place).where(place < length, -1)


def share_right(
    weights: Float[Tensor, "batch target source"], alignment: Int64[Tensor, "batch target"]
) -> tuple[int, int]:
    """The number of target positions whose highest weight is correct, and the number with a known alignment.

    Args:
        weights: attention weights of target positions over source positions.
        alignment: the correct position, or -1, from `Reordering.alignment`.
    """
    known = alignment >= 0
    return int((weights.argmax(-1) == alignment)[known].sum()), int(known.sum())
