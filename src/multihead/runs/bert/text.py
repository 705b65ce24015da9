"""Store the text of BERT pre-training: subwords and documents.

    FOLDER/data/tokenizer.json    the subwords, learned from what is not held out
    FOLDER/data/train/            a `DocumentStore`
    FOLDER/data/valid/            a `DocumentStore` of the held-out documents, or of a validation text

Which documents are held out depends on the seed alone. How documents become rows is in `data.bert.sentence_pairs`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from multihead.data.bert.documents import Document, DocumentStore, read_documents, write_documents
from multihead.data.bert.sentence_pairs import longest_sentence
from multihead.data.corpus import Report
from multihead.data.text_files import scan
from multihead.errors import ConfigurationError, DataError
from multihead.planning.settings import Choices
from multihead.preparing.corpora import file_record
from multihead.runs.bert.settings import (
    FEWEST_DOCUMENTS,
    PretrainSettings,
    PretrainText,
    choose_rows,
    choose_vocabulary,
)
from multihead.text.bert_words import BERT_SPECIALS, SUBWORDS, BpeWords
from multihead.text.tokenizer import Tokenizer
from multihead.training.context import RunContext
from multihead.work_folder import open_work

_SAMPLE = 1_000_000
"""Sentences that a vocabulary is learned from; more take longer and change little."""
_MAX_HELD_OUT = 500
"""Documents held out at most, unless the user asks for more."""


@dataclass(frozen=True)
class StoredText:
    """What pre-training reads."""

    words: BpeWords
    train: DocumentStore
    valid: DocumentStore


def open_text(folder: Path) -> StoredText:
    """Open what `store_text` wrote in a run folder.

    Raises:
        FormatError: a file is missing or damaged.
    """
    with open_work(folder) as opened:
        data = opened.part("data")
        words = BpeWords(Tokenizer.read(data, SUBWORDS))
        train, valid = (DocumentStore.open(data.part(name)) for name in ("train", "valid"))
        for name, store in (("train", train), ("valid", valid)):
            store.sentences.check_ids(len(words), data.path / name / "sentences")
        return StoredText(words, train, valid)


def store_text(settings: PretrainSettings, folder: Path, choices: Choices, context: RunContext) -> PretrainText:
    """Store the text that ``settings`` name in ``folder``.

    Returns:
        What was decided about it.

    Raises:
        ConfigurationError: no text is named, or a setting is out of range.
        DataError: a file cannot be read, or nothing would be left to learn from.
        Interrupted: ``context.stop_signal`` returned a signal.
    """
    if settings.text is None:
        raise ConfigurationError("the text is not named: text missing (--text FILE)")
    found, valid = scan(settings.text), None if settings.valid_text is None else scan(settings.valid_text)
    source = _Source(found.path, 1 if settings.seed is None else settings.seed)
    held_out = 0 if valid is not None else source.hold_out(choices)
    sentences = source.sentences
    learning, validating = source.learning, source.validating if valid is None else _count(valid.path)
    max_tokens, paired, whole_words = choose_rows(choices, source.documents, sentences, min(learning, validating))
    if paired:
        _require_pairs(learning, "to learn from", found.path)
        _require_pairs(validating, "to validate on", found.path if valid is None else valid.path)
    data, longest = folder / "data", longest_sentence(max_tokens, paired=paired)
    if longest < 1:
        raise ConfigurationError(f"max_tokens is {max_tokens}: no word has room beside the symbols; expected more")
    size = choose_vocabulary(choices, sentences)
    context.say(f"learning a vocabulary of {size:,} subwords from {sentences:,} sentences")
    texts = chain.from_iterable(document.sentences for document in source.read(Report(), validating=False))
    words = BpeWords(Tokenizer.learn(islice(texts, _SAMPLE), size, specials=BERT_SPECIALS))
    data.mkdir()
    words.save(data)
    report = Report()

    def store(name: str, documents: Iterator[Document]) -> None:
        write_documents(data / name, context.until_stopped(documents), words.encode, len(words), longest)

    store("train", source.read(report, validating=False))
    store("valid", source.read(Report(), validating=True) if valid is None else read_documents(valid.path, report))
    if (faults := report.lines_left_out()) is not None:
        context.say(faults)
    return PretrainText(
        text=file_record(found),
        valid=None if valid is None else file_record(valid),
        documents=source.documents,
        sentences=sentences,
        held_out=held_out,
        left_out=report.left_out,
        vocab_size=len(words),
        max_tokens=max_tokens,
        next_sentence=paired,
        whole_words=whole_words,
    )


def _count(path: Path) -> int:
    """The documents of a file, as far as it matters how many there are."""
    return sum(1 for _ in islice(read_documents(path, Report()), FEWEST_DOCUMENTS))


def _require_pairs(documents: int, purpose: str, path: Path) -> None:
    """Check that pairs of passages can be made.

    Raises:
        DataError: there are too few documents.
    """
    if documents < FEWEST_DOCUMENTS:
        raise DataError(
            f"only one document {purpose}, so no sentence can be drawn from another one: put empty lines between "
            "documents, hold out another number of them (held_out), or learn without pairs (--no-next-sentence)",
            path,
        )


class _Source:
    """The documents of a file, some of them held out; of a single document, its last sentences are.

    Args:
        path: the file; read once here, and again for every `read`.
        seed: decides which documents are held out.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        sizes = [len(document.sentences) for document in read_documents(path, Report())]
        self.documents, self.sentences = len(sizes), sum(sizes)
        self._held: frozenset[int] = frozenset()
        self._tail = 0

    @property
    def learning(self) -> int:
        """The number of documents that are not held out."""
        return self.documents - len(self._held)

    @property
    def validating(self) -> int:
        """The number of documents that are held out, or are the end of one."""
        return len(self._held) or min(self._tail, 1)

    def hold_out(self, choices: Choices) -> int:
        """Decide what validates: a number of documents, or of sentences of a single document.

        Raises:
            DataError: nothing would be left to learn from.
        """
        single = self.documents == 1
        unit, total = ("sentences", self.sentences) if single else ("documents", self.documents)
        usual = min(max(total // 50, 1 if total < 4 else 2), _MAX_HELD_OUT)
        count = choices.take(
            "held_out", lambda: (usual, f"no valid_text: {usual:,} of {total:,} {unit} are kept apart")
        )
        if count >= total:
            raise DataError(
                f"{total:,} {unit}, and {count:,} would be held out for validation: nothing would be left to learn "
                "from. Give more text, a valid_text, or a smaller held_out",
                self._path,
            )
        if single:
            self._tail = count
        else:
            self._held = frozenset(random.Random(self._seed).sample(range(total), count))
        return count

    def read(self, report: Report, *, validating: bool) -> Iterator[Document]:
        """The held-out documents, or all others."""
        for number, document in enumerate(read_documents(self._path, report)):
            if self._tail:
                part = slice(-self._tail, None) if validating else slice(None, -self._tail)
                yield Document(document.sentences[part], document.lines[part])
            elif (number in self._held) is validating:
                yield document
