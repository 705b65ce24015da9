"""Text files: how lines are split, and every fault of a file named with its line."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.data import text_files
from multihead.data.corpus import Report, check_parallel
from multihead.data.text_files import decode_line, one_line, open_text, read_lines, scan, split_lines
from multihead.errors import DataError

HOSTILE = [
    "a\u2028b",
    "c\x00d",
    "e\x0cf\x0b\x1c\x1d\x85g",
    "",
    "  h  ",
    "i\rj",
    "\ufeffk",
    "</s>",
    "👩‍👩‍👧",
    "ل",
]

# bytes in which terminators, and things that look like them, are frequent
raw_lines = st.lists(st.sampled_from([b"a", b"\r", b"\x0c", b"\xe2\x80\xa8", b"\x00", b" ", b"\xff"])).map(b"".join)


def write(path: Path, data: bytes | list[str]) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else "".join(f"{line}\n" for line in data).encode())
    return path


class TestLines:
    @given(st.lists(raw_lines), st.booleans())
    def test_lines_are_what_stands_between_lfs(self, lines: list[bytes], final: bool) -> None:
        data = b"\n".join(lines) + (b"\n" if final else b"")
        pieces = data.split(b"\n")
        if pieces[-1] == b"":
            pieces.pop()
            last: list[bytes] = []
        else:
            last = [pieces.pop()]  # not terminated: a CR at its end is its own
        expected = [piece[:-1] if piece.endswith(b"\r") else piece for piece in pieces] + last
        assert list(split_lines(io.BytesIO(data))) == expected

    @given(st.lists(raw_lines), st.booleans())
    def test_a_byte_order_mark_before_the_first_line_is_no_text(self, lines: list[bytes], final: bool) -> None:
        data = b"\n".join(lines) + (b"\n" if final else b"")
        without = list(split_lines(io.BytesIO(data))) or [b""]  # the mark alone is a line, too, and an empty one
        assert list(split_lines(io.BytesIO(codecs.BOM_UTF8 + data))) == without
        twice = list(split_lines(io.BytesIO(2 * codecs.BOM_UTF8 + data)))
        assert twice == [codecs.BOM_UTF8 + without[0], *without[1:]]

    def test_a_file_with_a_byte_order_mark_has_the_same_pairs_and_a_hash_of_its_own(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "a", HOSTILE)
        marked = write(tmp_path / "b", codecs.BOM_UTF8 + plain.read_bytes())
        assert list(read_lines(marked)) == HOSTILE
        with_mark, without = (check_parallel(path, plain).read(Report()) for path in (marked, plain))
        assert list(with_mark) == list(without)
        assert scan(marked).lines == scan(plain).lines
        assert scan(marked).sha256 == hashlib.sha256(marked.read_bytes()).hexdigest()

    def test_hostile_lines_come_back_as_they_are(self, tmp_path: Path) -> None:
        assert list(read_lines(write(tmp_path / "a", HOSTILE))) == HOSTILE

    def test_crlf_and_a_missing_final_newline_change_nothing(self, tmp_path: Path) -> None:
        data = "\n".join([*HOSTILE, "end"]).encode()
        for variant in (
            data,
            data + b"\n",
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b"\r\n") + b"\r\n",
        ):
            assert list(read_lines(write(tmp_path / "a", variant))) == [*HOSTILE, "end"]

    def test_gzip_is_known_by_its_bytes_and_equals_plain(self, tmp_path: Path) -> None:
        data = "\n".join(HOSTILE).encode()
        plain = write(tmp_path / "misnamed.gz", data)
        packed = write(tmp_path / "misnamed.txt", gzip.compress(data[:20]) + gzip.compress(data[20:]))
        assert list(read_lines(plain)) == list(read_lines(packed)) == HOSTILE
        assert scan(plain).sha256 == scan(packed).sha256 == hashlib.sha256(data).hexdigest()
        assert scan(plain).lines == scan(packed).lines == len(HOSTILE)

    def test_reading_does_not_run_ahead_of_a_stream(self) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", buffering=0) as tap:
            lines = split_lines(stream)
            tap.write(b"one\n")  # and the pipe stays open: waiting for more would never end
            assert next(lines) == b"one"

    def test_a_line_that_could_fill_the_memory_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(text_files, "LONGEST_LINE", 9)
        monkeypatch.setattr(text_files, "_BLOCK", 4)
        path = write(tmp_path / "a", b"short\n" + b"x" * 30)
        with pytest.raises(DataError, match=r"a:2: a line of more than"):
            list(read_lines(path))
        with pytest.raises(DataError, match=r"b:1: a line of more than"):
            list(read_lines(write(tmp_path / "b", codecs.BOM_UTF8 + b"x" * 30)))  # nor cut by the mark
        with pytest.raises(DataError, match="a line of more than"):
            scan(path)

    @given(st.lists(st.sampled_from("ab \t\r\n\u2028\x0c"), max_size=12).map("".join))
    def test_a_text_with_breaks_becomes_one_line(self, text: str) -> None:
        expected = re.sub(r"[ \t]*[\r\n][ \t\r\n]*", "\n", text).strip("\n").replace("\n", " ")
        assert one_line(text) == expected
        assert "\n" not in one_line(text)

    def test_blanks_without_end_take_no_time(self) -> None:
        started = time.process_time()
        assert one_line(" " * 1_000_000 + "\n") == ""
        assert time.process_time() - started < 1

    def test_an_undecodable_line_is_named_with_its_column(self, tmp_path: Path) -> None:
        path = write(tmp_path / "train.de", b"gut\n" + "äöü\t".encode() + b"\xff gut\n")
        with pytest.raises(DataError, match=r"train\.de:2: not valid UTF-8 \(byte 0xff at column 5\).*iconv") as caught:
            list(read_lines(path))
        assert (caught.value.path, caught.value.line) == (path, 2)
        assert decode_line("äöü".encode(), path, 1) == "äöü"


class TestFaultsOfAFile:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"absent\.de: there is no such file"):
            list(read_lines(tmp_path / "absent.de"))

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is a folder"):
            scan(tmp_path)

    def test_below_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be opened"):
            scan(write(tmp_path / "a", b"x") / "b")

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        path = write(tmp_path / "a", b"x")
        monkeypatch.setattr(Path, "open", refuse)  # file modes do not stop the superuser
        with pytest.raises(DataError, match="no permission"), open_text(path):
            pass

    @pytest.mark.parametrize("data", [b"", gzip.compress(b"", mtime=0)])
    def test_empty(self, tmp_path: Path, data: bytes) -> None:
        path = write(tmp_path / "a", data)
        for read in (scan, lambda path: list(read_lines(path))):
            with pytest.raises(DataError, match="a: is empty"):
                read(path)

    @pytest.mark.parametrize("cut", [3, 11, 100, -1, -8])
    def test_truncated_gzip(self, tmp_path: Path, cut: int) -> None:
        packed = gzip.compress(os.urandom(1000).hex().encode())
        with pytest.raises(DataError, match="damaged or cut off gzip"):
            scan(write(tmp_path / "a", packed[:cut]))

    @pytest.mark.parametrize("place", [12, 100, -6, -1])
    def test_damaged_gzip(self, tmp_path: Path, place: int) -> None:
        packed = bytearray(gzip.compress(b"some text\n" * 1000 + bytes(range(32, 127)) * 3, mtime=0))
        packed[place] ^= 0xFF
        with pytest.raises(DataError, match="damaged or cut off gzip"):
            list(read_lines(write(tmp_path / "a", bytes(packed))))

    def test_a_pipe_is_refused_where_two_passes_are_needed(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DataError, match="pipe"):
            scan(tmp_path / "pipe")

    @pytest.mark.parametrize(
        "data",
        [
            bytes(1000),
            os.urandom(20_000),
            ("Ein Satz.\n" * 300).encode("utf-16"),
            ("Ein Satz.\n" * 300).encode("utf-16-le"),
            ("Одно предложение.\n" * 300).encode("utf-16-be"),
            ("Größe\n" * 300).encode("latin-1"),
            ("一个句子\n" * 300).encode("gb18030"),
            b"PK\x03\x04" + os.urandom(5000),
        ],
        ids=["zeros", "random", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "gb18030", "zip"],
    )
    def test_binary_data_and_other_encodings_are_refused(self, tmp_path: Path, data: bytes) -> None:
        with pytest.raises(DataError, match="binary data"):
            scan(write(tmp_path / "a", data))

    def test_a_parquet_file_is_named_as_such(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.parquet: is a Parquet file.*name a Parquet file of pairs alone"):
            scan(write(tmp_path / "a.parquet", b"PAR1\x15\x04\x15\x00\xff\n" * 40 + b"PAR1"))
        assert scan(write(tmp_path / "b", b"PAR1 is how such files begin\n")).lines == 1

    @pytest.mark.parametrize(("lines", "bad", "fit"), [(99, 1, False), (100, 1, True), (199, 2, False), (300, 3, True)])
    def test_more_than_one_line_in_a_hundred_is_too_many(self, tmp_path: Path, lines: int, bad: int, fit: bool) -> None:
        path = write(tmp_path / "a", b"good\n" * (lines - bad) + b"\xff\n" * bad)
        if fit:
            assert scan(path).undecodable == bad
        else:
            with pytest.raises(DataError, match=rf"a:{lines - bad + 1}: {bad} of {lines} lines are not valid"):
                scan(path)

    @given(st.lists(raw_lines, min_size=1), st.booleans(), st.integers(1, 9))
    def test_scanning_by_blocks_counts_as_reading_by_lines(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], final: bool, block: int
    ) -> None:
        # 200 good lines for each bad one, so that the file as a whole is accepted
        data = b"good\n" * (200 * len(lines)) + b"\n".join(lines) + (b"\n" if final else b"")
        path = write(tmp_path_factory.mktemp("scan") / "a", data)
        raws = list(split_lines(io.BytesIO(data)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_files, "_BLOCK", 100 * block)
            found = scan(path)
        assert found.lines == len(raws)
        assert found.undecodable == sum(b"\xff" in raw for raw in raws)
        assert found.sha256 == hashlib.sha256(data).hexdigest()
