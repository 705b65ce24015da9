"""Placeholders: what is replaced in training and translation, and that texts come back."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, FormatError
from multihead.text import placeholders
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.placeholders import (
    COUNT,
    PlaceholderTokenizer,
    fill,
    find,
    learn_with_placeholders,
    mask,
    mask_answer,
    mask_pair,
    parse_rules,
    symbols_of_rules,
)
from multihead.text.tokenizer import Tokenizer

RULES = parse_rules(["numbers,urls,emails,markup", "order=[A-Z]{2}-[0-9]{4}"])
LINES = [
    "Ein Hund kostet 12 Euro, bei XY-1234 oder <b>mehr</b>.",
    "A dog costs; see www.dogs.example or ask a@b.de!",
] * 6
OWN = learn_with_placeholders(LINES, 420, symbols=["☃"], rules=RULES)
SPANS = ["48213", "9.07", "12", "https://a.example/x?y=1", "ada@site.org", "<b>", "</b>", "&amp;", "XY-1234", "⟨num1⟩"]
WORDS = ["Ein", "dog", "(", ".", ",", "café", "☃", "3rd", "MP3", "▁", "⟨foo1⟩"]
TEXTS = st.lists(st.sampled_from([*SPANS, *WORDS]), max_size=9).map(" ".join) | st.text(max_size=8)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("am 12.05.2024 um 17:30 1,000.50 5-6 1'000", ["12.05.2024", "17:30", "1,000.50", "5-6", "1'000"]),
        ("5km MP3 3rd B2B .5 12.", ["5", "3", "5", "12"]),
        ("see https://a.example/x?y=1. (www.b.example/z) http://", ["https://a.example/x?y=1", "www.b.example/z"]),
        ("mail ada.b+c@site.co.uk, or x@y", ["ada.b+c@site.co.uk"]),
        ('<a href="x 1">5 < 6 &amp; &#39;</a>', ['<a href="x 1">', "5", "6", "&amp;", "&#39;", "</a>"]),
        ("{name} {} { }", ["{name}", "{}"]),
        ("XY-1234 xy-1234", ["XY-1234", "1234"]),
        ("⟨num1⟩ ⟨num11⟩ ⟨order2⟩ ⟨foo1⟩", ["⟨num1⟩", "⟨order2⟩"]),
    ],
)  # fmt: skip
def test_what_is_found(text: str, found: list[str]) -> None:
    # What follows a letter is part of its word: MP3, B2B, num11, foo1.
    assert [value for _, value in find(RULES, text).keys] == found


@settings(max_examples=150)
@given(TEXTS)
def test_a_source_is_masked_and_comes_back(text: str) -> None:
    masked = mask(RULES, text)
    spans = find(RULES, text).keys
    assert masked.missed == sum(max(count - COUNT, 0) for count in Counter(kind for kind, _ in spans).values())
    assert list(masked.values.values()) == [value for _, value in spans] or masked.missed
    for place, ((start, stop), (first, last)) in enumerate([] if masked.missed else masked.places):
        own = list(masked.values)[place]
        assert masked.text[start:stop] == own
        assert text[first:last] == masked.values[own]
        assert masked.original((start, stop)) == (first, last)
    parts = re.split(f"({'|'.join(symbols_of_rules(RULES))})", masked.text)
    assert masked.missed or "".join(masked.values.get(part, part) for part in parts) == text
    reading = OWN.reading
    ids = reading.encode(text)
    assert reading.plain.decode(ids) == masked.text
    assert [i for i in ids if i in OWN.copied] == OWN.copies(text) or masked.missed
    for (start, stop), i in zip(reading.spans(text), ids, strict=True):
        assert 0 <= start <= stop <= len(text)
        if i in OWN.copied and not masked.missed:
            assert text[start:stop] == masked.values[OWN.vocabulary[i]]
    # A copy of the source as its translation has the same ids, and is filled to the same text.
    if not masked.missed and len(set(masked.values.values())) == len(masked.values):
        assert OWN.answers([text], [text]) == [ids]
        assert OWN.answer_spans(text, text) == reading.spans(text)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(SPANS), max_size=6), st.lists(st.sampled_from([*SPANS[:6], "x"]), max_size=6))
def test_a_pair_is_masked_where_both_sides_agree(one: list[str], other: list[str]) -> None:
    source, target = mask_pair(RULES, " ".join(one), " ".join(other))
    counts = Counter(one), Counter(other)
    kept = [[v.strip("⟨⟩") for v in side if v != "x" and counts[0][v] != counts[1][v]] for side in (one, other)]
    marks = [[w for w in side.split() if w in symbols_of_rules(RULES)] for side in (source, target)]
    assert sorted(marks[0]) == sorted(marks[1])
    assert len(set(marks[0])) == len(marks[0]) == len(one) - len(kept[0])
    assert [w for w in target.split() if w not in marks[1] and w != "x"] == kept[1]
    # Equal symbols stand for equal texts.
    values = dict(zip(source.split(), one, strict=True))
    assert all(values[mark] == value for mark, value in zip(target.split(), other, strict=True) if mark in marks[0])


def test_equal_texts_have_symbols_of_their_own() -> None:
    assert mask_pair(RULES, "5 und 5", "5 and 5") == ("⟨num1⟩ und ⟨num2⟩", "⟨num1⟩ and ⟨num2⟩")
    assert mask_pair(RULES, "5 und 5", "five and 5") == ("5 und 5", "five and 5")
    assert mask_pair(RULES, "3 Hunde, 12", "drei, 12") == ("3 Hunde, ⟨num1⟩", "drei, ⟨num1⟩")
    many = " ".join(map(str, range(12)))
    assert mask_pair(RULES, many, many)[0].split()[9:] == ["⟨num10⟩", "10", "11"]
    masked = mask(RULES, "5 und 5")
    assert mask_answer(RULES, "5, 5 and 5", masked).text == "⟨num1⟩, ⟨num2⟩ and 5"


@pytest.mark.parametrize(
    ("masked", "filled"),
    [
        ("am ⟨num1⟩.", "am 12. 34"),
        ("⟨num2⟩⟨num1⟩", "34 12"),
        ("9⟨num1⟩9⟨num2⟩km", "9 12 9 34km"),
        ("⟨num1⟩⟨num1⟩ ⟨num2⟩ ⟨num3⟩⟨url1⟩x", "12 34 x"),
        ("", "12 34"),
        ("⟨num1⟩年⟨num2⟩", "12年34"),
        ("⟨foo1⟩ ⟨num1⟩ ⟨num2⟩", "⟨foo1⟩ 12 34"),
    ],
)
def test_filling_writes_each_text_once(masked: str, filled: str) -> None:
    values = {"⟨num1⟩": "12", "⟨num2⟩": "34"}
    assert fill(RULES, masked, values) == filled
    if "⟨num1⟩⟨num1⟩" not in masked and "34" in filled.split()[-1] and masked.count("⟨num2⟩"):
        assert fill(RULES, masked, values, whole=False) == filled


def test_a_line_break_in_a_copied_text_becomes_a_space() -> None:
    assert OWN.filled("⟨tag1⟩ Hund", '<a\rhref="x"\n> Hund') == '<a href="x" > Hund'


def test_the_file_and_the_roles() -> None:
    loaded = Tokenizer.from_json(OWN.to_json())
    assert isinstance(loaded, PlaceholderTokenizer)
    assert isinstance(OWN, PlaceholderTokenizer)
    assert (loaded.rules, loaded.own_symbols, loaded.vocabulary) == (RULES, ("☃",), OWN.vocabulary)
    assert loaded.digest == OWN.digest == OWN.reading.digest
    assert OWN.reading.to_json() == OWN.to_json()
    assert OWN.reading.plain.encode("5") == OWN.encode("5") != OWN.reading.encode("5")
    assert learn_with_placeholders(LINES, 420, symbols=["☃"]).digest != OWN.digest
    marked = LanguageTokenizer(OWN, ["de", "en"], "en")
    assert marked.reading.encode("5") == [*marked.prefix, *OWN.reading.encode("5")]
    assert marked.reading.plain.encode("5") == marked.encode("5")
    assert marked.answers(["x 5"], ["5"]) == [[*marked.prefix, *OWN.answers(["x 5"], ["5"])[0]]]
    assert marked.answer_spans("x 5", "5")[1:] == OWN.answer_spans("x 5", "5")
    assert (marked.copies("5"), marked.filled("⟨num1⟩", "5")) == (OWN.copies("5"), "5")
    for damage in ({"rules": "a"}, {"rules": [["A", "x"]]}, {"symbols": ["a b"]}, {"inner": 3}):
        with pytest.raises(FormatError):
            Tokenizer.from_json(json.dumps(json.loads(OWN.to_json()) | damage))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["number"], "there are no placeholders 'number': expected markup, urls, emails, numbers, or name=REGEX"),
        (["urls,urls"], "named twice"),
        (["A=x"], "cannot be named 'A'"),
        (["a=x*"], "matches an empty text"),
        (["a=(x)y"], "keeps a group"),
        (["a=(x+x+)+y"], "cannot be searched for"),
        (["a=["], "cannot be searched for"),
        (["a=x", "a=y"], "equal names"),
        (["num=x", "numbers"], "equal names"),
    ],
)
def test_what_is_no_rule(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_rules(words)


def test_searches_end() -> None:
    """The expressions of the named kinds take time in proportion to the text."""
    for text in ("1." * 50_000, "a." * 50_000 + "@", "<a" * 50_000, "http://" * 20_000, "{a" * 50_000, "&a" * 50_000):
        find(tuple(placeholders.KINDS.values()), text)
