"""What the filters measure: symmetric, independent of order and format, zero on faithful pairs."""

from __future__ import annotations

import math
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.cleaning.measures import broken, copied, differing_numbers, differing_urls, normalize, numbers, urls

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aßſςﬁ²«"), max_size=60)
MEASURED = st.sampled_from(["12", "1,000", "1.000", "2000", "www.a.org", "http://a.org", "a@b.de", "Haus", "\ufffd"])
LINE = st.lists(MEASURED | TEXT, max_size=5).map(" ".join)
"""Text with numbers, URLs and broken characters, which `TEXT` hardly ever has."""


@given(TEXT)
def test_a_normalized_text_has_nothing_left_to_ignore(text: str) -> None:
    once = normalize(text)
    assert bool(once) == bool(text)
    assert once == once.casefold()
    assert normalize(unicodedata.normalize("NFKD", text)) == once
    kept = "".join(character for character in once if unicodedata.category(character)[0] not in "PZC")
    assert once == kept or not kept  # of punctuation alone, everything is kept
    if kept:
        assert normalize(f" „{text}“!\n") == once
    if unicodedata.is_normalized("NFKC", once):  # not where folding makes what NFKC composes: "ß" before an accent
        assert normalize(once) == once


def test_what_normalizing_ignores() -> None:
    assert normalize("Ein  Hund, rennt!") == normalize("ein hund rennt.") == normalize("ＥＩＮ Hund rennt")
    assert normalize("Ein Hund") != normalize("Ein Huhn")
    assert normalize("...") == "..."


@given(st.lists(st.integers(0, 10**9), max_size=6), st.randoms())
def test_the_same_numbers_in_any_order_do_not_differ(values: list[int], draw: object) -> None:
    other = list(values)
    draw.shuffle(other)  # type: ignore[attr-defined]
    sides = [" und ".join(f"{value:,}" for value in row) for row in (values, other)]
    found = differing_numbers(sides[0].replace(",", "."), sides[1])
    assert math.isnan(found) if not values else found == 0


@given(LINE, LINE)
def test_measures_are_symmetric_and_shares(source: str, target: str) -> None:
    for measure in (differing_numbers, differing_urls):
        one, other = measure(source, target), measure(target, source)
        assert (math.isnan(one) and math.isnan(other)) or (one == other and 0 <= one <= 1)
    if source and target:
        assert 0 <= broken(source, target) == broken(target, source) <= 1
    assert 0 <= copied(source, target, source == target) <= 1


@pytest.mark.parametrize(
    ("source", "target", "differ"),
    [
        ("1.234,5 Meter", "1,234.5 meters", False),
        ("zwölf Leute", "12 people", False),  # spelled out
        ("am 05.03.", "on March 5", True),  # the month has no digits on the other side, the separators join the day
        ("im Jahr 1995", "in that year", True),
        ("3 Hunde", "4 dogs", True),
        ("von 3 bis 7", "from 3 to 9", True),
        ("٣ رجال", "3 men", False),
        ("1" * 40, "1" * 39 + "2", True),
    ],
)
def test_numbers(source: str, target: str, differ: bool) -> None:
    assert (differing_numbers(source, target) > 0) == differ


def test_numbers_without_digits_are_not_measured() -> None:
    assert math.isnan(differing_numbers("drei Hunde", "three dogs"))
    assert numbers("1,000 und 007") == {"1000": 1, "7": 1}


def test_urls_are_compared_without_scheme_and_punctuation() -> None:
    assert urls("Siehe https://www.Example.org/a, oder (mail: a.b@example.org).") == {
        "example.org/a",
        "a.b@example.org",
    }
    assert differing_urls("siehe www.example.org/a.", "see http://example.org/a") == 0
    assert differing_urls("siehe www.example.org/a", "see www.example.org/b") == 1
    assert differing_urls("siehe www.example.org", "see there") == 1
    assert math.isnan(differing_urls("da", "there"))


def test_a_long_run_of_letters_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("a" * 200_000 + "@", "a@" * 100_000, "a-b" * 70_000 + "@c"):
        differing_urls(text, "a@b.de")
    assert time.process_time() - began < 10


def test_copies_are_found_and_names_are_not() -> None:
    sentence = "Ein Hund rennt durch das Gras"
    assert copied(sentence, sentence, True) == 1
    assert copied("Berlin", "Berlin", True) < 0.7
    assert copied("人工智能研究所在北京的大学里面有很多学生", "人工智能研究所在北京的大学里面有很多学生", True) == 1
    assert copied(sentence, "A dog runs through the grass", False) == 0
    assert copied(sentence, "Ein Hund rennt durch das grass", False) == pytest.approx(5 / 6)


def test_broken_characters() -> None:
    assert broken("gut", "go\ufffdd") == 1 / 4
    assert broken("a\0bc", "abcd") == 1 / 4
    assert broken("Übergröße – „ja“\u2028\t👩‍👩‍👧", "fine\x85") == 0
