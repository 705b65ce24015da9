"""Compressed files: the same text in every format, and damage is never mistaken for the end."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from multihead.data import text_files
from multihead.data.text_files import open_text, read_lines, scan
from multihead.errors import DataError, MissingDependencyError, SurroundingsError


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zstd_without_sums(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=False, write_content_size=False).compress(data)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstd,
    "zstd without sums": zstd_without_sums,
}
FOR_PROGRAMS = struct.pack("<II", 0x184D2A53, 5) + b"hello"  # a skippable frame of zstd
packings = pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))


def read(folder: Path, data: bytes) -> bytes:
    path = folder / "a"
    path.write_bytes(data)
    with open_text(path) as stream:
        return stream.read()


@packings
def test_packed_and_plain_are_the_same_text(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = "".join(f"Zeile {number}: ein Satz\n" for number in range(5000)).encode() + b"ohne Ende"
    plain, packed = tmp_path / "misnamed.zst", tmp_path / "misnamed.txt"
    plain.write_bytes(text)
    packed.write_bytes(pack(text))
    assert list(read_lines(packed)) == list(read_lines(plain))
    assert (scan(packed).sha256, scan(packed).lines) == (scan(plain).sha256, scan(plain).lines)


@packings
@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=4).filter(any), block=st.integers(1, 50))
def test_frames_in_a_row_are_one_text(
    tmp_path_factory: pytest.TempPathFactory, pack: Callable[[bytes], bytes], pieces: list[bytes], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_COMPRESSED_BLOCK", block)
        assert read(tmp_path_factory.mktemp("rows"), b"".join(map(pack, pieces))) == b"".join(pieces)


def test_what_may_stand_between_frames(tmp_path: Path) -> None:
    one, two = b"one\n" * 100, b"two\n"
    for padding in (b"\0" * 4, b"\0" * 4096):
        assert read(tmp_path, lzma.compress(one) + padding + lzma.compress(two) + padding) == one + two
    frames = FOR_PROGRAMS, zstd(one), FOR_PROGRAMS, zstd(two), FOR_PROGRAMS
    assert read(tmp_path, b"".join(frames)) == one + two


@packings
@pytest.mark.parametrize("cut", [7, 11, 100, -1, -8])
def test_cut_off(tmp_path: Path, pack: Callable[[bytes], bytes], cut: int) -> None:
    packed = pack(os.urandom(1000).hex().encode())
    with pytest.raises(DataError, match=r"damaged or cut off (gzip|xz|zstd) data .*; test it with \1 -t, then fetch"):
        read(tmp_path, packed[:cut])
    with pytest.raises(DataError, match="damaged or cut off"):  # in the second frame, too
        read(tmp_path, packed + packed[:cut])


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstd])
@pytest.mark.parametrize("place", [12, 100, -6, -1])
def test_damaged(tmp_path: Path, pack: Callable[[bytes], bytes], place: int) -> None:
    packed = bytearray(pack(bytes(range(32, 127)) * 3 + os.urandom(300).hex().encode()))
    packed[place] ^= 0xFF
    with pytest.raises(DataError, match="damaged or cut off"):
        read(tmp_path, bytes(packed))


@packings
def test_something_else_after_the_end(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DataError, match="damaged or cut off"):
        read(tmp_path, pack(b"text\n") + b"and more")


@packings
def test_nothing_inside(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    for data in (pack(b""), pack(b"") * 2):
        with pytest.raises(DataError, match="a: is empty"):
            read(tmp_path, data)


def test_a_few_bytes_that_stand_for_many_are_unpacked_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(zstd(bytes(1 << 28)))
    with open_text(path) as stream:
        raw = stream.raw
        assert isinstance(raw, text_files._Frames)
        stream.read(1 << 20)
        assert len(raw._content) < 1 << 27


def test_zstd_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependencyError, match=r'a needs zstandard, .*: pip install "multihead\[zstd\]"'):
        read(tmp_path, zstd(b"text"))
    assert read(tmp_path, lzma.compress(b"text")) == b"text"


def test_a_python_without_xz_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = lzma.compress(b"text")
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(SurroundingsError, match=r"no module lzma .*xz -d"):
        read(tmp_path, packed)


def test_a_stream_of_frames_can_be_read_in_any_pieces() -> None:
    frames = text_files._Frames(io.BufferedReader(io.BytesIO(lzma.compress(b"abcdefg"))), lzma.LZMADecompressor)
    assert [frames.read(size) for size in (1, 2, 100, 1)] == [b"a", b"bc", b"defg", b""]
