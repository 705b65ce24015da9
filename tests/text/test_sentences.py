"""Long texts: the parts add up to the text, each fits, and the cuts are where a reader expects them."""

from __future__ import annotations

import re
import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.text.sentences import join_translations, split_at_marks, split_sentences, split_text

TEXT = st.text(alphabet=st.sampled_from("ab Zé.,!?;。，我 \t\u2028\u3000\0'”\u0301\u200d👩-"), max_size=120)


@settings(max_examples=300)
@given(text=TEXT.filter(lambda text: bool(text.strip())), most=st.integers(1, 30), more=st.integers(0, 20))
def test_the_parts_are_the_text_and_fit(text: str, most: int, more: int) -> None:
    parts = split_text(text, lambda piece: len(piece) <= most, lambda piece: len(piece) <= most + more)
    assert "".join(part + between for part, between in parts) == text.strip()
    assert all(part and part == part.strip() and len(part) <= most + more for part, _ in parts)
    assert all(not between.strip() for _, between in parts)
    assert parts[-1][1] == ""
    if len(text.strip()) <= most:
        assert len(parts) == 1
    assert join_translations([part for part, _ in parts], parts).replace(" ", "") == text.strip().replace(" ", "")


@settings(max_examples=100)
@given(
    words=st.lists(st.text(alphabet="abc.,", min_size=1, max_size=5), min_size=1, max_size=60), most=st.integers(5, 30)
)
def test_no_word_is_torn_that_fits(words: list[str], most: int) -> None:
    parts = split_text(" ".join(words), lambda piece: len(piece) <= most)
    assert " ".join(part for part, _ in parts).split() == words
    assert join_translations([part for part, _ in parts], parts) == " ".join(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Eins zwei. Drei vier!  Fünf?", ["Eins zwei.", "Drei vier!", "Fünf?"]),
        ("Er sagte: „Nein.“ Dann ging er.", ["Er sagte: „Nein.“", "Dann ging er."]),
        ("Ein sehr langer Satz, der zwei Teile hat", ["Ein sehr langer Satz,", "der zwei Teile hat"]),
        ("eins, zwei drei vier fünf sechs sieben", ["eins, zwei drei vier", "fünf sechs sieben"]),
        ("他跑得很快。她在睡觉。", ["他跑得很快。", "她在睡觉。"]),
    ],
)
def test_where_it_is_cut(text: str, expected: list[str]) -> None:
    longest = max(map(len, expected))
    assert [part for part, _ in split_text(text, lambda piece: len(piece) <= longest)] == expected


@pytest.mark.parametrize("text", ["." * 200_000 + "x", "A b. " * 50_000, "," * 200_000 + "x y", ".'" * 100_000 + "x"])
def test_no_text_takes_the_square_of_its_length(text: str) -> None:
    """In quadratic time, each of these would take minutes; the limit on CPU time is generous."""
    start = time.process_time()
    parts = split_text(text, lambda piece: len(piece) <= 1000)
    assert time.process_time() - start < 5
    assert "".join(part + between for part, between in parts) == text.strip()


@settings(max_examples=300)
@given(text=st.text(alphabet=st.sampled_from(".!…\"')  \n\x1c\u2028aA。！”"), max_size=20))
def test_marks_end_sentences_where_the_rule_says(text: str) -> None:
    """The rule as documented: marks, closing punctuation, white space, and no lower-case letter."""
    ends = [
        end.end()
        for end in re.finditer(r"""[.!?…]+["'”’“»«)\]]*(?=\s)|[。！？]+[”’」』）]*""", text)
        if text[end.end() :].strip() and not text[end.end() :].strip()[0].islower()
    ]
    places = [0, *ends, len(text)]
    assert list(split_at_marks(text)) == [text[one:two] for one, two in pairwise(places)]


def test_the_language_decides_where_sentences_end() -> None:
    text = "Das 19. Jahrhundert war lang, z. B. in Frankfurt. Es endete 1914."
    for language, first in (("de", 49), (None, 7)):
        (part, _), *_ = split_text(text, lambda piece: False, lambda piece: True, language)
        assert part == text[:first]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他说：“天黑了。我们回家吧。明天再来。”", ["他说：“天黑了。", "我们回家吧。", "明天再来。”"]),
        ("ohne große buchstaben. gibt es z. b. auch", ["ohne große buchstaben.", "gibt es z. b. auch"]),
        ("„Es ist dunkel. Wir gehen jetzt heim“", ["„Es ist dunkel.", "Wir gehen jetzt heim“"]),
    ],
)
def test_a_long_sentence_is_cut_at_the_sentences_inside(text: str, expected: list[str]) -> None:
    """`text.boundaries` leaves these whole."""
    assert split_sentences(text, "de") == [text]
    longest = max(map(len, expected))
    assert [part for part, _ in split_text(text, lambda piece: len(piece) <= longest)] == expected


def test_a_sentence_that_is_bearable_stays_whole() -> None:
    text = "Kurz. Ein langer Satz, der bleibt. Ein noch viel längerer Satz, der geteilt wird."
    parts = split_text(text, lambda piece: len(piece) <= 20, lambda piece: len(piece) <= 30)
    assert [part for part, _ in parts] == [
        "Kurz.", "Ein langer Satz, der bleibt.", "Ein noch viel längerer Satz,", "der geteilt wird."
    ]  # fmt: skip


def test_marks_stay_with_their_letters() -> None:
    text = "e\u0301" * 40 + "👩\u200d🌾" * 20
    parts = [part for part, _ in split_text(text, lambda piece: len(piece) <= 9)]
    assert all(not unicodedata.combining(part[0]) and part[0] != "\u200d" and part[-1] != "\u200d" for part in parts)
    assert len(split_text("\u0301" * 9, lambda piece: len(piece) <= 2)) > 1  # if there are only marks, between them


@pytest.mark.parametrize(
    ("source", "translations", "whole"),
    [
        ("他跑。她睡。", ["He runs.", "She sleeps."], "He runs. She sleeps."),
        ("他跑。她睡。", ["彼は走る。", "彼女は眠る。"], "彼は走る。彼女は眠る。"),
        ("He runs.\u2028She sleeps.", ["Er rennt.", "Sie schläft."], "Er rennt.\u2028Sie schläft."),
        ("他跑。她睡。", ["", "She sleeps."], "She sleeps."),
    ],
)
def test_translations_are_joined_by_what_stood_between(source: str, translations: list[str], whole: str) -> None:
    assert (
        join_translations(translations, split_text(source, lambda piece: len(piece) <= 11 and "他跑。她" not in piece))
        == whole
    )


def test_a_torn_word_is_mended() -> None:
    parts = split_text("a" * 50, lambda piece: len(piece) <= 7)
    assert len(parts) == 8
    assert join_translations([part.upper() for part, _ in parts], parts) == "A" * 50
