"""Shades follow the weights; no text can control the terminal or the browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from multihead.inspection.shades import ShadedDocument, WeightedText, shaded_page, shaded_text


def sentence(weight: float, *words: tuple[str, float]) -> WeightedText:
    return WeightedText(weight, parts=tuple(WeightedText(share, text) for text, share in words))


FLAT = ShadedDocument("good 90.0%", sentence(1.0, ("A", 0.05), (" fine", 0.9), (" day", 0.05)))
TWO = ShadedDocument(
    "bad 75.0%",
    WeightedText(
        1.0,
        parts=(
            sentence(0.1, ("All", 0.4), (" well", 0.6)),
            sentence(0.9, ("An", 0.0), (" awful", 0.8), (" end", 0.2)),
        ),
    ),
)
DEEP = ShadedDocument(
    "x 50.0%",
    WeightedText(1.0, parts=(WeightedText(0.3, parts=TWO.document.parts), WeightedText(0.7, parts=TWO.document.parts))),
)


class Read(HTMLParser):
    """What a browser would show, with every tag and attribute."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags, self.styles, self.open = "", [], {}, []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
            if "span" in self.open:
                self.styles[data] = self.tags[-1][1]


def read(*documents: ShadedDocument, **options: Any) -> Read:
    found = Read()
    found.feed(shaded_page(documents, **options))
    found.close()
    assert found.open == []
    return found


def test_without_colors_shares_are_numbers() -> None:
    assert shaded_text(FLAT, color=False) == "good 90.0%\n 100% A fine(90) day"
    assert shaded_text(TWO, color=False).splitlines() == [
        "bad 75.0%",
        "1  10% All(40) well(60)",
        "2  90% An awful(80) end(20)",
    ]
    assert [line[:8] for line in shaded_text(DEEP, color=False).splitlines()[1:]] == [
        "1.1   3%",
        "1.2  27%",
        "2.1   7%",
        "2.2  63%",
    ]


def colors(text: str) -> dict[str, int]:
    """The words, each with its background color; 0 for none."""
    found = {}
    for color, word in re.findall(
        r"(?:\x1b\[38;5;16;48;5;(\d+)m)?([A-Za-z]+)(?:\x1b\[0m)?", re.sub(r"\x1b\[0m", "", text)
    ):
        found[word] = int(color or 0)
    return found


def test_with_colors_the_words_are_the_same_and_shades_follow_the_weights() -> None:
    text = shaded_text(TWO, color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == re.sub(r"\(\d+\)", "", shaded_text(TWO, color=False))
    found = colors(text.split("\n", 1)[1])
    # sqrt(0.9) 0.8 is the largest, sqrt(0.1) 0.6 a quarter of it; the nearer to white, the higher the number
    assert found["awful"] < found["end"] <= 230
    assert found["awful"] == min(color for color in found.values() if color)
    assert found["An"] == 0


def test_a_page_has_the_words_and_their_shares() -> None:
    found = read(TWO, DEEP, title="Two & three")
    assert found.text.count("Two & three") == 2
    assert "An awful end" in found.text
    style = read(TWO).styles
    assert style["awful"]["title"] == "80.0%"
    assert style["awful"]["style"] == "background: rgba(255, 140, 0, 1.000)"
    strength = (0.1**0.5 * 0.6) / (0.9**0.5 * 0.8)
    assert style["well"]["style"] == f"background: rgba(255, 140, 0, {strength:.3f})"
    paragraphs = [attributes for tag, attributes in read(DEEP).tags if tag == "p"]
    assert [attributes["title"] for attributes in paragraphs] == ["1.1: 3.0%", "1.2: 27.0%", "2.1: 7.0%", "2.2: 63.0%"]
    assert [attributes.get("class") for attributes in paragraphs] == ["first", None, "first", None]
    assert {attributes["dir"] for attributes in paragraphs} == {"auto"}  # Arabic begins at the right
    assert read(FLAT).text.count("A fine day") == 1


def test_a_page_needs_nothing_else() -> None:
    text = shaded_page([TWO])
    assert not re.search(r"https?:|src=|@import|url\(|<script|<link", text)


NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=y>',
    "'&amp;",
    "\x1b[2J",
    "\x00\x9b\u202e",
    "</style>",
    "{title}",
]


@pytest.mark.parametrize("text", NASTY)
def test_nothing_in_a_document_is_obeyed(text: str) -> None:
    nasty = ShadedDocument(text, WeightedText(1.0, parts=(sentence(1.0, (text, 0.5), (f" {text}", 0.5)),)))
    found = read(nasty, title=text)
    assert {tag for tag, _ in found.tags} == {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "span"}
    assert all(
        name in ("charset", "name", "content", "class", "dir", "style", "title") for _, a in found.tags for name in a
    )
    plain = re.sub(r"\x1b\[(?:38;5;16;48;5;\d+|0)m", "", shaded_text(nasty, color=True))
    assert all(character.isprintable() or character == "\n" for character in plain)
    if text.isprintable():
        assert found.text.count(text) >= 4
        assert plain.count(text) == 3


def test_a_document_of_one_word_or_without_weight_is_shown() -> None:
    lonely = ShadedDocument("a", WeightedText(1.0, parts=(WeightedText(1.0, "hello"),)))
    assert "hello" in shaded_text(lonely, color=True)
    weightless = ShadedDocument("a", WeightedText(1.0, parts=(WeightedText(0.0, "hello"),)))
    assert "hello" in shaded_page([weightless])
