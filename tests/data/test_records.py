"""Records: TSV and JSON lines give the texts that were written, and name every record that is not a pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Pair, Report
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.records import NOT_A_STRING, NOT_AN_OBJECT, NOT_JSON, NOT_UNICODE
from multihead.data.text_files import NOT_UTF8, one_line
from multihead.errors import DataError

DE_EN = "de", "en"
texts = st.text(max_size=8)
cells = st.text(st.characters(exclude_characters="\0\t\n\r", codec="utf-8"), max_size=8)  # many NULs: no text file


def scanned(path: Path, data: bytes | str, languages: tuple[str | None, str | None] = (None, None)) -> CorpusScan:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return scan_corpus(path, None, *languages)


def read(
    path: Path, data: bytes | str, languages: tuple[str | None, str | None] = (None, None)
) -> tuple[list[Pair], Report]:
    found, report = scanned(path, data, languages), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    return pairs, report


def faults(report: Report) -> list[tuple[int, str, str]]:
    return [fault[1:] for fault in report.faults]


class TestTable:
    @settings(max_examples=60)
    @given(st.lists(st.tuples(cells, cells, cells), max_size=8), st.integers(2, 3), st.booleans())
    def test_what_is_written_is_read(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], width: int, crlf: bool
    ) -> None:
        rows = [("eins", "one", "1"), *rows]
        end = "\r\n" if crlf else "\n"
        data = "".join("\t".join(row[:width]) + end for row in rows)
        pairs, report = read(tmp_path_factory.mktemp("table") / "t.tsv", data)
        whole = [row[0].strip() and row[1].strip() for row in rows]
        assert pairs == [Pair(n, row[0], row[1]) for n, row in enumerate(rows, 1) if whole[n - 1]]
        assert [fault.line for fault in report.faults] == [n for n, good in enumerate(whole, 1) if not good]

    def test_every_fault_is_named(self, tmp_path: Path) -> None:
        good = b"Hund\tdog\n"
        lines = [good] * 300
        lines[10] = b"Hund dog\n"
        lines[20] = b"Hund\tdog\t3\n"
        lines[30] = b"Hund\xff\tdog\n"
        lines[40], lines[41] = b"Hund\t \n", b" \tdog\n"
        lines[50], lines[51] = b"\n", b"\t\n"
        pairs, report = read(tmp_path / "t.tsv", b"".join(lines))
        assert faults(report) == [
            (11, "not 2 columns", "1"),
            (21, "not 2 columns", "3"),
            (31, NOT_UTF8, "byte 0xff at column 5"),
            (41, EMPTY, "the target"),
            (42, EMPTY, "the source"),
            (51, EMPTY_BOTH, ""),
            (52, EMPTY_BOTH, ""),
        ]
        assert {fault.path for fault in report.faults} == {tmp_path / "t.tsv"}
        assert {pair[1:] for pair in pairs} == {("Hund", "dog")}
        assert (
            report.summary()
            .split("\n")[0]
            .endswith("t.tsv:11: not 2 columns (1); 2 pairs left out for this reason, lines 11, 21")
        )

    @pytest.mark.parametrize(
        ("header", "languages", "pair"),
        [
            ("source\ttarget\tscore", (None, None), ("a", "b")),
            ("id\tTarget\tSource", (None, None), ("c", "b")),
            ("\ufeffsource\ttarget\tscore", (None, None), ("a", "b")),
            ("en\tid\tDE", DE_EN, ("c", "a")),
            ("zh_CN\tid\ten", ("zh-cn", "en"), ("a", "c")),
            ("de\tsource\ttarget", DE_EN, ("b", "c")),
        ],
    )
    def test_a_header_says_which_columns(
        self, tmp_path: Path, header: str, languages: tuple[str | None, str | None], pair: tuple[str, str]
    ) -> None:
        pairs, _ = read(tmp_path / "t.tsv", f"{header}\na\tb\tc\n", languages)
        assert pairs == [Pair(2, *pair)]

    @pytest.mark.parametrize("blank", ["\n", " \n\t\t\n", "\r\n"])
    def test_a_header_may_follow_blank_lines(self, tmp_path: Path, blank: str) -> None:
        pairs, report = read(tmp_path / "t.tsv", f"{blank}target\tsource\na\tb\nc\td\n")
        first = blank.count("\n") + 2
        assert pairs == [Pair(first, "b", "a"), Pair(first + 1, "d", "c")]
        assert [fault.line for fault in report.faults] == list(range(1, first - 1))

    @pytest.mark.parametrize("first", ["de\ten", "source\ttext", "Quelle\tZiel", "\ufeffja\tyes"])
    def test_any_other_first_line_is_a_pair(self, tmp_path: Path, first: str) -> None:
        pairs, _ = read(tmp_path / "t.tsv", f"{first}\na\tb\n")
        assert pairs == [Pair(1, *first.removeprefix("\ufeff").split("\t")), Pair(2, "a", "b")]

    def test_the_header_counts_columns_and_most_lines_do_where_there_is_none(self, tmp_path: Path) -> None:
        rows = ["a\tb", "c\td\t1", "e\tf"]
        assert [p.line for p in read(tmp_path / "t.tsv", "\n".join(rows))[0]] == [1, 3]
        assert [p.line for p in read(tmp_path / "t.tsv", "\n".join(["source\ttarget\tx", *rows]))[0]] == [3]

    def test_quotes_and_backslashes_are_text(self, tmp_path: Path) -> None:
        assert read(tmp_path / "t.tsv", '"a\t\\tb"\n')[0] == [Pair(1, '"a', '\\tb"')]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("Ein Hund.\nEin\tPferd.\nA dog.\n", "most lines have no tab; expected a sentence, a tab"),
            ("Ein Hund,A dog\n", "most lines have no tab"),
            ("\n\n", "most lines have no tab"),
            ("\t\na\t\n", r"(?s)no pair can be used out of 2.*t\.tsv:1: empty on both sides"),
            ("source\ttarget\n", "no pair can be used out of 0$"),
            ("a\tb\n".encode("utf-16"), "binary data, or UTF-16"),
            ("Größe\tsize\n".encode("latin-1"), "another encoding"),
        ],
    )
    def test_files_that_are_none(self, tmp_path: Path, data: bytes | str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            scanned(tmp_path / "t.tsv", data)

    def test_a_file_that_changes_in_between_is_noticed(self, tmp_path: Path) -> None:
        found = scanned(tmp_path / "t.tsv", "a\tb\n" * 5)
        (tmp_path / "t.tsv").write_text("a\tb\n" * 4)
        with pytest.raises(DataError, match=r"t\.tsv: has changed: 5 records were counted, 4"):
            list(found.read(Report()))


class TestJsonLines:
    @settings(max_examples=60)
    @given(st.lists(st.tuples(texts, texts), max_size=8), st.booleans(), st.sampled_from(["flat", "named", "nested"]))
    def test_what_is_written_is_read(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ascii_: bool, form: str
    ) -> None:
        rows = [("eins", "one"), *rows]

        def record(source: str, target: str) -> dict[str, Any]:
            if form == "flat":
                return {"id": 7, "target": target, "source": source}
            named = {"en": target, "de": source}
            return named if form == "named" else {"id": "x", "translation": named}

        data = "".join(json.dumps(record(*row), ensure_ascii=ascii_) + "\n" for row in rows)
        pairs, report = read(tmp_path_factory.mktemp("json") / "t.jsonl", data, DE_EN)
        whole = [row[0].strip() and row[1].strip() for row in rows]
        assert pairs == [Pair(n, *map(one_line, row)) for n, row in enumerate(rows, 1) if whole[n - 1]]
        assert not any("\n" in text or "\r" in text for pair in pairs for text in pair[1:])
        assert [fault.line for fault in report.faults] == [n for n, good in enumerate(whole, 1) if not good]

    def test_every_fault_is_named(self, tmp_path: Path) -> None:
        bad: list[tuple[bytes, str, str]] = [
            (b'{"de": "Hund", "en": "dog"', NOT_JSON, "Expecting ',' delimiter at column 27"),
            (b"[" * 100_000, NOT_JSON, "a number too long or objects too deep"),
            (b'{"de": 1' + b"0" * 5000 + b"}", NOT_JSON, "a number too long or objects too deep"),
            (b'["Hund", "dog"]', NOT_AN_OBJECT, "list"),
            (b"null", NOT_AN_OBJECT, "NoneType"),
            (b'{"id": 1, "de": "Hund"}', "neither 'de' and 'en' nor 'source' and 'target'", "keys: id, de"),
            (
                b'{"translation": {"de": "Hund", "fr": "chien"}}',
                "neither 'de' and 'en' nor 'source' and 'target'",
                "keys: translation, translation.de, translation.fr",
            ),
            (b"{}", "neither 'de' and 'en' nor 'source' and 'target'", "keys: none"),
            (b'{"de": null, "en": "dog"}', NOT_A_STRING, "'de' is null"),
            (b'{"de": "Hund", "en": ["dog"]}', NOT_A_STRING, "'en' is [\"dog\"]"),
            (b'{"de": "a \\ud83d b", "en": "dog"}', NOT_UNICODE, "\\ud83d in 'de'"),
            (b'{"de": "a\xffb", "en": "dog"}', NOT_UTF8, "byte 0xff at column 10"),
            (b'{"de": "\\n", "en": "dog"}', EMPTY, "the source"),
            (b'{"de": "Hund", "en": ""}', EMPTY, "the target"),
            (b'{"de": "", "en": " "}', EMPTY_BOTH, ""),
            (b"  ", EMPTY_BOTH, ""),
        ]
        good = [b'{"de": "Hund", "en": "dog"}'] * 120
        data = b"\n".join([*good, *(raw for raw, _, _ in bad)])
        pairs, report = read(tmp_path / "t.ndjson", data, DE_EN)
        assert len(pairs) == 120
        assert faults(report) == [(n, reason, detail) for n, (_, reason, detail) in enumerate(bad, 121)]

    def test_the_closest_names_are_taken(self, tmp_path: Path) -> None:
        rows = [
            {"source": "wiki", "target": "x", "de": "Hund", "en": "dog"},
            {"source": "wiki", "translation": {"de": "Katze", "en": "cat"}, "target": "x"},
            {"source": "Pferd", "target": "horse", "translation": "none"},
            {"DE": "Kuh", "En": "cow"},
        ]
        data = "".join(json.dumps(row) + "\n" for row in rows)
        found = [pair[1:] for pair in read(tmp_path / "t.jsonl", "\ufeff" + data, DE_EN)[0]]
        assert found == [("Hund", "dog"), ("Katze", "cat"), ("Pferd", "horse"), ("Kuh", "cow")]

    def test_without_languages_the_keys_are_source_and_target(self, tmp_path: Path) -> None:
        assert read(tmp_path / "t.jsonl", '{"target": "b", "source": "a"}')[0] == [Pair(1, "a", "b")]
        with pytest.raises(DataError, match=r"the two languages are not given \(keys: translation, translation.de, "):
            scanned(tmp_path / "t.jsonl", '{"translation": {"de": "a", "en": "b"}}')

    def test_any_key_can_be_named(self, tmp_path: Path) -> None:
        data = '{"source": "a", "target": "b"}\n{"\\ud800": 1, "a\\tb\\n": 2}\n'
        pairs, report = read(tmp_path / "t.jsonl", data)
        assert pairs == [Pair(1, "a", "b")]
        assert [fault.detail for fault in report.faults] == ["keys: \\ud800, a\\tb\\n"]
        report.summary().encode("utf-8")

    def test_a_pair_of_surrogates_is_a_character(self, tmp_path: Path) -> None:
        pairs, _ = read(tmp_path / "t.jsonl", '{"source": "\\ud83d\\ude00", "target": "😀"}')
        assert pairs == [Pair(1, "😀", "😀")]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ('[{"de": "a", "en": "b"}]', r"t\.jsonl:1: begins a JSON value .*: jq -c '\.\[\]' OLD > NEW"),
            (json.dumps([{"de": "a"}], indent=1), r"jq -c '\.\[\]' OLD"),
            (json.dumps({"de": "a", "en": "b"}, indent=1), r"jq -c '\.' OLD"),
            ("Ein Hund.\n" * 5, r"(?s)no pair can be used out of 5.*t\.jsonl:1: not valid JSON"),
            ('{"a": "x", "b": "y"}\n', r"neither 'de' and 'en' nor .*\(keys: a, b\)"),
            ('{"de": "Größe"}\n'.encode("latin-1"), "another encoding"),
        ],
    )
    def test_files_that_are_none(self, tmp_path: Path, data: bytes | str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            scanned(tmp_path / "t.jsonl", data, DE_EN)
