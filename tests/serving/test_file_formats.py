"""Files: everything except text stays byte for byte, and each passage is translated once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.errors import FormatError
from multihead.serving.downloads import MAX_BYTES, SECONDS, Downloads
from multihead.serving.file_formats import FORMATS, Document, Passage, read_document


def texts_of(document: Document) -> list[str]:
    return [part.segment.text for part in document.parts if isinstance(part, Passage)]


def made(document: Document, upper: bool = False) -> str:
    """The document with its texts as they are, or in upper case."""
    parts = []
    for part in document.parts:
        if isinstance(part, str):
            parts.append(part)
        else:
            text = part.segment.text
            parts.append(part.render(text.upper() if upper else text, None, document.quote))
    return "".join(parts)


@given(text=st.text(alphabet="aä 1.\n\r\t\u2028\ufeff", max_size=40))
def test_a_text_file_translated_into_itself_is_the_same(text: str) -> None:
    assert made(read_document("a.txt", text.encode())) == text


SUBTITLES = """\ufeff1\r
00:00:01,000 --> 00:00:02,500\r
Der Hund <i>läuft\r
schnell</i>.\r
\r
2\r
00:00:03,000 --> 00:00:04,000 X1:40\r
12:30\r
\r
"""


def test_subtitles_keep_numbers_times_and_lines() -> None:
    document = read_document("a.SRT", SUBTITLES.encode())
    assert texts_of(document) == ["Der Hund läuft schnell."]
    assert made(document) == SUBTITLES
    assert "DER HUND <i>LÄUFT\r\nSCHNELL</i>." in made(document, upper=True)


def test_subtitles_without_empty_lines_between_them() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\neins\n2\n00:00:03,000 --> 00:00:04,000\nzwei\ndrei\n"
    document = read_document("a.srt", text.encode())
    assert texts_of(document) == ["eins", "zwei drei"]
    assert made(document) == text


def test_webvtt_keeps_notes_styles_and_settings() -> None:
    text = (
        "WEBVTT - Titel\n\nNOTE ein Hund\nnoch einer\n\nSTYLE\n::cue { color: red }\n\nname\n00:01.000 --> 00:02.000 "
        "align:left\n<v Anna>Hallo &amp; Welt\n\n00:03.000 --> 00:04.000\neins\nzwei drei\nvier"
    )
    document = read_document("a.vtt", text.encode())
    assert texts_of(document) == ["Hallo & Welt", "eins zwei drei vier"]
    assert made(document) == text


def test_the_times_of_words_in_webvtt_are_no_text() -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\nein<00:01.500><c> Hund</c><00:00:01.900> &lt;3 rennt\n"
    document = read_document("a.vtt", text.encode())
    assert texts_of(document) == ["ein", "Hund", "<3 rennt"]
    assert made(document) == text


def test_html_and_wide_text() -> None:
    assert texts_of(read_document("a.html", b"<p>eins <b>zwei</b></p>")) == ["eins zwei"]
    assert texts_of(read_document("a.txt", "\ufeffeins\n".encode("utf-16-le"))) == ["eins"]
    assert texts_of(read_document("a.txt", b"")) == []


OTHERS = [("a.pdf", b"%PDF"), ("txt", b"a"), ("", b""), *((f"a{ending}", b"\xff") for ending in FORMATS)]


@pytest.mark.parametrize(("name", "content"), OTHERS)
def test_other_files_are_refused(name: str, content: bytes) -> None:
    with pytest.raises(FormatError, match=r"^the file .*: expected "):
        read_document(name, content)


def test_downloads_expire_and_make_room() -> None:
    now = [0.0]
    downloads = Downloads(lambda: now[0])
    first = downloads.add('../../e t"c/Hünd.txt', b"x")
    assert first.partition(".")[2] == "Hünd.txt"
    assert len(first.partition(".")[0]) == 32
    assert downloads.get(first) == b"x"
    assert downloads.get("x") is None
    large = downloads.add("..", bytes(MAX_BYTES))
    assert (downloads.get(first), large.partition(".")[2]) == (None, "file")
    now[0] = SECONDS + 1
    assert downloads.get(large) is None
