"""Open a corpus: two aligned files, or one file of pairs.

    train.de + train.en          `corpus`: line n of the second translates line n of the first
    train.tsv                    `records`: a sentence, a tab and its translation on each line
    train.jsonl, train.ndjson    `records`: an object on each line
    train.tmx                    `tmx`: a translation memory

The extension tells the format of a single file; any of them may be compressed with gzip, xz or zstd (``train.tmx.gz``).
Every reader returns a `CorpusScan`, a corpus that was scanned once and can be read any number of times. Guessing
languages from file names, mixing corpora and tokenizing belong to `preparing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from multihead.data.corpus import Languages, Pair, Report, check_parallel, normalize_code
from multihead.data.records import scan_json_lines, scan_table
from multihead.data.text_files import TextScan
from multihead.data.tmx import scan_tmx
from multihead.errors import ConfigurationError, DataError


@runtime_checkable
class CorpusScan(Protocol):
    """A corpus that was scanned once and can be read."""

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Source and target, or the one file that holds both."""
        ...

    @property
    def lines(self) -> int:
        """Number of candidates: lines, records or translation units. Each is either read or left out with a report."""
        ...

    @property
    def languages(self) -> Languages:
        """Of source and target, as given or as found in the file; None if unknown."""
        ...

    def path(self, side: int) -> Path:
        """The file of side 0, the source, or 1, the target."""
        ...

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs that can be used, in the order of the file; the others go to ``report`` with their line.

        Raises:
            DataError: no pair can be used, or the file has changed since it was scanned.
        """
        ...


_FORMATS: dict[str, Callable[[Path, Languages], CorpusScan]] = {
    ".tsv": scan_table,
    ".jsonl": scan_json_lines,
    ".ndjson": scan_json_lines,
    ".tmx": scan_tmx,
}
_COMPRESSED = (".gz", ".xz", ".zst")


def format_of(path: str | Path) -> str | None:
    """The format of a file of pairs by its name: ".tsv", ".jsonl", ".ndjson" or ".tmx"; None for other files."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _FORMATS else None


def scan_corpus(
    source: str | Path,
    target: str | Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> CorpusScan:
    """Scan a corpus once: count it, hash it, and refuse it if it cannot be read as pairs.

    Args:
        source: text with one sentence per line; or, without ``target``, a file of pairs.
        target: the translations, line by line.
        source_language: a code such as "de" or "de-AT". Needed if only languages tell the sides of a file of pairs
            apart: keys or columns named by language, or a TMX of more than two languages.
        target_language: likewise for the target.

    Raises:
        DataError: a file cannot be read as pairs; says what is wrong, where, and what to do.
        ConfigurationError: both languages are the same.
        MissingDependencyError: the file is zstd, and the package `zstandard` is not installed.
    """
    if target is not None:
        return check_parallel(source, target)
    languages = source_language or None, target_language or None
    if source_language and target_language and normalize_code(source_language) == normalize_code(target_language):
        raise ConfigurationError(f"source and target language are both {source_language!r}; expected two")
    extension = format_of(source)
    if extension is None:
        known = f"{', '.join(_FORMATS)}; each also with {', '.join(_COMPRESSED)}"
        message = f"by its name not a file of pairs ({known}); rename it, or name the file of translations too"
        raise DataError(message, source)
    return _FORMATS[extension](Path(source), languages)
