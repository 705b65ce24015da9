"""All formats of corpora: the same pairs from each, and every scan is a `CorpusScan`."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from multihead.data.corpus import EMPTY, Pair, Report, check_parallel
from multihead.data.readers import CorpusScan, format_of, scan_corpus
from multihead.errors import ConfigurationError, DataError

PAIRS = [("Ein Hund & <eine> Katze.", "A dog & <a> cat."), ("", "nothing"), ("Größe\u2028«1»", " x  y "), ("b", "b")]


def _tmx(pairs: list[tuple[str, str]]) -> str:
    def unit(pair: tuple[str, str]) -> str:
        texts = (text.replace("&", "&amp;").replace("<", "&lt;") for text in pair)
        sides = (f'<tuv xml:lang="{c}"><seg>{t}</seg></tuv>' for c, t in zip(("de", "en"), texts, strict=True))
        return f"<tu>{''.join(sides)}</tu>\n"

    return f"<tmx><header srclang='de'/><body>\n{''.join(map(unit, pairs))}</body></tmx>\n"


WRITERS: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "tsv": lambda pairs: "".join("\t".join(pair) + "\n" for pair in pairs),
    "jsonl": lambda pairs: "".join(json.dumps(dict(zip(("de", "en"), p, strict=True))) + "\n" for p in pairs),
    "ndjson": lambda pairs: "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs),
    "tmx": _tmx,
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
    first = 2 if form == "tmx" else 1
    expected = [Pair(number, *pair) for number, pair in enumerate(PAIRS, first) if all(pair)]
    for _ in range(2):  # as often as one likes
        assert list(found.read(report := Report())) == expected
    assert [fault[:3] for fault in report.faults] == [(path, first + 1, EMPTY)]


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
    [("a.tsv", ".tsv"), ("a.b.TMX.GZ", ".tmx"), ("a.jsonl.zst", ".jsonl"), ("a.tmx.txt", None), ("tsv", None)],
)
def test_the_name_tells_the_format(name: str, form: str | None) -> None:
    assert format_of(name) == format_of(Path("x.tmx") / name) == form


def test_what_cannot_be_a_corpus(tmp_path: Path) -> None:
    text = tmp_path / "train.txt"
    text.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"train\.txt: by its name not a file of pairs \(\.tsv, .*\.tmx; .*\.zst"):
        scan_corpus(text)
    with pytest.raises(DataError, match="there is no such file"):
        scan_corpus(tmp_path / "absent.tmx")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        scan_corpus(tmp_path / "folder.tsv")
    for pair in (("de", "DE"), ("pt-BR", "pt_br")):
        with pytest.raises(ConfigurationError, match=f"are both '{pair[0]}'"):
            scan_corpus(tmp_path / "train.tsv", None, *pair)
