"""Plain text as documents: a sentence a line, an empty line between documents; and the store of their ids.

    FOLDER/sentences    a `TokenStore`: the ids of all sentences, document after document
    FOLDER/documents    a `TokenStore`: of each document the lines (from 1) on which its sentences stand, one a sentence

So a document is as many sentences as its row in the second has numbers, and a log can name its lines. How documents
become pairs and batches is for `data.bert.sentence_pairs` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multihead.data.corpus import Report
from multihead.data.order import Array
from multihead.data.store import TokenStore, TokenStoreWriter
from multihead.data.text_files import NOT_UTF8, open_text, place_in_line, split_lines
from multihead.errors import DataError, FormatError

_AT_ONCE = 1000
"""Documents that are encoded together."""


class Document(NamedTuple):
    """Sentences that belong together, and the line (from 1) of each."""

    sentences: tuple[str, ...]
    lines: tuple[int, ...]


def read_documents(path: str | Path, report: Report) -> Iterator[Document]:
    """The documents of a plain or compressed file; lines that are not UTF-8 are left out, and go to ``report``.

    A line of white space separates; several in a row do so once.

    Raises:
        DataError: the file cannot be read (`open_text`, `split_lines`), or holds no sentence.
    """
    sentences: list[tuple[str, int]] = []
    any_yet = False
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                report.add(path, number, NOT_UTF8, place_in_line(error))
                continue
            if text.strip():
                sentences.append((text, number))
            elif sentences:
                yield _document(sentences)
                sentences, any_yet = [], True
    if sentences:
        yield _document(sentences)
    elif not any_yet:
        raise DataError("no sentence in it; expected text, a sentence a line and an empty line between documents", path)


def _document(sentences: Sequence[tuple[str, int]]) -> Document:
    texts, lines = zip(*sentences, strict=True)
    return Document(texts, lines)


@dataclass(frozen=True, eq=False)
class DocumentStore:
    """Sentences as ids, and which of them are a document.

    Attributes:
        sentences: their ids, document after document.
        lines: of each document, the line of each sentence.
        bounds: documents d has the sentences ``bounds[d]`` up to (not including) ``bounds[d + 1]``.
    """

    sentences: TokenStore
    lines: TokenStore
    bounds: Array

    @classmethod
    def of(cls, sentences: TokenStore, lines: TokenStore) -> DocumentStore:
        """Joins the two.

        Raises:
            FormatError: they are not of the same text.
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
        """Documents of sentences of ids, that live in memory; lines are counted from 1, one between documents."""
        lines, number = [], 1
        for document in documents:
            lines.append(list(range(number, number + len(document))))
            number += len(document) + 1
        return cls.of(
            TokenStore.from_lists([sentence for document in documents for sentence in document]),
            TokenStore.from_lists(lines),
        )

    @classmethod
    def open(cls, path: Path) -> DocumentStore:
        """Maps what `write_documents` wrote into memory.

        Raises:
            FormatError: it is not there, or damaged.
            SurroundingsError: its files may not be read.
        """
        return cls.of(TokenStore.open(path / "sentences"), TokenStore.open(path / "documents"))

    def __len__(self) -> int:
        """Documents."""
        return len(self.lines)

    def lines_of(self, sentences: Array) -> list[int]:
        """The lines on which these sentences stand."""
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
    """Writes a store; a sentence of more than ``longest`` ids becomes several, one behind the other.

    Args:
        path: a folder that does not exist.
        documents: read once.
        encode: texts to ids.
        vocab_size: entries of the vocabulary.
        longest: the most ids that a sentence may have in a row.

    Raises:
        FormatError, SurroundingsError: as `TokenStoreWriter`.
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
                if rows:  # a vocabulary may see nothing in a sentence of odd characters
                    sentences.append(rows)
                    lines.append([places])
    return DocumentStore.open(path)


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    for document in documents:
        chunk.append(document)
        if len(chunk) == _AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
