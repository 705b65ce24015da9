"""Prepare text for training: learn subwords and store token ids.

    FOLDER/
        prepared.json    settings, decisions with reasons, the SHA-256 of each data file: written last
        data/            what training reads: see `preparing.prepared`
        left-out.tsv     every pair that could not be used, and why

`prepare` makes such a folder once for any number of runs; ``multihead train --data FOLDER`` reads it in place. A run
that is given text files writes its own ``data`` with `write_data`. A stopped or killed command starts over; a finished
folder never changes, which `work_folder` ensures. Nothing here depends on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

from multihead import work_folder
from multihead.bundle import load_bundle
from multihead.configuration import build
from multihead.data.corpus import Pair, Report
from multihead.data.store import ParallelWriter
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.files import write_errors, write_text
from multihead.planning.choices import choose_vocabulary
from multihead.planning.settings import Choices, CorpusRecord, DataConfig, PrepareSettings
from multihead.preparing.corpora import (
    TextFiles,
    WeightedCorpus,
    apportion,
    choose_held_out,
    file_records,
    scan_files,
)
from multihead.preparing.prepared import Manifest, PreparedText, data_digests, open_prepared, read_manifest
from multihead.text.languages import Languages
from multihead.text.learning import LONGEST
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import Specials
from multihead.training.context import RunContext

_SAMPLE = 1_000_000
"""Pairs that a vocabulary is learned from; more take longer and change little."""
CHUNK = 10_000
"""Pairs tokenized at a time."""


def prepare(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    **settings: Any,
) -> PreparedText:
    """Prepare text for training, or report that it is already prepared.

    Args:
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks the work to stop.
        **settings: fields of `PrepareSettings`; ``source``, ``target`` and ``output`` are needed.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; nothing is left.
    """
    context, given = RunContext(say, stop_signal), build(PrepareSettings, settings, "the settings")
    if given.output is None:
        raise ConfigurationError("the folder is not named: output missing (--output FOLDER)")
    folder = given.output
    with work_folder.locked(folder):
        if work_folder.is_begun(folder, work_folder.PREPARED):
            return _open_finished(folder, given, say)
        choices = Choices(given)
        vocabulary = None
        if given.from_model is not None:
            languages = Languages(given.source_language, given.target_language)
            bundle = load_bundle(given.from_model, languages=languages)
            vocabulary = keep_vocabulary(choices, bundle.source_tokenizer, bundle.target_tokenizer)
        files = scan_files(given)
        with work_folder.preparing(folder, work_folder.PREPARED):
            prepared = write_data(choices, files, folder, context, vocabulary)
            write_manifest(folder, prepared.config, work_folder.given_settings(given), choices.reasons)
    say(f"{prepared.config.pairs:,} training pairs are prepared: multihead train --data {folder} --output RUN")
    return prepared


def _open_finished(folder: Path, settings: PrepareSettings, say: Callable[[str], None]) -> PreparedText:
    manifest = read_manifest(folder)
    changes = work_folder.changed_settings(work_folder.given_settings(settings), manifest.asked)
    if changes:
        raise ConfigurationError(
            f"{folder}: holds text that was prepared with other settings ({changes}); choose a new folder"
        )
    say(f"{folder}: is prepared, with {manifest.data.pairs:,} training pairs")
    return open_prepared(folder, manifest.data)


def write_manifest(folder: Path, config: DataConfig, asked: dict[str, object], reasons: dict[str, str]) -> None:
    """Finish the preparation: the folder can be trained from once its manifest exists."""
    files = data_digests(folder)
    manifest = Manifest(multihead=version("multihead"), asked=asked, data=config, reasons=reasons, files=files)
    work_folder.write(folder, manifest, work_folder.PREPARED, files)


# --------------------------------------------------------------------------- subwords


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both sides; the same one twice if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer
    decisions: dict[str, Any] = field(default_factory=dict)
    """How the vocabulary was learned: fields of `DataConfig`."""

    def save(self, data: Path) -> None:
        """Create the folder of what training reads, and write the tokenizers there."""
        with write_errors(data):
            data.mkdir()
        self.source.save(data / "source.tokenizer.json")
        self.target.save(data / "target.tokenizer.json")


def keep_vocabulary(choices: Choices, source: Tokenizer, target: Tokenizer) -> Vocabulary:
    """The vocabulary of a given model; how it was learned is unknown."""
    decisions = {"vocab_size": len(target), "shared_vocabulary": source.digest == target.digest}
    choices.reasons |= dict.fromkeys(("vocab_size", "shared_vocabulary"), "the given model's")
    return Vocabulary(source, target, decisions)


def learn_vocabulary(
    choices: Choices, files: TextFiles, held_out: Sequence[Set[int]], say: Callable[[str], None]
) -> Vocabulary:
    """Learn one vocabulary from both sides of the text, or one from each, without the held-out pairs.

    From more than a million pairs it takes the beginning of each corpus, in proportion to its share of an epoch. Pairs
    that have more than max_tokens subwords in any vocabulary teach nothing, unless there are no others.
    """
    found, most = list(_sample(files, held_out)), _choose_longest(choices) * LONGEST
    pairs = [pair for pair in found if max(len(pair.source), len(pair.target)) <= most] or found
    size = choose_vocabulary(choices, len(pairs))
    shared = choices.take("shared_vocabulary", lambda: (True, "names and numbers are alike on both sides"))
    options: dict[str, Any] = {
        "min_frequency": choices.take("min_frequency", lambda: (2, "what occurs once teaches nothing")),
        "coverage": choices.take("coverage", lambda: (0.9999, "the usual value")),
    }
    strings = choices.take("symbols", lambda: (Specials().strings, "the usual ones"))
    decisions = {"vocab_size": size, "shared_vocabulary": shared, **options}
    options["specials"] = Specials(*strings)
    sides: list[Iterable[str]] = [(pair.source for pair in pairs), (pair.target for pair in pairs)]
    if shared:
        say(f"learning a vocabulary of {size:,} subwords from {len(pairs):,} pairs")
        both = Tokenizer.learn(chain.from_iterable(zip(*sides, strict=True)), size, **options)
        return Vocabulary(both, both, decisions)
    say(f"learning two vocabularies of {size:,} subwords from {len(pairs):,} pairs")
    source, target = (Tokenizer.learn(side, size, **options) for side in sides)
    return Vocabulary(source, target, decisions)


def _choose_longest(choices: Choices) -> int:
    return choices.take("max_tokens", lambda: (256, "longer ones cost much and teach little"))


def _sample(files: TextFiles, held_out: Sequence[Set[int]]) -> Iterator[Pair]:
    sizes = [corpus.scan.lines for corpus in files.train]
    shares = [size * corpus.weight for size, corpus in zip(sizes, files.train, strict=True)]
    parts = sizes if sum(sizes) <= _SAMPLE else apportion(_SAMPLE, shares, sizes)
    for corpus, held, part in zip(files.train, held_out, parts, strict=True):
        yield from islice((pair for pair, is_held in _split(corpus, held, Report()) if not is_held), part)


def _split(corpus: WeightedCorpus, held: Set[int], report: Report) -> Iterator[tuple[Pair, bool]]:
    """The usable pairs of a corpus, each with whether it is held out."""
    return ((pair, index in held) for index, pair in enumerate(corpus.scan.read(report)))


# --------------------------------------------------------------------------- token ids


def write_data(
    choices: Choices, files: TextFiles, folder: Path, context: RunContext, given: Vocabulary | None = None
) -> PreparedText:
    """Write what training needs into ``folder``, which exists and is empty.

    Args:
        choices: the user's settings; collects the reason of each decision.
        files: the scanned text files.
        folder: the run folder, or one of `prepare`.
        context: receives progress and what was left out, and may stop the work.
        given: the vocabulary of the model to fine-tune; learned from the text if there is none.

    Raises:
        DataError: no pair is left to train on or to validate with.
        Interrupted: ``context.stop_signal`` returned a signal.
    """
    data = folder / "data"
    held_out = choose_held_out(choices, files)
    vocabulary = given or learn_vocabulary(choices, files, held_out, context.say)
    vocabulary.save(data)
    shortest = choices.take("min_tokens", lambda: (1, "whatever is there may teach something"))
    longest = _choose_longest(choices)
    store = CorpusWriter(vocabulary, range(shortest, longest + 1), context.stop_signal)
    with ParallelWriter(data / "train", len(vocabulary.source), len(vocabulary.target)) as writer:
        corpora = [store.write(corpus, held, writer) for corpus, held in zip(files.train, held_out, strict=True)]
    valid, reports = store.held_out, [*store.reports, Report()]
    if files.valid is not None:
        valid = list(files.valid.read(reports[-1]))
    write_valid(data, valid, vocabulary)
    if not sum(corpus.pairs for corpus in corpora):
        left_out = "\n".join(report.summary() for report in reports)
        raise DataError(f"no training pair is left; {left_out}", files.train[0].scan.path(0))
    _report_left_out(folder, reports, context.say)
    record = None
    if files.valid is not None:
        record = CorpusRecord(files=file_records(files.valid), pairs=len(valid), left_out=reports[-1].left_out)
    config = DataConfig(
        corpora=tuple(corpora),
        valid=record,
        source_language=_choose_language(choices, "source_language", files.language(0)),
        target_language=_choose_language(choices, "target_language", files.language(1)),
        **vocabulary.decisions,
        min_tokens=shortest,
        max_tokens=longest,
        held_out=sum(map(len, held_out)),
        pairs=sum(corpus.pairs for corpus in corpora),
        left_out=sum(report.left_out for report in reports),
    )
    return open_prepared(folder, config)


def _choose_language(choices: Choices, name: str, found: str | None) -> str | None:
    reason = "from the file or its name" if found else "neither the file nor its name says"
    return choices.take(name, lambda: (found, reason))


class CorpusWriter:
    """Distributes pairs: to the store, to the held-out pairs, or to the report of their corpus."""

    def __init__(self, vocabulary: Vocabulary, lengths: range, stop_signal: Callable[[], int | None]) -> None:
        self._vocabulary, self._lengths, self._stop_signal = vocabulary, lengths, stop_signal
        self.held_out: list[Pair] = []
        self.reports: list[Report] = []

    def write(self, corpus: WeightedCorpus, held: Set[int], writer: ParallelWriter) -> CorpusRecord:
        """Tokenize a corpus into ``writer``."""
        report, kept = Report(), 0
        self.reports.append(report)
        for chunk in _chunks(self._training_pairs(corpus, held, report)):
            if kept and (number := self._stop_signal()) is not None:
                raise Interrupted(number, "stopped while the data were prepared; the same command starts again")
            ids = _encode(self._vocabulary, chunk)
            fitting = [i for i, pair in enumerate(chunk) if self._fits(corpus, pair, (ids[0][i], ids[1][i]), report)]
            sources, targets = ([side[i] for i in fitting] for side in ids)
            writer.append(sources, targets, [chunk[i].line for i in fitting])
            kept += len(fitting)
        return CorpusRecord(
            files=file_records(corpus.scan),
            weight=corpus.weight,
            pairs=kept,
            held_out=len(held),
            left_out=report.left_out,
        )

    def _training_pairs(self, corpus: WeightedCorpus, held: Set[int], report: Report) -> Iterator[Pair]:
        for pair, is_held in _split(corpus, held, report):
            if is_held:
                self.held_out.append(pair)
            else:
                yield pair

    def _fits(self, corpus: WeightedCorpus, pair: Pair, ids: tuple[list[int], list[int]], report: Report) -> bool:
        """Whether both sides have an allowed length; otherwise the first that has not goes to the report."""
        for side, length in enumerate(map(len, ids)):
            if length not in self._lengths:
                long = length >= self._lengths.stop
                reason = f"more than {self._lengths.stop - 1}" if long else f"fewer than {self._lengths.start}"
                report.add(corpus.scan.path(side), pair.line, f"{reason} subwords", str(length))
                return False
        return True


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _encode(vocabulary: Vocabulary, chunk: list[Pair]) -> tuple[list[list[int]], list[list[int]]]:
    return (
        vocabulary.source.encode_batch([pair.source for pair in chunk]),
        vocabulary.target.encode_batch([pair.target for pair in chunk]),
    )


def write_valid(data: Path, pairs: list[Pair], vocabulary: Vocabulary) -> None:
    """Write the validation pairs, untruncated, as ids and as text."""
    with ParallelWriter(data / "valid", len(vocabulary.source), len(vocabulary.target)) as writer:
        for chunk in _chunks(pairs):
            writer.append(*_encode(vocabulary, chunk), [pair.line for pair in chunk])
    write_text(data / "valid.source.txt", "".join(pair.source + "\n" for pair in pairs))
    write_text(data / "valid.target.txt", "".join(pair.target + "\n" for pair in pairs))


def _report_left_out(folder: Path, reports: list[Report], say: Callable[[str], None]) -> None:
    """Summarize the pairs that were left out, and list them in left-out.tsv."""
    faults = [fault for report in reports for fault in report.faults]
    rows = ["file\tline\treason\tdetail", *("\t".join(map(str, fault)) for fault in faults)]
    if unnamed := sum(report.left_out for report in reports) - len(faults):
        rows.append(f"\t\tand {unnamed:,} more\t")
    write_text(folder / "left-out.tsv", "\n".join(rows) + "\n")
    for report in reports:
        if report.left_out:
            say(report.summary())
            say(f"{report.left_out:,} pairs left out; all others are kept (see {folder / 'left-out.tsv'})")
