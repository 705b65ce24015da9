"""Open a corpus: two aligned files, or one of pairs; find its shards.

    train.de + train.en          `corpus`: line n of the second translates line n of the first
    train.tsv                    `records`: a sentence, a tab and its translation on each line
    train.csv                    `csv_tables`: likewise, with commas or semicolons, and quotes
    train.jsonl, train.ndjson    `records`: an object on each line
    train.parquet                `parquet`: a data set of Hugging Face, or any other with columns of text
    train.tmx                    `tmx`: a translation memory
    train.xlf, train.xliff       `xliff`: a document while it is translated
    de.po                        `catalogs`: the messages of a program

The extension tells the format of a single file; any of them but Parquet may be compressed with gzip, xz or zstd
(``train.tmx.gz``). Every reader returns a `CorpusScan`, a corpus that was scanned once and can be read any number of
times; `read_entries` reads a file of pairs without a scan. Guessing languages from file names, mixing corpora and
tokenizing belong to `preparing`.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from multihead.data.corpus import Languages, Pair, Report, check_parallel, normalize_code
from multihead.data.entries import Columns, Entry
from multihead.data.text_files import TextScan, refuse_name, refuse_pipe
from multihead.errors import ConfigurationError, DataError
from multihead.remote_files import find
from multihead.urls import url_of


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


@dataclass(frozen=True)
class ReversedScan:
    """A corpus whose source and target change places; a `CorpusScan`."""

    scan: CorpusScan

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Of source and target: the other way round than they were given."""
        return self.scan.files[::-1]

    @property
    def lines(self) -> int:
        """Number of candidates."""
        return self.scan.lines

    @property
    def languages(self) -> Languages:
        """Of source and target."""
        source, target = self.scan.languages
        return target, source

    def path(self, side: int) -> Path:
        """The file of a side."""
        return self.scan.path(1 - side)

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs that can be used; errors as those of `CorpusScan.read`."""
        return (Pair(pair.line, pair.target, pair.source) for pair in self.scan.read(report))


class _Format(NamedTuple):
    """The module of a format, which is imported to read such a file, and its functions."""

    module: str
    scan: str
    read: str
    """Reads the entries of a file that is not scanned."""


_FORMATS = {
    ".tsv": _Format("records", "scan_table", "read_table"),
    ".csv": _Format("csv_tables", "scan_csv", "read_csv"),
    ".jsonl": _Format("records", "scan_json_lines", "read_json_lines"),
    ".ndjson": _Format("records", "scan_json_lines", "read_json_lines"),
    ".parquet": _Format("parquet", "scan_parquet", "read_parquet"),
    ".tmx": _Format("tmx", "scan_tmx", "read_tmx"),
    ".xlf": _Format("xliff", "scan_xliff", "read_xliff"),
    ".xliff": _Format("xliff", "scan_xliff", "read_xliff"),
    ".po": _Format("catalogs", "scan_catalog", "read_catalog"),
}
_WITH_COLUMNS = (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet")
"""Formats whose columns or keys can be named."""
_COMPRESSED = (".gz", ".xz", ".zst")


def format_of(path: str | Path) -> str | None:
    """The format of a file of pairs by its name, such as ".tsv" or ".parquet"; None for other files."""
    ending = _ending(path)
    return ending if ending in _FORMATS else None


def _ending(path: str | Path) -> str:
    """The ending of a name, without those of compressed files; "" if it has none."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def scan_corpus(
    source: str | Path,
    target: str | Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    columns: Columns | None = None,
) -> CorpusScan:
    """Scan a corpus once: count it, hash it, and refuse it if it cannot be read as pairs.

    Args:
        source: text with one sentence per line; or, without ``target``, a file of pairs.
        target: the translations, line by line.
        source_language: a code such as "de" or "de-AT". Needed if only languages tell the sides of a file of pairs
            apart: keys or columns named by language, or a TMX of more than two languages.
        target_language: likewise for the target.
        columns: names of the columns or keys of source and target in a table, JSON lines or Parquet; numbers from 1
            for tables without a header. By default those that are named by the languages or "source" and "target".

    Raises:
        DataError: a file cannot be read as pairs; says what is wrong, where, and what to do.
        ConfigurationError: both languages are the same; columns of a format that has none.
        MissingDependencyError: the file is zstd or Parquet, and the package that reads it is not installed.
    """
    for path in (source, target):
        if path is not None:
            refuse_name(path)
    if target is not None:
        if columns is not None:
            raise ConfigurationError(f"columns are of a file of pairs, and {source} and {target} are two files")
        return check_parallel(source, target)
    form, given = _choose_format(source, (source_language or None, target_language or None), columns)
    scan: Callable[..., CorpusScan] = getattr(import_module(f"multihead.data.{form.module}"), form.scan)
    return scan(*given)


def read_entries(
    source: str | Path,
    source_language: str | None = None,
    target_language: str | None = None,
    columns: Columns | None = None,
    *,
    first: int,
) -> Iterator[Entry]:
    """The entries of a file of pairs as they are read, without a scan: for those who need only its beginning.

    Nothing is counted or hashed. What a scan learns from the whole file, such as the number of columns, is learned from
    its beginning.

    Args:
        source: a file of pairs.
        source_language: as for `scan_corpus`.
        target_language: as for `scan_corpus`.
        columns: as for `scan_corpus`.
        first: number of entries from which that is learned.

    Raises:
        DataError: the beginning cannot be read as pairs.
        ConfigurationError: both languages are the same; columns of a format that has none.
        MissingDependencyError: as `scan_corpus`.
    """
    refuse_name(source)
    refuse_pipe(Path(source))  # it is read twice
    form, given = _choose_format(source, (source_language or None, target_language or None), columns)
    read: Callable[..., Iterator[Entry]] = getattr(import_module(f"multihead.data.{form.module}"), form.read)
    return read(*given, first=first)


def _choose_format(
    source: str | Path, languages: Languages, columns: Columns | None
) -> tuple[_Format, tuple[Any, ...]]:
    """The format of a file of pairs, and the arguments of its functions."""
    if languages[0] and languages[1] and normalize_code(languages[0]) == normalize_code(languages[1]):
        raise ConfigurationError(f"source and target language are both {languages[0]!r}; expected two")
    extension = format_of(source)
    if extension is None:
        ending = _ending(source)
        message = f"{ending} is not an ending of files of pairs" if ending else "a file of pairs has an ending"
        known = f"{', '.join(_FORMATS)}; all but .parquet also with {', '.join(_COMPRESSED)}"
        raise DataError(f"{message} ({known}); convert it, or name the file of its translations, too", source)
    if extension in _WITH_COLUMNS:
        return _FORMATS[extension], (Path(source), languages, columns)
    if columns is not None:
        raise ConfigurationError(f"columns: {source} has none; they are of {', '.join(_WITH_COLUMNS)}")
    return _FORMATS[extension], (Path(source), languages)


# --------------------------------------------------------------------------- corpora of many files

Shard = tuple[Path, Path | None]
"""A file of pairs, or a file of sentences and one of their translations."""
Named = Path | Sequence[Path]
"""A file, a pattern such as ``train-*.parquet``, a folder, or a list of these."""

_SPLITS = ("train", "validation", "valid", "dev", "test")
"""Words with which the names of files begin; the first one that fits counts."""


def shards(source: Named, target: Named | None = None) -> list[Shard]:
    """The files of a corpus, in the order of their names, which may be URLs; lists keep their order.

    A name that is a file is that file, whatever characters it has. Otherwise ``*``, ``?`` and ``[...]`` stand for parts
    of names, and ``**`` for folders. A folder stands for the files of pairs in it.

    Raises:
        DataError: a pattern or folder has no file; the name of a file is not UTF-8; a folder has files of several
            splits or formats; source and target have different numbers of files.
    """
    sources, targets = _files(source), [] if target is None else _files(target)
    for path in (*sources, *targets):
        refuse_name(path)
    if target is None:
        return [(path, None) for path in sources]
    if len(sources) != len(targets):
        counts = f"{_shown(source)} names {len(sources)} files, but {_shown(target)} {len(targets)}"
        raise DataError(f"{counts}; expected as many, since file n of the one translates file n of the other")
    return list(zip(sources, targets, strict=True))


def _files(named: Named) -> list[Path]:
    if not isinstance(named, Path):
        return [path for part in named for path in _files(part)]
    if named.is_dir():
        return _folder(named)
    if named.exists() or not glob.has_magic(str(named)):
        return [named]
    if (url := url_of(named)) is not None:
        found = [Path(one) for one in find(url)]
    else:
        every = map(Path, glob.iglob(str(named), recursive=True))  # noqa: PTH207 - the pattern may be absolute
        found = sorted(path for path in every if path.is_file())
    if not found:
        raise DataError("no file has such a name; check the pattern", named)
    return found


def _folder(folder: Path) -> list[Path]:
    """The files of pairs in a folder: one split, one format."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and format_of(path) is not None)
    if not found:
        raise DataError(f"is a folder without files of pairs ({', '.join(_FORMATS)}); name a file instead", folder)
    splits = {split: path for path in reversed(found) if (split := _split_of(path)) is not None}
    forms = {str(format_of(path)): path for path in reversed(found)}
    for what, parts in (("splits", splits), ("formats", forms)):
        if len(parts) > 1:
            example = next(iter(sorted(parts.values()))).name
            message = f"is a folder with files of several {what} ({', '.join(parts)})"
            raise DataError(f"{message}; name those to read by a pattern that {example} fits, with * in it", folder)
    return found


def _split_of(path: Path) -> str | None:
    """The split that a name begins with; "validation" is not "valid", though it begins with that, too."""
    return next((split for split in _SPLITS if path.name.startswith(split)), None)


def _shown(named: Named) -> str:
    return str(named) if isinstance(named, Path) else ", ".join(map(str, named))
