"""Errors of translations: edits lead to the reference, each has one kind, and a planted error is named first."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.errors import InputError
from multihead.judging.errors import KINDS, count_words, find_errors
from multihead.judging.word_edits import align_words, exchange_cost, repaired, tokens

TEXTS = st.text(alphabet="abA 1,.!中 ", max_size=12)
WORDS = st.lists(st.sampled_from(["a", "A", "dog", "dogs", "cat", "3", "."]), max_size=6)


@settings(max_examples=60)
@given(TEXTS, TEXTS)
@example("1 1", "1")  # the kept word has no blank before it in the reference
@example("1 1", "a,1")
def test_all_edits_give_the_reference_and_none_the_translation(written: str, wanted: str) -> None:
    edits = align_words(tokens(written), tokens(wanted))
    assert repaired(written, wanted, edits, lambda _: True) == wanted.strip()
    assert tokens(repaired(written, wanted, edits, lambda _: False)) == tokens(written)
    assert [edit.written for edit in edits if edit.written is not None] == tokens(written)
    assert [edit.wanted for edit in edits if edit.wanted is not None] == tokens(wanted)


def smallest_cost(one: list[str], other: list[str]) -> float:
    """The definition, by trying everything."""
    if not one or not other:
        return float(len(one) + len(other))
    return min(
        exchange_cost(one[0], other[0]) + smallest_cost(one[1:], other[1:]),
        1 + smallest_cost(one[1:], other),
        1 + smallest_cost(one, other[1:]),
    )


@settings(max_examples=30)
@given(WORDS, WORDS)
def test_no_other_edits_cost_less(written: list[str], wanted: list[str]) -> None:
    edits = align_words(written, wanted)
    costs = [1.0 if None in (e.written, e.wanted) else exchange_cost(e.written or "", e.wanted or "") for e in edits]
    assert sum(costs) == smallest_cost(written, wanted)


SOURCE = "Der Hund von Anna sieht den Zaun"
KIND_CASES = {
    "number": ("He has 3 dogs", "He has 5 dogs"),
    "punctuation": ("A dog runs.", "A dog runs!"),
    "case": ("A dog runs", "a dog runs"),
    "order": ("a dog and a cat run", "a cat and a dog run"),
    "repeated": ("a dog runs", "a dog dog runs"),
    "name": ("the dog of Anna runs", "the dog of Hanna runs"),
    "untranslated": ("a dog sees the fence", "a dog sees the Zaun"),
    "form": ("two dogs run", "two dog run"),
    "small word": ("a dog runs", "the dog runs"),
    "rare word": ("a dog sees the palisade", "a dog sees the cat"),
    "wrong word": ("a dog runs", "a cat runs"),
    "missing word": ("a big dog runs", "a dog runs"),
    "added word": ("a dog runs", "a big dog runs"),
}
TRAINED = count_words(
    [
        *["a the"] * 1000,
        *["dog dogs cat sees runs run big fence"] * 100,
        " ".join(f"filler{i}" for i in range(20)) + " palisade",
    ]
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_each_kind(kind: str) -> None:
    reference, translation = (f"Yesterday they saw that {text}" for text in KIND_CASES[kind])
    found = find_errors([translation], [reference], [SOURCE], frequencies=TRAINED)
    assert [one.name for one in found.kinds] == [kind]
    (example,) = found.kinds[0].examples
    assert (example.line, example.reference, example.translation) == (1, reference, translation)
    assert found.kinds[0].gain == pytest.approx(100 - found.bleu)


SENTENCES = [
    ("In {} Häusern wohnen {} Leute .", "{} people live in {} houses ."),
    ("Der Mann von Anna hat {} Hunde .", "Anna's husband has {} dogs ."),
    ("Ein Kind spielt am Strand .", "A child plays at the beach ."),
    ("Zwei Frauen lesen ein altes Buch .", "Two women read an old book ."),
]


def corpus(seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    rows = [draw.choice(SENTENCES) for _ in range(80)]
    filled = [[side.replace("{}", str(draw.randint(10, 99))) for side in row] for row in rows]
    return [row[0] for row in filled], [row[1] for row in filled]


def noise(draw: random.Random, line: str, share: float) -> str:
    """Some words replaced by others: the errors of an ordinary model."""
    return " ".join(draw.choice(["thing", "goes", "the"]) if draw.random() < share else w for w in line.split())


CONTENT = ("husband", "child", "beach", "women", "book", "people")
DAMAGES: dict[str, Callable[[str], str]] = {
    "number": lambda line: "".join(str((int(c) + 1) % 10) if c.isdigit() else c for c in line),
    "punctuation": lambda line: line.replace(" .", " !"),
    "case": lambda line: line.upper(),
    "repeated": lambda line: " ".join(word for word in line.split() for _ in range(2) if word != "."),
    "missing word": lambda line: " ".join(w for w in line.split() if w not in CONTENT),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_planted_error_is_named_first(kind: str) -> None:
    """A model that makes a few errors of other kinds is made worse in one way."""
    sources, references = corpus(1)
    draw = random.Random(2)
    ordinary = [noise(draw, line, 0.02) for line in references]
    assert find_errors(ordinary, references, sources).kinds[0].name != kind
    found = find_errors([DAMAGES[kind](line) for line in ordinary], references, sources)
    first = found.kinds[0]
    assert first.name == kind
    assert first.gain > 2 * found.kinds[1].gain
    for one in first.examples:
        assert one.reference == references[one.line - 1]
        assert one.wanted in one.reference
        assert one.written in one.translation


def test_cases_are_counted_once_and_all_of_them() -> None:
    sources, references = corpus(3)
    draw = random.Random(4)
    translations = [noise(draw, line, 0.3) for line in references]
    found = find_errors(translations, references, sources, frequencies=count_words(references))
    edits = [align_words(tokens(a), tokens(b)) for a, b in zip(translations, references, strict=True)]
    assert sum(kind.cases for kind in found.kinds) == sum(not edit.kept for row in edits for edit in row)
    assert [kind.gain for kind in found.kinds] == sorted((kind.gain for kind in found.kinds), reverse=True)
    words = sum(count_words(references).values())
    assert sum(band.count for band in found.frequencies) == words
    lost = sum((count_words([b]) - count_words([a])).total() for a, b in zip(translations, references, strict=True))
    assert sum(band.count * band.value for band in found.frequencies) == pytest.approx(lost)
    assert sum(band.count for band in found.lengths) == len(references)


def test_a_perfect_translation_has_no_errors() -> None:
    sources, references = corpus(5)
    found = find_errors(references, references, sources, frequencies=count_words(references))
    assert found.kinds == ()
    assert found.bleu == pytest.approx(100)
    assert {band.value for band in found.frequencies} == {0.0}


def test_what_does_not_belong_together_is_refused() -> None:
    for arguments in (([], [], []), (["a"], ["a", "b"], ["a", "b"]), (["a"], ["a"], ["a", "b"])):
        with pytest.raises(InputError):
            find_errors(*arguments)
