"""What is written is read again, in every format; equal pairs give equal bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from multihead.cleaning.outputs import Removed, check_record_file, pair_writer, removed_writer
from multihead.data.corpus import Report
from multihead.data.readers import scan_corpus
from multihead.data.text_files import one_line, open_text
from multihead.errors import ConfigurationError

PAIRS = [
    ("\ufeffmark", "\ufeff mark"),
    ("ends in CR\r", "a"),
    ("\rbegins", "two\r\r"),
    ("sep\u2028arator\x85", "form\x0cfeed \x1c"),
    ("tab\tinside", "back\\slash \"quote\" 'x'"),
    ("  spaces  ", "nul\0"),
    ("source", "target"),
    ("👩‍👩‍👧‍👦", "e\u0301"),
]
ENDINGS = ["", ".gz", ".xz", ".zst"]


def written(folder: Path, names: list[str], pairs: list[tuple[str, str]]) -> list[Path]:
    paths = [folder / name for name in names]
    with pair_writer(paths[0], paths[1] if len(paths) > 1 else None, (None, None)) as write:
        write(pairs[:3])
        write([])
        write(pairs[3:])
    return paths


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("names", [["a.de", "a.en"], ["a.tsv"], ["a.jsonl"], ["a.ndjson"]])
@pytest.mark.parametrize("rows", [PAIRS, PAIRS[::-1], [PAIRS[6], *PAIRS]])
def test_kept_pairs_are_read_as_they_were(
    tmp_path: Path, names: list[str], ending: str, rows: list[tuple[str, str]]
) -> None:
    paths = written(tmp_path, [name + ending for name in names], rows)
    report = Report()
    found = [pair[1:] for pair in scan_corpus(*paths).read(report)]
    assert report.left_out == 0

    def as_read(text: str) -> str:
        text = one_line(text) if len(paths) == 1 else text
        return text.replace("\t", " ") if ".tsv" in names[0] else text

    assert found == [tuple(map(as_read, pair)) for pair in rows]
    (tmp_path / "other").mkdir()
    again = written(tmp_path / "other", [f"b{name}{ending}" for name in names], rows)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


@pytest.mark.parametrize("name", ["r.tsv", "r.tsv.gz", "r.jsonl", "r.jsonl.zst"])
def test_removed_pairs_can_be_read_as_a_corpus(tmp_path: Path, name: str) -> None:
    rows = [
        Removed(3, "ratio", 2.5, "", "ein\tHund", "a dog"),
        Removed(9, "unusable", None, "empty or only white space", "", ""),
        Removed(12, "duplicate", 2.0, "line 3", "ja", "yes"),
    ]
    with removed_writer(tmp_path / name) as write:
        write(rows)
    found = [pair[1:] for pair in scan_corpus(tmp_path / name).read(Report())]
    assert found == [(rows[0].source.replace("\t", " ") if "tsv" in name else rows[0].source, "a dog"), ("ja", "yes")]
    with open_text(tmp_path / name) as stream:
        assert len(stream.readlines()) == len(rows) + ("tsv" in name)


@pytest.mark.parametrize("name", ["clean", "clean.txt", "clean.tmx", "clean.gz", "clean.tsv.bz2"])
def test_a_name_without_a_format_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected one of \.tsv, \.jsonl, \.ndjson"):
        check_record_file(Path(name), "pairs")
