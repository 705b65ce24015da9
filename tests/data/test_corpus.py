"""Aligned files: which pairs are kept, and every fault named with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Pair, Report, check_parallel, language_of
from multihead.data.text_files import NOT_UTF8
from multihead.errors import DataError


def numbered(count: int) -> list[bytes]:
    return [f"line {number}".encode() for number in range(1, count + 1)]


def parallel(folder: Path, source: list[bytes], target: list[bytes]) -> tuple[Path, Path]:
    paths = folder / "t.de", folder / "t.en"
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_bytes(b"\n".join(lines) + b"\n")
    return paths


class TestPairs:
    def test_every_valid_pair_is_kept_and_every_other_is_named(self, tmp_path: Path) -> None:
        source, target = numbered(300), [line.upper() for line in numbered(300)]
        source[16] = b"gut\xff"
        target[40] = b"\xc3("
        source[60] = target[61] = b" \t\xc2\xa0"
        source[70] = target[70] = b""
        source[80] = source[81]  # equal sources with different targets both count
        source[90] = "a\u2028b\x00c\x0c".encode()
        report = Report()
        pairs = list(check_parallel(*parallel(tmp_path, source, target)).read(report))

        de, en = tmp_path / "t.de", tmp_path / "t.en"
        assert [fault[:3] for fault in report.faults] == [
            (de, 17, NOT_UTF8),
            (en, 41, NOT_UTF8),
            (de, 61, EMPTY),
            (en, 62, EMPTY),
            (de, 71, EMPTY_BOTH),
        ]
        assert report.counts == {NOT_UTF8: 2, EMPTY: 2, EMPTY_BOTH: 1}
        assert len(pairs) + report.left_out == 300
        assert {pair.line for pair in pairs} | {fault.line for fault in report.faults} == set(range(1, 301))
        for pair in pairs:
            assert pair == Pair(pair.line, source[pair.line - 1].decode(), target[pair.line - 1].decode())

    @pytest.mark.parametrize(("source", "target"), [(120, 119), (119, 120), (1, 200)])
    def test_unequal_counts_are_said_before_anything_is_read(self, tmp_path: Path, source: int, target: int) -> None:
        paths = parallel(tmp_path, numbered(source), numbered(target))
        with pytest.raises(DataError, match=rf"t\.de has {source} lines but .*t\.en has {target};"):
            check_parallel(*paths)

    def test_no_valid_pair(self, tmp_path: Path) -> None:
        paths = parallel(tmp_path, [b"a", b"", b" "], [b"", b"b", b""])
        with pytest.raises(DataError, match=r"(?s)no pair can be used out of 3.*t\.en:1: empty.*t\.de:2: empty"):
            list(check_parallel(*paths).read(Report()))

    def test_files_that_change_in_between_are_noticed(self, tmp_path: Path) -> None:
        paths = parallel(tmp_path, numbered(5), numbered(5))
        scans = check_parallel(*paths)
        assert scans.lines == 5
        parallel(tmp_path, numbered(4), numbered(4))
        with pytest.raises(DataError, match="has changed: 5 lines were counted, 4"):
            list(scans.read(Report()))

    def test_one_file_may_be_both_sides(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_text("x\ny\n")
        assert list(check_parallel(path, path).read(Report())) == [Pair(1, "x", "x"), Pair(2, "y", "y")]


class TestReport:
    def test_summary_says_where_how_often_and_why(self) -> None:
        report = Report()
        assert report.summary() == ""
        for line in (17, 29, 311):
            report.add("train.de", line, NOT_UTF8, f"byte 0xff at column {line - 12}")
        report.add(Path("train.en"), 4, "more than 512 tokens", "811 tokens")
        assert report.summary().split("\n") == [
            "train.de:17: not valid UTF-8 (byte 0xff at column 5); 3 pairs left out for this reason, lines 17, 29, 311",
            "train.en:4: more than 512 tokens (811 tokens); 1 pair left out for this reason",
        ]

    def test_one_file_of_pairs_is_named_for_both_sides_and_several_files_each_for_itself(self) -> None:
        report = Report()
        for path, line, detail in (("a.tsv", 3, "the source"), ("b.tmx", 9, "the target"), ("a.tsv", 4, "the target")):
            report.add(path, line, EMPTY, detail)
        report.add("a.tsv", 8, "not 2 columns", "3")
        assert report.summary().split("\n") == [
            f"a.tsv:3: {EMPTY} (the source); 2 pairs left out for this reason, lines 3, 4",
            f"b.tmx:9: {EMPTY} (the target); 1 pair left out for this reason",
            "a.tsv:8: not 2 columns (3); 1 pair left out for this reason",
        ]
        assert (report.left_out, report.counts) == (4, {EMPTY: 3, "not 2 columns": 1})

    def test_counts_go_on_where_places_end(self) -> None:
        report = Report(limit=10)
        for line in range(1, 2001):
            report.add("a", line, EMPTY)
        assert [fault.line for fault in report.faults] == list(range(1, 11))
        assert report.left_out == report.counts[EMPTY] == 2000
        assert report.summary().endswith("2,000 pairs left out for this reason, first lines 1, 2, 3, 4, 5")


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("train.en", "en"),
        ("test_2016.zh.gz", "zh"),
        ("test.zh.xz", "zh"),
        ("test.zh.txt.zst", "zh"),
        ("data.v2/val.DE.txt", "de"),
        ("train.tok.fr", "fr"),
        ("news.de-en.en", "en"),
        ("train.txt", None),
        ("train.qq", None),
        ("train.eng", None),
        ("train", None),
        ("en", None),
        ("corpus.en/train", None),
        (".gz", None),
    ],
)
def test_language_of_a_file_name(name: str, language: str | None) -> None:
    assert language_of(name) == language_of(Path("some") / name) == language
