"""Opening a text file for its bytes: plain, gzip, xz or zstd, told apart by their first bytes.

Names say nothing here. Files are streamed, also those of many members or frames in a row (what ``cat a.gz b.gz``,
``pigz`` and ``pzstd`` make), and data that is damaged or cut off is an error wherever the fault stands: the end of a
compressed file is never taken for the end of its text before the format says so. xz and zstd are read here frame by
frame, for the ready-made readers stop in silence: Python's at what follows the padding of an xz stream, zstandard's
at a frame that was cut off.

What the bytes mean is for `corpus` (lines) and `tmx` (XML) to say.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from multihead.errors import DataError, MissingDependencyError, SurroundingsError

_BLOCK = 1 << 20
_PACKED_BLOCK = 1 << 11  # a few bytes may stand for very many: what is unpacked at a time stays within memory
_MAGIC = 6  # bytes that tell the formats apart


@contextmanager
def open_text(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a plain, gzip, xz or zstd file for reading its bytes.

    Raises:
        DataError: it is missing, a folder, unreadable or empty; or, while it is read, damaged or cut off.
        MissingDependencyError: it is zstd, and the package that reads it is not installed.
        SurroundingsError: it is xz, and this Python was built without it.
    """
    path = Path(path)
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise DataError("there is no such file; check the name", path) from None
    except IsADirectoryError:
        raise DataError("is a folder; name a file (plain, gzip, xz or zstd) instead", path) from None
    except PermissionError:
        raise DataError("may not be read (no permission); chmod u+r, or ask its owner", path) from None
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror}); check the name", path) from None
    with raw:
        opened = _opened(raw, path)
        try:
            if not opened.stream.peek(1):
                raise DataError("is empty; expected text", path)
            yield opened.stream
        except opened.faults as error:
            what = f"damaged or cut off {opened.form} data ({error})"
            raise DataError(f"{what}; test it with {opened.form} -t, then fetch it again", path) from None


class _Opened(NamedTuple):
    stream: io.BufferedReader
    form: str
    """The name of the format, which is that of its program too."""
    faults: tuple[type[Exception], ...]
    """What the reader of the format raises where the data are not right."""


def _opened(raw: io.BufferedReader, path: Path) -> _Opened:
    start = raw.peek(_MAGIC)[:_MAGIC]
    if start.startswith(b"\x1f\x8b"):
        stream: object = gzip.GzipFile(fileobj=raw)
        faults: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
        return _Opened(io.BufferedReader(cast(io.RawIOBase, stream), _BLOCK), "gzip", faults)
    if start.startswith(b"\xfd7zXZ\x00"):
        try:
            import lzma
        except ImportError:  # Python can be built without it
            remedy = "use another Python, or unpack the file with xz -d"
            raise SurroundingsError(f"{path}: this Python has no module lzma to read xz with; {remedy}") from None
        frames = _Frames(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=b"\0")
        return _Opened(io.BufferedReader(frames, _BLOCK), "xz", (lzma.LZMAError, EOFError))
    # a frame, or one of those that say something to programs alone and that pzstd begins with
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50):
        try:
            import zstandard
        except ImportError:
            raise MissingDependencyError("zstandard", "zstd", f"reading {path}") from None
        unpacker = zstandard.ZstdDecompressor()
        frames = _Frames(raw, lambda: unpacker.decompressobj())
        return _Opened(io.BufferedReader(frames, _BLOCK), "zstd", (zstandard.ZstdError, EOFError))
    return _Opened(raw, "plain", ())


class _Frame(Protocol):
    """The state of unpacking one frame: `lzma.LZMADecompressor` and its like."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Frames(io.RawIOBase):
    """The content of compressed frames, one after the other.

    Args:
        raw: the packed bytes.
        begin: makes the state of a frame.
        padding: a byte that may stand between frames and means nothing.

    Raises:
        EOFError: the data end within a frame (when that is reached).
    """

    def __init__(self, raw: io.BufferedReader, begin: Callable[[], _Frame], padding: bytes = b"") -> None:
        self._raw, self._begin, self._padding = raw, begin, padding
        self._frame = begin()
        self._begun = False  # whether the frame has been given a byte
        self._content = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill some of ``buffer``; 0 is the end."""
        while not self._content:
            if not self._unpack():
                return 0
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _unpack(self) -> bool:
        """Unpack a piece more; False at the end."""
        left = b""
        if self._frame.eof:
            left = self._frame.unused_data
            self._frame, self._begun = self._begin(), False
        packed = left or self._raw.read(_PACKED_BLOCK)
        if not packed:
            if self._begun:
                raise EOFError("it ends within a frame")
            return False
        if not self._begun and self._padding:
            packed = packed.lstrip(self._padding)
        if packed:
            self._begun = True
            self._content = memoryview(self._frame.decompress(packed))
        return True
