"""Clean a corpus: remove faulty pairs, each with its reason.

    scan the corpus                      `data.readers`
    make the rules                       `cleaning.rules`: one pass, a sample
    judge each chunk by itself           `cleaning.filters`: most of the time; verdicts go to a file
    find duplicates among all verdicts   `cleaning.copies`, `cleaning.similar`: sorted files on disk
    write kept and removed pairs         `cleaning.outputs`, in file order, and the report (`cleaning.page`)

Kept and removed pairs add up to all candidates. Memory does not grow with the corpus; verdicts take 77 bytes of disk
per pair until the end, or 237 where similar pairs are sought. Work that was stopped goes on after the last recorded
chunk: the verdicts grow as a `lines.growing_file`, next to the output. All outputs appear when they are complete.

A `workers.Engine` may judge in several processes or machines: it gets the `Rules` and chunks of `read_candidates`, and
its arrays are appended in order. Everything else stays in one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from multihead.cleaning import candidates as reading
from multihead.cleaning import copies
from multihead.cleaning.candidates import read_candidates
from multihead.cleaning.copies import Copies, find_copies, read_verdicts
from multihead.cleaning.filters import Candidates, Rules, Verdicts, explain, judge, verdict_type
from multihead.cleaning.outputs import Removed, check_record_file, open_output, pair_writer, removed_writer
from multihead.cleaning.page import cleaning_page
from multihead.cleaning.rules import make_rules, record_of_rules, scan_held_out
from multihead.cleaning.settings import FILTERS, REASONS, UNUSABLE, CleanSettings
from multihead.cleaning.statistics import Example, Statistics
from multihead.data.corpus import Languages
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.errors import ConfigurationError, DataError
from multihead.files import check_new_file, drafts_of, write_errors
from multihead.lines.growing_file import GrowingFile, growing_file, lines_done, part_of, record_of, remove_lone_record
from multihead.urls import url_of
from multihead.workers import Engine, InProcess

_CHUNKS = 8
"""Chunks between two records of the verdicts."""


@dataclass(frozen=True)
class Outputs:
    """The files to write."""

    kept: Path
    """Sources, or pairs."""
    kept_target: Path | None
    removed: Path
    report: Path

    @staticmethod
    def named(kept: Path, kept_target: Path | None, removed: Path | None, report: Path | None) -> Outputs:
        """The files, those that are not named beside the first one."""
        removed = removed or kept.parent / f"{kept.name}.removed.tsv"
        return Outputs(kept, kept_target, removed, report or kept.parent / f"{kept.name}.report.html")

    @property
    def every(self) -> list[Path]:
        """All files."""
        return [path for path in (self.kept, self.kept_target, self.removed, self.report) if path is not None]

    @property
    def work(self) -> Path:
        """The file of verdicts, while it grows."""
        return self.kept.with_name(f"{self.kept.name}.verdicts")

    def check(self, judged: bool = True) -> None:
        """Check that every file can be written.

        Args:
            judged: whether all pairs may have been judged by work that was stopped while its files appeared; those that
                are there already are then replaced.

        Raises:
            ConfigurationError: a name says no format, occurs twice or is taken.
        """
        self.check_names()
        for path in self.every:
            if not (judged and path.is_file() and record_of(self.work).exists()):
                check_new_file(path)

    def check_names(self) -> None:
        """Raise ConfigurationError if a name says no format, or occurs twice."""
        if self.kept_target is None:
            check_record_file(self.kept, "pairs")
        check_record_file(self.removed, "removed pairs")
        if len({path.absolute() for path in self.every}) < len(self.every):
            names = ", ".join(map(str, self.every))
            raise ConfigurationError(f"{names}: expected different names for different files")


@runtime_checkable
class Watch(Protocol):
    """Receives the progress of a stage."""

    def __call__(self, more: int, /) -> None:
        """Count newly finished candidates."""

    def begin(self, done: int) -> None:
        """Set how many were finished before."""


class _Unwatched:
    def __call__(self, _more: int, /) -> None:
        pass

    def begin(self, done: int) -> None:
        pass


@contextmanager
def _unwatched(_verb: str, _total: int) -> Iterator[Watch]:
    yield _Unwatched()


def clean(
    source: str | Path,
    target: str | Path | None,
    outputs: Outputs,
    *,
    held_out: Sequence[str] = (),
    model: str | Path | None = None,
    languages: Languages = (None, None),
    settings: CleanSettings | None = None,
    engine: Engine | None = None,
    watch: Callable[[str, int], AbstractContextManager[Any]] = _unwatched,
) -> Statistics:
    """Write the pairs of a corpus that pass every filter, and those that do not with the reason.

    Args:
        source: text with one sentence per line; or, without ``target``, a file of pairs.
        target: the translations, line by line.
        outputs: the files to write, or URLs; their names say the formats.
        held_out: corpora whose pairs must not be in this one, each "FILE" or "FILE FILE".
        model: a run or model folder that scores the pairs.
        languages: codes of both sides; None is taken from the file or its name.
        settings: thresholds, and the filters that are off.
        engine: where pairs are judged; None for this process. The result is the same.
        watch: begins a stage, given a verb and the number of candidates; receives its progress.

    Returns:
        Counts, distributions and examples, as in the report.

    Raises:
        DataError: a file cannot be read as pairs.
        ConfigurationError: an output exists or has no known format; or work was begun with other arguments.
        FormatError: ``model`` is not a model folder.
        SurroundingsError: an output cannot be written.
    """
    if any(map(url_of, outputs.every)):
        from multihead.cleaning.remote import made_here

        outputs.check_names()
        named = {"removed": outputs.removed, "report": outputs.report, "kept_target": outputs.kept_target}
        in_order = {name: path for name, path in named.items() if path is not None} | {"kept": outputs.kept}
        with made_here(in_order, lambda here: record_of(replace(outputs, **here).work).exists()) as (here, upload):
            own = replace(outputs, **here)
            return _clean(source, target, own, held_out, model, languages, settings, engine, watch, upload)
    return _clean(source, target, outputs, held_out, model, languages, settings, engine, watch, lambda _: None)


def _clean(
    source: str | Path,
    target: str | Path | None,
    outputs: Outputs,
    held_out: Sequence[str],
    model: str | Path | None,
    languages: Languages,
    settings: CleanSettings | None,
    engine: Engine | None,
    watch: Callable[[str, int], AbstractContextManager[Any]],
    upload: Callable[[Callable[[str, int], AbstractContextManager[Any]]], None],
) -> Statistics:
    """As `clean`, with outputs on this machine; ``upload`` is called when they are complete."""
    if all(path.is_file() for path in outputs.every):
        remove_lone_record(outputs.work)
    outputs.check()
    scan, others = scan_corpus(source, target, *languages), scan_held_out(held_out, languages)
    outputs.check(judged=lines_done(outputs.work) == scan.lines)
    with watch("sampled", scan.lines) as count:
        rules = make_rules(
            scan, settings or CleanSettings(), languages, others, None if model is None else Path(model), count
        )
    with growing_file(outputs.work, record_of_rules(scan, rules, others)) as file:
        assert file is not None  # it is never renamed, but removed
        with watch("judged", scan.lines) as count:
            judge_all(scan, rules, file, count, engine or InProcess())
        with _sorting_folder(outputs.work) as folder:
            found = find_copies(part_of(outputs.work), scan.lines, rules, folder)
            if rules.active("similar"):
                from multihead.cleaning.similar import add_similar

                add_similar(part_of(outputs.work), scan.lines, rules, folder, found)
            with watch("wrote", scan.lines) as count:
                statistics = _write(scan, rules, outputs, found, count)
        upload(watch)
        file.discard()
    return statistics


@contextmanager
def _sorting_folder(work: Path) -> Iterator[Path]:
    """A folder for temporary files beside the outputs."""
    folder = work.with_name(f"{work.name}.sorted")
    try:
        with write_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge_all(scan: CorpusScan, rules: Rules, file: GrowingFile, watch: Watch, engine: Engine) -> None:
    """Append the verdicts on all candidates that a file does not have yet.

    Args:
        scan: the corpus.
        rules: what decides.
        file: receives an array of verdicts per chunk, in order.
        watch: receives the progress.
        engine: where they are judged.
    """
    watch.begin(file.lines)
    waiting: list[Verdicts] = []

    def record() -> None:
        if waiting:
            file.append_bytes(b"".join(verdicts.tobytes() for verdicts in waiting), sum(map(len, waiting)))
            waiting.clear()

    with closing(engine.map(partial(judge, rules), read_candidates(scan, file.lines))) as judged:
        for verdicts in judged:
            waiting.append(verdicts)
            if len(waiting) == _CHUNKS:
                record()
            watch(len(verdicts))
    record()


def _write(scan: CorpusScan, rules: Rules, outputs: Outputs, found: Copies, watch: Watch) -> Statistics:
    """Write all outputs; they appear when all are complete."""
    statistics = Statistics(rules.settings)
    for draft in (draft for path in outputs.every for draft in drafts_of(path)):  # of a killed process
        draft.unlink(missing_ok=True)
    with (
        pair_writer(outputs.kept, outputs.kept_target, scan.languages) as keep,
        removed_writer(outputs.removed) as remove,
        open_output(outputs.report) as write_report,
    ):
        judged = read_verdicts(part_of(outputs.work), scan.lines, verdict_type(rules))
        blocks = _with_copies(judged, found)
        for candidates in read_candidates(scan):
            verdicts, marks = next(blocks, (np.empty(0, verdict_type(rules)), {}))
            if verdicts["line"].tolist() != candidates.lines:
                names = " or ".join(str(file.path) for file in scan.files)
                raise DataError("has changed while it was cleaned; start again", names)
            rows = _Rows(rules, candidates, verdicts, marks)
            kept = np.flatnonzero(verdicts["reason"] == 0).tolist()
            keep((candidates.sources[place], candidates.targets[place]) for place in kept)
            remove(map(rows.removed, np.flatnonzero(verdicts["reason"]).tolist()))
            statistics.add(verdicts, rows.example)
            watch(len(verdicts))
        assert statistics.read == scan.lines
        statistics.idle = rules.idle()
        write_report(cleaning_page(statistics, rules, [str(file.path) for file in scan.files]))
    return statistics


Marks = dict[int, tuple[float, int]]
"""Of removed copies, by place in the chunk: how many equal pairs there were so far, or how similar it is; and the line
of the first."""


def _with_copies(judged: Iterator[Verdicts], found: Copies) -> Iterator[tuple[Verdicts, Marks]]:
    """The verdicts in chunks, with the duplicates among them."""
    size = reading.CHUNK
    assert copies.ROWS % size == 0
    for number, block in enumerate(judged):
        removed = found.of(number)
        places = removed["row"] - number * copies.ROWS
        block["reason"][places] = removed["reason"]
        details = zip(removed["score"].tolist(), removed["first"].tolist(), strict=True)
        by_place = dict(zip(places.tolist(), details, strict=True))
        for start in range(0, len(block), size):
            chunk = block[start : start + size]
            marks = {place: by_place[start + place] for place in range(len(chunk)) if start + place in by_place}
            yield chunk, marks


class _Rows:
    """The rows of a chunk, as they are written and shown."""

    def __init__(self, rules: Rules, candidates: Candidates, verdicts: Verdicts, marks: Marks) -> None:
        self._rules, self._candidates, self._verdicts, self._marks = rules, candidates, verdicts, marks

    def removed(self, place: int) -> Removed:
        """A row of the file of removed pairs."""
        reason = REASONS[self._verdicts["reason"][place]]
        source, target = self._candidates.sources[place], self._candidates.targets[place]
        if reason == UNUSABLE:
            score, detail = None, self._candidates.faults[place]
        elif place in self._marks:
            score, first = self._marks[place]
            detail = f"line {first}"
        else:
            score = float(self._verdicts["values"][place, FILTERS.index(reason)])
            detail = explain(self._rules, reason, source, target)
        return Removed(self._candidates.lines[place], reason, score, detail, source, target)

    def example(self, place: int) -> Example:
        """A row for the report; a kept one has neither score nor detail."""
        if not self._verdicts["reason"][place]:
            sides = self._candidates.sources[place], self._candidates.targets[place]
            return Example(self._candidates.lines[place], None, "", *sides)
        row = self.removed(place)
        return Example(row.line, row.score, row.detail, row.source, row.target)
