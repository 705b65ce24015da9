"""Open text files, plain or compressed, and read their lines.

The format (plain, gzip, xz or zstd) is recognized by the first bytes of a file, never by its name. Files are streamed,
so a corpus never has to fit in memory. Files of several members or frames are read to the end (as written by
``cat a.gz b.gz``, ``pigz`` and ``pzstd``), and damaged or truncated data is always an error. xz and zstd are
decompressed frame by frame here because the standard readers stop silently: Python's `lzma` at anything after the
padding of an xz stream, `zstandard` at a truncated frame.

A line ends at LF only; one CR before the LF belongs to the terminator; a last line without LF counts. Nothing else
(U+2028, form feed, NUL) ends a line, so line counts agree with ``wc -l`` and every other tool that splits at LF. A byte
order mark before the first line is dropped.

Pairs of lines are read by `corpus`, XML by `tmx`.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, cast, runtime_checkable

from multihead.errors import DataError, SurroundingsError, require_package
from multihead.remote_files import open_remote
from multihead.urls import url_of

LONGEST_LINE = 1 << 26
"""Bytes of the longest line that is read, since a line is held in memory."""
NOT_UTF8 = "not valid UTF-8"

_BLOCK = 1 << 20
_COMPRESSED_BLOCK = 1 << 11  # small: a few compressed bytes may expand to very many, all held in memory
_FOLDER = "is a folder; name a file (plain, gzip, xz or zstd) instead"
_MAGIC_BYTES = 6  # enough to tell the formats apart
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""


# --------------------------------------------------------------------------- plain and compressed files


@contextmanager
def open_text(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a plain, gzip, xz or zstd file, or one at a URL, for reading its decompressed bytes.

    Raises:
        DataError: the file is missing, a folder, unreadable or empty; or, while it is read, damaged or truncated.
        MissingDependencyError: the file is zstd, and the package `zstandard` is not installed.
        SurroundingsError: the file is xz, and this Python was built without `lzma`; or the URL cannot be read.
    """
    if (url := url_of(path)) is not None:
        with open_remote(url) as raw, decompressed(raw, url) as stream:
            yield stream
        return
    path = Path(path)
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise DataError("there is no such file; check the name", path) from None
    except IsADirectoryError:
        raise DataError(_FOLDER, path) from None
    except PermissionError:
        if path.is_dir():  # some systems do not open folders
            raise DataError(_FOLDER, path) from None
        raise DataError("may not be read (no permission); chmod u+r, or ask its owner", path) from None
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror}); check the name", path) from None
    with raw, decompressed(raw, path) as stream:
        yield stream


@contextmanager
def decompressed(raw: io.BufferedReader, path: str | Path) -> Iterator[io.BufferedReader]:
    """The decompressed bytes of a file that is open; errors as those of `open_text`, with ``path`` as its name."""
    opened = _decompressed(raw, path)
    try:
        if not opened.stream.peek(1):
            raise DataError("is empty; expected text", path)
        yield opened.stream
    except opened.errors as error:
        what = f"damaged or cut off {opened.format} data ({error})"
        raise DataError(f"{what}; test it with {opened.format} -t, then fetch it again", path) from None


class _Opened(NamedTuple):
    stream: io.BufferedReader
    format: str
    """Name of the format, which is also the name of its program."""
    errors: tuple[type[Exception], ...]
    """What the decompressor raises on damaged data."""


def _decompressed(raw: io.BufferedReader, path: str | Path) -> _Opened:
    start = raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
    if start.startswith(b"\x1f\x8b"):
        stream: object = gzip.GzipFile(fileobj=raw)
        errors: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
        return _Opened(io.BufferedReader(cast(io.RawIOBase, stream), _BLOCK), "gzip", errors)
    if start.startswith(b"\xfd7zXZ\x00"):
        try:
            import lzma
        except ImportError:  # Python can be built without it
            remedy = "use another Python, or unpack the file with xz -d"
            raise SurroundingsError(f"{path}: this Python has no module lzma to read xz with; {remedy}") from None
        frames = _Frames(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=b"\0")
        return _Opened(io.BufferedReader(frames, _BLOCK), "xz", (lzma.LZMAError, EOFError))
    # a zstd frame, or a skippable frame, which pzstd writes first
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50):
        require_package("zstandard", "zstd", f"reading {path}")
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        frames = _Frames(raw, lambda: decompressor.decompressobj())
        return _Opened(io.BufferedReader(frames, _BLOCK), "zstd", (zstandard.ZstdError, EOFError))
    return _Opened(raw, "plain", ())


class _Decompressor(Protocol):
    """Decompresses one frame, such as `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Frames(io.RawIOBase):
    """The content of consecutive compressed frames.

    Args:
        raw: the compressed bytes.
        begin: creates the decompressor of a frame.
        padding: a byte that may stand between frames and is ignored.

    Raises:
        EOFError: the data end within a frame.
    """

    def __init__(self, raw: io.BufferedReader, begin: Callable[[], _Decompressor], padding: bytes = b"") -> None:
        self._raw, self._begin, self._padding = raw, begin, padding
        self._frame = begin()
        self._begun = False  # whether the frame has received any bytes
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._content:
            if not self._decompress_more():
                return 0
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _decompress_more(self) -> bool:
        """Decompress another piece; False at the end of the file."""
        left = b""
        if self._frame.eof:
            left = self._frame.unused_data
            self._frame, self._begun = self._begin(), False
        compressed = left or self._raw.read(_COMPRESSED_BLOCK)
        if not compressed:
            if self._begun:
                raise EOFError("it ends within a frame")
            return False
        if not self._begun and self._padding:
            compressed = compressed.lstrip(self._padding)
        if compressed:
            self._begun = True
            self._content = memoryview(self._frame.decompress(compressed))
        return True


# --------------------------------------------------------------------------- lines


@runtime_checkable
class LineStream(Protocol):
    """A byte stream that is read by lines: an open file, ``sys.stdin.buffer``, `io.BytesIO`."""

    def readline(self, size: int, /) -> bytes:
        """Up to ``size`` bytes, ending after the next LF; empty at the end."""
        ...


def split_lines(stream: LineStream, path: str | Path = "standard input", done: int = 0) -> Iterator[bytes]:
    """The lines of a byte stream without their terminators (LF or CR LF), as they arrive.

    A byte order mark is dropped from the first line; elsewhere U+FEFF is a character like any other.

    Args:
        stream: read to its end.
        path: the name of the stream in error messages.
        done: number of lines before the beginning of the stream.

    Raises:
        DataError: a line is longer than 64 MiB.
    """
    number = done
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
        DataError: the line is not UTF-8; names the file, the line, the byte and the column (in characters).
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
    """Join the lines of a text with spaces: each line break (CR, LF) becomes one space.

    Spaces and tabs around a break are indentation and are dropped, as are breaks at either end of the text.
    """
    if "\n" not in text and "\r" not in text:
        return text
    first, *middle, last = re.split("[\r\n]+", text)
    pieces = [first.rstrip(" \t"), *(piece.strip(" \t") for piece in middle), last.lstrip(" \t")]
    return " ".join(filter(None, pieces))


def one_cell(text: str) -> str:
    """A text as TSV can hold it: line breaks become spaces as in `one_line`, and so do tabs."""
    return one_line(text).replace("\t", " ")


def read_lines(path: str | Path) -> Iterator[str]:
    """All lines of a plain or compressed file, including empty ones.

    Raises:
        DataError: as `open_text`, `split_lines` and `decode_line`.
    """
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            yield decode_line(raw, path, number)


# --------------------------------------------------------------------------- one pass over a whole file


@dataclass(frozen=True)
class TextScan:
    """The result of one pass over a file.

    Attributes:
        path: the file.
        lines: number of lines.
        undecodable: number of lines that are not UTF-8.
        sha256: hash of all decompressed bytes, so that a file and its gzip, xz or zstd have the same one.
    """

    path: Path
    lines: int
    undecodable: int
    sha256: str


def scan(path: str | Path, look: Callable[[bytes], None] = lambda _: None) -> TextScan:
    """Count the lines of a file, hash its text, and refuse it if it is not UTF-8 text.

    Args:
        path: the file.
        look: called with the text, in blocks of whole lines.

    Raises:
        DataError: as `open_text`; or its name is not UTF-8; it is not a regular file; more than 1 line in 100 is not
            UTF-8 (any line, in a file of fewer than 100); or most lines contain a NUL.
    """
    path = Path(path)
    refuse_name(path)
    refuse_pipe(path)
    with open_text(path) as stream:
        return scan_stream(stream, path, look)


def scan_stream(
    stream: io.BufferedReader, path: str | Path, look: Callable[[bytes], None] = lambda _: None
) -> TextScan:
    """What `scan` does, with the decompressed bytes of a file that is open; ``path`` is its name."""
    digest = hashlib.sha256()
    lines = undecodable = with_nul = 0
    first: tuple[int, str] | None = None
    is_parquet = stream.peek(len(PARQUET))[: len(PARQUET)] == PARQUET
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
    if is_parquet and (2 * with_nul > lines or 100 * undecodable > lines):
        message = "is a Parquet file, which was expected to be text with one sentence per line; name a Parquet file of"
        raise DataError(f"{message} pairs alone, as FILE.parquet, or write its columns to text files", path)
    if 2 * with_nul > lines:
        message = f"{with_nul:,} of {lines:,} lines hold a NUL byte; binary data, or UTF-16?"
        raise DataError(f"{message} If UTF-16: iconv -f UTF-16 -t UTF-8 OLD > NEW", path)
    if first and 100 * undecodable > lines:
        message = f"{undecodable:,} of {lines:,} lines are {NOT_UTF8} ({first[1]}); binary data (compressed, but"
        remedy = " not by gzip, xz or zstd?) or another encoding? Convert it: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW"
        raise DataError(message + remedy, path, first[0])
    return TextScan(Path(path), lines, undecodable, digest.hexdigest())


def refuse_undecodable(found: TextScan) -> None:
    """Refuse a text of which `scan` allows some lines not to be UTF-8, where every line will be used.

    Raises:
        DataError: a line is not UTF-8; names the first one.
    """
    if found.undecodable:
        for _ in read_lines(found.path):  # raises the error at the line
            pass


def refuse_name(path: str | Path) -> None:
    """Refuse a name that no file can have, or that cannot be recorded, since settings and reports are UTF-8.

    Raises:
        DataError: the name contains a NUL, or is not UTF-8.
    """
    if "\0" in str(path):  # a settings file can have one
        raise DataError("a file name cannot contain a NUL; correct it", str(path).replace("\0", "\\0"))
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        written = str(path).encode("utf-8", "backslashreplace").decode()
        raise DataError("the name of this file is not UTF-8, and could not be recorded; rename it", written) from None


def refuse_pipe(path: Path) -> None:
    """Refuse what cannot be read more than once.

    Raises:
        DataError: the path is a pipe or a device.
    """
    with suppress(OSError):  # `open_text` has a better message for missing files
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError("is a pipe or a device, but is to be read more than once; save it first", path)


def _blocks(stream: io.BufferedReader, path: str | Path) -> Iterator[bytes]:
    """Large blocks of whole lines, so that UTF-8 is checked and LF counted in bulk."""
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
