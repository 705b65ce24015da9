"""Held-out pairs are found exactly and nearly; the index misses none that a full search finds."""

from __future__ import annotations

import pickle
import random

import pytest

from multihead.cleaning.leaks import HeldOutIndex, _ngrams
from multihead.judging.guard_signs import split_words

WORDS = [f"w{number}" for number in range(40)]


def sentence(draw: random.Random, length: int) -> str:
    return " ".join(draw.choices(WORDS, k=length))


@pytest.fixture(scope="module")
def index() -> HeldOutIndex:
    draw, made = random.Random(1), HeldOutIndex()
    for number in range(60):
        made.add(f"line {number}", sentence(draw, draw.randint(1, 12)), sentence(draw, draw.randint(1, 12)))
    made.seal()
    return made


def search_all(index: HeldOutIndex, source: str, target: str) -> float:
    """The equation, over the held-out pairs that share a third of their trigrams."""
    sides = [set(_ngrams(split_words(text), 2)) for text in (source, target)]
    grams, best = set(_ngrams(split_words(source), 3)), 0.0
    for line, words in zip(index.lines, index._sources, strict=True):
        own = set(_ngrams(words, 3))
        if len(words) >= 5 and 3 * len(own & grams) >= len(own):
            shares = [len(a & b) / len(a) if a else 0.0 for a, b in zip((line.source, line.target), sides, strict=True)]
            best = max(best, min(shares))
    return best


def test_the_index_finds_what_a_search_of_all_finds(index: HeldOutIndex) -> None:
    draw, found = random.Random(2), 0
    for _ in range(400):
        line = draw.choice(index.lines)
        words = list(index._sources[index.lines.index(line)])
        for _ in range(draw.randint(0, 3)):
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        source = " ".join(draw.choices(WORDS, k=draw.randint(0, 4)) + words)
        target = sentence(draw, 3) + " " + " ".join(word for gram in line.target for word in gram)
        value, number = index._find_near(source, target)
        assert value >= search_all(index, source, target)
        assert value == 0 or number is not None
        found += value > 0
    assert found > 100


def test_equal_pairs_and_long_equal_sides_have_the_value_one() -> None:
    index = HeldOutIndex()
    index.add("line 1", "Ein Hund rennt durch das Gras.", "A dog runs through the grass.")
    index.add("line 2", "Ja.", "Yes.")
    index.seal()
    assert index.find("EIN HUND, rennt durch das Gras", "A dog runs through the grass") == (1.0, 0)
    assert index.find("Ein Hund rennt durch das Gras.", "Something else") == (1.0, 0)
    assert index.find("Etwas anderes", "A dog runs through the grass!") == (1.0, 0)
    assert index.find("Ja", "yes") == (1.0, 1)
    assert index.find("Ja.", "Of course.")[0] == 0  # too short to be a leak by itself
    longer = index.find("Er sagt: Ein Hund rennt durch das Gras, und lacht.", "He says: A dog runs through the grass.")
    assert longer == (1.0, 0)
    changed, number = index.find("Ein Hund rennt durch das hohe Gras.", "A dog runs through the high grass.")
    assert 0.65 < changed < 1
    assert number == 0


def test_it_can_be_sent_to_another_process(index: HeldOutIndex) -> None:
    copy = pickle.loads(pickle.dumps(index))
    assert copy.find("w1 w2 w3 w4 w5", "w6 w7") == index.find("w1 w2 w3 w4 w5", "w6 w7")
