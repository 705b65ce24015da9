"""Words of any length: the cost grows in proportion, and shorter words are treated as before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from multihead.text import learning, segment
from multihead.text.segment import Segmenter, scramble
from multihead.text.sentences import split_text
from multihead.text.subword_nmt import learning as codes_learning
from multihead.text.subword_nmt.segmenting import SubwordNMT, _merged, _merged_at_random
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import read_spelled

LINES = [
    *["Ein kleiner Hund rennt über die Wiese .", "A small dog runs across the meadow ."] * 10,
    *[part * 9 for part in ("a", ".", "er", "狗", "e\u0301", "a\u200c")] * 10,
]
TOKENIZER = Tokenizer.learn(LINES, 400)
CODES = codes_learning.learn(LINES, 100)


def letters(count: int) -> str:
    return "".join(random.Random(count).choices("abcdefghijklmnopqrstuvwxyz", k=count))


LONG: dict[str, Callable[[int], str]] = {
    "letters": letters,
    "one letter": lambda n: "a" * n,
    "marks": lambda n: "e" + "\u0301" * n,
    "word marks": lambda n: "\u2581" * n,
}
OPERATIONS: dict[str, Callable[[str], object]] = {
    "encode": TOKENIZER.encode,
    "learn": lambda text: Tokenizer.learn([*LINES, text], 400),
    "spans": TOKENIZER.spans,
    "spell": lambda text: read_spelled(TOKENIZER.spell(TOKENIZER.encode(text))),
    "sentences": lambda text: split_text(text, lambda part: len(part) < 100, language="de"),
    "learn codes": lambda text: codes_learning.learn([*LINES, text], 100),
    "apply codes": lambda text: SubwordNMT(CODES).apply(text),
}


def seconds(operation: Callable[[str], object], text: str) -> float:
    """CPU time."""
    start = time.process_time()
    operation(text)
    return time.process_time() - start


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_word_of_eight_times_the_length_costs_no_square(name: str, kind: str) -> None:
    """Linear cost is 8 times the time, quadratic cost 64 times."""
    least = 5_000 if name == "learn" else 1_000  # the library is fast: its squares show later
    operation, short_text, long_text = OPERATIONS[name], LONG[kind](least), LONG[kind](8 * least)
    short = min(seconds(operation, short_text) for _ in range(2))
    allowed = 25 * max(short, 2e-3)
    long = seconds(operation, long_text)
    if long >= allowed:  # something else may have slowed the first run
        long = seconds(operation, long_text)
    assert long < allowed, (short, long)


def test_pieces_that_are_learned_from_are_cut_only_if_they_are_longer() -> None:
    """A word of exactly the longest length, which the word mark makes longer, loses one pair."""
    words = [letters(n)[:300] for n in range(200, 260)]
    whole = learning.learn_merges(words, 500, 2)
    assert learning.learn_merges(words, 500, 2, long=True) == whole
    assert TOKENIZER.decode(TOKENIZER.encode(text := letters(5_000))) == text
    for kind, make in LONG.items():
        learned = Tokenizer.learn([*LINES, text := make(5_000)], 400)
        assert learned.decode(learned.encode(text)) == text, kind


def test_dropout_takes_as_many_steps_as_the_longest_piece_has_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step costs time in proportion to the text."""
    steps: list[int] = []
    monkeypatch.setattr(segment, "scramble", lambda *parts: steps.append(1) or scramble(*parts))
    for count in (5_000, 10_000):
        Segmenter(TOKENIZER, 0.1, 1).segment([TOKENIZER.encode("er" * count)], [0], 0, 0)
    assert 0 < len(steps) < 2 * segment._LONGEST_PIECE


def test_dropout_of_cut_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces up to the limit are segmented as without one; longer ones in parts, which give the same text."""
    text = f"{letters(400)} {'er' * 200} x"
    ids = [TOKENIZER.encode(text)]
    segmenter = Segmenter(TOKENIZER, 0.2, 3)
    whole = segmenter.segment(ids, [5], 1, 0)
    monkeypatch.setattr(segment, "_LONGEST_PIECE", 401)
    assert segmenter.segment(ids, [5], 1, 0) == whole
    monkeypatch.setattr(segment, "_LONGEST_PIECE", 7)
    cut = segmenter.segment(ids, [5], 1, 0)
    assert cut != whole
    assert TOKENIZER.decode(cut[0]) == text
    assert isinstance(TOKENIZER, BytePairTokenizer)


@pytest.mark.parametrize("seed", range(30))
def test_merges_in_one_pass_equal_merges_step_by_step(seed: int) -> None:
    """Also where two merges make the same unit, so that a new pair can precede the one that made it."""
    draw = random.Random(seed)
    word = [draw.choice("abc") for _ in range(60)]
    units = ["a", "b", "c", "ab", "ba", "abc", "aa", "bc", "bca", "aab"]
    ranks = {(draw.choice(units), draw.choice(units)): rank for rank in range(25)}
    assert _merged(list(word), ranks) == list(_merged_at_random(list(word), ranks, lambda: False))
