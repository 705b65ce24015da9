"""XLIFF 1.2 and 2: exports of real tools are read, and every unit that is not a pair is reported with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from multihead.data.corpus import EMPTY, Pair, Report
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.xliff import NOT_TO_TRANSLATE, NOT_TRANSLATED
from multihead.errors import DataError

FIRST = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a.html" source-language="en-US" target-language="de-DE" datatype="html"><header><note>no</note></header>
<body>
{}
</body></file></xliff>
"""
SECOND = """<?xml version="1.0"?>
<x:xliff version="2.0" srcLang="en-US" trgLang="de-DE" xmlns:x="urn:oasis:names:tc:xliff:document:2.0"
 xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0"><x:file id="f1">

{}
</x:file></x:xliff>
"""


def read(folder: Path, data: str, languages: tuple[str | None, str | None] = ("en", "de")) -> tuple[list[Pair], Report]:
    found, report = scanned(folder, data, languages), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    return pairs, report


def scanned(folder: Path, data: str, languages: tuple[str | None, str | None] = ("en", "de")) -> CorpusScan:
    path = folder / "t.xlf"
    path.write_text(data, encoding="utf-8")
    return scan_corpus(path, None, *languages)


def old(*units: str) -> str:
    """The first unit stands on line 5, each on its own line."""
    return FIRST.format("\n".join(units))


def new(*units: str) -> str:
    return SECOND.format("\n".join(units))


def trans(source: str, target: str | None, inside: str = "", **more: str) -> str:
    attributes = "".join(f' {name}="{value}"' for name, value in more.items())
    written = "" if target is None else f"<target>{target}</target>"
    return f"<trans-unit id='1'{attributes}><source>{source}</source>{written}{inside}</trans-unit>"


def segment(source: str, target: str | None, **more: str) -> str:
    attributes = "".join(f' {name}="{value}"' for name, value in more.items())
    written = "" if target is None else f"<x:target>{target}</x:target>"
    return f"<x:segment{attributes}><x:source>{source}</x:source>{written}</x:segment>"


def unit(*segments: str, **more: str) -> str:
    attributes = "".join(f' {name}="{value}"' for name, value in more.items())
    proposals = "<mtc:matches><mtc:match><x:source>no</x:source><x:target>no</x:target></mtc:match></mtc:matches>"
    return f"<x:unit id='1'{attributes}>{proposals}<x:notes><x:note>no</x:note></x:notes>{''.join(segments)}</x:unit>"


@pytest.mark.parametrize("languages", [("en", "de"), ("EN-us", None), (None, "de-de"), (None, None)])
@pytest.mark.parametrize(
    "data",
    [
        old(trans("Press <g id='1'>Start</g>.", "Drücken Sie <g id='1'>Start</g>.")),
        old(f"<group><group>{trans('Press Start.', 'Drücken Sie Start.')}</group></group>"),
        new(unit(segment("Press <x:pc id='1'>Start</x:pc>.", "Drücken Sie <x:pc id='1'>Start</x:pc>."))),
    ],
    ids=["1.2", "groups", "2.0"],
)
def test_both_versions(tmp_path: Path, data: str, languages: tuple[str | None, str | None]) -> None:
    expected = Pair(5, "Press Start.", "Drücken Sie Start.")
    assert read(tmp_path, data, languages)[0] == [expected]
    assert read(tmp_path, data, ("de", "en"))[0] == [Pair(5, expected.target, expected.source)]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("a<x id='1'/>b<bx id='2'/>c<ex id='2'/>", "abc"),
        ("a <bpt id='1'>&lt;b <sub>alt</sub>&gt;</bpt>b<ept id='1'>x</ept> <ph id='2'>y</ph>c", "a b c"),
        ("a <it id='1' pos='open'>x</it>b <mrk mtype='term'>c <g id='3'>d</g></mrk>", "a b c d"),
        ("\n   a\n   b &amp; <![CDATA[<c>]]>\n", "a b & <c>"),
    ],
)
def test_inline_elements(tmp_path: Path, inside: str, text: str) -> None:
    assert read(tmp_path, old(trans(inside, "x")))[0] == [Pair(5, text, "x")]
    assert read(tmp_path, old(trans("x", inside)))[0] == [Pair(5, "x", text)]


def test_inline_elements_of_the_second_version(tmp_path: Path) -> None:
    inside = (
        "a<x:sc id='1'/>b<x:ec startRef='1'/> <x:ph id='2'/><x:mrk id='3'>c</x:mrk><x:cp hex='0001'/><x:sm id='4'/>"
    )
    assert read(tmp_path, new(unit(segment(inside, "x"))))[0] == [Pair(5, "ab c", "x")]


def test_every_segment_is_a_pair(tmp_path: Path) -> None:
    cut = ("<seg-source><mrk mtype='seg' mid='0'>One <g id='1'>two</g>.</mrk> <mrk mtype='seg' mid='1'>Three.</mrk> "
           "<mrk mtype='seg' mid='2'>Four.</mrk></seg-source>")  # fmt: skip
    target = "<mrk mtype='seg' mid='1'>Drei.</mrk> <mrk mtype='seg' mid='0'>Eins <g id='1'>zwei</g>.</mrk>"
    pairs, report = read(tmp_path, old(trans("One two. Three. Four.", target, cut)))
    assert pairs == [Pair(5, "One two.", "Eins zwei."), Pair(5, "Three.", "Drei.")]
    assert [fault[1:] for fault in report.faults] == [(5, "no segment in de", "")]
    # Without a cut target, or a cut source, the whole unit is the pair.
    assert read(tmp_path, old(trans("One. Two.", "Eins. Zwei.", cut)))[0] == [Pair(5, "One. Two.", "Eins. Zwei.")]
    found = read(tmp_path, new(unit(segment("One.", "Eins."), segment("Two.", "Zwei."))))[0]
    assert [pair[1:] for pair in found] == [("One.", "Eins."), ("Two.", "Zwei.")]


def test_every_unit_that_is_no_pair_is_named(tmp_path: Path) -> None:
    alternative = "<alt-trans><source>no</source><target xml:lang='de'>no</target></alt-trans>"
    rows = [
        trans("a", "b", alternative),
        trans("a", None, alternative),
        trans("a", " "),
        trans("a", "b", translate="no"),
        trans("a", "b").replace("<target>", "<target state='needs-translation'>"),
        trans("a", "b").replace("<target>", "<target state='new'>"),
        trans("a", "b").replace("<target>", "<target state='final'>"),
        f"<group translate='no'>{trans('a', 'b')}{trans('c', 'd', translate='yes')}</group>",
    ]
    pairs, report = read(tmp_path, old(*rows))
    assert [pair[:2] for pair in pairs] == [(5, "a"), (11, "a"), (12, "c")]
    assert [fault[1:] for fault in report.faults] == [
        (6, "no segment in de", ""),
        (7, EMPTY, "the target"),
        (8, NOT_TO_TRANSLATE, ""),
        (9, NOT_TRANSLATED, 'state="needs-translation"'),
        (10, NOT_TRANSLATED, 'state="new"'),
        (12, NOT_TO_TRANSLATE, ""),
    ]
    rows = [unit(segment("a", "b", state="initial")), unit(segment("a", "b"), translate="no"), unit(segment("a", "b"))]
    pairs, report = read(tmp_path, new(*rows))
    assert [pair.line for pair in pairs] == [7]
    assert [fault[1:3] for fault in report.faults] == [(5, NOT_TRANSLATED), (6, NOT_TO_TRANSLATE)]


@pytest.mark.parametrize("document", [old, new])
def test_the_language_of_a_target_is_that_of_its_unit_only(tmp_path: Path, document: Callable[..., str]) -> None:
    rows = [trans(a, a.upper()) if document is old else segment(a, a.upper()) for a in "abcd"]
    rows[1] = rows[1].replace("target>", "target xml:lang='fr'>", 1)
    pairs, report = read(tmp_path, document(*(row if document is old else unit(row) for row in rows)))
    assert [pair[1:] for pair in pairs] == [("a", "A"), ("c", "C"), ("d", "D")]
    assert [fault[1:3] for fault in report.faults] == [(6, "no segment in de")]


def test_files_of_several_languages(tmp_path: Path) -> None:
    data = "<xliff version='1.2'>" + "".join(
        f"<file source-language='en' {target}><body>{trans('a', language)}</body></file>"
        for language, target in (("de", "target-language='de'"), ("fr", "target-language='fr'"), ("und", ""))
    )
    data += "</xliff>"
    assert [pair.target for pair in read(tmp_path, data, ("en", "fr"))[0]] == ["fr", "und"]
    with pytest.raises(DataError, match=r"t\.xlf: has no segment in 'it'"):
        scanned(tmp_path, data.replace("<file source-language='en' >", "<file target-language='x'>"), ("en", "it"))
    with pytest.raises(DataError, match=r"languages found: en \(3\), de \(1\), fr \(1\), und \(1\); say which"):
        scanned(tmp_path, data, (None, None))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("<tmx version='1.4'/>", r"t\.xlf: is XML, but not XLIFF: its root is <tmx>, expected <xliff>"),
        (old(), "has no translation unit"),
        (old(trans("a", "b"))[:-12], r"t\.xlf:6: .*cut off"),
        (old(trans("a", "b")).replace("<xliff", '<!DOCTYPE xliff [<!ENTITY a "b">]>\n<xliff'), "declares an entity"),
        (old(trans("a", "b")).replace("de-DE", "fr"), r"no segment in 'de'; languages found: en-US \(1\), fr \(1\)"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, data: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        scanned(tmp_path, data)
