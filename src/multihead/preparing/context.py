"""Corpora of documents: a source is read with the sentences before it

`text.context` says how these are put together. A line without words on both sides ends a document; a file that has none
is one document. Pairs that are left out for another reason are no context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from multihead.data.corpus import EMPTY_BOTH, Languages, Pair, Report
from multihead.data.readers import CorpusScan
from multihead.data.text_files import TextScan
from multihead.preparing.corpora import TextFiles
from multihead.text.context import Documents

BORDER = "between documents"
"""The reason by which lines without words are left out of a corpus of documents."""


@dataclass(frozen=True)
class ContextScan:
    """A corpus whose sources have the sentences before them; a `CorpusScan`."""

    scan: CorpusScan
    sentences: int
    """How many."""

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Source and target, or the one file that holds both."""
        return self.scan.files

    @property
    def lines(self) -> int:
        """Number of candidates."""
        return self.scan.lines

    @property
    def languages(self) -> Languages:
        """Of source and target."""
        return self.scan.languages

    def path(self, side: int) -> Path:
        """The file of a side."""
        return self.scan.path(side)

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs that can be used; errors as those of `CorpusScan.read`."""
        documents = Documents(self.sentences)
        for pair in self.scan.read(_Borders(report, documents)):
            yield pair._replace(source=documents.add(pair.source))


class _Borders(Report):
    """Passes faults on to another report, and ends a document where both sides are empty."""

    def __init__(self, report: Report, documents: Documents) -> None:
        super().__init__(limit=0)
        self._report, self._documents = report, documents

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        if reason == EMPTY_BOTH:
            self._documents.end()
            reason = BORDER
        self._report.add(path, line, reason, detail)

    def summary(self) -> str:
        return self._report.summary()


def with_documents(files: TextFiles, sentences: int) -> TextFiles:
    """The files with so many sentences before each source; as they are with 0."""
    if not sentences:
        return files
    train, valid = (
        tuple(replace(one, scan=ContextScan(one.scan, sentences)) for one in corpora)
        for corpora in (files.train, files.valid_parts)
    )
    return TextFiles(train, valid[0].scan if valid else None, valid)
