"""Gettext catalogs: Babel's files are read, fuzzy and empty entries are reported, and either side may be the source."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.data.catalogs import FUZZY, NOT_GETTEXT
from multihead.data.corpus import EMPTY, Pair, Report
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.text_files import NOT_UTF8, one_line
from multihead.errors import DataError

HEADER = r"""# German.
#, fuzzy
msgid ""
msgstr ""
"Language: de_DE\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"
"""
ENTRIES = r"""
#: main.c:7
#, c-format
msgctxt "menu"
msgid "Open %s"
msgstr "%s öffnen"

#, fuzzy, c-format
#| msgid "Close"
msgid "Quit %s"
msgstr "Schließen"

msgid "Save"
msgstr ""

#~ msgid "Old"
#~ msgstr "Alt"

msgid ""
"Two\n"
"lines \"quoted\" \303\xA4\x74"
msgstr "Zwei\nZeilen\\"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
"""
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=12)


def scanned(path: Path, data: str | bytes, languages: tuple[str | None, str | None] = (None, None)) -> CorpusScan:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return scan_corpus(path, None, *languages)


def read(
    path: Path, data: str | bytes, languages: tuple[str | None, str | None] = (None, None)
) -> tuple[list[Pair], Report]:
    found, report = scanned(path, data, languages), Report()
    pairs = list(found.read(report))
    assert len(pairs) + report.left_out == found.lines
    return pairs, report


def test_a_catalog_as_the_tools_write_it(tmp_path: Path) -> None:
    expected = [
        Pair(12, "Open %s", "%s öffnen"),
        Pair(26, 'Two lines "quoted" ät', "Zwei Zeilen\\"),
        Pair(31, "%d file", "%d Datei"),
        Pair(31, "%d files", "%d Dateien"),
    ]
    for languages in ((None, None), ("en", "de"), ("en", None), (None, "de-AT")):
        pairs, report = read(tmp_path / "de.po", HEADER + ENTRIES, languages)
        assert pairs == expected
        assert [fault[1:] for fault in report.faults] == [(17, FUZZY, ""), (20, EMPTY, "the target")]
    turned = [Pair(line, target, source) for line, source, target in expected]
    for languages in (("de", "en"), ("de", None)):
        assert read(tmp_path / "de.po", HEADER + ENTRIES, languages)[0] == turned
    assert scanned(tmp_path / "de.po", HEADER + ENTRIES).languages == (None, "de")
    with pytest.raises(DataError, match=r"de\.po: is a translation into 'de-de', but 'en' and 'fr' were requested"):
        scanned(tmp_path / "de.po", HEADER + ENTRIES, ("en", "fr"))


@settings(max_examples=30)
@given(st.lists(st.tuples(texts, st.none() | texts, st.booleans()), max_size=6, unique_by=lambda row: row[0]))
def test_what_babel_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str | None, bool]]
) -> None:
    catalog = Catalog(locale="de")
    for source, target, fuzzy in [("first entry of all", "erster Eintrag", False), *rows]:
        catalog.add(source, target, flags=["fuzzy"] if fuzzy else [])
    stream = io.BytesIO()
    write_po(stream, catalog)
    pairs, report = read(tmp_path_factory.mktemp("po") / "de.po", stream.getvalue())
    expected = [
        (one_line(str(message.id)), one_line(str(message.string or "")))
        for message in catalog
        if message.id and not message.fuzzy
    ]
    assert [tuple(pair[1:]) for pair in pairs] == [row for row in expected if row[0].strip() and row[1].strip()]
    assert report.counts.get(FUZZY, 0) == sum(bool(message.id and message.fuzzy) for message in catalog)


@pytest.mark.parametrize(
    ("rule", "forms", "expected"),
    [
        ("nplurals=1; plural=0;", ["Dateien"], [("files", "Dateien")]),
        ("nplurals=2; plural=n>1;", ["fichier", "fichiers"], [("file", "fichier"), ("files", "fichiers")]),
        (
            "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;",
            ["zero", "one", "two", "few", "many", "other"],
            [("file", "one"), ("files", "few")],
        ),
    ],
)
def test_the_forms_of_a_plural(tmp_path: Path, rule: str, forms: list[str], expected: list[tuple[str, str]]) -> None:
    entry = 'msgid "file"\nmsgid_plural "files"\n' + "".join(f'msgstr[{n}] "{f}"\n' for n, f in enumerate(forms))
    data = f'msgid ""\nmsgstr "Plural-Forms: {rule}\\n"\n\n{entry}'
    assert [tuple(pair[1:]) for pair in read(tmp_path / "t.po", data)[0]] == expected


def test_every_line_that_is_none_costs_its_entry_only(tmp_path: Path) -> None:
    good = b'msgid "a"\nmsgstr "b"\n'
    bad = [b'msgid "x\nmsgstr "y"\n', b"nonsense\n", b'"stray"\n', b'msgid "\xff"\nmsgstr "y"\n', b'msgid "x"\n']
    pairs, report = read(tmp_path / "t.po", good + b"\n".join(part + good for part in bad))
    assert [pair[1:] for pair in pairs] == [("a", "b")] * (1 + len(bad))
    assert [fault[1:3] for fault in report.faults] == [
        (3, NOT_GETTEXT),
        (8, NOT_GETTEXT),
        (12, NOT_GETTEXT),
        (16, NOT_UTF8),
        (21, EMPTY),
    ]


@pytest.mark.parametrize("charset", ["ISO-8859-1", "windows-1252", "utf-8", "GB18030"])
def test_the_declared_encoding_is_used(tmp_path: Path, charset: str) -> None:
    data = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\n\nmsgid "size"\nmsgstr "Größe"\n'
    assert read(tmp_path / "t.po", data.encode(charset))[0] == [Pair(4, "size", "Größe")]


def test_the_declared_encoding_is_that_of_the_line_after_the_header(tmp_path: Path) -> None:
    data = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\nmsgid "Café"\nmsgstr "Größe"\n'
    pairs, report = read(tmp_path / "t.po", data.encode("ISO-8859-1"))
    assert (pairs, report.left_out) == ([Pair(3, "Café", "Größe")], 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            'msgid ""\nmsgstr "Content-Type: text/plain; charset=klingon\\n"\n',
            r"t\.po:1: declares the charset 'klingon'",
        ),
        ('msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-16\\n"\n', "declares the charset 'utf-16'"),
        (
            'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=import os;\\n"\n',
            "that cannot be used: import os",
        ),
        (
            'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n/0;\\n"\n',
            "that cannot be used: n/0",
        ),
        ("Ein Hund.\n", r"(?s)no pair can be used out of 1.*t\.po:1: not gettext's syntax \(Ein Hund"),
        (HEADER, "no pair can be used out of 0$"),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        scanned(tmp_path / "t.po", data)
