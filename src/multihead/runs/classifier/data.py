"""Read labeled documents and store them, with a part held out.

    FOLDER/data/words/     the vocabulary
    FOLDER/data/train/     a `ParallelStore`, each document with its parts (`data.nested`)
    FOLDER/data/valid/     a `ParallelStore` of the validation documents

Documents with equal texts go to the same part, so that no validation text is trained on. A whole file is held in memory
meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from multihead.data.labeled import LabeledDocument, check_labels, labels_of, read_labeled
from multihead.data.nested import encode_parts, flatten_document
from multihead.data.store import ParallelStore
from multihead.data.store_writers import ParallelWriter
from multihead.errors import ConfigurationError, DataError
from multihead.runs.classifier.settings import ClassifyData, ClassifySettings, DocumentFormat, choose_vocabulary
from multihead.text.bert_words import BERT_SPECIALS, BertWords, BpeWords
from multihead.text.sentences import PARAGRAPH, split_at_marks, split_paragraphs, split_sentences
from multihead.text.tokenizer import Tokenizer

_CHUNK = 1_000
"""Documents encoded at a time."""
LARGEST = 1 << 31
"""Upper bound of the numbers that encode the shape of a document."""


@dataclass(frozen=True)
class DocumentSplit:
    """Training and validation documents."""

    train: list[LabeledDocument]
    valid: list[LabeledDocument]
    labels: tuple[str, ...]
    data: ClassifyData

    @property
    def paragraphs(self) -> bool:
        """Whether a training document has several paragraphs."""
        return any(PARAGRAPH in document.text for document in self.train)


def read_split(settings: ClassifySettings, seed: int) -> DocumentSplit:
    """Read the files; hold a part out if there is no validation file.

    Raises:
        ConfigurationError: no file is named, or two settings exclude each other.
        DataError: a line is invalid; the message names it.
    """
    if settings.data is None:
        raise ConfigurationError("the documents are not named: data missing (--data FILE, label TAB text on each line)")
    if settings.valid is not None and settings.held_out is not None:
        raise ConfigurationError("held_out and valid exclude each other: documents are held out where there is no file")
    documents = read_labeled(settings.data)
    labels = labels_of(documents, settings.data)
    if settings.valid is None:
        train, valid = hold_out(documents, settings.held_out or min(max(len(documents) // 10, 1), 1000), seed)
    else:
        train, valid = documents, read_labeled(settings.valid)
        check_labels(valid, labels, settings.valid)
    path = None if settings.valid is None else str(settings.valid)
    counted = {"documents": len(train), "held_out": len(valid)}
    return DocumentSplit(train, valid, labels, ClassifyData(path=str(settings.data), valid=path, **counted))


def hold_out(
    documents: Sequence[LabeledDocument], count: int, seed: int
) -> tuple[list[LabeledDocument], list[LabeledDocument]]:
    """Split documents into training documents and those of ``count`` randomly drawn texts, in their original order.

    For every label at least one document stays in the training part.

    Raises:
        ConfigurationError: there are not enough texts.
    """
    by_text: dict[str, list[LabeledDocument]] = {}
    for document in documents:
        by_text.setdefault(document.text, []).append(document)
    left, texts = Counter(document.label for document in documents), sorted(by_text)
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(3,))))
    held: set[str] = set()
    for place in random.permutation(len(texts)).tolist():
        own = Counter(document.label for document in by_text[texts[place]])
        if len(held) < count and all(left[label] > number for label, number in own.items()):
            held.add(texts[place])
            left -= own
    if len(held) < count:
        raise ConfigurationError(
            f"held_out is {count}, but at most {len(held)} of {len(texts)} different texts can be held out, since a "
            "document of each label has to be left to learn from; hold out fewer, or name a file to validate on (valid)"
        )
    return [d for d in documents if d.text not in held], [d for d in documents if d.text in held]


def learn_words(settings: ClassifySettings, documents: Sequence[LabeledDocument]) -> BpeWords:
    """Learn subwords from the training documents."""
    lines = (paragraph for document in documents for paragraph in document.text.split(PARAGRAPH))
    size = choose_vocabulary(settings, len(documents))
    return BpeWords(Tokenizer.learn(lines, size, specials=BERT_SPECIALS))


def write_store(
    path: Path, documents: Sequence[LabeledDocument], reading: DocumentFormat, words: BertWords, file: str
) -> ParallelStore:
    """Encode documents into a store, which is written atomically.

    Args:
        path: the store.
        documents: documents of one file.
        reading: how texts are segmented, and the classes.
        words: the vocabulary.
        file: the name of the file, for messages.

    Raises:
        DataError: a document has no words; the message names its line.
    """
    indices = {label: index for index, label in enumerate(reading.labels)}
    with ParallelWriter(path, len(words), LARGEST) as writer:
        for start in range(0, len(documents), _CHUNK):
            chunk = documents[start : start + _CHUNK]
            rows = []
            for document, parts in zip(chunk, parts_of([d.text for d in chunk], reading, words), strict=True):
                if not parts:
                    raise DataError("the text has no words; write some, or remove the line", file, document.line)
                rows.append(flatten_document(indices[document.label], parts))
            sources, shapes = zip(*rows, strict=True)
            writer.append(sources, shapes, [document.line for document in chunk])
    return ParallelStore.open(path)


def parts_of(texts: Sequence[str], reading: DocumentFormat, words: BertWords) -> list[list[list[list[int]]]]:
    """For each text the subword ids, as paragraphs of sentences."""
    split = _splitter(reading)
    return [encode_parts(split_paragraphs(text, split), words, reading.max_words) for text in texts]


def _splitter(reading: DocumentFormat) -> Callable[[str], Iterable[str]]:
    """What splits a paragraph into sentences."""
    if reading.separator is not None:
        return lambda paragraph: paragraph.split(reading.separator)
    if reading.language is None:
        return split_at_marks
    return partial(split_sentences, language=reading.language)
