"""A planted span: which letter is the most frequent one between two places that nobody names?

    e C e b a a c f B d A B F B A c B C a F b d a b C a b f        ->  b
                    [-----------------]

Letters are drawn independently, all alike, inside the span and outside. Inside most are capital, outside most are
small, but not all: one capital letter says little, many neighbours say where the span is. What stands outside tells
nothing of what stands inside, so there is no way to the answer but to find the span. Weights that each word gets by
itself add up whatever is capital; the marginals of a chain, in which neighbours influence one another, can be the
probabilities of being inside. (A task for the segmentation attention of Kim et al. 2017, section 4.2, made here.)
Learning it is left to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.data.toy.reordering import BEGIN, END, FIRST, PADDING
from multihead.errors import ConfigurationError

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Planted(NamedTuple):
    """A text and its span; letters are counted from 0."""

    letters: tuple[int, ...]
    """What stands at each place."""
    capital: tuple[bool, ...]
    """Whether it is a capital letter there."""
    start: int
    """The first place of the span."""
    width: int
    """The places of the span."""

    @property
    def answer(self) -> int:
        """The letter that the span has most of."""
        inside = Counter(self.letters[self.start : self.start + self.width])
        return max(inside, key=lambda letter: (inside[letter], -letter))

    @property
    def lead(self) -> int:
        """By how many places it is more frequent there than any other letter."""
        first, second = (*Counter(self.letters[self.start : self.start + self.width]).most_common(2), (0, 0))[:2]
        return first[1] - second[1]

    def __str__(self) -> str:
        """For people: ``e C e b``."""
        pairs = zip(self.letters, self.capital, strict=True)
        return " ".join(_ALPHABET[letter].upper() if capital else _ALPHABET[letter] for letter, capital in pairs)


@dataclass(frozen=True)
class PlantedSpans:
    """The task in one size.

    Args:
        alphabet: different letters, 2 to 26.
        shortest: the least places of a text.
        longest: the most.
        narrowest: the least places of a span.
        widest: the most; less than the shortest text has.
        inside: how often a letter is a capital in the span.
        outside: how often elsewhere; less often.
        lead: by how many places at least the answer is more frequent in the span than any other letter.

    Raises:
        ConfigurationError: numbers that make no task.
    """

    alphabet: int = 6
    shortest: int = 45
    longest: int = 55
    narrowest: int = 10
    widest: int = 14
    inside: float = 0.85
    outside: float = 0.3
    lead: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.alphabet <= len(_ALPHABET):
            raise ConfigurationError(f"alphabet={self.alphabet}: 2 to {len(_ALPHABET)} letters are needed")
        if not 1 <= self.lead <= self.narrowest <= self.widest < self.shortest <= self.longest:
            raise ConfigurationError(
                f"lead={self.lead}, narrowest={self.narrowest}, widest={self.widest}, shortest={self.shortest}, "
                f"longest={self.longest}: must be in this order, at least 1, and spans less than whole texts"
            )
        if not 0 <= self.outside < self.inside <= 1:
            raise ConfigurationError(
                f"outside={self.outside}, inside={self.inside}: probabilities are needed, capitals more probable inside"
            )

    @property
    def source_vocab(self) -> int:
        """Ids of a text: small letters, then capital ones, after padding, begin and end."""
        return FIRST + 2 * self.alphabet

    @property
    def target_vocab(self) -> int:
        """Ids of an answer: letters, after padding, begin and end."""
        return FIRST + self.alphabet

    def draw(self, random: Random) -> Planted:
        """A text: length, width and place of the span, then letters, each evenly; again, until one letter leads."""
        while True:
            length, width = random.randint(self.shortest, self.longest), random.randint(self.narrowest, self.widest)
            start = random.randint(0, length - width)
            letters = tuple(random.choices(range(self.alphabet), k=length))
            within = range(start, start + width)
            capital = (random.random() < (self.inside if place in within else self.outside) for place in range(length))
            found = Planted(letters, tuple(capital), start, width)
            if found.lead >= self.lead:
                return found

    def batch(self, examples: Sequence[Planted]) -> Batch:
        """Texts and their answers, in this order, as tensors."""
        sources = [
            [FIRST + letter + self.alphabet * capital for letter, capital in zip(one.letters, one.capital, strict=True)]
            for one in examples
        ]
        store = ParallelStore.from_lists(sources, [[FIRST + one.answer] for one in examples])
        return collate(store, np.arange(len(examples)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)

    def batches(self, rows: int, seed: int) -> Iterator[Batch]:
        """Batches of so many texts, without end: the same ones for the same seed."""
        random = Random(f"spans {seed}")
        while True:
            yield self.batch([self.draw(random) for _ in range(rows)])

    def held_out(self, count: int, seed: int) -> list[Planted]:
        """So many texts to test with, from other random numbers than the batches': texts this long are never alike."""
        random = Random(f"held out spans {seed}")
        return [self.draw(random) for _ in range(count)]


def covered(examples: Sequence[Planted], batch: Batch) -> Bool[Tensor, "batch source"]:
    """Which places of the batch's texts are in the span; the end symbol and padding are not."""
    place = torch.arange(batch.source.shape[1])
    start = torch.tensor([one.start for one in examples])[:, None]
    width = torch.tensor([one.width for one in examples])[:, None]
    return (place >= start) & (place < start + width)
