"""Together, the shards are the text, whatever it contains; each can be read alone."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from multihead.data.text_files import one_line, scan
from multihead.errors import ConfigurationError, DataError
from multihead.shards import cutting
from multihead.shards.cutting import cut, lines_a_shard, shards_of

PIECES = ["a", "", "\ufeffx", "long " * 9, "é", "x\ry", "\u2028"]


def write(path: Path, lines: list[str], kind: str) -> list[str]:
    """Write lines; returns those that are read."""
    end = "\r\n" if kind == "crlf" else "\n"
    content = "".join(line + end for line in lines).encode()
    lines = [lines[0].removeprefix("\ufeff"), *lines[1:]]
    if kind == "mark":
        content = b"\xef\xbb\xbf" + content.removeprefix(b"\xef\xbb\xbf")
    if kind == "unended":
        lines, content = [*lines, "z"], content + b"z"
    path.write_bytes(gzip.compress(content) if kind == "gzip" else content)
    return lines


def write_parquet(path: Path, lines: list[str]) -> list[str]:
    pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install "multihead[parquet]"')
    import pyarrow.parquet

    rows = [{"translation": {"de": line or None, "n": 1}, "id": n} for n, line in enumerate(lines)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return [one_line(line) for line in lines]


@pytest.mark.parametrize("seed", range(12))
def test_shards_are_the_text(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names, expected = [], []
    for kind in draw.choices(["plain", "gzip", "crlf", "mark", "unended", "parquet"], k=3):
        path = tmp_path / f"{len(names)}"
        lines = draw.choices(PIECES, k=draw.randint(1, 20))
        expected += write_parquet(path, lines) if kind == "parquet" else write(path, lines, kind)
        names.append(str(path))
    count = draw.randint(1, 7)
    text = cut(names, count)
    shards = shards_of({"text": text})
    assert text.scan.lines == len(expected)
    assert [shard.done for shard in shards] == list(range(0, len(expected), count))
    assert [shard.lines for shard in shards[:-1]] == [count] * (len(shards) - 1)
    order = draw.sample(shards, len(shards))
    found = {shard.number: list(shard.read("text")) for shard in order}
    assert [line for number in range(len(shards)) for line in found[number]] == expected


def test_the_hash_is_that_of_the_text(tmp_path: Path) -> None:
    for name, kind in (("plain", "plain"), ("packed", "gzip")):
        write(tmp_path / name, ["a", "b"], kind)
        assert cut([str(tmp_path / name)], 1).scan.sha256 == scan(tmp_path / "plain").sha256
    twice = cut([str(tmp_path / "plain")] * 2, 1).scan
    assert (twice.lines, twice.sha256 == scan(tmp_path / "plain").sha256) == (4, False)


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n" * 250 + b"\xff\n" + b"b\n" * 250)
    with pytest.raises(DataError, match=r"text:251: not valid UTF-8 \(byte 0xff at column 1\)"):
        cut([str(tmp_path / "text")], 100)


def test_a_text_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a\nb\nc\n")
    shards = shards_of({"text": cut([str(path)], 2)})
    path.write_text("a\nb\nd\n")
    assert list(shards[0].read("text")) == ["a", "b"]
    with pytest.raises(DataError, match="text: has changed since the work began"):
        list(shards[1].read("text"))


def test_columns_of_parquet_files(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install "multihead[parquet]"')
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"de": ["ein"], "en": ["one"], "n": [1]}), path)
    assert list(shards_of({"text": cut([str(path)], 9, "en")})[0].read("text")) == ["one"]
    for column, said in ((None, "several columns of strings"), ("n", "no column of strings n")):
        with pytest.raises(ConfigurationError, match=rf"{said}: name one of these by --column: de, en$"):
            cut([str(path)], 9, column)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a Parquet file, or damaged"):
        cut([str(path)], 9)


def test_large_texts_have_larger_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, int] = {"small": 1000, "large": 3 * cutting.MOST_SHARDS * cutting._LINE * 20}

    def size(place: str) -> int:
        return sizes[place]

    monkeypatch.setattr(cutting.storage, "size", size)
    assert lines_a_shard(["small"], 20) == 20
    assert lines_a_shard(["large", "small"], 20) == 80


def test_pipes_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe or a device"):
        cut([str(tmp_path / "pipe")], 1)
