"""Pairs of passages, the rows on which a BERT is pre-trained.

    [CLS] first passage [SEP] second passage [SEP]        segments 0 0 ... 0 1 ... 1

A passage is one or more consecutive sentences, and a row is filled with them up to a number of tokens (Devlin et al.
2019, A.2). In half of the pairs the second passage continues the first; in the other half it comes from another
document, drawn among all sentences, and is about as long as the passage it replaces, so that its length reveals little.
Without pairs, a row is a single passage, "[CLS] passage [SEP]".

All of it is a function of the store, the seed and the epoch. Grouping rows and hiding words is the task of `batches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from multihead.data.bert.documents import DocumentStore
from multihead.data.order import Array
from multihead.errors import DataError, InputError
from multihead.text.bert_words import Symbols

_TRIES = 8
"""Passages of other documents tried before a pair is made a continuation; most fit at the first try."""


class Example(NamedTuple):
    """A row; each passage is a range of sentences of the store, with exclusive end."""

    first: tuple[int, int]
    second: tuple[int, int]
    """Empty if there is no second passage."""
    follows: int
    """1 = the second passage continues the first, 0 = it does not, -1 = there is no second passage."""


class SentencePairs:
    """Composes the rows of each epoch.

    Args:
        store: the documents; no sentence may be longer than `longest_sentence`.
        symbols: the special symbols of the vocabulary.
        longest: maximum number of tokens per row, including symbols.
        seed: seed of the random numbers.
        paired: whether rows are pairs.

    Raises:
        DataError: there are no sentences; or, with pairs, there is only one document.
        InputError: a sentence is too long for the rows.
    """

    def __init__(self, store: DocumentStore, symbols: Symbols, longest: int, seed: int, *, paired: bool = True) -> None:
        self.store, self.symbols, self.seed, self.paired = store, symbols, seed, paired
        self._room = longest - (3 if paired else 2)
        if not len(store.sentences):
            raise DataError("no sentences to learn from; expected text")
        if paired and len(store) < 2:
            raise DataError(
                "there is only one document, so no sentence can be drawn from another one: put empty lines between "
                "documents, or learn without pairs (--no-next-sentence)"
            )
        lengths = store.sentences.lengths
        most = longest_sentence(longest, paired=paired)
        if lengths.max() > most:
            raise InputError(
                f"a sentence of {lengths.max()} tokens for rows of {longest}; expected {most} at most: store the text "
                "with that limit, or make the rows longer"
            )
        self._ends: Array = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def examples(self, epoch: int) -> list[Example]:
        """All rows of an epoch, in the order of the text; every sentence is in at least one."""
        random = _generator(self.seed, epoch)
        found: list[Example] = []
        for start, end in zip(self.store.bounds[:-1].tolist(), self.store.bounds[1:].tolist(), strict=True):
            found += self._pairs(start, end, random) if self.paired else self._passages(start, end)
        return found

    def _passages(self, start: int, end: int) -> Iterator[Example]:
        while start < end:
            stop = self._fit(start, end, self._room)
            yield Example((start, stop), (stop, stop), -1)
            start = stop

    def _pairs(self, start: int, end: int, random: np.random.Generator) -> Iterator[Example]:
        """Pairs from the start of a document to its end; a passage that was replaced starts the next pair."""
        begin = start
        while begin < end:
            stop = self._fit(begin, end, self._room)
            cut = int(random.integers(begin + 1, max(stop, begin + 2)))
            rest = (cut, stop)
            if cut == stop:  # a single last sentence: the passage of another document gets its length
                rest = (begin, stop)
            other = self._random_passage(start, end, (begin, cut), rest, random) if random.random() < 0.5 else None
            if other is not None:
                yield Example((begin, cut), other, 0)
                begin = cut
            else:
                yield self._continuation(begin, cut, stop, start)
                begin = stop

    def _continuation(self, begin: int, cut: int, stop: int, start: int) -> Example:
        """A pair within one document; a single last sentence follows the one before it, which is then used twice."""
        if cut < stop:
            return Example((begin, cut), (cut, stop), 1)
        if begin > start:
            return Example((begin - 1, begin), (begin, stop), 1)
        return Example((begin, stop), (stop, stop), -1)  # a document of one sentence

    def _random_passage(
        self,
        start: int,
        end: int,
        first: tuple[int, int],
        replaced: tuple[int, int],
        random: np.random.Generator,
    ) -> tuple[int, int] | None:
        """A passage outside the document from ``start`` to ``end``, about as long as ``replaced``, if one fits."""
        room, wanted = self._room - self._tokens(first), self._tokens(replaced)
        for place in random.integers(0, len(self.store.sentences) - (end - start), _TRIES).tolist():
            begin = place if place < start else place + end - start
            if self._tokens((begin, begin + 1)) <= room:
                document = int(np.searchsorted(self.store.bounds, begin, side="right"))
                last = int(self.store.bounds[document])
                stop = self._fit(begin, last, min(wanted, room))
                longer = self._tokens((begin, min(stop + 1, last)))  # may be closer to the wanted length
                near = longer <= room and longer - wanted < wanted - self._tokens((begin, stop))
                return begin, min(stop + near, last)
        return None

    def _tokens(self, passage: tuple[int, int]) -> int:
        return int(self._ends[passage[1]] - self._ends[passage[0]])

    def _fit(self, start: int, end: int, room: int) -> int:
        """The end of a passage from ``start`` with as many sentences as fit, and at least one."""
        stop = int(np.searchsorted(self._ends, self._ends[start] + room, side="right")) - 1
        return min(max(stop, start + 1), end)

    def row(self, example: Example) -> tuple[Array, int]:
        """The ids of a row, including symbols, and how many of them are in the first segment."""
        first, second = (self.store.sentences.gather(np.arange(*passage))[0] for passage in example[:2])
        ids = [self.symbols.first, *first.tolist(), self.symbols.end]
        front = len(ids)
        if len(second):
            ids += [*second.tolist(), self.symbols.end]
        return np.array(ids, np.int64), front

    def length(self, example: Example) -> int:
        """Number of tokens of a row, including symbols."""
        second = self._tokens(example.second)
        return self._tokens(example.first) + 2 + (second + 1 if second else 0)


def longest_sentence(longest: int, *, paired: bool) -> int:
    """Maximum number of tokens per sentence in rows of ``longest``, such that any two sentences fit in a pair."""
    return (longest - 3) // 2 if paired else longest - 2


def _generator(seed: int, epoch: int) -> np.random.Generator:
    # `Corruption` uses spawn keys of two numbers, so its random numbers differ from these.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))))
