"""Documents as nested ids: storage, and batches padded at every level.

A document is stored as a pair of a `ParallelStore`. Its source is the concatenated subwords; its target holds the
structure:

    label, P, sentences of paragraph 1 .. P, subwords of sentence 1 .. S

So one store serves networks of any depth: of depth 3 (words, sentences, paragraphs), of depth 2, where the sentences of
all paragraphs are concatenated, and of depth 1, where there are only words. In a batch of depth d the tokens have the
axes [batch, d - 1 levels, words], each padded on the right; ``lengths`` has the number of subwords of each sentence, 0
for padding. Documents are grouped and ordered like sentence pairs (`BatchStream`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from multihead.data.batching import CollatedStream
from multihead.data.order import Array
from multihead.data.store import MAKE_AGAIN, ParallelStore, TokenStore
from multihead.errors import FormatError
from multihead.text.bert_words import HIDDEN, BertWords, Symbols

MAX_DEPTH = 3
"""Levels of a stored document: words, sentences, paragraphs."""

Parts = list[list[list[int]]]
"""The subwords of each sentence of each paragraph."""


def encode_parts(paragraphs: Sequence[Sequence[str]], words: BertWords, most: int) -> Parts:
    """The subwords of each sentence. Longer sentences are split, between words if possible.

    "[MASK]" in a text becomes the symbol of a hidden word.

    Args:
        paragraphs: the sentences of each paragraph, from `text.sentences.split_paragraphs`.
        words: the vocabulary.
        most: maximum number of subwords per sentence.
    """
    flat = [sentence for sentences in paragraphs for sentence in sentences]
    encoded = iter(
        words.encode_with_hidden(sentence) if HIDDEN in sentence else ids
        for sentence, ids in zip(flat, words.encode(flat), strict=True)
    )
    parts = [[cut for _ in sentences for cut in _split(next(encoded), words, most)] for sentences in paragraphs]
    return [sentences for sentences in parts if sentences]


def _split(ids: list[int], words: BertWords, most: int) -> list[list[int]]:
    """Split ids at the last word boundary that fits; a word that is too long is itself cut."""
    pieces = []
    while len(ids) > most:
        begins = words.begins_word[ids[1 : most + 1]].nonzero()[0]
        end = int(begins[-1]) + 1 if len(begins) else most
        pieces.append(ids[:end])
        ids = ids[end:]
    return [*pieces, ids] if ids else pieces


def flatten_document(label: int, parts: Parts) -> tuple[list[int], list[int]]:
    """Source and target of a document in a `ParallelStore`; `restore_document` is the inverse."""
    sentences = [sentence for paragraph in parts for sentence in paragraph]
    shape = [label, len(parts), *map(len, parts), *map(len, sentences)]
    return [token for sentence in sentences for token in sentence], shape


class StoredDocument(NamedTuple):
    """A document of a store."""

    label: int
    parts: Parts


def restore_document(source: Sequence[int], target: Sequence[int]) -> StoredDocument:
    """The document of a source and target from `flatten_document`.

    Raises:
        FormatError: the target does not describe the source.
    """
    label, count, *rest = target if len(target) > 1 else (0, 0, 0)
    sizes, lengths = rest[:count], rest[count:]
    if len(sizes) != count or sum(sizes) != len(lengths) or sum(lengths) != len(source):
        raise FormatError(f"a stored document has {len(source)} subwords, and others are described; {MAKE_AGAIN}")
    ends = np.cumsum(lengths).tolist()
    sentences = [list(source[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    places = [0, *np.cumsum(sizes).tolist()]
    return StoredDocument(label, [sentences[start:stop] for start, stop in pairwise(places)])


def check_classes(store: ParallelStore, classes: int, path: Path) -> None:
    """Check that a network has the class of every stored document.

    Args:
        store: documents.
        classes: number of classes.
        path: the folder of the store, for the message.

    Raises:
        FormatError: a document is of none of them.
    """
    largest = int(store.target.ids_at(0).max(initial=0))
    if largest >= classes:
        raise FormatError(
            f"{path / 'target'}: a document of class {largest:,}, but the {classes:,} classes are counted from 0; "
            f"{MAKE_AGAIN}"
        )


@dataclass(frozen=True, eq=False)
class DocumentBatch:
    """Documents as tensors, padded on the right at each level (`training.splitting.Examples`).

    Attributes:
        tokens: ids, [batch, words], [batch, sentences, words] or [batch, paragraphs, sentences, words].
        lengths: number of subwords of each sentence; 0 for padding.
        segments: the segment of each token, for a BERT; None for other networks.
        labels: the class of each document.
        indices: the documents of the store in this batch.
    """

    tokens: Int64[Tensor, "batch ..."]
    lengths: Int64[Tensor, "batch ..."]
    segments: Int64[Tensor, "batch time"] | None
    labels: Int64[Tensor, " batch"]
    indices: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def encoder_inputs(self) -> tuple[Tensor, ...]:
        """The arguments of the network."""
        return (self.tokens, self.lengths) if self.segments is None else (self.tokens, self.lengths, self.segments)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of the network's ``loss``: those of the network, and the labels."""
        return *self.encoder_inputs, self.labels

    @property
    def target_tokens(self) -> int:
        """Number of predictions: one label for each document."""
        return len(self)

    @property
    def source_tokens(self) -> int:
        """Number of subwords without padding."""
        return int(self.lengths.sum())

    @property
    def cells(self) -> int:
        """Number of tokens, padding included."""
        return self.tokens.numel()

    def part(self, start: int, stop: int) -> DocumentBatch:
        """The rows from ``start`` to ``stop``, without what is padding in all of them."""
        rows = slice(start, stop)
        present = self.lengths[rows] > 0
        # On each axis between documents and words, how far any of the documents extends.
        widths = [int(present.movedim(axis, 0).flatten(1).any(1).sum()) for axis in range(1, present.dim())]
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


def collate_nested(
    documents: Sequence[StoredDocument], depth: int, padding_id: int, indices: Array | None = None
) -> DocumentBatch:
    """A batch of documents with ``depth`` levels; the levels above are concatenated.

    Args:
        documents: at least one.
        depth: 1 = words; 2 = words and sentences; 3 = words, sentences and paragraphs.
        padding_id: the padding symbol.
        indices: the places of the documents in the store; by default 0, 1, ...
    """
    if depth == MAX_DEPTH:
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
    merged = tuple(range(1, 1 + MAX_DEPTH - depth))
    return DocumentBatch(
        torch.from_numpy(tokens.squeeze(merged)),
        torch.from_numpy(lengths.squeeze(merged)),
        None,
        torch.tensor([document.label for document in documents]),
        np.arange(len(documents)) if indices is None else indices,
    )


def collate_segmented(
    documents: Sequence[StoredDocument], most: int, symbols: Symbols, indices: Array | None = None, kinds: int = 2
) -> DocumentBatch:
    """A batch of documents for a BERT: ``[CLS] paragraph 1 [SEP] other paragraphs [SEP]``, segments 0 and 1.

    The longer of the two parts is truncated, subword by subword, until both fit (Devlin et al. 2019, A.2, cut at random
    places; here the cut depends on the document only).

    Args:
        documents: at least one.
        most: maximum number of tokens per row, including special symbols.
        symbols: the ids of [CLS], [SEP] and padding.
        indices: the places of the documents in the store; by default 0, 1, ...
        kinds: number of segments that the network tells apart; with one, both parts are segment 0.
    """
    rows = [_row(document.parts, most, symbols) for document in documents]
    width = max(len(ids) for ids, _ in rows)
    tokens = np.full((len(rows), width), symbols.pad, np.int64)
    segments = np.zeros_like(tokens)
    for row, (ids, first) in enumerate(rows):
        tokens[row, : len(ids)] = ids
        segments[row, first : len(ids)] = min(1, kinds - 1)
    return DocumentBatch(
        torch.from_numpy(tokens),
        torch.tensor([len(ids) for ids, _ in rows]),
        torch.from_numpy(segments),
        torch.tensor([document.label for document in documents]),
        np.arange(len(documents)) if indices is None else indices,
    )


def lengths_read(store: ParallelStore, most: int) -> Array:
    """The number of subwords of each stored document that `collate_segmented` puts into a row of ``most`` tokens."""
    symbols = np.where(store.target.ids_at(1) > 1, 3, 2)  # of several paragraphs, or of one
    return np.asarray(np.minimum(store.source.lengths, most - symbols), np.int64)


def _row(parts: Parts, most: int, symbols: Symbols) -> tuple[list[int], int]:
    """The ids of a row, and the place where its second segment begins."""
    sides = [[token for ids in paragraph for token in ids] for paragraph in parts[:1]]
    rest = [token for paragraph in parts[1:] for ids in paragraph for token in ids]
    first, second = (sides or [[]])[0], rest
    room = most - (3 if second else 2)
    share = min(len(second), max(room // 2, room - len(first)))  # of the second part
    first = first[: room - share]
    row = [symbols.first, *first, symbols.end]
    return row + ([*second[:share], symbols.end] if second else []), len(row)


class DocumentStream(CollatedStream[DocumentBatch]):
    """The endless stream of batches of documents.

    Args:
        store: the documents.
        batch_tokens: maximum size of a batch: rows times the number of subwords of the longest document.
        seed: chooses the order.
        collate: builds a batch from documents and their places in the store.
        position: epoch and index within the epoch of the first batch.
        most: maximum number of tokens of a row, if the rest of a document is not read (`collate_segmented`).

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
        most: int | None = None,
    ) -> None:
        ordered = store if most is None else _as_read(store, most)
        super().__init__(
            ordered, batch_tokens, seed, lambda indices: collate(read_documents(store, indices), indices), position
        )


def _as_read(store: ParallelStore, most: int) -> ParallelStore:
    """The lengths by which documents are ordered if no more than ``most`` tokens of each are read."""
    source, target = lengths_read(store, most), np.minimum(store.target.lengths, most)
    return ParallelStore(TokenStore.of_lengths(source), TokenStore.of_lengths(target), store.lines)


def read_documents(store: ParallelStore, indices: Array) -> list[StoredDocument]:
    """The documents of a store at ``indices``, in this order."""
    return [restore_document(store.source[index].tolist(), store.target[index].tolist()) for index in indices.tolist()]
