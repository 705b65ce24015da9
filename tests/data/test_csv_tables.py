"""CSV: any texts that Python's writer writes are read, and every record that is not a pair is reported."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Pair, Report
from multihead.data.csv_tables import NOT_CSV
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.text_files import NOT_UTF8, one_line
from multihead.errors import DataError

DE_EN = "de", "en"
cells = st.text(st.characters(exclude_characters="\0", codec="utf-8") | st.sampled_from('",;\t\n "'), max_size=8)


def scanned(
    path: Path,
    data: str | bytes,
    languages: tuple[str | None, str | None] = (None, None),
    columns: tuple[str, str] | None = None,
) -> CorpusScan:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return scan_corpus(path, None, *languages, columns)


def read(
    path: Path,
    data: str | bytes,
    languages: tuple[str | None, str | None] = (None, None),
    columns: tuple[str, str] | None = None,
) -> tuple[list[Pair], Report]:
    found, report = scanned(path, data, languages, columns), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    return pairs, report


def record(row: tuple[str, ...], separator: str, every: bool) -> str:
    """A line of CSV. Python 3.11 quotes a CR only if the line end has one, so that is replaced afterwards."""
    stream = io.StringIO()
    quoting = csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL
    csv.writer(stream, delimiter=separator, quoting=quoting, lineterminator="\r\n").writerow(row)
    return stream.getvalue().removesuffix("\r\n") + "\n"


@settings(max_examples=30)
@given(st.lists(st.tuples(cells, cells), max_size=8), st.sampled_from(",;\t"), st.booleans())
@example([("0", "\r0")], ",", False)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], separator: str, every: bool
) -> None:
    written = [record(("id", "de", "en"), separator, every)]
    lines = []
    for row in [("eins", "one"), *rows]:
        lines.append("".join(written).count("\n") + 1)
        written.append(record(("7", *row), separator, every))
    pairs, report = read(tmp_path_factory.mktemp("csv") / "t.csv", "".join(written), DE_EN)
    # A line break is one in a file of lines: CR LF and CR are read as LF.
    texts = [tuple(one_line(text) for text in row) for row in [("eins", "one"), *rows]]
    whole = [bool(source.strip() and target.strip()) for source, target in texts]
    assert pairs == [Pair(n, *row) for n, row, good in zip(lines, texts, whole, strict=True) if good]
    assert [fault.line for fault in report.faults] == [n for n, good in zip(lines, whole, strict=True) if not good]


def test_every_fault_is_named_and_reading_goes_on(tmp_path: Path) -> None:
    rows = [
        b"de,en",
        b"Hund,dog",
        b'"Hund" x,dog',  # text behind a quote
        b'"Ein\nHund",dog',  # lines 4 and 5
        b"Hund,dog,3",
        b"",
        b"Hund,",
        b"Gr\xf6\xdfe,size",
        b'"Katze, grau","cat ""grey"""',
    ]
    pairs, report = read(tmp_path / "t.csv", b"\n".join([*rows, *[b"Kuh,cow"] * 120]), DE_EN)
    assert pairs[:3] == [Pair(2, "Hund", "dog"), Pair(4, "Ein Hund", "dog"), Pair(10, "Katze, grau", 'cat "grey"')]
    assert len(pairs) == 123
    assert [(fault.line, fault.reason) for fault in report.faults] == [
        (3, NOT_CSV),
        (6, "not 2 columns"),
        (7, EMPTY_BOTH),
        (8, EMPTY),
        (9, NOT_UTF8),
    ]


def test_a_quote_that_does_not_end_costs_what_it_swallows_only(tmp_path: Path) -> None:
    data = "de,en\n" + "Hund,dog\n" * 5 + '"Hund,dog\n' + "Kuh,cow\n" * 40_000
    pairs, report = read(tmp_path / "t.csv", data, DE_EN)
    assert report.faults[0][1:3] == (7, NOT_CSV)
    assert report.left_out == 1
    assert len(pairs) > 20_000
    assert pairs[5].line > 7


@pytest.mark.parametrize(
    ("data", "languages", "columns", "pairs"),
    [
        ("de,en\na,b\n", DE_EN, None, [("a", "b")]),
        ("EN;id;De\na;1;b\n", DE_EN, None, [("b", "a")]),
        ("source\ttarget\na, x\tb, y\n", (None, None), None, [("a, x", "b, y")]),
        ("a,b\nc,d\n", (None, None), None, [("a", "b"), ("c", "d")]),
        ("Hallo, du, da;hello\nJa, ja;yes, yes\nnein;no\n", (None, None), None, None),
        ("id,text,translation\n1,a,b\n", (None, None), ("text", "translation"), [("a", "b")]),
        ("1,a,b\n2,c,d\n", (None, None), ("3", "2"), [("b", "a"), ("d", "c")]),
        ("\ufeffde,en\r\na,b\r\n", DE_EN, None, [("a", "b")]),
    ],
)
def test_header_columns_and_separator(
    tmp_path: Path,
    data: str,
    languages: tuple[str | None, str | None],
    columns: tuple[str, str] | None,
    pairs: list[tuple[str, str]] | None,
) -> None:
    expected = pairs or [("Hallo, du, da", "hello"), ("Ja, ja", "yes, yes"), ("nein", "no")]
    assert [tuple(pair[1:]) for pair in read(tmp_path / "t.csv", data, languages, columns)[0]] == expected


@pytest.mark.parametrize("blank", ["\n", "  \n\n"])
def test_a_header_may_follow_blank_lines(tmp_path: Path, blank: str) -> None:
    pairs, report = read(tmp_path / "t.csv", f"{blank}target,source\na,b\nc,d\n")
    first = blank.count("\n") + 2
    assert pairs == [Pair(first, "b", "a"), Pair(first + 1, "d", "c")]
    assert [fault.line for fault in report.faults] == list(range(1, first - 1))


@pytest.mark.parametrize(
    ("data", "columns", "message"),
    [
        ("Ein Hund.\nA dog.\n", None, r"t\.csv: has no two columns; .*columns found: Ein Hund\."),
        ("id,de,fr\n1,a,b\n", ("de", "en"), r"t\.csv: has no column 'en'; columns: id, de, fr"),
        ("a,b\nc,d\n", ("1", "3"), "most records have 2 columns, but column 3"),
        ("de,en\n,\n", None, r"(?s)no pair can be used out of 1.*t\.csv:2: empty on both sides"),
        ("a,b\n".encode("utf-16"), None, "binary data, or UTF-16"),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: str | bytes, columns: tuple[str, str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        scanned(tmp_path / "t.csv", data, DE_EN, columns)
