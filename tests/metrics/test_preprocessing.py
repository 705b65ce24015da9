"""Tokenized or lower-cased lines are counted; normal text is clean."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU

from multihead.metrics.preprocessing import find_preprocessing

MULTI30K = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "multi30k"

CLEAN = {
    "en": [
        "The man's dog doesn't run, it sleeps.",
        'He said: "Wait ... it is 5 p.m. (or later)!"',
        "Two don't, we'll see; 3.5% isn't much?",
        "10 people (mostly boys) play.",
    ],
    "de": ["Ein Hund rennt, ein Mann (alt) schläft.", "Wo ist Ömer? 3,5 % sind viel!", "Das ist's: der Ärger."],
    "fr": [
        "Où est l'homme ? Il dort, n'est-ce pas !",
        "C'est d'accord : qu'il vienne.",
        "L'eau est à 5 euros ; voilà.",
    ],
    "it": ["L'uomo dell'acqua, c'è.", "Un'altra volta: all'alba!"],
    "ru": ["Мужчина едет на лошади.", "Две собаки, кошка и Пётр?"],
    "el": ["Ο άντρας τρέχει, η γυναίκα όχι.", "Πού είναι ο Νίκος;"],
    "zh": ["一个男人骑着一匹马。", "两只狗，在雪地里玩耍！", "他用 iPhone 和 Mac。"],
    "ja": ["男の人が馬に乗っている。", "犬は、雪の中で遊ぶ。"],
    "ko": ["남자가 말을 타고 있다.", "개 두 마리가 놀아요, 눈에서!"],
    "hi": ["दो कुत्ते बर्फ में खेलते हैं।", "वह सोता है।"],
    "ka": ["კაცი ცხენზე ზის.", "ორი ძაღლი თამაშობს."],
}
TOKENIZE = {"zh": BLEU(tokenize="zh").tokenizer, "ja": BLEU(tokenize="zh").tokenizer}
MARKED = {
    language: [line for line in lines if any(c in ".,!?;:。，！" for c in line)] for language, lines in CLEAN.items()
}


@pytest.mark.parametrize("language", CLEAN)
def test_clean_text_raises_none(language: str) -> None:
    assert find_preprocessing(CLEAN[language] * 30, language) == []


@pytest.mark.parametrize("language", [language for language in CLEAN if MARKED[language]])
def test_tokenised_text_does(language: str) -> None:
    tokenize = TOKENIZE.get(language, BLEU().tokenizer)
    lines = [tokenize(line) for line in MARKED[language]]
    found = find_preprocessing(lines, language)
    assert {one.kind for one in found} == {"tokenised"}
    assert max(one.lines for one in found) >= len(lines) - 1
    assert all(one.example == lines[one.first - 1] for one in found)


@pytest.mark.parametrize("language", ["en", "de", "fr", "it", "ru", "el"])
def test_lower_cased_text_does_where_letters_have_cases(language: str) -> None:
    (found,) = find_preprocessing([line.lower() for line in CLEAN[language]], language)
    lines = sum(not line[0].isdigit() for line in CLEAN[language])
    assert (found.kind, found.lines, found.possible, found.first) == ("lower-cased", lines, lines, 1)


@pytest.mark.parametrize(
    ("language", "spoil"),
    [
        (None, lambda line: line.replace("o", "o@@ ")),
        (None, lambda line: "\u2581" + line.replace(" ", " \u2581")),
        ("de", lambda line: line.replace(" ", "</w> ")),
    ],
)
def test_subwords_are_told(language: str | None, spoil: Callable[[str], str]) -> None:
    found = find_preprocessing([spoil(line) for line in ["Two dogs doze", "Old men do so", "So do we"]], language)
    assert [(one.kind, one.lines, one.possible) for one in found] == [("subwords", 3, 3)]


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", "The man 's dog does n't run"),
        ("en", "We \u2019ll see"),
        ("fr", "C' est l' homme"),
        ("it", "L' uomo dell' acqua"),
        ("en", "He&apos;s here"),
        ("en", "He -LRB- Tom -RRB- sleeps"),
        ("en", "A blue @-@ green (sea)"),
        ("zh", "一个 男人 骑着 马"),
        (None, "一个 男人 骑着 马"),
        ("fr", "Il dort , elle non"),
        ("ar", "أين هو ؟"),
    ],
)
def test_each_habit_of_tokenisers_is_told(language: str | None, line: str) -> None:
    assert [(one.kind, one.lines) for one in find_preprocessing([line] * 4, language)] == [("tokenised", 4)]


@pytest.mark.parametrize("every", [2, 10, 15])
def test_a_part_of_the_lines_is_enough_and_counted(every: int) -> None:
    clean = CLEAN["de"] * 100
    lines = [BLEU().tokenizer(line) if place % every == 7 % every else line for place, line in enumerate(clean)]
    (found,) = find_preprocessing(lines, "de")
    assert found.lines == sum(one != other for one, other in zip(lines, clean, strict=True))
    assert (found.first, found.possible) == (7 % every + 1, len(clean))
    assert f"{found.lines} of {found.possible}" in str(found)


def test_slips_are_none() -> None:
    lines = CLEAN["en"] * 100
    lines[5] = "He sleeps ."
    lines[7:9] = ["she does n't", "lower case"]
    lines[20:30] = ["He sleeps ."] * 10  # one in forty lines with punctuation
    assert find_preprocessing(lines, "en") == []
    assert find_preprocessing(["No marks at all"] * 500 + ["They 're here"], "en") == []
    assert find_preprocessing([], "en") == find_preprocessing(["", " "], "en") == []


def test_the_shares_are_those_of_the_page() -> None:
    """The shares of lines in docs/evaluation.md give a warning; with one line less, or one line more, there is none."""
    page = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    said = re.search(r"at least (\d+)% of all lines show a sign, and at least (\d+)% .* second share is (\d+)%", text)
    assert said is not None
    of_all, spaced, lowered = map(int, said.groups())

    def found(count: int, line: str, other: str, lines: int = 100) -> int:
        return len(find_preprocessing([line] * count + [other] * (lines - count), "en"))

    assert [found(count, "He sleeps .", "He sleeps.") for count in (spaced - 1, spaced)] == [0, 1]
    assert [found(count, "he sleeps", "He sleeps") for count in (lowered - 1, lowered)] == [0, 1]
    assert [found(of_all, "He sleeps .", "No marks", lines) for lines in (101, 100)] == [0, 1]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not beside the repository (../shared/data/multi30k)")
@pytest.mark.parametrize("language", ["de", "en"])
def test_multi30k_is_clean_and_its_copies_are_not(language: str) -> None:
    with gzip.open(MULTI30K / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line in stream]
    assert find_preprocessing(lines, language) == find_preprocessing(lines) == []
    (lowered,) = find_preprocessing([line.lower() for line in lines], language)
    assert (lowered.kind, lowered.lines) == ("lower-cased", sum(not re.match(r"\W*\d", line) for line in lines))
    draw = random.Random(0)
    spoilt = {place for place in range(len(lines)) if draw.random() < 0.1 and lines[place].endswith("g.")}
    spoilt |= {place for place in range(0, len(lines), 10) if lines[place].endswith(".")}
    mixed = [line[:-1] + " ." if place in spoilt else line for place, line in enumerate(lines)]
    (found,) = find_preprocessing(mixed, language)
    assert found.kind == "tokenised"
    assert found.lines == len(spoilt) + (language == "de")  # one line of the original ends like this
