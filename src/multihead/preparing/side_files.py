"""Files with a line for each line of the corpora, such as weights.

Line n belongs to line n of the corpus, whether that is a pair or was left out; the lines of several corpora and files
follow one another as these do. A corpus that is read both ways has its lines once. Since a store has the corpus line of
every pair (`data.store`), such a file also goes with text that was prepared without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from multihead.data.readers import format_of
from multihead.data.side_store import LinesOfPairs, LinesPerCorpus
from multihead.data.text_files import open_text, scan, split_lines
from multihead.errors import ConfigurationError, DataError
from multihead.planning.settings import CorpusRecord, TextFile, find_twins, without_twins
from multihead.preparing.corpora import TextFiles, corpus_record
from multihead.preparing.prepared import PreparedText

_BY_LINE = (None, ".tsv", ".jsonl", ".ndjson", ".parquet")
"""Formats in which a pair is a line, or a row with a number."""
_SHOWN = 3
"""Corpora whose numbers of lines an error names."""


def corpora_of(text: PreparedText | TextFiles) -> tuple[CorpusRecord, ...]:
    """The corpora of text that is stored or will be."""
    if isinstance(text, PreparedText):
        return text.config.corpora
    return tuple(corpus_record(corpus, 0, 0, 0) for corpus in text.train)


def check_side_file(
    path: Path, what: str, parse: Callable[[bytes, Path, int], object], text: PreparedText | TextFiles
) -> TextFile:
    """Read such a file once, to check and hash it.

    Args:
        path: the file; plain, gzip, xz or zstd.
        what: what it holds: "weights".
        parse: checks a line, given the file and the line's number.
        text: the corpora.

    Raises:
        DataError: it cannot be read, a line is wrong, or it has more or fewer lines than the corpora.
        ConfigurationError: a corpus is of a format in which a pair is not a line.
    """
    corpora = without_twins(corpora_of(text))
    for corpus in corpora:
        if format_of(corpus.files[0].path) not in _BY_LINE:
            raise ConfigurationError(
                f"{path}: {what} belong to lines, and a pair of {corpus.files[0].path} is not a line; write its pairs "
                "to a .tsv or .jsonl file"
            )
    scanned = scan(path)
    expected = sum(corpus.files[0].lines for corpus in corpora)
    if scanned.lines != expected:
        counts = [f"{corpus.files[0].path} has {corpus.files[0].lines:,}" for corpus in corpora]
        shown = ", ".join(counts[:_SHOWN]) + (f", and {len(counts) - _SHOWN} more files" if counts[_SHOWN:] else "")
        raise DataError(
            f"has {scanned.lines:,} lines of {what}, but the training text has {expected:,} ({shown}); expected a line "
            "for each line, also of pairs that cannot be used",
            path,
        )
    with open_text(path) as stream:
        for number, line in enumerate(split_lines(stream, path), 1):
            parse(line, path, number)
    return TextFile(path=str(path), sha256=scanned.sha256, lines=scanned.lines)


def require_same(file: TextFile) -> Path:
    """The path of a file whose content is still that with which the run began.

    Raises:
        ConfigurationError: it has changed.
        DataError: it cannot be read.
    """
    path = Path(file.path)
    if scan(path).sha256 != file.sha256:
        raise ConfigurationError(f"{path}: has changed since this run began; put the old file back, or start a new run")
    return path


def lines_of_pairs(prepared: PreparedText) -> LinesOfPairs:
    """Which line of such a file belongs to which pair of stored text."""
    return LinesOfPairs(lines_per_corpus(prepared.config.corpora), prepared.train.lines)


def lines_per_corpus(corpora: Sequence[CorpusRecord]) -> list[LinesPerCorpus]:
    """Where the lines of each corpus begin; a corpus that is read both ways has its lines once."""
    twins = find_twins(corpora)
    counts = [corpus.files[0].lines if twin is None else 0 for corpus, twin in zip(corpora, twins, strict=True)]
    starts = list(accumulate(counts, initial=0))
    return [
        LinesPerCorpus(corpus.pairs, starts[place if twin is None else twin], corpus.reversed)
        for place, (corpus, twin) in enumerate(zip(corpora, twins, strict=True))
    ]
