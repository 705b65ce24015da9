"""What each sign measures, and how signs combine to a score."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.judging import guard_signs as signs
from multihead.judging.guard_signs import SIGNS
from multihead.translating.lengths import Lengths, counted, lengths_of

VALUES = st.dictionaries(st.sampled_from(sorted(SIGNS)), st.floats(0, 100))


@settings(max_examples=200)
@given(values=VALUES, name=st.sampled_from(sorted(SIGNS)), more=st.floats(0, 50))
def test_a_sign_more_never_lowers_the_score(values: dict[str, float], name: str, more: float) -> None:
    score = signs.suspicion(values)
    assert 0 <= score < 1
    assert signs.suspicion({**values, name: values.get(name, 0.0) + more}) >= score - 1e-12
    assert bool(signs.reasons(values)) == (score > 0)


@pytest.mark.parametrize("name", sorted(SIGNS))
def test_each_sign_alone(name: str) -> None:
    sign = SIGNS[name]
    assert signs.suspicion({name: sign.ordinary}) == 0.0
    assert signs.suspicion({name: (sign.ordinary + sign.certain) / 2}) == pytest.approx(sign.weight / 2)
    assert signs.suspicion({name: sign.certain * 9}) == pytest.approx(sign.weight)
    assert sign.weight > 0.5, "one sign that is certain is enough"
    assert signs.reasons({name: sign.certain})[0].startswith(f"{name}: ")


def test_signs_add_up_as_independent_ones_do() -> None:
    """The probability that at least one sign is right, summed over all cases."""
    values = {"loop": 2.0, "doubt": 2.0, "copy": 0.5}
    shares = [SIGNS[name].weight * SIGNS[name].degree(value) for name, value in values.items()]
    expected = sum(
        math.prod(share if right else 1 - share for share, right in zip(shares, case, strict=True))
        for case in itertools.product([False, True], repeat=3)
        if any(case)
    )
    assert signs.suspicion(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "said_again"),
    [
        ("a b c d e", 0),
        ("a a", 1),
        ("a b a b", 2),
        ("a b a c a b", 0),
        ("x the dog the dog the dog y", 4),
        ("a b a", 0),
        ("他跑他跑他跑", 4),
        ("", 0),
    ],
)
def test_loops(text: str, said_again: int) -> None:
    assert signs.loop(signs.split_words(text)) == said_again


@settings(max_examples=100)
@given(words=st.lists(st.sampled_from("abc"), max_size=14))
def test_a_loop_is_what_a_search_for_repeated_units_finds(words: list[str]) -> None:
    """Every immediate repetition of n words, from its definition."""
    found = 0
    for start, stop in itertools.combinations(range(len(words) + 1), 2):
        stretch = words[start:stop]
        for unit in range(1, len(stretch) // 2 + 1):
            if all(stretch[i] == stretch[i - unit] for i in range(unit, len(stretch))):
                found = max(found, len(stretch) - unit)
    assert signs.loop(words) == found


@pytest.mark.parametrize(
    ("source", "text", "said_again", "suspicious"),
    [
        ("A dog runs.", "Ein Ein Ein ...", 2, True),
        ("A dog runs.", "Ein Hund läuft läuft läuft.", 2, True),
        ("A very very big dog.", "Ein sehr sehr sehr großer Hund.", 1, False),
        ("A dog runs.", "Ein Hund läuft und läuft.", 0, False),
        ("He had had it.", "Dass das das ist.", 0, False),
        ("one billion", "1.000.000.000", 0, False),
        ("Haha!", "哈哈哈！", 0, False),
        ("", "", 0, False),
    ],
)
def test_one_word_three_times_in_a_row(source: str, text: str, said_again: int, suspicious: bool) -> None:
    found = signs.text_signs(source, text)
    assert found["stutter"] == said_again
    assert (signs.suspicion(found) >= 0.5) == suspicious


def test_repetition_and_copy() -> None:
    assert signs.repetition(["a", "b", "c", "x", "a", "b", "c"]) == pytest.approx(1 / 5)
    assert signs.repetition(["a", "b"]) == 0
    source = signs.split_words("Der Hund rennt über die Wiese.")
    assert signs.copy(source, source) == 1.0
    assert signs.copy(source, signs.split_words("The dog runs across the meadow.")) == 0.0
    assert signs.copy(signs.split_words("Angela Merkel"), signs.split_words("Angela Merkel")) < SIGNS["copy"].ordinary
    assert signs.copy(["1", "2"], ["1", "2"]) == 0.0, "numbers are copied"
    both = signs.text_signs("ja ja ja ja ja", "yes yes yes yes yes")
    assert both["loop"] == both["stutter"] == both["repetition"] == 0, "what the source repeats may be repeated"


def test_lengths_of_pairs() -> None:
    draw = np.random.default_rng(1)
    source = draw.integers(5, 60, 5000).astype(np.int32)
    target = np.maximum(np.rint(1.3 * (source + 3) * np.exp(draw.normal(0, 0.2, 5000)) - 3), 1).astype(np.int32)
    usual = counted(source, target)
    assert usual.ratio == pytest.approx(target.sum() / source.sum())
    assert usual.spread == pytest.approx(0.2, rel=0.1)
    assert usual.longest == source.max()
    assert (source <= usual.usual).mean() >= 0.99 > (source < usual.usual).mean()
    off = [signs.length(int(x), int(y), usual) for x, y in zip(source, target, strict=True)]
    assert np.square(off).mean() == pytest.approx(1, abs=0.1), "in units of the deviation"
    assert signs.length(20, 26, usual) < 0.5 < 2.5 < signs.length(20, 10, usual)
    same = counted(np.array([7], np.int32), np.array([7], np.int32))
    assert (same.ratio, same.spread) == (1.0, 0.1)


def test_a_folder_knows_its_lengths(trained: Path, tmp_path: Path) -> None:
    known = lengths_of(trained)
    assert known.known
    assert known == lengths_of(trained / "best")
    assert known.ratio == pytest.approx(1, abs=0.1)
    assert lengths_of(tmp_path) == lengths_of(None) == Lengths()
