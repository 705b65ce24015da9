"""From a user's files to what training reads: subwords, stored token ids, validation text.

    FOLDER/data/source.tokenizer.json, target.tokenizer.json    (the same content where the vocabulary is shared)
    FOLDER/data/train/                                          a `ParallelStore`: the corpora, one after the other
    FOLDER/data/valid/                                          the same of the validation pairs
    FOLDER/data/valid.source.txt, valid.target.txt              their text, to translate and to score against
    FOLDER/left-out.tsv                                         every pair that could not be used, and why

`runs.translator.begin` does it in a new run, `preparing.prepare` ahead of one. That nothing of somebody else's is in
the
folder, and that what was interrupted is done again, is for `work_folder`. Nothing here depends on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from multihead.data.corpus import Pair, Report
from multihead.data.order import Share
from multihead.data.store import ParallelStore, ParallelWriter
from multihead.errors import DataError, FormatError, Interrupted
from multihead.files import write_errors, write_text
from multihead.planning.choices import Choices
from multihead.planning.settings import CorpusRecord, DataConfig
from multihead.preparing.corpora import Corpus, Files, choose_held_out, described
from multihead.preparing.vocabulary import Vocabulary, learn, split
from multihead.text.tokenizer import Tokenizer

_CHUNK = 10_000
"""Pairs tokenised at a time."""


@dataclass(frozen=True)
class Prepared:
    """What training reads."""

    config: DataConfig
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: ParallelStore
    valid: ParallelStore
    valid_sources: list[str]
    valid_targets: list[str]

    @property
    def shares(self) -> tuple[Share, ...]:
        """Which part of the store is which corpus, and its weight; none where each pair is seen once an epoch."""
        shares, start = [], 0
        for corpus in self.config.corpora:
            shares.append(Share(start, start + corpus.pairs, corpus.weight))
            start += corpus.pairs
        return () if all(share.weight == 1 for share in shares) else tuple(s for s in shares if s.start < s.stop)


def write_data(
    choices: Choices,
    files: Files,
    folder: Path,
    say: Callable[[str], None],
    given: Vocabulary | None = None,
    stop_signal: Callable[[], int | None] = lambda: None,
) -> Prepared:
    """Writes what training needs into ``folder``, which exists and is empty.

    Args:
        choices: the wishes; takes the reason of everything that is decided.
        files: looked through.
        folder: where to.
        say: is told what is done and what was left out.
        given: the subwords of a model that is fine-tuned; without them they are learned.
        stop_signal: is asked now and then for the number of a signal.

    Raises:
        DataError: no pair is left to train on or to validate with.
        Interrupted: ``stop_signal`` gave one.
    """
    data = folder / "data"
    with write_errors(data):
        data.mkdir()
    held_out = choose_held_out(choices, files)
    vocabulary = given or learn(choices, files, held_out, say)
    vocabulary.source.save(data / "source.tokenizer.json")
    vocabulary.target.save(data / "target.tokenizer.json")
    shortest = choices.take("min_tokens", lambda: (1, "whatever is there may teach something"))
    longest = choices.take("max_tokens", lambda: (256, "longer ones cost much and teach little"))
    sorting = _Sorting(vocabulary, range(shortest, longest + 1), stop_signal)
    with ParallelWriter(data / "train", len(vocabulary.source), len(vocabulary.target)) as writer:
        corpora = [sorting.store(corpus, held, writer) for corpus, held in zip(files.train, held_out, strict=True)]
    valid, reports = sorting.held_out, [*sorting.reports, Report()]
    if files.valid is not None:
        valid = list(files.valid.read(reports[-1]))
    _write_valid(data, valid, vocabulary)
    if not sum(corpus.pairs for corpus in corpora):
        left_out = "\n".join(report.summary() for report in reports)
        raise DataError(f"no training pair is left; {left_out}", files.train[0].scan.path(0))
    _tell(folder, reports, say)
    record = None
    if files.valid is not None:
        record = CorpusRecord(files=described(files.valid), pairs=len(valid), left_out=reports[-1].left_out)
    config = DataConfig(
        corpora=tuple(corpora),
        valid=record,
        source_language=_language(choices, "source_language", files.language(0)),
        target_language=_language(choices, "target_language", files.language(1)),
        **vocabulary.decided,
        min_tokens=shortest,
        max_tokens=longest,
        held_out=sum(map(len, held_out)),
        pairs=sum(corpus.pairs for corpus in corpora),
        left_out=sum(report.left_out for report in reports),
    )
    return reopen(folder, config)


def reopen(folder: Path, config: DataConfig) -> Prepared:
    """What `write_data` wrote, read again.

    Raises:
        FormatError: something is missing or damaged.
    """
    data = folder / "data"
    return Prepared(
        config,
        Tokenizer.load(data / "source.tokenizer.json"),
        Tokenizer.load(data / "target.tokenizer.json"),
        ParallelStore.open(data / "train"),
        ParallelStore.open(data / "valid"),
        *(_read_valid(data / f"valid.{side}.txt") for side in ("source", "target")),
    )


def _language(choices: Choices, name: str, found: str | None) -> str | None:
    reason = "from the file or its name" if found else "neither the file nor its name says"
    return choices.take(name, lambda: (found, reason))


class _Sorting:
    """Puts every pair where it belongs: into the store, among those held out, or into the report of its corpus."""

    def __init__(self, vocabulary: Vocabulary, lengths: range, stop_signal: Callable[[], int | None]) -> None:
        self._vocabulary, self._lengths, self._stop_signal = vocabulary, lengths, stop_signal
        self.held_out: list[Pair] = []
        self.reports: list[Report] = []

    def store(self, corpus: Corpus, held: Set[int], writer: ParallelWriter) -> CorpusRecord:
        """Tokenises a corpus into ``writer``, and says what became of it."""
        report, kept = Report(), 0
        self.reports.append(report)
        for chunk in _chunks(self._training(corpus, held, report)):
            if kept and (number := self._stop_signal()) is not None:
                raise Interrupted(number, "stopped while the data were prepared; the same command starts again")
            ids = _encode(self._vocabulary, chunk)
            fitting = [i for i, pair in enumerate(chunk) if self._fits(corpus, pair, (ids[0][i], ids[1][i]), report)]
            sources, targets = ([side[i] for i in fitting] for side in ids)
            writer.append(sources, targets, [chunk[i].line for i in fitting])
            kept += len(fitting)
        return CorpusRecord(
            files=described(corpus.scan),
            weight=corpus.weight,
            pairs=kept,
            held_out=len(held),
            left_out=report.left_out,
        )

    def _training(self, corpus: Corpus, held: Set[int], report: Report) -> Iterator[Pair]:
        for pair, is_held in split(corpus, held, report):
            if is_held:
                self.held_out.append(pair)
            else:
                yield pair

    def _fits(self, corpus: Corpus, pair: Pair, ids: tuple[list[int], list[int]], report: Report) -> bool:
        """Whether both sides are neither too long nor too short; the first that is not goes to the report."""
        for side, length in enumerate(map(len, ids)):
            if length not in self._lengths:
                long = length >= self._lengths.stop
                reason = f"more than {self._lengths.stop - 1}" if long else f"fewer than {self._lengths.start}"
                report.add(corpus.scan.path(side), pair.line, f"{reason} subwords", str(length))
                return False
        return True


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _encode(vocabulary: Vocabulary, chunk: list[Pair]) -> tuple[list[list[int]], list[list[int]]]:
    return (
        vocabulary.source.encode_batch([pair.source for pair in chunk]),
        vocabulary.target.encode_batch([pair.target for pair in chunk]),
    )


def _write_valid(data: Path, pairs: list[Pair], vocabulary: Vocabulary) -> None:
    """The validation pairs, whole, as ids and as text."""
    with ParallelWriter(data / "valid", len(vocabulary.source), len(vocabulary.target)) as writer:
        for chunk in _chunks(pairs):
            writer.append(*_encode(vocabulary, chunk), [pair.line for pair in chunk])
    write_text(data / "valid.source.txt", "".join(pair.source + "\n" for pair in pairs))
    write_text(data / "valid.target.txt", "".join(pair.target + "\n" for pair in pairs))


def _read_valid(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: missing or damaged ({error}); start again in a new folder") from None


def _tell(folder: Path, reports: list[Report], say: Callable[[str], None]) -> None:
    """Names what was left out, on the screen in short and in a file in full."""
    faults = [fault for report in reports for fault in report.faults]
    rows = ["file\tline\treason\tdetail", *("\t".join(map(str, fault)) for fault in faults)]
    if unnamed := sum(report.left_out for report in reports) - len(faults):
        rows.append(f"\t\tand {unnamed:,} more\t")
    write_text(folder / "left-out.tsv", "\n".join(rows) + "\n")
    for report in reports:
        if report.left_out:
            say(report.summary())
            say(f"{report.left_out:,} pairs left out; all others are kept (see {folder / 'left-out.tsv'})")
