"""HTML: everything but the texts stays, and inline tags keep their nesting in any translation."""

from __future__ import annotations

import re
import time
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.serving import html_text
from multihead.serving.html_placing import render
from multihead.serving.html_text import Segment, parse, scan
from multihead.serving.schema import WordAlignment

WORDS = st.lists(st.sampled_from(["Hund", "läuft", "a&lt;b", "(so)", "&amp;", "Ende.", "1"]), min_size=1, max_size=4)
TEXTS = WORDS.map(" ".join)
INLINE = st.deferred(
    lambda: st.lists(
        TEXTS
        | st.tuples(st.sampled_from(["b", "i", 'a href="x?a=1&amp;b"', "span class='<'"]), INLINE).map(wrapped)
        | st.sampled_from(["<img src=a>", "<code>x &amp; y</code>", "<!-- <b> -->", '<i translate="no">Nein</i>']),
        max_size=3,
    ).map(" ".join)
)
BLOCKS = st.lists(
    st.tuples(st.sampled_from(["p", "li", "td"]), INLINE).map(lambda one: wrapped(one))
    | st.sampled_from(
        ["\n", "<br>", "<hr>", "<script>if (a<b) c()</script>", "<style>b>i{}</style>", "<!doctype html>"]
    )
    | INLINE,
    max_size=4,
).map("".join)


def wrapped(named: tuple[str, str]) -> str:
    return f"<{named[0]}>{named[1]}</{named[0].split()[0]}>"


class Tags(HTMLParser):
    """The tags of a document; checks that they are nested."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Any] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, attrs))
        if tag not in ("img", "br", "hr"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append("/" + tag)
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.append(data)


def identity(words: list[str]) -> list[list[float]]:
    rows = [[0.0] * len(words) for _ in words]
    for place, row in enumerate(rows):
        row[place] = 1.0
    return rows


def translated(html: str, shuffle: Any = None) -> str:
    """Every segment with its own words, in the order that ``shuffle`` gives them."""
    parts = []
    for part in parse(html):
        if isinstance(part, Segment):
            words = part.text.split()
            rows = list(zip(words, identity(words), strict=True))
            rows = rows if shuffle is None else shuffle(rows)
            alignment = WordAlignment.model_construct(  # validating millions of weights takes seconds
                source_words=words, target_words=[word for word, _ in rows], weights=[row for _, row in rows], links=[]
            )
            parts.append(render(part, " ".join(word for word, _ in rows), alignment))
        else:
            parts.append(part)
    return "".join(parts)


@given(html=BLOCKS)
def test_what_is_translated_into_itself_keeps_every_tag_in_its_place(html: str) -> None:
    """A blank beside an element without words of its own may come or go."""
    found = translated(html)
    assert Tags(found).tags == Tags(html).tags
    assert "".join("".join(Tags(found).texts).split()) == "".join("".join(Tags(html).texts).split())


@pytest.mark.parametrize(
    "html",
    [
        "Hund<code>x &amp; y</code> Hund",
        "Hund <code>x</code>Hund",
        "Hund <code>x</code><code>y</code>",
        "Hund <code>x</code><img src=a> Hund",
    ],
)
def test_elements_without_words_keep_their_blanks(html: str) -> None:
    assert translated(html) == html


@given(html=BLOCKS, draw=st.randoms())
def test_any_order_of_words_keeps_all_tags_and_their_nesting(html: str, draw: Any) -> None:
    found = translated(html, lambda rows: draw.sample(rows, len(rows)))
    assert sorted(map(str, Tags(found).tags)) == sorted(map(str, Tags(html).tags))
    assert sorted(re.sub(r"\s", "", unescape(found))) == sorted(re.sub(r"\s", "", unescape(html)))


@given(text=st.text(alphabet="<>/!-?'\" abp=&;#\n", max_size=60))
def test_any_text_is_scanned_without_loss(text: str) -> None:
    assert "".join(token.raw for token in scan(text)) == text
    again = "".join(part if isinstance(part, str) else "\0" for part in parse(text))
    assert all(piece in text for piece in again.split("\0"))
    translated(text)


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        ("<p>Das ist <b>gut</b>.</p>", ["Das ist gut."]),
        ("eins<br>zwei <div>drei</div>", ["eins", "zwei", "drei"]),
        ("a &amp; b &lt;c&gt; &#228;", ["a & b <c> ä"]),
        ("eins\n   zwei\t drei", ["eins zwei drei"]),
        ("<p> 12 : 30 </p> &nbsp;", []),
        ("<script>var a = 'Hund'</script><style>Hund</style><textarea>Hund</textarea><pre>Hund</pre>", []),
        ("Nimm <code>make</code> hier", ["Nimm hier"]),
        ('<p translate="no">Hund</p><p class="x notranslate y">Hund</p>eins', ["eins"]),
        ("<b>eins <p>zwei</b> drei</p>", ["eins", "zwei", "drei"]),
        ("eins </i> zwei", ["eins", "zwei"]),
        ("1 < 2 und 3 > 2", ["1 < 2 und 3 > 2"]),
        ("<!-- Hund --><!DOCTYPE Hund><?Hund?><![CDATA[Hund]]>", []),
        ('<img alt="Hund" title="a > b">', []),
        ("<p title='Hund>'>eins", ["eins"]),
        ("eins <!-- offen", ["eins"]),
        ("eins <a href=", ["eins"]),
        ("<title>Hund</title>", ["Hund"]),
    ],
)
def test_which_texts_are_translated(html: str, texts: list[str]) -> None:
    assert [part.text for part in parse(html) if isinstance(part, Segment)] == texts


def test_tags_follow_their_words() -> None:
    (segment,) = parse("<b>Gestern</b> habe ich <a href=x>den <i>Hund</i></a> <img src=y> gesehen.")
    assert isinstance(segment, Segment)
    source, target = segment.text.split(), ["I", "saw", "the", "dog", "yesterday."]
    owners = [2, 5, 3, 4, 0]
    weights = [[float(place == owner) for place in range(len(source))] for owner in owners]
    alignment = WordAlignment(source_words=source, target_words=target, weights=weights, links=[])
    assert render(segment, " ".join(target), alignment) == (
        "I <img src=y> saw <a href=x>the <i>dog</i></a> <b>yesterday</b>."
    )


@pytest.mark.parametrize(
    ("html", "translation", "wanted"),
    [
        ("<i><b>eins zwei</b></i>", "one, two!", "<i><b>one, two!</b></i>"),
        ("<i>eins</i>.", "one.", "<i>one</i>."),
        (" <b> eins </b>\n", "1 < 2 & 3\xa0!", "  <b>1 &lt; 2 &amp; 3&nbsp;!</b> \n"),
        ("eins <b></b> zwei", "one", None),
        ("<b>eins</b> zwei", "", "<b></b>"),
    ],
)
def test_without_attention_words_are_matched_by_their_place(html: str, translation: str, wanted: str | None) -> None:
    (segment,) = parse(html)
    assert isinstance(segment, Segment)
    found = render(segment, translation, None)
    assert Tags(found).tags == Tags(html).tags
    assert wanted is None or found.split() == wanted.split()


@pytest.mark.parametrize(
    "repeated",
    [
        "<a '>'", "<", "<!--x>", "<![CDATA[>", "<b>", "</b>", "<code>", "<a ", "<script>", "<b>x", "&#", "<a class='",
        "<p translate=no>", "<b>a</b> ",
    ],
)  # fmt: skip
def test_hostile_documents_take_linear_time(repeated: str, without_checks: Any) -> None:
    """A quadratic scan of so many characters would take minutes."""
    html, began = repeated * (100_000 // len(repeated)), time.process_time()
    with without_checks():
        assert "".join(token.raw for token in scan(html)) == html
        parse(html)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "html",
    ["<" + "a" * 100_000, "</" + "a" * 100_000, "<!-- " + "a " * 50_000, "a " * 1_000 + "<b></b> " * 30_000,
     "<i>a</i> " * 1_000, ("<b>" * 40 + "a" + "</b>" * 40 + " ") * 100, "a " * 500 + "<!-- --> " * 10_000],
)  # fmt: skip
def test_hostile_documents_are_placed_in_linear_time(html: str, without_checks: Any) -> None:
    began = time.process_time()
    with without_checks():
        assert translated(html) == html
    assert time.process_time() - began < 10


def test_a_comment_without_an_end_takes_the_rest() -> None:
    for html in ("<!-- a <b>Hund</b>", "a<!-- b"):
        assert [token.kind for token in scan(html)][-1] == "other"
        assert "".join(token.raw for token in scan(html)) == html
    assert parse("<!-- a <b>Hund</b>") == ["<!-- a <b>Hund</b>"]


def test_so_many_elements_belong_to_a_segment_and_others_separate_segments() -> None:
    words = [f"<i>{number}a</i>" for number in range(html_text._MOST + 2)]
    segments = [part for part in parse(" ".join(words)) if isinstance(part, Segment)]
    assert [len(segment.elements) for segment in segments] == [html_text._MOST, 0, 0]


def test_deep_nesting_is_cut() -> None:
    html = "<b>" * 5_000 + "x" + "</b>" * 5_000
    assert translated(html) == html
