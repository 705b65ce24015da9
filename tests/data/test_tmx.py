"""Translation memories: exports of real tools are read, unknown elements are ignored, and every unit that is not a pair
is reported with the line on which it begins."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.data import xml_units
from multihead.data.corpus import EMPTY, EMPTY_BOTH, Pair, Report
from multihead.data.entries import EntryScan
from multihead.data.readers import scan_corpus
from multihead.data.text_files import one_line
from multihead.data.xml_units import NO_ENTITY
from multihead.errors import DataError

# As they come from the tools: indents, attributes and ways of writing a language differ.
OMEGAT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="OmegaT" o-tmf="OmegaT TMX" adminlang="EN-US" datatype="plaintext"
    creationtoolversion="4.3.2" segtype="sentence" srclang="en"/>
  <body>
<!-- Default translations -->
    <tu>
      <tuv xml:lang="en">
        <seg>Press <bpt i="0" x="0">&lt;b0&gt;</bpt>Start<ept i="0">&lt;/b0&gt;</ept>.</seg>
      </tuv>
      <tuv xml:lang="de" changeid="me" changedate="20200101T000000Z">
        <seg>Drücken Sie <bpt i="0" x="0">&lt;b0&gt;</bpt>Start<ept i="0">&lt;/b0&gt;</ept>.</seg>
      </tuv>
    </tu>
  </body>
</tmx>
"""
TRADOS = (
    '<?xml version="1.0" encoding="utf-16"?>\r\n<tmx version="1.4">\r\n  <header creationtool="SDL Language Platform" '
    'srclang="en-US" datatype="xml"><prop type="x-Recognizers">All</prop></header>\r\n  <body>\r\n'
    '    <tu creationid="X">\r\n      <prop type="x-Origin">TM</prop>\r\n'
    '      <tuv xml:lang="en-US">\r\n        <seg>Press <bpt i="1" type="1" x="1"/>Start<ept i="1"/>.</seg>\r\n'
    '      </tuv>\r\n      <tuv xml:lang="de-DE">\r\n        <seg>Drücken Sie <bpt i="1" type="1" x="1"/>Start'
    '<ept i="1"/>.</seg>\r\n      </tuv>\r\n    </tu>\r\n  </body>\r\n</tmx>\r\n'
)
MEMOQ = """<?xml version="1.0" encoding="utf-8"?>
<tmx version="1.4">
<header creationtool="MemoQ" srclang="en-us" o-tmf="MemoQTM"><prop type="defclient">x</prop></header>
<body>
<tu changedate="20190101T000000Z"><prop type="client"></prop>
<tuv xml:lang="en-us"><prop type="x-context-pre">&lt;seg&gt;Before.&lt;/seg&gt;</prop><seg>Press <bpt i='1'>{}</bpt>\
Start<ept i='1'>{}</ept>.</seg></tuv>
<tuv xml:lang="de"><seg>Drücken Sie <bpt i='1'>{}</bpt>Start<ept i='1'>{}</ept>.</seg></tuv></tu>
</body></tmx>"""
OPUS = """<?xml version="1.0" encoding="UTF-8" ?>
<tmx version="1.4">
<header creationdate="Wed Jan 30 11:49:51 2013" srclang="en" adminlang="en" segtype="sentence" datatype="PlainText" />
  <body>
    <tu>
      <tuv xml:lang="en"><seg>Press Start.</seg></tuv>
      <tuv xml:lang="de"><seg>Drücken Sie Start.</seg></tuv>
    </tu>
  </body>
</tmx>
"""
OLD = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx11.dtd"><tmx version="version 1.1"><header srclang="*all*">
</header><body><tu><tuv lang="EN_GB"><seg>Press <ut>{\\b </ut>Start<ut>}</ut>.</seg></tuv>
<tuv lang="DE"><note>n</note><seg>Dr&#252;cken Sie Start.</seg></tuv></tu></body></tmx>"""


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cn"]) | st.sampled_from("\n\t\r &<>"), max_size=8
)  # no control characters: XML has none


def memory(*units: str, head: str = '<?xml version="1.0"?>', source: str = "en") -> str:
    """The first unit begins on line 3, and each has its own line."""
    return f'{head}\n<tmx version="1.4"><header srclang="{source}"/><body>\n' + "\n".join(units) + "\n</body></tmx>\n"


def unit(*variants: tuple[str, str]) -> str:
    return f"<tu>{''.join(f'<tuv xml:lang={c!r}><seg>{text}</seg></tuv>' for c, text in variants)}</tu>"


def scanned(
    folder: Path, data: str | bytes, languages: tuple[str | None, str | None] = (None, None), encoding: str = "utf-8"
) -> EntryScan:
    path = folder / "m.tmx"
    path.write_bytes(data if isinstance(data, bytes) else data.encode(encoding))
    found = scan_corpus(path, None, *languages)
    assert isinstance(found, EntryScan)
    return found


def read(
    folder: Path, data: str | bytes, languages: tuple[str | None, str | None] = (None, None), encoding: str = "utf-8"
) -> tuple[list[Pair], Report]:
    found, report = scanned(folder, data, languages, encoding), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    return pairs, report


class TestWhatToolsExport:
    @pytest.mark.parametrize(
        ("data", "encoding", "line"),
        [(OMEGAT, "utf-8", 8), (TRADOS, "utf-16", 5), (MEMOQ, "utf-8", 5), (OPUS, "utf-8", 5), (OLD, "ascii", 2)],
        ids=["OmegaT", "Trados", "memoQ", "OPUS", "TMX 1.1"],
    )
    def test_every_dialect(self, tmp_path: Path, data: str, encoding: str, line: int) -> None:
        expected = Pair(line, "Press Start.", "Drücken Sie Start.")
        for languages in (("en", "de"), (None, None), ("EN", None), (None, "de")):
            found = scanned(tmp_path, data, languages, encoding)
            assert found.languages == (languages[0] or "en", "de")
            assert list(found.read(Report())) == [expected]
            assert found.text.lines == data.count("\n") + (not data.endswith("\n"))
        turned = Pair(line, expected.target, expected.source)
        assert read(tmp_path, data, ("de", "en"), encoding)[0] == [turned]

    @pytest.mark.parametrize(
        "encoding",
        ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "gb18030", "iso-8859-1", "windows-1252", "cp437"],
    )
    def test_every_encoding(self, tmp_path: Path, encoding: str) -> None:
        head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
        data = memory(unit(("de", "Größe"), ("en", "size")), head=head)
        assert read(tmp_path, data, encoding=encoding)[0] == [Pair(3, "size", "Größe")]

    def test_a_text_that_was_converted_and_its_declaration_not(self, tmp_path: Path) -> None:
        data = memory(unit(("de", "Größe"), ("en", "size")), head='<?xml version="1.0" encoding="utf-16"?>')
        assert read(tmp_path, data)[0] == [Pair(3, "size", "Größe")]


class TestSegments:
    @pytest.mark.parametrize(
        ("inside", "text"),
        [
            ('a <bpt i="1">&lt;b <sub>alt</sub>&gt;</bpt>b<ept i="1">x</ept> c', "a b c"),
            ("a <hi>b <ph>x</ph>c</hi> d", "a b c d"),
            ("<it pos='begin'>x</it>a<ut>y<hi>z</hi></ut>b", "ab"),
            ("a <mrk type='x'>b</mrk>", "a b"),
            ("a &amp; <![CDATA[<b>&amp;]]> &#x1F600; <!-- x -->c<?y z?>", "a & <b>&amp; 😀 c"),
            ("\n    a\n    b \n", "a b"),
            ("  a&#10;b&#13;&#10; c  ", "  a b c  "),
            ("a\u2028b\u0085c", "a\u2028b\u0085c"),
        ],
    )
    def test_what_becomes_of_it(self, tmp_path: Path, inside: str, text: str) -> None:
        assert read(tmp_path, memory(unit(("de", inside), ("en", "x"))), ("de", "en"))[0] == [Pair(3, text, "x")]

    def test_only_segments_are_text(self, tmp_path: Path) -> None:
        note = "<note>no</note><prop type='x'>no</prop>"
        data = memory(
            f"<tu>{note}<tuv xml:lang='de'>{note}<seg>a</seg>no</tuv>no<tuv xml:lang='en'><seg>b</seg></tuv></tu>"
        )
        assert read(tmp_path, data, ("de", "en"))[0] == [Pair(3, "a", "b")]

    def test_several_variants_of_a_language(self, tmp_path: Path) -> None:
        data = memory(
            unit(("de-AT", "Jänner"), ("de-DE", "Januar"), ("en", "January")),
            unit(("de-AT", "Jänner"), ("de", "Januar"), ("en", "January"), ("en", "Jan")),
        )
        assert [p[1:] for p in read(tmp_path, data, ("de", "en"))[0]] == [("Jänner", "January"), ("Januar", "January")]
        assert [p[1:] for p in read(tmp_path, data, ("de-de", "en"))[0]] == [("Januar", "January")]
        assert [p[1:] for p in read(tmp_path, data, ("de-AT", "de"))[0]] == [("Jänner", "Januar"), ("Jänner", "Januar")]

    @settings(max_examples=60)
    @given(
        st.lists(st.tuples(texts, texts), max_size=6),
        st.sampled_from(["utf-8", "utf-16", "gb18030"]),
        st.integers(1, 40),
    )
    def test_what_is_written_is_read(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], encoding: str, block: int
    ) -> None:
        rows = [("eins", "one"), *rows]
        safe = [[escape(text, {"\r": "&#13;", "\n": "&#10;"}) for text in row] for row in rows]
        units = [unit(("de", source), ("en", target)) for source, target in safe]
        data = memory(*units, head=f'<?xml version="1.0" encoding="{encoding}"?>')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(xml_units, "_BLOCK", 100 + block)  # the declaration is within the first one
            pairs, report = read(tmp_path_factory.mktemp("tmx"), data, ("de", "en"), encoding)
        whole = [row[0].strip() and row[1].strip() for row in rows]
        assert pairs == [Pair(n, *map(one_line, row)) for n, row in enumerate(rows, 3) if whole[n - 3]]
        assert not any("\n" in text or "\r" in text for pair in pairs for text in pair[1:])
        assert [fault.line for fault in report.faults] == [n for n, good in enumerate(whole, 3) if not good]


class TestFaults:
    def test_every_unit_that_is_no_pair_is_named(self, tmp_path: Path) -> None:
        data = memory(
            unit(("de", "a"), ("en", "b")),
            unit(("de", "a"), ("fr", "c")),
            unit(("en", "b")),
            "<tu/>",
            "<tu><tuv><seg>a</seg></tuv><tuv xml:lang='en'><seg>b</seg></tuv></tu>",
            unit(("de", "a"), ("en", "<ph>x</ph> ")),
            unit(("de", "\t"), ("en", "b")),
            unit(("de", ""), ("en", "")),
            "<tu><tuv xml:lang='de'/><tuv xml:lang='en'><seg>b</seg></tuv></tu>",
            unit(("de", "a&nbsp;b"), ("en", "b")),
            unit(("de", "a<ph>&nbsp;</ph>b"), ("en", "b&amp;")),
            head='<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "http://127.0.0.1:9/tmx14.dtd">',
        )
        pairs, report = read(tmp_path, data, ("de", "en"))
        assert pairs == [Pair(3, "a", "b"), Pair(13, "ab", "b&")]
        assert [fault[1:] for fault in report.faults] == [
            (4, "no segment in en", ""),
            (5, "no segment in de", ""),
            (6, "no segment in de and in en", ""),
            (7, "no segment in de", ""),
            (8, EMPTY, "the target"),
            (9, EMPTY, "the source"),
            (10, EMPTY_BOTH, ""),
            (11, "no segment in de", ""),
            (12, NO_ENTITY, "&nbsp;"),
        ]

    def test_units_on_one_line_are_told_apart_by_their_order(self, tmp_path: Path) -> None:
        data = memory("".join(unit(("de", f"a{n}"), ("en", f"b{n}")) for n in range(5)))
        assert read(tmp_path, data, ("de", "en"))[0] == [Pair(3, f"a{n}", f"b{n}") for n in range(5)]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("<xliff version='1.2'/>", r"m\.tmx: is XML, but not TMX: its root is <xliff>"),
            (unit(("de", "a"), ("en", "b")), "its root is <tu>"),
            ("Ein Hund.\n", r"m\.tmx:1: not well-formed XML \(syntax error, at column 1\)"),
            (memory(), "has no translation unit"),
            (memory(unit(("de", "a"), ("en", "b")))[:-9], r"m\.tmx:4: .*cut off"),
            (memory(unit(("de", "a"), ("en", "b")))[:-20], r"m\.tmx:3: .*cut off"),
            (memory("", unit(("de", "a\x0b"), ("en", "b"))), r"m\.tmx:4: .*control character.*Fix the line"),
            (memory("", unit(("de", "a & b"), ("en", "b"))), r"m\.tmx:4: .*&amp;"),
            (memory("", unit(("de", "&#31;"), ("en", "b"))), r"m\.tmx:4: .*no such character"),
            (memory("", unit(("de", "&nbsp;"), ("en", "b"))), r"m\.tmx:4: .*undefined entity"),
            (memory("", unit(("de", "<b>"), ("en", "b"))), r"m\.tmx:4: .*mismatched tag"),
            (memory("", unit(("de", "Größe"), ("en", "b"))).encode("latin-1"), r"m\.tmx:4: not valid utf-8.*encoding="),
            (memory(unit(("de", "a"), ("fr", "b"))), r"no segment in 'en'; languages found: de \(1\), fr \(1\)"),
            (memory(unit(("de", "a")), unit(("en", "b"))), r"(?s)no pair can be used out of 2.*:3: no segment in en"),
            *(
                (memory(head=f'<?xml version="1.0" encoding="{name}"?>'), rf"m\.tmx:1: declares the encoding '{name}'")
                for name in ("klingon", "zlib", "rot13", "undefined")
            ),
        ],
    )  # fmt: skip
    def test_files_that_cannot_be_read(self, tmp_path: Path, data: str | bytes, message: str) -> None:
        with pytest.raises(DataError, match=message):
            scanned(tmp_path, data, ("de", "en"))

    def test_languages_that_are_not_clear(self, tmp_path: Path) -> None:
        data = memory(unit(("de", "a"), ("en-US", "b")), unit(("fr", "c"), ("de", "d")))
        with pytest.raises(DataError, match=r"m\.tmx: languages found: de \(2\), en-US \(1\), fr \(1\); say which"):
            scanned(tmp_path, data)
        assert read(tmp_path, data, ("fr", "de"))[0] == [Pair(4, "c", "d")]

    def test_the_source_is_what_the_header_says_or_comes_first(self, tmp_path: Path) -> None:
        for source, expected in (("en-GB", ("en", "de")), ("de", ("de", "en")), ("*all*", ("de", "en"))):
            data = memory(unit(("de", "a"), ("en-US", "b")), source=source)
            assert scanned(tmp_path, data).languages == expected

    def test_a_file_that_changes_in_between_is_noticed(self, tmp_path: Path) -> None:
        found = scanned(tmp_path, memory(*[unit(("de", "a"), ("en", "b"))] * 3))
        (tmp_path / "m.tmx").write_text(memory(unit(("de", "a"), ("en", "b"))))
        with pytest.raises(DataError, match=r"m\.tmx: has changed: 3 units were counted, 1"):
            list(found.read(Report()))


class TestStrangers:
    @pytest.mark.parametrize(
        "declaration",
        [
            '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">',
            '<!ENTITY c SYSTEM "file:///etc/hostname">',
            '<!ENTITY % c SYSTEM "file:///etc/hostname"> %c;',
        ],
        ids=["bomb", "file", "parameter"],
    )
    def test_entities_are_refused(self, tmp_path: Path, declaration: str) -> None:
        head = f'<?xml version="1.0"?>\n<!DOCTYPE tmx [{declaration}]>'
        with pytest.raises(DataError, match=r"m\.tmx:2: declares an entity \([ac]\), which .* is refused; take"):
            scanned(tmp_path, memory(unit(("de", "&c;"), ("en", "b")), head=head))

    def test_a_doctype_is_passed_over_and_nothing_is_opened_but_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tmx14.dtd").write_text("this is no DTD")
        monkeypatch.chdir(tmp_path)
        for identifier in ('SYSTEM "tmx14.dtd"', 'PUBLIC "-//LISA OSCAR:1998//DTD for TMX//EN" "http://127.0.0.1:9/x"'):
            head = f"<?xml version='1.0'?><!DOCTYPE tmx {identifier} [<!ATTLIST tu x CDATA 'y'>]>"
            assert read(tmp_path, memory(unit(("de", "a"), ("en", "b")), head=head))[0] == [Pair(3, "b", "a")]

    def test_a_segment_that_could_fill_the_memory_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(xml_units, "LONGEST_LINE", 1000)
        with pytest.raises(DataError, match=r"m\.tmx:\d+: a segment of more than"):
            scanned(tmp_path, memory(unit(("de", "a\n" * 2000), ("en", "b"))))

    def test_tags_as_deep_as_one_likes(self, tmp_path: Path) -> None:
        data = memory(unit(("de", "<hi>" * 5000 + "a" + "</hi>" * 5000), ("en", "b")))
        assert read(tmp_path, data, ("de", "en"))[0] == [Pair(3, "a", "b")]

    def test_memory_does_not_grow_with_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xml_units, "_BLOCK", 1 << 13)

        def peak(count: int) -> int:
            path = tmp_path / f"{count}.tmx"
            path.write_text(memory(*(unit(("de", f"Satz {n} " * 200), ("en", f"phrase {n}")) for n in range(count))))
            tracemalloc.start()
            try:
                found = scan_corpus(path, None, "de", "en")
                assert sum(1 for _ in found.read(Report())) == count
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(3)  # loads and compiles what only the first reading does
        assert peak(300) < 1.5 * peak(30)  # half a megabyte and a tenth of it
