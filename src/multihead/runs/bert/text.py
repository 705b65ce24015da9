"""From a user's text to what pre-training reads: subwords, and the stored documents to learn from and to validate on.

    FOLDER/data/tokenizer.json    the subwords, learned from what is not held out
    FOLDER/data/train/            a `DocumentStore`
    FOLDER/data/valid/            the same, of the documents that are held out or of a text of their own

Which documents are held out depends on the seed alone. What the text is turned into later is
`data.bert.sentence_pairs`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from multihead.data.bert.documents import Document, DocumentStore, read_documents, write_documents
from multihead.data.bert.sentence_pairs import longest_sentence
from multihead.data.corpus import Report
from multihead.data.text_files import TextScan, scan
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.planning.settings import TextFile
from multihead.runs.bert.settings import PretrainSettings, PretrainText, Reasons, decide_rows, decide_vocabulary
from multihead.text.bert_words import BERT_SPECIALS, SUBWORDS, BpeWords
from multihead.text.tokenizer import Tokenizer

_SAMPLE = 1_000_000
"""Sentences that a vocabulary is learned from; more change nothing but the time."""
_HELD_OUT = 500
"""The most documents that are held out unless one asks for more."""


@dataclass(frozen=True)
class Stored:
    """What pre-training reads."""

    words: BpeWords
    train: DocumentStore
    valid: DocumentStore


def open_text(folder: Path) -> Stored:
    """What `write_text` left in a run's folder.

    Raises:
        FormatError: something is missing or damaged.
    """
    data = folder / "data"
    words = BpeWords(Tokenizer.load(data / SUBWORDS))
    return Stored(words, DocumentStore.open(data / "train"), DocumentStore.open(data / "valid"))


def write_text(
    settings: PretrainSettings,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    reasons: Reasons,
) -> PretrainText:
    """Stores the text that ``settings`` names in ``folder``, and says what was decided about it.

    Raises:
        ConfigurationError: no text is named, or a setting cannot be.
        DataError: a file cannot be read, or nothing would be left to learn from.
        Interrupted: ``stop_signal`` gave one.
    """
    if settings.text is None:
        raise ConfigurationError("the text is not named: text missing (--text FILE)")
    found, valid = scan(settings.text), None if settings.valid_text is None else scan(settings.valid_text)
    source = _Source(found.path, 1 if settings.seed is None else settings.seed)
    held_out = 0 if valid is not None else source.hold_out(settings, reasons)
    sentences = source.sentences
    max_tokens, paired, whole_words = decide_rows(settings, source.documents, sentences, reasons)
    data, longest = folder / "data", longest_sentence(max_tokens, paired=paired)
    if longest < 1:
        raise ConfigurationError(f"max_tokens is {max_tokens}: no word has room beside the symbols; expected more")
    size = decide_vocabulary(settings, sentences, reasons)
    say(f"learning a vocabulary of {size:,} subwords from {sentences:,} sentences")
    texts = chain.from_iterable(document.sentences for document in source.read(Report(), validating=False))
    words = BpeWords(Tokenizer.learn(islice(texts, _SAMPLE), size, specials=BERT_SPECIALS))
    data.mkdir()
    words.save(data)
    report = Report()

    def store(name: str, documents: Iterator[Document]) -> None:
        write_documents(data / name, _until(documents, stop_signal), words.encode, len(words), longest)

    store("train", source.read(report, validating=False))
    store("valid", source.read(Report(), validating=True) if valid is None else read_documents(valid.path, report))
    if report.left_out:
        first = report.faults[0]
        say(f"{first.path}:{first.line}: {first.reason} ({first.detail}); {report.left_out:,} such lines are left out")
    return PretrainText(
        text=_described(found),
        valid=None if valid is None else _described(valid),
        documents=source.documents,
        sentences=sentences,
        held_out=held_out,
        left_out=report.left_out,
        vocab_size=len(words),
        max_tokens=max_tokens,
        next_sentence=paired,
        whole_words=whole_words,
    )


class _Source:
    """The documents of a file, some of them held out; of a single document, its last sentences.

    Args:
        path: of the file; read once here, and as often as is asked for.
        seed: decides which are held out.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        sizes = [len(document.sentences) for document in read_documents(path, Report())]
        self.documents, self.sentences = len(sizes), sum(sizes)
        self._held: frozenset[int] = frozenset()
        self._tail = 0

    def hold_out(self, settings: PretrainSettings, reasons: Reasons) -> int:
        """Decides what validates: so many documents, or sentences of a single one.

        Raises:
            DataError: nothing would be left to learn from.
        """
        single = self.documents == 1
        things, total = ("sentences", self.sentences) if single else ("documents", self.documents)
        usual = min(max(total // 50, 1 if total < 4 else 2), _HELD_OUT)
        wanted = usual if settings.held_out is None else settings.held_out
        if wanted >= total:
            raise DataError(
                f"{total:,} {things}, and {wanted:,} would be held out for validation: nothing would be left to learn "
                "from. Give more text, a valid_text, or a smaller held_out",
                self._path,
            )
        why = f"no valid_text: {wanted:,} of {total:,} {things} are kept apart"
        reasons["held_out"] = why if settings.held_out is None else "as asked"
        if single:
            self._tail = wanted
        else:
            self._held = frozenset(random.Random(self._seed).sample(range(total), wanted))
        return wanted

    def read(self, report: Report, *, validating: bool) -> Iterator[Document]:
        """The documents to validate on, or the others."""
        for number, document in enumerate(read_documents(self._path, report)):
            if self._tail:
                part = slice(-self._tail, None) if validating else slice(None, -self._tail)
                yield Document(document.sentences[part], document.lines[part])
            elif (number in self._held) is validating:
                yield document


def _until(documents: Iterator[Document], stop_signal: Callable[[], int | None]) -> Iterator[Document]:
    for document in documents:
        if (number := stop_signal()) is not None:
            raise Interrupted(number, "stopped while the text was stored; the same command starts again")
        yield document


def _described(found: TextScan) -> TextFile:
    return TextFile(path=str(found.path), sha256=found.sha256, lines=found.lines)
