"""The door to corpora: two files with a sentence a line, or one file of pairs in one of several formats.

    train.de + train.en          `corpus`: line n of the one translates line n of the other
    train.tsv                    `records`: a sentence, a tab and its translation on each line
    train.jsonl, train.ndjson    `records`: an object on each line
    train.tmx                    `tmx`: a translation memory

The format of one file is told by the end of its name, under which each may be gzip, xz or zstd (``train.tmx.gz``).
All give the same: something that was looked through once (`CorpusScan`), to be read as often as one likes. Which
languages a file name speaks of, what tokens become of the text, and how several corpora are mixed is for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from multihead.data.corpus import Pair, TextScan, check_parallel
from multihead.data.languages import Languages, normal
from multihead.data.records import scan_json_lines, scan_table
from multihead.data.report import Report
from multihead.data.tmx import scan_tmx
from multihead.errors import ConfigurationError, DataError


@runtime_checkable
class CorpusScan(Protocol):
    """A corpus that was looked through once and found fit to be read."""

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Source and target, or the one file that holds both."""
        ...

    @property
    def lines(self) -> int:
        """How many pairs there may be: lines, records or translation units. What `read` gives and what it tells the
        report add up to this."""
        ...

    @property
    def languages(self) -> Languages:
        """Of source and target: as they were given or as the file has them; None where neither says."""
        ...

    def path(self, side: int) -> Path:
        """The file of side 0, the source, or 1, the target."""
        ...

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs that can be used, in the order of the file; the others go to ``report`` with their line.

        Raises:
            DataError: no pair can be used, or the file has changed since it was looked through.
        """
        ...


_FORMATS: dict[str, Callable[[Path, Languages], CorpusScan]] = {
    ".tsv": scan_table,
    ".jsonl": scan_json_lines,
    ".ndjson": scan_json_lines,
    ".tmx": scan_tmx,
}
_PACKED = (".gz", ".xz", ".zst")


def format_of(path: str | Path) -> str | None:
    """Which file of pairs this is by its name: ".tsv", ".jsonl", ".ndjson" or ".tmx"; None if it is none."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _FORMATS else None


def scan_corpus(
    source: str | Path,
    target: str | Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> CorpusScan:
    """Look through a corpus once: count it, hash it, and refuse what is none.

    Args:
        source: text with a sentence a line; or, without ``target``, a file of pairs.
        target: the translations, line by line.
        source_language: a code such as "de" or "de-AT". Needed where a file of pairs tells its sides apart by
            languages alone: keys or columns with the names of languages, a TMX of more than two.
        target_language: the same of the target.

    Raises:
        DataError: a file cannot be read as pairs; says what is wrong with it, where, and what to do.
        ConfigurationError: both languages are the same one.
        MissingDependencyError: it is zstd, and the package that reads it is not installed.
    """
    if target is not None:
        return check_parallel(source, target)
    languages = source_language or None, target_language or None
    if source_language and target_language and normal(source_language) == normal(target_language):
        raise ConfigurationError(f"source and target language are both {source_language!r}; expected two")
    form = format_of(source)
    if form is None:
        known = f"{', '.join(_FORMATS)}; each also with {', '.join(_PACKED)}"
        message = f"by its name not a file of pairs ({known}); rename it, or name the file of translations too"
        raise DataError(message, source)
    return _FORMATS[form](Path(source), languages)
