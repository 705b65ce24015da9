"""All formats of corpora: the same pairs from each, and every scan is a `CorpusScan`."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from multihead.data.corpus import EMPTY, Pair, Report, check_parallel
from multihead.data.entries import Unusable
from multihead.data.readers import CorpusScan, format_of, read_entries, scan_corpus, shards
from multihead.data.text_files import scan
from multihead.errors import ConfigurationError, DataError

PAIRS = [("Ein Hund & <eine> Katze.", "A dog & <a> cat."), ("", "nothing"), ("Größe\u2028«1»", " x  y "), ("b", "b")]


def _tmx(pairs: list[tuple[str, str]]) -> str:
    def unit(pair: tuple[str, str]) -> str:
        texts = (text.replace("&", "&amp;").replace("<", "&lt;") for text in pair)
        sides = (f'<tuv xml:lang="{c}"><seg>{t}</seg></tuv>' for c, t in zip(("de", "en"), texts, strict=True))
        return f"<tu>{''.join(sides)}</tu>\n"

    return f"<tmx><header srclang='de'/><body>\n{''.join(map(unit, pairs))}</body></tmx>\n"


def _xliff(pairs: list[tuple[str, str]]) -> str:
    def unit(pair: tuple[str, str]) -> str:
        source, target = (text.replace("&", "&amp;").replace("<", "&lt;") for text in pair)
        return f"<trans-unit id='1'><source>{source}</source><target>{target}</target></trans-unit>\n"

    units = "".join(map(unit, pairs))
    return (
        f"<xliff version='1.2'><file source-language='de' target-language='en'><body>\n{units}</body></file></xliff>\n"
    )


def _csv(pairs: list[tuple[str, str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([("de", "en"), *pairs])
    return stream.getvalue()


def _catalog(pairs: list[tuple[str, str]]) -> str:
    entries = ("".join(f'{key} "{text}"\n' for key, text in zip(("msgid", "msgstr"), p, strict=True)) for p in pairs)
    return "\n".join(entries).replace('msgid ""\n', 'msgid " "\n')  # an empty one would be the header


WRITERS: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "tsv": lambda pairs: "".join("\t".join(pair) + "\n" for pair in pairs),
    "jsonl": lambda pairs: "".join(json.dumps(dict(zip(("de", "en"), p, strict=True))) + "\n" for p in pairs),
    "ndjson": lambda pairs: "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs),
    "csv": _csv,
    "tmx": _tmx,
    "xlf": _xliff,
    "po": _catalog,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("form", WRITERS)
def test_every_format_in_every_packing_gives_the_same(tmp_path: Path, form: str, packing: str) -> None:
    data = WRITERS[form](PAIRS).encode()
    path = tmp_path / f"train.{form}{packing}"
    path.write_bytes(PACKERS[packing](data))
    found, report = scan_corpus(path, None, "de", "en"), Report()
    assert isinstance(found, CorpusScan)
    assert found.lines == len(PAIRS)
    assert found.languages == ("de", "en")
    assert found.path(0) == found.path(1) == path
    (text,) = found.files
    assert (text.path, text.sha256, text.lines) == (path, hashlib.sha256(data).hexdigest(), data.count(b"\n"))
    lines = {"tmx": range(2, 6), "csv": range(2, 6), "xlf": range(2, 6), "po": range(1, 13, 3)}.get(form, range(1, 5))
    expected = [Pair(number, *pair) for number, pair in zip(lines, PAIRS, strict=True) if all(pair)]
    for _ in range(2):  # as often as one likes
        assert list(found.read(report := Report())) == expected
    assert [fault[:3] for fault in report.faults] == [(path, lines[1], EMPTY)]


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("form", WRITERS)
def test_entries_are_those_of_the_scan(tmp_path: Path, form: str, packing: str) -> None:
    path = tmp_path / f"train.{form}{packing}"
    path.write_bytes(PACKERS[packing](WRITERS[form](PAIRS).encode()))
    entries = list(read_entries(path, "de", "en", first=2))
    pairs = list(scan_corpus(path, None, "de", "en").read(report := Report()))
    assert [Pair(line, *sides) for line, sides in entries if not isinstance(sides, Unusable)] == pairs
    assert [(path, line, *sides) for line, sides in entries if isinstance(sides, Unusable)] == report.faults
    if form not in ("jsonl", "csv"):  # whose keys or columns are named by the languages
        assert list(read_entries(path, first=2)) == entries


@pytest.mark.parametrize("form", ["tsv", "jsonl", "ndjson", "csv"])
def test_entries_are_read_without_the_rest_of_the_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"train.{form}"
    path.write_bytes(WRITERS[form](PAIRS).encode() + b"\xff\n" * 100)
    with pytest.raises(DataError, match="not valid UTF-8"):
        scan_corpus(path, None, "de", "en")
    entries = read_entries(path, "de", "en", first=len(PAIRS))
    assert [sides for _, sides in itertools.islice(entries, len(PAIRS)) if sides in PAIRS] == [
        pair for pair in PAIRS if all(pair)
    ]


def test_entries_of_two_languages_need_no_search_for_them(tmp_path: Path) -> None:
    """Where a scan refuses a file that lacks a language, every unit is left out."""
    path = tmp_path / "train.tmx"
    path.write_text(_tmx(PAIRS), encoding="utf-8")
    entries = list(read_entries(path, "de", "fr", first=1))
    assert [sides for _, sides in entries] == [Unusable("no segment in fr")] * len(PAIRS)
    with pytest.raises(DataError, match=r"train\.tmx: has no segment in 'fr'; languages found: de"):
        list(read_entries(path, "fr", first=1))


def test_what_has_no_entries_is_refused_as_by_a_scan(tmp_path: Path) -> None:
    for name in ("train.txt", "absent.tmx", "absent.parquet"):
        messages = []
        for read in (lambda path: scan_corpus(path), lambda path: list(read_entries(path, first=1))):
            with pytest.raises(DataError) as caught:
                read(tmp_path / name)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_two_files_are_read_as_they_were(tmp_path: Path) -> None:
    paths = tmp_path / "train.tsv", tmp_path / "train.en"  # named alike or not: two are two
    for side, path in enumerate(paths):
        path.write_text("".join(pair[side] + "\n" for pair in PAIRS), encoding="utf-8")
    found, report = scan_corpus(*paths, "de", "en"), Report()
    assert isinstance(found, CorpusScan)
    assert found == check_parallel(*paths)
    assert (found.path(0), found.path(1)) == tuple(text.path for text in found.files) == paths
    assert list(found.read(report)) == [Pair(n, *pair) for n, pair in enumerate(PAIRS, 1) if all(pair)]
    assert report.counts == {EMPTY: 1}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.tsv", ".tsv"),
        ("a.b.TMX.GZ", ".tmx"),
        ("a.jsonl.zst", ".jsonl"),
        ("train-*.parquet", ".parquet"),
        ("a.tmx.txt", None),
        ("tsv", None),
    ],
)
def test_the_name_tells_the_format(name: str, form: str | None) -> None:
    assert format_of(name) == format_of(Path("x.tmx") / name) == form


def test_a_name_that_is_not_utf8_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, other = tmp_path / "tr\udce9.de", tmp_path / "a.en"
    try:
        path.write_text("a\n")
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    other.write_text("b\n")
    reads: list[Callable[[], object]] = [
        lambda: shards(path, other),
        lambda: scan_corpus(path, other),
        lambda: scan(path),
    ]
    for read in reads:
        with pytest.raises(DataError, match=r"tr\\udce9\.de: the name of this file is not UTF-8") as caught:
            read()
        assert str(caught.value).encode("utf-8")
        assert "rename it" in str(caught.value)


@pytest.mark.parametrize("read", [scan_corpus, shards, lambda path: scan_corpus(path, Path("b"))])
def test_a_name_with_nul_is_refused(read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"a\\0b\.tsv: a file name cannot contain a NUL"):
        read(Path("a\0b.tsv"))


def test_what_cannot_be_a_corpus(tmp_path: Path) -> None:
    text = tmp_path / "train.txt"
    text.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"\.txt is not an ending of files of pairs \(\.tsv, \.csv, .*\.tmx.*; .*\.zst"):
        scan_corpus(text)
    with pytest.raises(DataError, match=r"train: a file of pairs has an ending \(\.tsv, "):
        scan_corpus(text.rename(tmp_path / "train"))
    with pytest.raises(DataError, match="there is no such file"):
        scan_corpus(tmp_path / "absent.tmx")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        scan_corpus(tmp_path / "folder.tsv")
    for pair in (("de", "DE"), ("pt-BR", "pt_br")):
        with pytest.raises(ConfigurationError, match=f"are both '{pair[0]}'"):
            scan_corpus(tmp_path / "train.tsv", None, *pair)


class TestShards:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        for name in ("a-2.tsv", "a-1.tsv", "a-10.tsv", "_SUCCESS", "b [x].tsv", "deep/er/a-3.tsv", "t1.de", "t2.de"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x\ty\n")
        (tmp_path / "a-0.tsv").mkdir()
        return tmp_path

    @pytest.mark.parametrize(
        ("named", "found"),
        [
            ("a-*.tsv", ["a-1.tsv", "a-10.tsv", "a-2.tsv"]),
            ("a-?.tsv", ["a-1.tsv", "a-2.tsv"]),
            ("**/a-[3-9].tsv", ["deep/er/a-3.tsv"]),
            ("b [x].tsv", ["b [x].tsv"]),  # a file, though it looks like a pattern
            ("absent.tsv", ["absent.tsv"]),  # the reader's message is better
            (["a-2.tsv", "a-1*.tsv"], ["a-2.tsv", "a-1.tsv", "a-10.tsv"]),
            ("deep/er", ["deep/er/a-3.tsv"]),
            (".", ["a-1.tsv", "a-10.tsv", "a-2.tsv", "b [x].tsv"]),
        ],
    )
    def test_files_patterns_folders_and_lists(self, folder: Path, named: str | list[str], found: list[str]) -> None:
        given = Path(named) if isinstance(named, str) else list(map(Path, named))
        assert shards(given) == [(Path(name), None) for name in found]
        absolute = folder / named if isinstance(named, str) else [folder / name for name in named]
        assert shards(absolute) == [(folder / name, None) for name in found]

    def test_two_sides_have_as_many_files(self, folder: Path) -> None:
        for number in (1, 2):
            (folder / f"t{number}.en").write_text("y\n")
        pairs = [(Path(f"t{number}.de"), Path(f"t{number}.en")) for number in (1, 2)]
        assert shards(Path("t*.de"), Path("t*.en")) == shards([p[0] for p in pairs], [p[1] for p in pairs]) == pairs
        with pytest.raises(DataError, match=r"t\*\.de names 2 files, but t1\.en 1; expected as many"):
            shards(Path("t*.de"), Path("t1.en"))

    @pytest.mark.parametrize("split", ["train", "validation", "valid", "dev", "test"])
    def test_a_folder_of_one_split_is_a_corpus(self, tmp_path: Path, split: str) -> None:
        found = [tmp_path / f"{split}-{number}.tsv" for number in range(2)]
        for path in found:
            path.write_text("x\ty\n")
        assert shards(tmp_path) == [(path, None) for path in found]

    def test_what_names_no_files(self, folder: Path) -> None:
        with pytest.raises(DataError, match=r"x-\*\.tsv: no file has such a name"):
            shards(Path("x-*.tsv"))
        with pytest.raises(DataError, match=r"deep: is a folder without files of pairs \(\.tsv, "):
            shards(Path("deep"))
        (folder / "a.tmx").write_text("")
        with pytest.raises(DataError, match=r"several formats \(.*\.tmx.*\); name those to read by a pattern"):
            shards(Path())
        (folder / "deep" / "er" / "train-0.tsv").write_text("")
        (folder / "deep" / "er" / "test-0.tsv").write_text("")
        with pytest.raises(DataError, match=r"deep/er: is a folder with files of several splits \(train, test\)"):
            shards(Path("deep/er"))
