"""Parquet: columns and structs of text in every layout give the rows that were written, whatever their groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Pair, Report
from multihead.data.entries import Unusable
from multihead.data.parquet import NULL
from multihead.data.readers import read_entries, scan_corpus
from multihead.data.text_files import NOT_UTF8
from multihead.errors import DataError, MissingDependencyError

DE_EN = "de", "en"
ROWS = [(f"Satz {n}", f"sentence {n}") for n in range(1100)]  # more than are decoded at a time
STRUCT = pa.struct([("de", pa.string()), ("en", pa.string())])


def written(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **settings)
    return path


def read(
    path: Path, languages: tuple[str | None, str | None] = DE_EN, columns: tuple[str, str] | None = None
) -> tuple[list[Pair], Report]:
    found, report = scan_corpus(path, None, *languages, columns), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    entries = list(read_entries(path, *languages, columns, first=1))  # without a scan
    assert [Pair(row, *sides) for row, sides in entries if not isinstance(sides, Unusable)] == pairs
    assert [(row, *sides) for row, sides in entries if isinstance(sides, Unusable)] == [f[1:] for f in report.faults]
    return pairs, report


def structs(rows: list[Any]) -> pa.Array:
    return pa.array([None if row is None else dict(zip(DE_EN, row, strict=True)) for row in rows], STRUCT)


@pytest.mark.parametrize("settings", [{}, {"row_group_size": 7, "compression": "zstd"}, {"use_dictionary": False}])
@pytest.mark.parametrize("layout", ["struct", "named", "sides", "large", "dictionary", "chosen"])
def test_every_layout_gives_the_same(tmp_path: Path, layout: str, settings: dict[str, Any]) -> None:
    sides = [list(side) for side in zip(*ROWS, strict=True)]
    columns = {
        "struct": lambda: {"id": list(range(len(ROWS))), "translation": structs(ROWS)},
        "named": lambda: {"EN": sides[1], "score": [0.5] * len(ROWS), "de": sides[0]},
        "sides": lambda: {"source": sides[0], "target": sides[1]},
        "large": lambda: {name: pa.array(side, pa.large_string()) for name, side in zip(DE_EN, sides, strict=True)},
        "dictionary": lambda: {n: pa.array(side).dictionary_encode() for n, side in zip(DE_EN, sides, strict=True)},
        "chosen": lambda: {"a.b": sides[1], "en": sides[0], "de": sides[1]},
    }[layout]()
    path = written(tmp_path / "t.parquet", columns, **settings)
    chosen = ("en", "a.b") if layout == "chosen" else None
    expected = [Pair(number, *row) for number, row in enumerate(ROWS, 1)]
    assert read(path, columns=chosen)[0] == expected
    found = scan_corpus(path, None, *DE_EN, chosen)
    assert list(found.read(Report())) == list(found.read(Report()))  # as often as one likes


def test_a_language_follows_from_the_other_one(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", {"translation": structs([("a", "b")])})
    for languages, pair in (((None, "en"), ("a", "b")), (("en", None), ("b", "a")), (("EN", "DE"), ("b", "a"))):
        assert read(path, languages)[0] == [Pair(1, *pair)]
    assert scan_corpus(path, None, None, "en").languages == DE_EN
    assert read(path, (None, None), ("translation.en", "translation.de"))[0] == [Pair(1, "b", "a")]


def test_every_row_that_is_no_pair_is_named(tmp_path: Path) -> None:
    rows = [("a", "b"), None, ("a", None), (None, None), ("", "b"), (" ", ""), ("a\nb", "c")]
    pairs, report = read(written(tmp_path / "t.parquet", {"translation": structs(rows)}))
    assert pairs == [Pair(1, "a", "b"), Pair(7, "a b", "c")]
    faults = [(2, NULL, "the source"), (3, NULL, "the target"), (4, NULL, "the source")]
    faults += [(5, EMPTY, "the source"), (6, EMPTY_BOTH, "")]
    assert [fault[1:] for fault in report.faults] == faults
    damaged = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pairs, report = read(written(tmp_path / "u.parquet", {"de": damaged, "en": ["x", "y", "z"]}))
    assert [pair.line for pair in pairs] == [1, 3]
    assert [fault[1:] for fault in report.faults] == [(2, NOT_UTF8, "byte 0xff in the source")]


@pytest.mark.parametrize(
    ("columns", "languages", "message"),
    [
        ({"text": ["a"], "label": [1]}, DE_EN, r"\('de' and 'en'\); columns: text, label; name the two languages"),
        ({"translation": structs([("a", "b")])}, (None, None), r"not given\); columns: translation.de, translation.en"),
        ({"translation": structs([("a", "b")])}, ("de", "fr"), r"\('de' and 'fr'\); columns: translation.de"),
        ({"de": [1], "en": ["b"]}, DE_EN, "its column 'de' is not text; columns: de, en"),
        ({"de": [["a", "b"]], "en": ["b"]}, DE_EN, "its column 'de' is not text; columns: de, en"),
        ({"de": [None], "en": ["b"]}, DE_EN, r"(?s)no pair can be used out of 1.*t.parquet:1: no text \(null\)"),
    ],
)
def test_columns_that_are_not_there(
    tmp_path: Path, columns: dict[str, Any], languages: tuple[str | None, str | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(written(tmp_path / "t.parquet", columns), languages)
    with pytest.raises(DataError, match="has no columns for the two sides"):
        read(tmp_path / "t.parquet", columns=("x", "y"))


def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.parquet", {"de": [s for s, _ in ROWS], "en": [t for _, t in ROWS]})
    whole = path.read_bytes()
    for size in (0, 3, 500, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"t\.parquet: (is empty|not a Parquet file, or damaged)"):
            read(path)
    path.write_bytes(whole[:100] + bytes(3000) + whole[3100:])
    with pytest.raises(DataError, match=r"t\.parquet: not a Parquet file, or damaged"):
        read(path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"multihead\[parquet\]"):
        read(path)
