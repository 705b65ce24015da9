"""Store the text of a language model: subwords and windows of tokens.

    FOLDER/data/tokenizer.json    the subwords, learned from what is not held out
    FOLDER/data/train/            a `ParallelStore` of windows (`data.texts`)
    FOLDER/data/valid/            the same of held-out lines, or of a validation text

Which lines are held out depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from multihead.data.corpus import Report
from multihead.data.store import ParallelStore
from multihead.data.text_files import scan
from multihead.data.texts import Text, read_texts, write_windows
from multihead.errors import ConfigurationError, DataError
from multihead.files import write_errors
from multihead.planning.choices import choose_vocabulary
from multihead.planning.settings import Choices, TrainSettings
from multihead.preparing.corpora import file_record
from multihead.preparing.subwords import SAMPLE_CHARACTERS, choose_merging
from multihead.runs.language_model.settings import LanguageModelText, choose_size
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import learn_with_symbols
from multihead.training.context import RunContext
from multihead.work_folder import open_work

TOKENIZER = "tokenizer.json"

_SAMPLE = 1_000_000
"""Lines that a vocabulary is learned from; more take longer and change little."""
_MAX_HELD_OUT = 2_000
"""Lines held out at most, unless the user asks for more."""


@dataclass(frozen=True)
class StoredText:
    """What training reads."""

    tokenizer: Tokenizer
    train: ParallelStore
    valid: ParallelStore


def open_text(folder: Path) -> StoredText:
    """Open what `store_text` wrote in a run folder.

    Raises:
        FormatError: a file is missing or damaged.
    """
    with open_work(folder) as opened:
        data = opened.part("data")
        tokenizer = Tokenizer.read(data, TOKENIZER)
        train, valid = (ParallelStore.open(data.part(name)) for name in ("train", "valid"))
        for name, store in (("train", train), ("valid", valid)):
            store.check_ids(len(tokenizer), 1, data.path / name)
        return StoredText(tokenizer, train, valid)


def store_text(settings: TrainSettings, folder: Path, choices: Choices, context: RunContext) -> LanguageModelText:
    """Store the text that ``settings`` name in ``folder``.

    Returns:
        What was decided about it.

    Raises:
        ConfigurationError: no text is named, or a setting is out of range.
        DataError: a file cannot be read, or nothing would be left to learn from.
        Interrupted: ``context.stop_signal`` returned a signal.
    """
    if settings.target is None:
        raise ConfigurationError("the text is not named: target missing (--target FILE)")
    found, valid = scan(settings.target), None if settings.valid_target is None else scan(settings.valid_target)
    report = Report()
    total = sum(1 for _ in read_texts(found.path, report))
    if not total:
        raise DataError("no text in it: every line is empty", found.path)
    held = frozenset[int]()
    if valid is None:
        held = _hold_out(choices, found.path, total, 1 if settings.seed is None else settings.seed)
    size = choose_size(choices)
    tokenizer = _learn(choices, _part(found.path, held, validating=False), total - len(held), context.say)
    data = folder / "data"
    with write_errors(data):
        data.mkdir()
    tokenizer.save(data / TOKENIZER)

    def store(name: str, texts: Iterable[Text]) -> ParallelStore:
        return write_windows(data / name, context.until_stopped(texts), tokenizer, size)

    train = store("train", _part(found.path, held, validating=False))
    counted = _Counted(_part(found.path, held, validating=True) if valid is None else read_texts(valid.path, report))
    store("valid", counted)
    if not counted.texts:
        raise DataError("no text in it: every line is empty", settings.valid_target)
    if (faults := report.lines_left_out()) is not None:
        context.say(faults)
    return LanguageModelText(
        text=file_record(found),
        valid=None if valid is None else file_record(valid),
        texts=total - len(held),
        tokens=train.source.tokens(0, len(train)) - len(train),
        held_out=len(held),
        left_out=report.left_out,
        valid_texts=counted.texts,
        valid_characters=counted.characters,
        valid_bytes=counted.bytes,
        vocab_size=len(tokenizer),
        max_tokens=size,
    )


def _hold_out(choices: Choices, path: Path, total: int, seed: int) -> frozenset[int]:
    """Choose the lines that validate, by their numbers among all texts.

    Raises:
        DataError: nothing would be left to learn from.
    """
    usual = min(max(total // 50, 1), _MAX_HELD_OUT)
    count = choices.take("held_out", lambda: (usual, f"no valid_target: {usual:,} of {total:,} lines are kept apart"))
    if count >= total:
        raise DataError(
            f"lines with text: {total:,}, and {count:,} would be held out for validation: nothing would be left to "
            "learn from. Give more text, a valid_target, or a smaller held_out",
            path,
        )
    return frozenset(random.Random(seed).sample(range(total), count))


def _part(path: Path, held: frozenset[int], *, validating: bool) -> Iterator[Text]:
    """The held-out texts, or all others."""
    return (text for number, text in enumerate(read_texts(path, Report())) if (number in held) is validating)


def _learn(choices: Choices, texts: Iterator[Text], count: int, say: Callable[[str], None]) -> Tokenizer:
    size = choose_vocabulary(choices, count, "lines")
    options, specials, own = choose_merging(choices)
    say(f"learning a vocabulary of {size:,} subwords from {count:,} lines")
    return learn_with_symbols(_sample(texts), size, own, specials=specials, **options)


def _sample(texts: Iterator[Text]) -> Iterator[str]:
    """The texts to learn subwords from, as many as fit into memory."""
    room = SAMPLE_CHARACTERS
    for one in islice(texts, _SAMPLE):
        room -= len(one.text)
        yield one.text
        if room < 0:
            break


class _Counted:
    """Texts whose sizes are counted while they are read."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._texts = texts
        self.texts = self.characters = self.bytes = 0

    def __iter__(self) -> Iterator[Text]:
        for one in self._texts:
            self.texts += 1
            self.characters += len(one.text) + 1
            self.bytes += len(one.text.encode()) + 1
            yield one
