"""Prepare text for training: learn subwords and store token ids.

    FOLDER/
        prepared.json    settings, decisions with reasons, the SHA-256 of each data file: written last
        data/            what training reads: see `preparing.prepared`
        left-out.tsv     every pair that could not be used, and why

`prepare` makes such a folder once for any number of runs; ``multihead train --data FOLDER`` reads it in place. A run
that is given text files writes its own ``data`` with `write_data`. A finished folder never changes, which `work_folder`
ensures. Nothing here depends on the model.

Text is read as a stream: once to check and to hash it, the beginning to learn the subwords from, and once to encode it,
shard by shard (`preparing.shards`) on all cores (`workers`). So memory does not grow with the text, and the result does
not depend on the number of cores. After it was stopped or killed, the work goes on from the last shard
(`preparing.journal`); a run whose own text has at most `FEW_LINES` starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from multihead import work_folder
from multihead.bundle import load_bundle
from multihead.configuration import build
from multihead.data.corpus import Pair, Report
from multihead.data.entries import digest
from multihead.data.order import usual_order
from multihead.data.store_writers import ParallelWriter, Sizes
from multihead.data.text_files import one_cell
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.files import remove, write_errors, write_text
from multihead.planning.settings import Choices, CorpusRecord, DataConfig, PrepareSettings, pick_fields
from multihead.preparing.context import with_documents
from multihead.preparing.corpora import (
    TextFiles,
    WeightedCorpus,
    choose_held_out,
    corpus_record,
    file_records,
    local_files,
    mix_again,
    scan_files,
)
from multihead.preparing.directions import by_direction, choose_symbols, direction_records, split_pairs
from multihead.preparing.journal import Journal, digest_of, has_shards
from multihead.preparing.prepared import Manifest, PreparedText, data_digests, open_prepared, read_manifest
from multihead.preparing.shards import SHARD, Encoder, Joiner, read_shards
from multihead.preparing.subwords import (
    Vocabulary,
    choose_longest,
    choose_terms,
    keep_vocabulary,
    learn_vocabulary,
    read_terms,
    terms_digest,
)
from multihead.text.language_tokens import toward
from multihead.text.languages import Direction, Languages
from multihead.text.tokenizer import Tokenizer
from multihead.training.context import RunContext
from multihead.training.progress import format_duration
from multihead.urls import url_of
from multihead.workers import Engine, InProcess, default_engine

FEW_LINES = 10 * SHARD
"""Lines that take seconds: up to so many this process encodes itself, since workers take as long to start."""
_SECONDS = 10.0
"""Seconds between lines of progress."""


def prepare(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    engine: Engine | None = None,
    **settings: Any,
) -> PreparedText:
    """Prepare text for training, or report that it is already prepared.

    With a URL as ``output``, the text is prepared on this machine and uploaded (`preparing.remote`); what is returned
    is read from a copy here.

    Args:
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks the work to stop.
        engine: where the text is encoded; None for all cores of this machine. The result is the same.
        **settings: fields of `PrepareSettings`; ``source``, ``target`` and ``output`` are needed.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the next call goes on from there.
    """
    context, given = RunContext(say, stop_signal), build(PrepareSettings, settings, "the settings")
    if given.output is None:
        raise ConfigurationError("the folder is not named: output missing (--output FOLDER)")
    if (url := url_of(given.output)) is not None:
        return _prepare_at(url.rstrip("/"), given, context, engine)
    folder = given.output
    with work_folder.locked(folder):
        if work_folder.is_begun(folder, work_folder.PREPARED):
            return _open_finished(folder, given, say)
        prepared = _Begun.of(folder, given).finish(folder, given, context, engine)
    say(f"{prepared.config.pairs:,} training pairs are prepared: multihead train --data {folder} --output RUN")
    return prepared


@dataclass(frozen=True)
class _Begun:
    """What is known of a preparation before it writes anything."""

    choices: Choices
    files: TextFiles
    vocabulary: Vocabulary | None
    """That of the model to fine-tune."""
    journal: Journal

    @staticmethod
    def of(folder: Path, given: PrepareSettings) -> _Begun:
        """Read the model, and the text for the first time."""
        choices, vocabulary = Choices(given), None
        if given.from_model is not None:
            languages = Languages(given.source_language, given.target_language)
            bundle = load_bundle(given.from_model, languages=languages)
            vocabulary = keep_vocabulary(choices, bundle.source_tokenizer, bundle.target_tokenizer)
        files = scan_files(given)
        tokenizers = None if vocabulary is None else (vocabulary.source, vocabulary.target)
        return _Begun(choices, files, vocabulary, journal_for(folder, given, files, tokenizers))

    def finish(self, folder: Path, given: PrepareSettings, context: RunContext, engine: Engine | None) -> PreparedText:
        """Prepare the text in a folder that is locked."""
        kept, names = (lambda: has_shards(folder)), self.journal.names()
        with work_folder.preparing(folder, work_folder.PREPARED, resumed=names, kept=kept):
            prepared = write_data(self.choices, self.files, folder, context, self.vocabulary, engine, self.journal)
            write_manifest(folder, prepared.config, work_folder.given_settings(given), self.choices.reasons)
        return prepared


def _prepare_at(url: str, given: PrepareSettings, context: RunContext, engine: Engine | None) -> PreparedText:
    """Prepare text for a URL."""
    from multihead.preparing.remote import DifferentTextError, prepare_at

    def work(folder: Path) -> None:
        begun, made_from = _Begun.of(folder, given), folder.with_name(f"{folder.name}.sha256")
        with work_folder.locked(folder):
            if not work_folder.is_begun(folder, work_folder.PREPARED):
                write_text(made_from, begun.journal.digest)
                told = RunContext(lambda line: context.say(line.replace(str(folder), url)), context.stop_signal)
                begun.finish(folder, given, told, engine)
            elif not made_from.is_file() or made_from.read_text(encoding="utf-8") != begun.journal.digest:
                raise DifferentTextError(
                    f"{url}: holds a part of text that was prepared from other files or with other settings; run that "
                    f"command again to finish its upload, or remove what is there"
                )

    folder = prepare_at(url, work, context.say, context.stop_signal)
    return _open_finished(folder, given, context.say, url)


def _open_finished(
    folder: Path, settings: PrepareSettings, say: Callable[[str], None], url: str | None = None
) -> PreparedText:
    """Open prepared text, or what is a copy of the text at ``url``.

    Nothing is compared if the output is given alone.

    Raises:
        ConfigurationError: it was prepared with other settings, or a file of text that is on this machine has changed.
    """
    manifest, place = read_manifest(folder), url or folder
    given = work_folder.given_settings(settings)
    if given:
        # A setting that is left out now is as usual: not as it was. Those of derived text are not known.
        before = pick_fields(PrepareSettings, manifest.asked)
        changes = work_folder.changed_settings(dict.fromkeys(before, "not given") | given, manifest.asked)
        if changes:
            raise ConfigurationError(
                f"{place}: holds text that was prepared with other settings ({changes}); "
                "choose a new folder, or give the settings as they were"
            )
        if (change := _change_of_files(folder, settings, manifest)) is not None:
            raise ConfigurationError(
                f"{place}: holds what was prepared {change}; choose a new folder, or remove this one to prepare the "
                "text again"
            )
    work_folder.remove_leftovers(folder)
    say(f"{place}: is prepared, with {manifest.data.pairs:,} training pairs")
    return open_prepared(folder, manifest.data)


def _change_of_files(folder: Path, settings: PrepareSettings, manifest: Manifest) -> str | None:
    """How the files that the settings name differ from those that were read: the first one that is new or has changed.

    Files that are not on this machine are not compared.
    """
    data = manifest.data
    records = (*data.corpora, *([] if data.valid is None else [data.valid]), *data.valid_more)
    files = {file.path: file.sha256 for record in records for file in record.files}
    for name in local_files(settings):
        if name not in files and folder.absolute() not in Path(name).absolute().parents:
            return f"without {name}, which the settings name now, too"
    changed: Iterator[str] = (
        name for name, sha256 in files.items() if _is_here(name) and digest(Path(name)).sha256 != sha256
    )
    terms, reason = settings.terms, manifest.reasons.get("terms", "")
    if terms is not None and _is_here(terms) and terms_digest(read_terms(terms)) not in reason:
        changed = chain([str(terms)], changed)
    first = next(changed, None)
    return None if first is None else f"from {first}, and that file has changed since"


def _is_here(name: str | Path) -> bool:
    """Whether this is a file on this machine."""
    return url_of(name) is None and Path(name).is_file()


def write_manifest(folder: Path, config: DataConfig, asked: dict[str, object], reasons: dict[str, str]) -> None:
    """Finish the preparation: the folder can be trained from once its manifest exists."""
    files = data_digests(folder)
    manifest = Manifest(multihead=version("multihead"), asked=asked, data=config, reasons=reasons, files=files)
    work_folder.write(folder, manifest, work_folder.PREPARED, files)


def journal_for(
    folder: Path, settings: PrepareSettings, files: TextFiles, tokenizers: tuple[Tokenizer, Tokenizer] | None
) -> Journal:
    """The journal of a preparation, which is identified by everything that decides its result.

    Args:
        folder: where the text is prepared.
        settings: the user's; those of a run besides the text do not count.
        files: the scanned text files.
        tokenizers: of a given model; None if subwords are learned.
    """
    scans = [corpus.scan for corpus in (*files.train, *files.valid_parts)]
    known = digest_of(
        {
            "settings": pick_fields(PrepareSettings, work_folder.given_settings(settings)),
            "files": [[record.model_dump() for record in file_records(scan)] for scan in scans],
            "subwords": None if tokenizers is None else [tokenizer.digest for tokenizer in tokenizers],
            "versions": [version("multihead"), version("tokenizers")],
            "shard": SHARD,
            **({} if settings.terms is None else {"terms": digest(settings.terms).sha256}),
        }
    )
    return Journal(folder, known)


# --------------------------------------------------------------------------- token ids


def write_data(
    choices: Choices,
    files: TextFiles,
    folder: Path,
    context: RunContext,
    given: Vocabulary | None = None,
    engine: Engine | None = None,
    journal: Journal | None = None,
) -> PreparedText:
    """Write what training needs into ``folder``, which exists and is empty but for what the journal lists.

    Args:
        choices: the user's settings; collects the reason of each decision.
        files: the scanned text files.
        folder: the run folder, or one of `prepare`.
        context: receives progress and what was left out, and may stop the work.
        given: the vocabulary of the model to fine-tune; learned from the text if there is none.
        engine: where the text is encoded; None for all cores of this machine.
        journal: where to go on from, and to note how far the work is; None to start over each time.

    Raises:
        DataError: no pair is left to train on or to validate with.
        Interrupted: ``context.stop_signal`` returned a signal.
    """
    data, joiner = folder / "data", Joiner(len(files.train))
    files = with_documents(files, choices.requested("context") or (0 if given is None else given.source.context))
    held_out, vocabulary, begun = _begin(choices, files, folder, context, given, journal, joiner)
    shortest = choices.take("min_tokens", lambda: (1, "whatever is there may teach something"))
    longest = choose_longest(choices)
    symbols = [toward(vocabulary.source, corpus.languages[1]).prefix for corpus in files.train]
    terms = choose_terms(choices, vocabulary.source)
    encoder = Encoder(vocabulary.source, vocabulary.target, range(shortest, longest + 1), symbols, terms)
    sizes = len(vocabulary.source), len(vocabulary.target)
    with ParallelWriter(data / "train", *sizes, begun, kept=journal is not None) as writer:
        encode_corpora(files, held_out, encoder, joiner, writer, context, engine, journal)
    valid_reports = [Report() for _ in files.valid_parts]
    parts = [(one, list(one.scan.read(report))) for one, report in zip(files.valid_parts, valid_reports, strict=True)]
    valid = by_direction(parts or split_pairs(joiner.held_out, files.train, held_out))
    write_valid(data, valid, vocabulary)
    directed, reports = bool(vocabulary.source.languages), [tally.report for tally in joiner.tallies] + valid_reports
    corpora = mix_again(choices.settings, files.train, corpus_records(files.train, held_out, joiner, directed=directed))
    if not sum(corpus.pairs for corpus in corpora):
        left_out = "\n".join(report.summary() for report in reports)
        raise DataError(f"no training pair is left; {left_out}", files.train[0].scan.path(0))
    _report_left_out(folder, reports, context.say)
    records = [
        corpus_record(one, len(pairs), 0, report.left_out, directed=directed)
        for (one, pairs), report in zip(parts, valid_reports, strict=True)
    ]
    config = DataConfig(
        corpora=corpora,
        valid=records[0] if records else None,
        valid_more=tuple(records[1:]),
        directions=direction_records(files.train, valid) if directed else (),
        source_language=_choose_language(choices, "source_language", files.language(0)),
        target_language=_choose_language(choices, "target_language", files.language(1)),
        **vocabulary.decisions,
        min_tokens=shortest,
        max_tokens=longest,
        held_out=sum(map(len, held_out)),
        pairs=sum(corpus.pairs for corpus in corpora),
        left_out=sum(report.left_out for report in reports),
        order=usual_order(sum(corpus.pairs for corpus in corpora)),
    )
    return open_prepared(folder, config)


def _begin(
    choices: Choices,
    files: TextFiles,
    folder: Path,
    context: RunContext,
    given: Vocabulary | None,
    journal: Journal | None,
    joiner: Joiner,
) -> tuple[list[frozenset[int]], Vocabulary, Sizes | None]:
    """What is held out, the vocabulary, and the size of the store to go on with; None to begin it.

    All three are what the journal says, if it says anything; ``joiner`` then counts its shards.
    """
    data = folder / "data"
    decided = None if journal is None else journal.read()
    if journal is not None and decided is not None:
        _remove_later_files(data)
        choices.reasons |= decided["reasons"]
        source, target = (Tokenizer.load(data / f"{side}.tokenizer.json") for side in ("source", "target"))
        vocabulary = Vocabulary(source, target, decided["vocabulary"])
        begun = journal.replay(joiner)
        if joiner.next.number:
            context.say(f"going on after {joiner.seen:,} of {files.lines:,} pairs")
        return list(map(frozenset, decided["held_out"])), vocabulary, begun if joiner.next.number else None
    symbols = choose_symbols(choices, files, None if given is None else given.source)
    held_out = choose_held_out(choices, files)
    if given is None:
        vocabulary = learn_vocabulary(choices, files, held_out, context.say, directions=bool(symbols))
        vocabulary = vocabulary.with_symbols(symbols)
        if choices.take("right_to_left", lambda: (False, "as text is read by default")):
            vocabulary = vocabulary.backwards()
    else:
        vocabulary = given
    vocabulary.save(data)
    if journal is not None:
        decisions = {"reasons": choices.reasons, "vocabulary": vocabulary.decisions}
        journal.begin({"held_out": list(map(sorted, held_out)), **decisions})
    return held_out, vocabulary, None


def _remove_later_files(data: Path) -> None:
    """Remove what a stopped preparation wrote after the store."""
    kept = {"source.tokenizer.json", "target.tokenizer.json", "train", ".train.partial"}
    with write_errors(data):
        for path in data.iterdir():
            if path.name not in kept:
                remove(path)


def encode_corpora(
    files: TextFiles,
    held_out: Sequence[Set[int]],
    encoder: Encoder,
    joiner: Joiner,
    writer: ParallelWriter,
    context: RunContext,
    engine: Engine | None = None,
    journal: Journal | None = None,
) -> None:
    """Store the ids of corpora, beginning with the shard that ``joiner`` expects next.

    Raises:
        DataError: a file has changed since it was scanned.
        Interrupted: ``context.stop_signal`` returned a signal.
    """
    engine = engine or (default_engine() if files.lines > FEW_LINES else InProcess())
    shards = read_shards([corpus.scan for corpus in files.train], held_out, joiner.next)
    progress = _Progress(files.lines, joiner.seen, context.say)
    with closing(engine.map(encoder, shards)) as encoded:
        for shard in encoded:
            joiner.append(shard, writer)
            if journal is not None:
                journal.note(shard, writer)
            progress.show(joiner.seen)
            if joiner.next.corpus < len(files.train) and (number := context.stop_signal()) is not None:
                again = "run the same command again to start over"
                if journal is not None:
                    journal.sync(writer)
                    again = f"{joiner.seen:,} of {files.lines:,} pairs are done; run the same command again to continue"
                raise Interrupted(number, f"stopped while the data were prepared; {again}")
    if journal is not None:
        journal.sync(writer)


def corpus_records(
    corpora: Sequence[WeightedCorpus], held_out: Sequence[Set[int]], joiner: Joiner, *, directed: bool = False
) -> tuple[CorpusRecord, ...]:
    """What is recorded of corpora that were joined; ``directed``: with their languages."""
    return tuple(
        corpus_record(corpus, tally.pairs, len(held), tally.report.left_out, directed=directed)
        for corpus, held, tally in zip(corpora, held_out, joiner.tallies, strict=True)
    )


class _Progress:
    """Lines of progress: how much is done, how fast, and how long the rest takes."""

    def __init__(self, total: int, done: int, say: Callable[[str], None]) -> None:
        self._total, self._first, self._say = total, done, say
        self._started = self._said = time.monotonic()

    def show(self, done: int) -> None:
        """Say how far the work is, if it was not said lately."""
        now = time.monotonic()
        if now - self._said < _SECONDS or done >= self._total:
            return
        self._said, pace = now, (done - self._first) / (now - self._started)
        left = format_duration((self._total - done) / pace) if pace else "unknown"
        self._say(f"  {done:,} of {self._total:,} pairs, {pace:,.0f} pairs/s, {left} left")


def _choose_language(choices: Choices, name: str, found: str | None) -> str | None:
    reason = "from the file or its name" if found else "neither the file nor its name says one for all text"
    return choices.take(name, lambda: (found, reason))


def write_valid(data: Path, valid: Sequence[tuple[Direction, list[Pair]]], vocabulary: Vocabulary) -> None:
    """Write the validation pairs, untruncated, direction after direction, as ids and as text."""
    with ParallelWriter(data / "valid", len(vocabulary.source), len(vocabulary.target)) as writer:
        for direction, own in valid:
            tokenizer = toward(vocabulary.source, direction.target)
            for start in range(0, len(own), SHARD):
                part = own[start : start + SHARD]
                texts = tokenizer.training_pairs([pair.source for pair in part], [pair.target for pair in part])
                sources, targets = tokenizer.encode_batch(texts[0]), vocabulary.target.encode_batch(texts[1])
                writer.append(sources, targets, [pair.line for pair in part])
    pairs = [pair for _, own in valid for pair in own]
    write_text(data / "valid.source.txt", "".join(pair.source + "\n" for pair in pairs))
    write_text(data / "valid.target.txt", "".join(pair.target + "\n" for pair in pairs))


def _report_left_out(folder: Path, reports: list[Report], say: Callable[[str], None]) -> None:
    """Summarize the pairs that were left out, and list them in left-out.tsv."""
    faults = [fault for report in reports for fault in report.faults]
    rows = ["file\tline\treason\tdetail", *("\t".join(one_cell(str(cell)) for cell in fault) for fault in faults)]
    if unnamed := sum(report.left_out for report in reports) - len(faults):
        rows.append(f"\t\tand {unnamed:,} more\t")
    write_text(folder / "left-out.tsv", "\n".join(rows) + "\n")
    for report in reports:
        if report.left_out:
            say(report.summary())
            say(f"{report.left_out:,} pairs left out; all others are kept (see {folder / 'left-out.tsv'})")
