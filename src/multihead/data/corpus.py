"""Reading text: lines of one file, and aligned pairs of two, with every fault named by file and line.

A line ends at LF alone; one CR before the LF belongs to the terminator; a last line without LF counts.
Nothing else (U+2028, form feed, NUL) ends a line, so the count here is that of ``wc -l`` and of every
other tool that cuts at LF. A byte order mark before the first line is no text. Files are plain or compressed
(`compressed`), and are streamed: a corpus never has to fit in memory.

Two files are looked at once before anything is made from them (`check_parallel`), so that unequal counts,
binary data or another encoding are said at the start. Single bad lines cost their pair, not the corpus;
`report` says which and why. Pairs that stand in one file (a table, JSON lines, TMX) are for `readers`; what a
line becomes (tokens, ids) and which is too long is for others to say.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from multihead.data.compressed import open_text
from multihead.data.report import Report
from multihead.errors import DataError

LONGEST_LINE = 1 << 26  # bytes; what is longer is no sentence, and would have to be held in memory
NOT_UTF8 = "not valid UTF-8"
EMPTY = "empty or only white space"
EMPTY_BOTH = "empty on both sides"

_BLOCK = 1 << 20


@runtime_checkable
class LineStream(Protocol):
    """A stream of bytes that gives a line at a time: an open file, ``sys.stdin.buffer``, `io.BytesIO`."""

    def readline(self, size: int, /) -> bytes:
        """The bytes up to and with the next LF, but at most ``size``; none at the end."""
        ...


class Pair(NamedTuple):
    """A sentence and its translation, with the line (from 1) on which both stand.

    In a file of pairs it is the line where the record begins; in TMX several may begin on one line.
    """

    line: int
    source: str
    target: str


@dataclass(frozen=True)
class TextScan:
    """What one pass over a file found: its lines, how many are not UTF-8, the SHA-256 of its text.

    The hash is of all bytes, decompressed, so that a file and its gzip, xz or zstd have the same.
    """

    path: Path
    lines: int
    undecodable: int
    sha256: str


@dataclass(frozen=True)
class ParallelScan:
    """Two files with equally many lines, found fit to be read as pairs."""

    source: TextScan
    target: TextScan

    @property
    def lines(self) -> int:
        """How many lines each of the two files has."""
        return self.source.lines

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Source and target."""
        return self.source, self.target

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Not known: lines do not say."""
        return None, None

    def path(self, side: int) -> Path:
        """The file of side 0, the source, or 1, the target."""
        return self.files[side].path

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs that can be used, as `read_checked`."""
        return read_checked(self, report)


def split_lines(stream: LineStream, path: str | Path = "standard input") -> Iterator[bytes]:
    """The lines of a byte stream without their terminators (LF, or CR LF), as they arrive.

    The first comes without a byte order mark; anywhere else U+FEFF is a character like others.

    Raises:
        DataError: a line is longer than 64 MiB; ``path`` is only what the message calls the stream.
    """
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(_too_long(), path, number)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        yield line


def _too_long() -> str:
    return f"a line of more than {LONGEST_LINE >> 20} MiB; is this text, with one sentence a line?"


def decode_line(raw: bytes, path: str | Path, number: int) -> str:
    """The text of a line.

    Raises:
        DataError: it is not UTF-8; names the file, the line, the byte and the column (in characters).
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"{NOT_UTF8} ({place_in_line(error)}); correct the line, or convert the file if it is in another"
        remedy = " encoding, for example: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW"
        raise DataError(message + remedy, path, number) from None


def place_in_line(error: UnicodeDecodeError) -> str:
    """The byte that cannot be decoded, and its column (in characters)."""
    column = len(error.object[: error.start].decode("utf-8")) + 1
    return f"byte 0x{error.object[error.start]:02x} at column {column}"


def one_line(text: str) -> str:
    """A text whose format lets it hold line breaks, as a line: each break (CR, LF) becomes a space.

    Blanks and tabs around a break, which only indent, go with it; so do breaks at either end. Nothing else changes.
    """
    if "\n" not in text and "\r" not in text:
        return text
    first, *middle, last = re.split("[\r\n]+", text)
    pieces = [first.rstrip(" \t"), *(piece.strip(" \t") for piece in middle), last.lstrip(" \t")]
    return " ".join(filter(None, pieces))


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a plain or compressed file, every one of them, empty ones too.

    Raises:
        DataError: as `open_text`, `split_lines` and `decode_line`.
    """
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            yield decode_line(raw, path, number)


def scan(path: str | Path, look: Callable[[bytes], None] = lambda _: None) -> TextScan:
    """Look through a file once: count its lines, hash its text, and refuse what is not UTF-8 text.

    Args:
        path: the file.
        look: is shown the text too, in blocks of whole lines.

    Raises:
        DataError: as `open_text`; it is not a regular file; more than 1 line in 100 is not UTF-8 (in a
            file of fewer than 100 lines: any), or most lines hold a NUL.
    """
    path = Path(path)
    refuse_pipe(path)
    digest = hashlib.sha256()
    lines = undecodable = with_nul = 0
    first: tuple[int, str] | None = None
    with open_text(path) as stream:
        for block in _blocks(stream, path):
            digest.update(block)
            look(block)
            if not _is_clean(block):
                for number, raw in enumerate(split_lines(io.BytesIO(block), path), start=lines + 1):
                    with_nul += b"\0" in raw
                    try:
                        raw.decode("utf-8")
                    except UnicodeDecodeError as error:
                        undecodable += 1
                        first = first or (number, place_in_line(error))
            lines += block.count(b"\n") + (not block.endswith(b"\n"))
    if 2 * with_nul > lines:
        message = f"{with_nul:,} of {lines:,} lines hold a NUL byte; binary data, or UTF-16?"
        raise DataError(f"{message} If UTF-16: iconv -f UTF-16 -t UTF-8 OLD > NEW", path)
    if first and 100 * undecodable > lines:
        message = f"{undecodable:,} of {lines:,} lines are {NOT_UTF8} ({first[1]}); binary data (compressed, but"
        remedy = " not by gzip, xz or zstd?) or another encoding? Convert it: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW"
        raise DataError(message + remedy, path, first[0])
    return TextScan(path, lines, undecodable, digest.hexdigest())


def refuse_pipe(path: Path) -> None:
    """What is read more than once has to be a file.

    Raises:
        DataError: it is a pipe or a device.
    """
    with suppress(OSError):  # what cannot be found or looked at, `open_text` says better
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError("is a pipe or a device, but is to be read more than once; save it first", path)


def _blocks(stream: io.BufferedReader, path: Path) -> Iterator[bytes]:
    """Large blocks of whole lines: UTF-8 is checked and LF counted at the speed of memory."""
    while block := stream.read(_BLOCK):
        rest = stream.readline(LONGEST_LINE + 1)
        if len(rest) > LONGEST_LINE:
            raise DataError(_too_long(), path)
        yield block + rest


def _is_clean(block: bytes) -> bool:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in block


def check_parallel(source: str | Path, target: str | Path) -> ParallelScan:
    """Look through two files that are to be read as pairs.

    Raises:
        DataError: as `scan`, or the files do not have equally many lines.
    """
    scans = ParallelScan(scan(source), scan(target))
    if scans.source.lines != scans.target.lines:
        counts = f"{source} has {scans.source.lines:,} lines but {target} has {scans.target.lines:,}"
        remedy = "line n of the one must translate line n of the other (a line ends at LF alone)"
        raise DataError(f"{counts}; {remedy}. Nothing was read; find where they part and align them")
    return scans


def read_parallel(source: str | Path, target: str | Path, report: Report | None = None) -> Iterator[Pair]:
    """Check two files (at the call), then read their pairs: `check_parallel`, then `read_checked`."""
    return read_checked(check_parallel(source, target), Report() if report is None else report)


def read_checked(scans: ParallelScan, report: Report) -> Iterator[Pair]:
    """The pairs of two files in which both sides are UTF-8 and hold more than white space.

    The others go to ``report``, each under one fault: the source's before the target's. Every valid pair
    is kept as it is, equal sources and all.

    Raises:
        DataError: no pair is valid, or a file has changed since it was checked.
    """
    paths = (scans.source.path, scans.target.path)
    number = kept = 0
    with open_text(paths[0]) as source, open_text(paths[1]) as target:
        raws = zip(split_lines(source, paths[0]), split_lines(target, paths[1]), strict=False)
        for number, (raw_source, raw_target) in enumerate(raws, start=1):
            pair = _valid_pair(paths, number, raw_source, raw_target, report)
            if pair is not None:
                kept += 1
                yield pair
    end_reading(paths, "lines", scans.lines, number, kept, report)


def end_reading(paths: Sequence[Path], what: str, expected: int, number: int, kept: int, report: Report) -> None:
    """What has to hold when ``number`` candidates (``what``: lines, records) were read, of which ``kept`` are pairs.

    Raises:
        DataError: the ``expected`` number was not there, or no pair is valid.
    """
    if number != expected:
        message = f"has changed: {expected:,} {what} were counted, {number:,} are there now; start again"
        raise DataError(message, " or ".join(map(str, paths)))
    if not kept:
        raise DataError(f"no pair can be used out of {number:,}:\n{report.summary()}", paths[0])


def _valid_pair(
    paths: tuple[Path, Path], number: int, raw_source: bytes, raw_target: bytes, report: Report
) -> Pair | None:
    texts = []
    for path, raw in zip(paths, (raw_source, raw_target), strict=True):
        try:
            texts.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            report.add(path, number, NOT_UTF8, place_in_line(error))
            return None
    empty = [not text.strip() for text in texts]
    if any(empty):
        report.add(paths[0] if empty[0] else paths[1], number, EMPTY_BOTH if all(empty) else EMPTY)
        return None
    return Pair(number, *texts)
