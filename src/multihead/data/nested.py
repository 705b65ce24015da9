"""Documents as numbers: stored with their parts, and padded at every level to become a batch.

A document is stored as a pair of a `ParallelStore`. Its source is its subwords, end to end; its target says what they
are parts of:

    label, P, sentences of paragraph 1 .. P, subwords of sentence 1 .. S

So one store serves networks of every depth: of depth 3 (words, sentences, paragraphs), of depth 2, where the sentences
of all paragraphs follow one another, and of depth 1, where there are words alone. In a batch of depth d the tokens have
the axes [batch, d - 1 levels, words], padded on the right at each; ``lengths`` has the subwords of each sentence and 0
where there is none. Which documents go together, and in which order, is the same business as for pairs (`BatchStream`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from multihead.data.batching import BatchStream
from multihead.data.order import Array
from multihead.data.store import ParallelStore
from multihead.text.bert_words import HIDDEN, BertWords, Symbols

DEEPEST = 3
"""Levels that a stored document has."""

Parts = list[list[list[int]]]
"""The subwords of each sentence of each paragraph."""


def pieces_of(paragraphs: Sequence[Sequence[str]], words: BertWords, most: int) -> Parts:
    """The subwords of each sentence; one of more than ``most`` becomes several, cut between words where that can be.

    Where "[MASK]" stands in a text, the symbol of a hidden word does.

    Args:
        paragraphs: sentences, as `text.sentences.paragraphs_of` gives them.
        words: the vocabulary.
        most: subwords of a sentence.
    """
    flat = [sentence for sentences in paragraphs for sentence in sentences]
    encoded = iter(
        words.encode_with_hidden(sentence) if HIDDEN in sentence else ids
        for sentence, ids in zip(flat, words.encode(flat), strict=True)
    )
    parts = [[cut for _ in sentences for cut in _cut(next(encoded), words, most)] for sentences in paragraphs]
    return [sentences for sentences in parts if sentences]


def _cut(ids: list[int], words: BertWords, most: int) -> list[list[int]]:
    """Ids in pieces: each ends before the last word that does not fit; a word that is too long is cut itself."""
    pieces = []
    while len(ids) > most:
        begins = words.begins_word[ids[1 : most + 1]].nonzero()[0]
        end = int(begins[-1]) + 1 if len(begins) else most
        pieces.append(ids[:end])
        ids = ids[end:]
    return [*pieces, ids] if ids else pieces


def stored(label: int, parts: Parts) -> tuple[list[int], list[int]]:
    """Source and target of a document in a `ParallelStore`."""
    sentences = [sentence for paragraph in parts for sentence in paragraph]
    shape = [label, len(parts), *map(len, parts), *map(len, sentences)]
    return [token for sentence in sentences for token in sentence], shape


class StoredDocument(NamedTuple):
    """A document taken out of a store."""

    label: int
    parts: Parts


def document_of(source: Sequence[int], target: Sequence[int]) -> StoredDocument:
    """What `stored` was given."""
    label, count, *rest = target
    sizes, lengths = rest[:count], rest[count:]
    ends = np.cumsum(lengths).tolist()
    sentences = [list(source[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    places = [0, *np.cumsum(sizes).tolist()]
    return StoredDocument(label, [sentences[start:stop] for start, stop in pairwise(places)])


@dataclass(frozen=True, eq=False)
class DocumentBatch:
    """Documents as padded tensors (`training.loss.Examples`); padding stands on the right at each level.

    Attributes:
        tokens: ids.
        lengths: subwords of each sentence; 0 where there is none.
        segments: of depth 1, if the network is told which part a token belongs to (BERT's segments).
        labels: the class of each document.
        indices: which documents of the store these are.
    """

    tokens: Int64[Tensor, "batch ..."]
    lengths: Int64[Tensor, "batch ..."]
    segments: Int64[Tensor, "batch time"] | None
    labels: Int64[Tensor, " batch"]
    indices: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def read(self) -> tuple[Tensor, ...]:
        """What the network reads to say which class each is of."""
        return (self.tokens, self.lengths) if self.segments is None else (self.tokens, self.lengths, self.segments)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What its ``loss`` reads: the same and the labels."""
        return *self.read, self.labels

    @property
    def target_tokens(self) -> int:
        """A label is predicted for each document."""
        return len(self)

    @property
    def source_tokens(self) -> int:
        """The real subwords."""
        return int(self.lengths.sum())

    @property
    def cells(self) -> int:
        """Its tokens, padding included."""
        return self.tokens.numel()

    def part(self, start: int, stop: int) -> DocumentBatch:
        """Some rows, without what is padding in all of them."""
        rows = slice(start, stop)
        there = self.lengths[rows] > 0
        # Of each axis between documents and words: up to where any document has something.
        widths = [int(there.movedim(axis, 0).flatten(1).any(1).sum()) for axis in range(1, there.dim())]
        box = (rows, *(slice(max(width, 1)) for width in widths))
        tokens = self.tokens[(*box, slice(max(int(self.lengths[rows].max()), 1)))]
        segments = None if self.segments is None else self.segments[rows, : tokens.shape[1]]
        return DocumentBatch(tokens, self.lengths[box], segments, self.labels[rows], self.indices[rows])

    def to(self, device: torch.device | str) -> DocumentBatch:
        """The same batch with its tensors on ``device``."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            lengths=self.lengths.to(device),
            segments=None if self.segments is None else self.segments.to(device),
            labels=self.labels.to(device),
        )


def nested(
    documents: Sequence[StoredDocument], depth: int, padding_id: int, indices: Array | None = None
) -> DocumentBatch:
    """Documents as a batch of some depth: levels that a network does not have are merged.

    Args:
        documents: at least one.
        depth: 1 = words; 2 = words and sentences; 3 = paragraphs, too.
        padding_id: fills up.
        indices: which documents these are; counted by default.
    """
    if depth == DEEPEST:
        trees: list[Parts] = [document.parts for document in documents]
    else:
        flat = [[sentence for paragraph in document.parts for sentence in paragraph] for document in documents]
        trees = [[sentences if depth > 1 else [[token for ids in sentences for token in ids]]] for sentences in flat]
    sizes = (
        max((len(tree) for tree in trees), default=0),
        max((len(paragraph) for tree in trees for paragraph in tree), default=0),
        max((len(ids) for tree in trees for paragraph in tree for ids in paragraph), default=0),
    )
    tokens = np.full((len(trees), *(max(size, 1) for size in sizes)), padding_id, np.int64)
    lengths = np.zeros(tokens.shape[:-1], np.int64)
    for row, tree in enumerate(trees):
        for place, paragraph in enumerate(tree):
            for number, ids in enumerate(paragraph):
                tokens[row, place, number, : len(ids)] = ids
                lengths[row, place, number] = len(ids)
    merged = tuple(range(1, 1 + DEEPEST - depth))
    return DocumentBatch(
        torch.from_numpy(tokens.squeeze(merged)),
        torch.from_numpy(lengths.squeeze(merged)),
        None,
        torch.tensor([document.label for document in documents]),
        np.arange(len(documents)) if indices is None else indices,
    )


def segmented(
    documents: Sequence[StoredDocument], most: int, symbols: Symbols, indices: Array | None = None
) -> DocumentBatch:
    """Documents as BERT reads them: ``[CLS] paragraph 1 [SEP] all others [SEP]``, segments 0 and 1.

    What is too long is cut: of two parts the longer one, subword by subword, until both fit (Devlin et al. 2019, A.2
    cuts at random places; this is a function of the document).

    Args:
        documents: at least one.
        most: tokens of a row, special ones included.
        symbols: [CLS], [SEP] and what fills up.
        indices: which documents these are; counted by default.
    """
    rows = [_row(document.parts, most, symbols) for document in documents]
    width = max(len(ids) for ids, _ in rows)
    tokens = np.full((len(rows), width), symbols.pad, np.int64)
    segments = np.zeros_like(tokens)
    for row, (ids, first) in enumerate(rows):
        tokens[row, : len(ids)] = ids
        segments[row, first : len(ids)] = 1
    return DocumentBatch(
        torch.from_numpy(tokens),
        torch.tensor([len(ids) for ids, _ in rows]),
        torch.from_numpy(segments),
        torch.tensor([document.label for document in documents]),
        np.arange(len(documents)) if indices is None else indices,
    )


def _row(parts: Parts, most: int, symbols: Symbols) -> tuple[list[int], int]:
    """The ids, and where the second segment begins."""
    sides = [[token for ids in paragraph for token in ids] for paragraph in parts[:1]]
    rest = [token for paragraph in parts[1:] for ids in paragraph for token in ids]
    first, second = (sides or [[]])[0], rest
    room = most - (3 if second else 2)
    share = min(len(second), max(room // 2, room - len(first)))  # of the second part, which then has the rest
    first = first[: room - share]
    row = [symbols.first, *first, symbols.end]
    return row + ([*second[:share], symbols.end] if second else []), len(row)


class DocumentStream:
    """The batches of a store, epoch after epoch; of documents of nearly equal lengths, as `BatchStream` chooses them.

    Args:
        store: the documents.
        batch_tokens: subwords of a batch, rows times the longest.
        seed: chooses the order.
        collate: makes a batch of documents and their places in the store.
        position: epoch and place in it of the first batch to be taken.

    Raises:
        InputError: the store is empty, or the epoch has no batch at that position.
    """

    def __init__(
        self,
        store: ParallelStore,
        batch_tokens: int,
        seed: int,
        collate: Callable[[list[StoredDocument], Array], DocumentBatch],
        position: tuple[int, int] = (0, 0),
    ) -> None:
        self._store, self._collate = store, collate
        self._order = BatchStream(  # of its batches the indices alone are read
            store, batch_tokens, seed, pad_id=0, bos_id=0, eos_id=0, position=position
        )

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and place of the next batch."""
        return self._order.position

    @property
    def batches_in_epoch(self) -> int:
        """How many batches the current epoch has."""
        return self._order.batches_in_epoch

    def take(self) -> DocumentBatch:
        """The next batch."""
        indices = self._order.take().indices
        return self._collate(documents_of(self._store, indices), indices)


def documents_of(store: ParallelStore, indices: Array) -> list[StoredDocument]:
    """Documents of a store, in the order of ``indices``."""
    return [document_of(store.source[index].tolist(), store.target[index].tolist()) for index in indices.tolist()]
