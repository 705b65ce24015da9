"""Read plain text as documents, and store their ids.

Text has one sentence per line and an empty line between documents. It is stored as

    FOLDER/sentences    a `TokenStore`: the ids of all sentences, in the order of the documents
    FOLDER/documents    a `TokenStore`: for each document, the line (from 1) of each of its sentences

so a document has as many sentences as its row in ``documents`` has numbers, and logs can name its lines. Rows for
training are composed by `sentence_pairs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multihead.data.corpus import Report, decoded_lines
from multihead.data.order import Array
from multihead.data.store import TokenStore
from multihead.data.store_writers import TokenStoreWriter
from multihead.errors import DataError, FormatError
from multihead.sealed import OpenFolder

_CHUNK = 1000
"""Number of documents that are encoded together."""


class Document(NamedTuple):
    """The sentences of a document, and the line (from 1) of each."""

    sentences: tuple[str, ...]
    lines: tuple[int, ...]


def read_documents(path: str | Path, report: Report) -> Iterator[Document]:
    """The documents of a plain or compressed file.

    Documents are separated by one or more lines of white space. Lines that are not UTF-8 are left out and reported.

    Raises:
        DataError: the file cannot be read, or has no sentence.
    """
    sentences: list[tuple[str, int]] = []
    any_document = False
    for number, text in decoded_lines(path, report):
        if text.strip():
            sentences.append((text, number))
        elif sentences:
            yield _document(sentences)
            sentences, any_document = [], True
    if sentences:
        yield _document(sentences)
    elif not any_document:
        raise DataError("no sentence in it; expected text, a sentence a line and an empty line between documents", path)


def _document(sentences: Sequence[tuple[str, int]]) -> Document:
    texts, lines = zip(*sentences, strict=True)
    return Document(texts, lines)


@dataclass(frozen=True, eq=False)
class DocumentStore:
    """Sentences as ids, grouped into documents.

    Attributes:
        sentences: the ids of all sentences, in the order of the documents.
        lines: for each document, the line of each sentence.
        bounds: document d has the sentences from ``bounds[d]`` to ``bounds[d + 1]`` (exclusive).
    """

    sentences: TokenStore
    lines: TokenStore
    bounds: Array

    @classmethod
    def of(cls, sentences: TokenStore, lines: TokenStore) -> DocumentStore:
        """The store of matching sentences and lines.

        Raises:
            FormatError: they do not belong to the same text.
        """
        bounds = np.concatenate(([0], np.cumsum(lines.lengths, dtype=np.int64)))
        if bounds[-1] != len(sentences):
            raise FormatError(
                f"{len(sentences)} sentences are stored, but the documents have {bounds[-1]}; delete the folder and "
                "make it again from the corpus"
            )
        return cls(sentences, lines, bounds)

    @classmethod
    def from_lists(cls, documents: Sequence[Sequence[Sequence[int]]]) -> DocumentStore:
        """A store in memory; lines are numbered from 1, with one empty line between documents."""
        lines, number = [], 1
        for document in documents:
            lines.append(list(range(number, number + len(document))))
            number += len(document) + 1
        return cls.of(
            TokenStore.from_lists([sentence for document in documents for sentence in document]),
            TokenStore.from_lists(lines),
        )

    @classmethod
    def open(cls, path: Path | OpenFolder) -> DocumentStore:
        """Map a store written by `write_documents` into memory.

        Raises:
            FormatError: there is no store, or it is damaged.
        """
        if isinstance(path, OpenFolder):
            return cls.of(TokenStore.open(path.part("sentences")), TokenStore.open(path.part("documents")))
        return cls.of(TokenStore.open(path / "sentences"), TokenStore.open(path / "documents"))

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lines)

    def lines_of(self, sentences: Array) -> list[int]:
        """The line numbers of these sentences, sorted."""
        documents = np.searchsorted(self.bounds, sentences, side="right") - 1
        places = zip(documents.tolist(), (sentences - self.bounds[documents]).tolist(), strict=True)
        return sorted({int(self.lines[document][place]) for document, place in places})


def write_documents(
    path: Path,
    documents: Iterable[Document],
    encode: Callable[[Sequence[str]], list[list[int]]],
    vocab_size: int,
    longest: int,
) -> DocumentStore:
    """Write a store; a sentence of more than ``longest`` ids is split into several.

    Args:
        path: a folder that does not exist.
        documents: iterated once.
        encode: turns texts into ids.
        vocab_size: size of the vocabulary.
        longest: maximum number of ids per stored sentence.

    Raises:
        FormatError: the folder exists.
        SurroundingsError: as `TokenStoreWriter`.
    """
    with (
        TokenStoreWriter(path / "sentences", vocab_size) as sentences,
        TokenStoreWriter(path / "documents", 1 << 32) as lines,
    ):
        for chunk in _chunks(documents):
            encoded = iter(encode([text for document in chunk for text in document.sentences]))
            for document in chunk:
                rows, places = [], []
                for line in document.lines:
                    ids = next(encoded)
                    parts = [ids[start : start + longest] for start in range(0, len(ids), longest)]
                    rows += parts
                    places += [line] * len(parts)
                if rows:  # a vocabulary may have no ids for a sentence of odd characters
                    sentences.append(rows)
                    lines.append([places])
    return DocumentStore.open(path)


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    for document in documents:
        chunk.append(document)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
