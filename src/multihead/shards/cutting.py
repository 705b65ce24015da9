"""One or more texts as shards of lines, each readable without the rest

A text is one file or several, one after the other: plain, compressed, or Parquet. It is read once, to count and hash
its lines and to record where each shard begins. A shard has a fixed number of lines of the whole text and may span
files, so that the shards do not depend on how the text is divided into files. A process then reads the bytes of its
shard: of a plain file only these; a compressed file is decompressed from its beginning. Lines are counted and decoded
by the rules of `data.text_files`; a row of a Parquet file is a line.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from multihead.data.text_files import PARQUET, TextScan, decode_line, refuse_pipe, scan_stream, split_lines
from multihead.errors import DataError
from multihead.shards import parquet, storage

MOST_SHARDS = 4096
"""Number of shards of a large text, roughly; of a smaller one there are fewer."""
_LINE = 60
"""Bytes of a line, for that number."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """Consecutive lines of one file."""

    place: str
    name: str
    """The file as the user named it, for messages."""
    first: int
    """Lines of the file before."""
    lines: int
    start: int = 0
    """Bytes of the decompressed text before."""
    size: int = 0
    """Bytes of these lines; of a Parquet file its whole size."""
    check: int = 0
    """CRC-32 of these bytes; 0 for Parquet."""
    column: str | None = None
    """Of a Parquet file."""

    def read(self) -> Iterator[str]:
        """The lines.

        Raises:
            DataError: the file cannot be read, or has changed since it was cut; or a line is not UTF-8.
        """
        if self.column is not None:
            if storage.size(self.place) != self.size:
                raise self._changed()
            with storage.open_bytes(self.place) as raw:
                yield from parquet.read_rows(raw, self.name, self.column, self.first, self.lines)
            return
        with storage.open_decompressed(self.place) as stream:
            _skip(stream, self.start)
            content = stream.read(self.size)
        if len(content) != self.size or zlib.crc32(content) != self.check:
            raise self._changed()
        for number, raw_line in enumerate(split_lines(io.BytesIO(content), self.name, self.first), self.first + 1):
            yield decode_line(raw_line, self.name, number)

    def _changed(self) -> DataError:
        return DataError("has changed since the work began; start again with another --output", self.name)


@dataclass(frozen=True)
class Shard:
    """Some lines of one text, or of several texts with equally many lines."""

    number: int
    """From 0."""
    done: int
    """Lines of the whole text before."""
    lines: int
    parts: Mapping[str, tuple[Part, ...]]
    """For each text the parts of its files."""

    def read(self, text: str) -> Iterator[str]:
        """The lines of one text."""
        return chain.from_iterable(part.read() for part in self.parts[text])


@dataclass(frozen=True)
class CutText:
    """A text that was read once."""

    scan: TextScan
    """Its first file; lines and hash of the whole."""
    shards: list[tuple[Part, ...]]


def lines_a_shard(places: Sequence[str], window: int) -> int:
    """Number of lines of a shard: a multiple of ``window``, chosen by the size of all files.

    Raises:
        DataError: a file does not exist.
    """
    total = sum(map(storage.size, places))
    return window * max(1, -(-total // (MOST_SHARDS * window * _LINE)))


def cut(names: Sequence[str], lines: int, column: str | None = None) -> CutText:
    """Read a text once and cut it.

    Args:
        names: its files, in order.
        lines: number of lines of each shard but the last.
        column: where the text of Parquet files is; None for the only column of strings.

    Raises:
        DataError: a file cannot be read, is not text, or has a line that is not UTF-8.
        ConfigurationError: a Parquet file does not have the column.
    """
    cutter, digests = _Cutter(lines), []
    for name in names:
        place = storage.absolute(name)
        if not storage.is_remote(place):
            refuse_pipe(storage.local_path(place))
        with storage.open_bytes(place) as raw:
            is_parquet = raw.peek(len(PARQUET))[: len(PARQUET)] == PARQUET
        if is_parquet:
            digests.append(_cut_parquet(cutter, place, name, column))
        else:
            digests.append(_cut_text(cutter, place, name))
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return CutText(TextScan(Path(names[0]), cutter.lines, 0, whole), cutter.finish())


def shards_of(texts: Mapping[str, CutText]) -> list[Shard]:
    """The shards of texts that have equally many lines and were cut alike."""
    shards: list[Shard] = []
    done = 0
    for number, parts in enumerate(zip(*(text.shards for text in texts.values()), strict=True)):
        lines = {sum(part.lines for part in one) for one in parts}
        assert len(lines) == 1
        shards.append(Shard(number, done, lines.pop(), dict(zip(texts, parts, strict=True))))
        done += shards[-1].lines
    return shards


def _cut_text(cutter: _Cutter, place: str, name: str) -> str:
    """Add a plain or compressed file; returns the SHA-256 of its text."""
    cutter.begin(place, name)
    with storage.open_decompressed(place) as stream:
        found = scan_stream(stream, name, cutter.add_text)
    if found.undecodable:
        with storage.open_decompressed(place) as stream:
            for number, line in enumerate(split_lines(stream, name), start=1):
                decode_line(line, name, number)  # raises the error at the line
    cutter.end()
    return found.sha256


def _cut_parquet(cutter: _Cutter, place: str, name: str, column: str | None) -> str:
    """Add a Parquet file; returns its SHA-256."""
    with storage.open_bytes(place) as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    with storage.open_bytes(place) as raw:
        rows, column = parquet.inspect(raw, name, column)
    cutter.begin(place, name, column, storage.size(place))
    cutter.add_rows(rows)
    cutter.end()
    return digest


class _Cutter:
    """Collects the parts of shards.

    Args:
        shard: number of lines of a shard.
    """

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._room = shard
        self._shards: list[list[Part]] = [[]]
        self.lines = 0

    def begin(self, place: str, name: str, column: str | None = None, whole: int = 0) -> None:
        """The next lines are those of this file."""
        self._file, self._column, self._whole = (place, name), column, whole
        self._first = self._start = 0
        self._clear()

    def _clear(self) -> None:
        self._lines = self._size = self._check = 0

    def add_text(self, block: bytes) -> None:
        """Add a block of whole lines; only the last line of a file can lack its LF."""
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
        count = len(ends) + (not block.endswith(b"\n"))
        start = line = 0
        while line < count:
            take = min(self._room, count - line)
            stop = int(ends[line + take - 1]) if line + take <= len(ends) else len(block)
            piece = memoryview(block)[start:stop]
            self._check = zlib.crc32(piece, self._check)
            self._size += len(piece)
            start, line = stop, line + take
            self._count(take)

    def add_rows(self, rows: int) -> None:
        """Add the rows of a Parquet file."""
        while rows:
            take = min(self._room, rows)
            rows -= take
            self._count(take)

    def _count(self, lines: int) -> None:
        self._lines += lines
        self._room -= lines
        self.lines += lines
        if not self._room:
            self.end()
            self._shards.append([])
            self._room = self._shard

    def end(self) -> None:
        """Close the part: the shard or the file ends here."""
        if self._lines:
            size = self._whole if self._column is not None else self._size
            part = Part(*self._file, self._first, self._lines, self._start, size, self._check, self._column)
            self._shards[-1].append(part)
        self._first += self._lines
        self._start += self._size
        self._clear()

    def finish(self) -> list[tuple[Part, ...]]:
        """All shards."""
        return [tuple(parts) for parts in self._shards if parts]


def _skip(stream: io.BufferedReader, count: int) -> None:
    if stream.seekable():
        stream.seek(count)
        return
    while count and (found := stream.read(min(count, _BLOCK))):
        count -= len(found)
