"""Translations as Parquet: the same texts and numbers, in order, as in lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'multihead[parquet]'")

import pyarrow as pa
from pyarrow import parquet

from multihead.data.corpus import Report
from multihead.data.readers import scan_corpus
from multihead.lines import windows
from multihead.lines.translate_shards import TranslatedShard
from multihead.lines.translation_tables import TranslationTable
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from tests.conftest import Numbers

LINES = ["eins zwei", "", "drei\tvier", "acht neun", "null"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five lines, in windows and so shards of two."""
    monkeypatch.setattr(windows, "WINDOW", 2)
    path = tmp_path / "text"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def test_sources_and_translations_stand_in_rows(call: Any, trained: Path, text: Path, tmp_path: Path) -> None:
    lines = call("translate", trained, "--input", text).text.split("\n")[:-1]
    output = tmp_path / "out.parquet"
    ended = call("translate", trained, "--input", text, "--output", output)
    assert (ended.status, ended.out) == (0, b""), ended.err
    table = parquet.read_table(output)
    assert table.schema.types == [pa.struct([("de", pa.string()), ("en", pa.string())])]
    expected = [{"de": source, "en": target} for source, target in zip(LINES, lines, strict=True)]
    assert table.column("translation").to_pylist() == expected
    assert not (tmp_path / "out.parquet.shards").exists()
    other = tmp_path / "other.parquet"
    assert not call("translate", trained, "--input", text, "--output", other, "--engine", "local:1").status
    assert other.read_bytes() == output.read_bytes()
    pairs = list(scan_corpus(output, None, "de", "en").read(report := Report()))
    assert [pair[1:] for pair in pairs] == [(one["de"], one["en"]) for one in expected if one["de"] and one["en"]]
    assert len(pairs) + report.left_out == len(LINES)
    again = call("translate", trained, "--input", text, "--output", output)
    assert (again.status, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize("flags", [("--scores",), ("--n-best", 2, "--beam", 3), ("--scores", "--guard", "mark")])
def test_numbers_stand_beside_them(
    call: Any, trained: Path, text: Path, tmp_path: Path, flags: tuple[Any, ...]
) -> None:
    rows = call("translate", trained, "--input", text, *flags).text.split("\n")[:-1]
    ended = call("translate", trained, "--input", text, "--output", tmp_path / "out.parquet", *flags)
    assert ended.status == 0, ended.err
    names = ["line", "score", *(["suspicion"] if "--guard" in flags else []), "translation"]
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == names
    for row, found in zip(rows, table.to_pylist(), strict=True):
        number, *numbers, translation = row.split("\t", len(names) - 1)
        assert found["line"] == int(number)
        assert [found[name] for name in names[1:-1]] == list(map(float, numbers))
        assert found["translation"] == {"de": LINES[int(number) - 1], "en": translation}


@pytest.mark.parametrize(("command", "flag"), [("backtranslate", "--monolingual"), ("distill", "--source")])
def test_pairs_are_those_of_tsv(call: Any, trained: Path, text: Path, tmp_path: Path, command: str, flag: str) -> None:
    outputs = [tmp_path / f"pairs{ending}" for ending in (".tsv", ".parquet")]
    for output in outputs:
        ended = call(command, trained, flag, text, "--no-guard", "--output", output)
        assert ended.status == 0, ended.err
        assert f"4 pairs from 5 lines are in {output}" in ended.err
    pairs = [row.split("\t") for row in outputs[0].read_text(encoding="utf-8").splitlines()]
    codes = ("en", "de") if command == "backtranslate" else ("de", "en")  # of a model from de to en
    table = parquet.read_table(outputs[1])
    assert table.column("translation").to_pylist() == [dict(zip(codes, pair, strict=True)) for pair in pairs]


def test_stopped_it_goes_on_with_the_next_shard(
    call: Any, trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("translate", trained, "--input", text, "--output")
    assert not call(*words, tmp_path / "whole.parquet").status
    translate, computed = TranslatedShard.__call__, list[int]()

    def stopped(self: TranslatedShard, shard: Any) -> Any:
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(shard.number)
        return translate(self, shard)

    with monkeypatch.context() as patch:
        patch.setattr(TranslatedShard, "__call__", stopped)
        ended = call(*words, tmp_path / "out.parquet")
    assert (ended.status, "stopped after 4 of 5 lines" in ended.err) == (130, True)
    refused = call(*words, tmp_path / "out.parquet", "--scores")
    assert (refused.status, "columns was " in refused.err) == (2, True)
    assert not call(*words, tmp_path / "out.parquet", "--resume").status
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_languages_that_are_not_known_have_no_struct() -> None:
    for languages in (Languages(), Languages("de"), Languages("de", "de")):
        table = TranslationTable(languages)
        whole = b"".join(table.assemble(table.encode([b], [a], 0) for a, b in ("ab", "cd")))
        assert parquet.read_table(pa.BufferReader(whole)).to_pydict() == {"source": ["a", "c"], "target": ["b", "d"]}
        none = parquet.read_table(pa.BufferReader(b"".join(table.assemble(iter(())))))
        assert (none.num_rows, none.column_names) == (0, ["source", "target"])


def test_an_output_without_input_is_refused(call: Any, trained: Path, tmp_path: Path, numbers: Numbers) -> None:
    ended = call("translate", trained, "--output", tmp_path / "out.parquet")
    assert (ended.status, "Parquet needs --input" in ended.err) == (2, True)
    ended = call("distill", trained, "--source", numbers.test["source"], "--output", tmp_path / "pairs.parquet.gz")
    assert (ended.status, "ends in .tsv or .parquet" in ended.err) == (2, True)
