"""Planted spans: find a span and the most frequent letter in it.

    e C e b a a c f B d A B F B A c B C a F b d a b C a b f        ->  b
                    [-----------------]

All letters are drawn independently from the same distribution. Inside the span most are uppercase, outside most are
lowercase: a single uppercase letter says little, many neighbors reveal the span. Letters outside say nothing about
those inside, so the span must be found to answer. Weights computed for each letter by itself add up all uppercase
letters; the marginals of a chain, in which neighbors influence each other, can be the probabilities of being inside the
span. (A task for the segmentation attention of Kim et al. 2017, section 4.2, designed for this project.)
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
from multihead.errors import ConfigurationError
from tasks.reordering import BEGIN, END, FIRST, PADDING

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Planted(NamedTuple):
    """A text and its span; letters are numbered from 0."""

    letters: tuple[int, ...]
    """The letter at each position."""
    capital: tuple[bool, ...]
    """Whether the letter at each position is uppercase."""
    start: int
    """The first position of the span."""
    width: int
    """The number of positions of the span."""

    @property
    def answer(self) -> int:
        """The most frequent letter of the span."""
        inside = Counter(self.letters[self.start : self.start + self.width])
        return max(inside, key=lambda letter: (inside[letter], -letter))

    @property
    def lead(self) -> int:
        """How often the answer occurs in the span beyond the second most frequent letter."""
        first, second = (*Counter(self.letters[self.start : self.start + self.width]).most_common(2), (0, 0))[:2]
        return first[1] - second[1]

    def __str__(self) -> str:
        """The letters of the text, such as ``e C e b``."""
        pairs = zip(self.letters, self.capital, strict=True)
        return " ".join(_ALPHABET[letter].upper() if capital else _ALPHABET[letter] for letter, capital in pairs)


@dataclass(frozen=True)
class PlantedSpans:
    """The task, with its sizes.

    Args:
        alphabet: number of different letters, 2 to 26.
        shortest: minimum length of a text.
        longest: maximum length of a text.
        narrowest: minimum width of a span.
        widest: maximum width of a span; less than ``shortest``.
        inside: probability that a letter in the span is uppercase.
        outside: probability that a letter elsewhere is uppercase; less than ``inside``.
        lead: minimum difference between the counts of the answer and of any other letter in the span.

    Raises:
        ConfigurationError: the sizes do not make a task.
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
            raise ConfigurationError(f"alphabet={self.alphabet}: expected 2 to {len(_ALPHABET)} letters")
        if not 1 <= self.lead <= self.narrowest <= self.widest < self.shortest <= self.longest:
            raise ConfigurationError(
                f"lead={self.lead}, narrowest={self.narrowest}, widest={self.widest}, shortest={self.shortest}, "
                f"longest={self.longest}: expected this order, at least 1, and spans shorter than texts"
            )
        if not 0 <= self.outside < self.inside <= 1:
            raise ConfigurationError(
                f"outside={self.outside}, inside={self.inside}: expected probabilities, with outside < inside"
            )

    @property
    def source_vocab(self) -> int:
        """Vocabulary size of a text: padding, begin and end, then lowercase and uppercase letters."""
        return FIRST + 2 * self.alphabet

    @property
    def target_vocab(self) -> int:
        """Vocabulary size of an answer: padding, begin and end, then letters."""
        return FIRST + self.alphabet

    def draw(self, random: Random) -> Planted:
        """Draw length, width, start and letters uniformly; repeat until one letter has the required lead."""
        while True:
            length, width = random.randint(self.shortest, self.longest), random.randint(self.narrowest, self.widest)
            start = random.randint(0, length - width)
            letters = tuple(random.choices(range(self.alphabet), k=length))
            within = range(start, start + width)
            capital = (random.random() < (self.inside if place in within else self.outside) for place in range(length))
            text = Planted(letters, tuple(capital), start, width)
            if text.lead >= self.lead:
                return text

    def batch(self, examples: Sequence[Planted]) -> Batch:
        """Texts and their answers as tensors, in the given order."""
        sources = [
            [FIRST + letter + self.alphabet * capital for letter, capital in zip(one.letters, one.capital, strict=True)]
            for one in examples
        ]
        store = ParallelStore.from_lists(sources, [[FIRST + one.answer] for one in examples])
        return collate(store, np.arange(len(examples)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)

    def batches(self, rows: int, seed: int) -> Iterator[Batch]:
        """An endless stream of batches of ``rows`` texts, determined by the seed."""
        random = Random(f"spans {seed}")
        while True:
            yield self.batch([self.draw(random) for _ in range(rows)])

    def held_out(self, count: int, seed: int) -> list[Planted]:
        """``count`` texts for testing, from other random numbers than the batches; texts this long never coincide."""
        random = Random(f"held out spans {seed}")
        return [self.draw(random) for _ in range(count)]


def covered(examples: Sequence[Planted], batch: Batch) -> Bool[Tensor, "batch source"]:
    """Whether each position of the batch's texts is in the span; False for end symbols and padding."""
    place = torch.arange(batch.source.shape[1])
    start = torch.tensor([one.start for one in examples])[:, None]
    width = torch.tensor([one.width for one in examples])[:, None]
    return (place >= start) & (place < start + width)
