"""BPE-dropout: the distribution of algorithm 1, random numbers independent of the batch, unchanged texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, InputError
from multihead.text.segment import Segmenter, scramble
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import FIRST_BYTE, FIRST_CHARACTER, MARK, Parts, Specials

TEXT = [
    "A man in an orange hat, starring at something; banana bananas in 2016.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt; Bananen anbieten!",
    "two   runs    of     spaces      and ----- dashes ... 12  34",
    "می‌خواهم به خانه بروم ❤️love 我们在北京吃饭。",
    f"a{MARK}b the{MARK}{MARK} end",
] * 4
ALMOST_NOTHING = 2.0**-53
"""The smallest probability that is not rounded to 0: in practice nothing is dropped."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXT, 500, coverage=0.99)


def characters(tokenizer: Tokenizer, text: str) -> list[int]:
    """The initial symbols: an id for each character, or its bytes."""
    known = {token: index for index, token in enumerate(tokenizer.parts.vocabulary)}
    marked = [MARK if c == " " else c for c in f" {text}"] if text else []
    literal = [False, *(c == MARK for c in text)]
    return [
        i
        for character, is_literal in zip(marked, literal, strict=False)
        for i in (
            [known[character]]
            if character in known and not is_literal
            else [FIRST_BYTE + byte for byte in character.encode()]
        )
    ]


CHARACTERS = st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(f"   {MARK}\t\n\r<0x41>aneémi-.1中"))
TEXTS = st.lists(st.one_of(st.text(CHARACTERS), st.sampled_from(TEXT)), max_size=6)
PROBABILITIES = st.sampled_from([0.0, ALMOST_NOTHING, 0.1, 0.5, 0.9, 1.0])


@settings(max_examples=80)
@given(texts=TEXTS, dropout=PROBABILITIES, epoch=st.integers(0, 3))
@example(texts=["", MARK, "", "  ", f"a {MARK}{MARK}  b"], dropout=0.5, epoch=0)
def test_the_text_stays_and_no_merge_crosses_a_cut(
    tokenizer: Tokenizer, texts: list[str], dropout: float, epoch: int
) -> None:
    pieces = tokenizer.encode_pieces(texts)
    keys = list(range(len(texts)))
    found = Segmenter(tokenizer, dropout, 3).segment([ids for ids, _ in pieces], keys, epoch, 0)
    assert tokenizer.decode_batch(found) == texts
    for text, ids, (standard, numbers) in zip(texts, found, pieces, strict=True):
        lengths = [len(tokenizer._bytes[i]) for i in standard]
        ends = list(accumulate(lengths))
        cuts = {end for end, (one, other) in zip(ends, pairwise(numbers), strict=False) if one != other}
        assert cuts <= set(accumulate(len(tokenizer._bytes[i]) for i in ids))
        if dropout <= ALMOST_NOTHING:
            assert ids == standard
        if dropout == 1.0:
            assert ids == characters(tokenizer, text)


@settings(max_examples=40)
@given(texts=TEXTS, order=st.randoms(use_true_random=False))
def test_a_sentence_does_not_know_its_batch(tokenizer: Tokenizer, texts: list[str], order: object) -> None:
    segmenter = Segmenter(tokenizer, 0.3, 5)
    ids = tokenizer.encode_batch(texts)
    keys = [7 * number + 10**12 for number in range(len(texts))]
    together = segmenter.segment(ids, keys, 2, 1)
    alone = [segmenter.segment([row], [key], 2, 1)[0] for row, key in zip(ids, keys, strict=True)]
    assert together == alone
    rows = list(range(len(texts)))
    order.shuffle(rows)
    shuffled = Segmenter(tokenizer, 0.3, 5).segment([ids[r] for r in rows], [keys[r] for r in rows], 2, 1)
    assert shuffled == [together[r] for r in rows]


@settings(max_examples=40)
@given(texts=TEXTS, dropout=st.sampled_from([0.1, 0.5]), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 9))
def test_it_is_the_algorithm_step_by_step(
    tokenizer: Tokenizer, texts: list[str], dropout: float, seed: int, epoch: int
) -> None:
    """A sequential reference with the same random numbers, one merge at a time."""
    pieces = tokenizer.encode_pieces(texts)
    keys = list(range(100, 100 + len(texts)))
    found = Segmenter(tokenizer, dropout, seed).segment([ids for ids, _ in pieces], keys, epoch, 1)
    for text, key, ids, (standard, numbers) in zip(texts, keys, found, pieces, strict=True):
        stream = scramble(*(np.array([part % 2**64], dtype=np.uint64) for part in (seed, epoch, 1, key)))[0]

        def left_out(step: int, place: int, stream: np.uint64 = stream) -> bool:
            counter = (int(stream) + ((step << 32) + place) * 0x9E3779B97F4A7C15) % 2**64
            return int(scramble(np.array([counter], dtype=np.uint64))[0]) >> 11 < round(dropout * 2**53)

        assert ids == segmented_plainly(tokenizer, text, standard, numbers, left_out)


def segmented_plainly(
    tokenizer: Tokenizer, text: str, standard: list[int], numbers: list[int], left_out: Callable[[int, int], bool]
) -> list[int]:
    vocabulary = tokenizer.parts.vocabulary
    ranks = {pair: rank for rank, pair in enumerate(tokenizer.parts.merges)}
    known = {token: index for index, token in enumerate(vocabulary)}
    result: list[int] = []
    place = 0
    for piece in dict.fromkeys(numbers):
        tokens = [vocabulary[i] for i, number in zip(standard, numbers, strict=True) if number == piece]
        symbols = [s for token in tokens for s in ([token] if known[token] < FIRST_CHARACTER else token)]
        places = list(range(place, place + len(symbols)))
        place += len(symbols)
        step = 0
        while True:
            possible = [(ranks[p], i) for i, p in enumerate(pairwise(symbols)) if p in ranks]
            kept = [(rank, i) for rank, i in possible if not left_out(step, places[i])]
            if not kept:
                break
            i = min(kept)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            del places[i + 1]
            step += 1
        result += [known[symbol] for symbol in symbols]
    return result


# ------------------------------------------------------------------------------------------ the distribution


def exact(parts: Parts, word: str, p: float) -> dict[tuple[str, ...], float]:
    """The probability of each segmentation, by enumerating all runs of algorithm 1."""
    ranks = {pair: rank for rank, pair in enumerate(parts.merges)}

    @cache
    def follow(symbols: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        possible = sorted((ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks)
        ways: Counter[tuple[str, ...]] = Counter({symbols: p ** len(possible)})
        for better, (_, i) in enumerate(possible):  # the first that is not dropped
            joined = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
            for end, probability in follow(joined).items():
                ways[end] += p**better * (1 - p) * probability
        return ways

    return follow(tuple(word))


def fits(observed: Counter[tuple[str, ...]], expected: dict[tuple[str, ...], float]) -> bool:
    """Pearson's test at a level of 1 in 1,000; outcomes expected less than five times are pooled."""
    total = observed.total()
    assert observed.keys() <= {end for end, probability in expected.items() if probability > 0}
    often = {end for end, probability in expected.items() if probability * total >= 5}
    cells = [(observed[end], expected[end] * total) for end in often]
    rest = 1 - sum(expected[end] for end in often)
    if rest * total >= 5:
        cells.append((total - sum(observed[end] for end in often), rest * total))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    free = len(cells) - 1
    spread = 2 / (9 * free)  # Wilson and Hilferty's approximation of the quantile
    return statistic < free * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("word", ["something", "bananas", "-----", "orangefarbenen"])
def test_segmentations_are_as_frequent_as_they_should_be(tokenizer: Tokenizer, word: str, p: float) -> None:
    expected = exact(tokenizer.parts, f"{MARK}{word}", p)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 8, "a word with one way to write it shows nothing"
    count = 4000
    ids = tokenizer.encode(word)
    found = Segmenter(tokenizer, p, 11).segment([ids] * count, range(count), 0, 0)
    observed = Counter(tuple(tokenizer.parts.vocabulary[i] for i in row) for row in found)
    assert fits(observed, expected)
    shifted = exact(tokenizer.parts, f"{MARK}{word}", p + 0.05)
    assert not fits(observed, shifted), "the test must be able to tell probabilities apart"


@pytest.mark.parametrize("differs", ["seed", "key", "epoch", "side", "place"])
def test_what_the_numbers_are_for_makes_them_independent(tokenizer: Tokenizer, differs: str) -> None:
    """Whether a word keeps its standard form at one place is independent of another place."""
    count = 4000
    word = "something bananas" if differs != "place" else "something something"
    ids = tokenizer.encode(word)

    def draw(seed: int = 1, key: int = 0, epoch: int = 0, side: int = 0) -> list[list[int]]:
        return Segmenter(tokenizer, 0.2, seed).segment([ids] * count, range(key, key + count), epoch, side)

    if differs == "place":
        halves = [split(tokenizer, row) for row in draw()]
        one, other = [left for left, _ in halves], [right for _, right in halves]
    else:
        one, other = draw(), draw(**{differs: count if differs == "key" else 2 if differs == "seed" else 1})
    common = Counter(map(tuple, one)).most_common(1)[0][0]
    table = Counter((tuple(a) == common, tuple(b) == common) for a, b in zip(one, other, strict=True))
    first, second = table[True, True] + table[True, False], table[True, True] + table[False, True]
    wanted = first * second / count
    spread = math.sqrt(wanted * (1 - first / count) * (1 - second / count))
    assert 0.05 < first / count < 0.95
    assert abs(table[True, True] - wanted) < 4 * spread


def split(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[int], list[int]]:
    """The ids of two separate words."""
    starts = [n for n, i in enumerate(ids) if tokenizer.parts.vocabulary[i].startswith(MARK)]
    return ids[: starts[1]], ids[starts[1] :]


# ------------------------------------------------------------------------------------------ the rest


def test_equal_calls_are_equal_and_the_tokenizer_is_left_alone(tokenizer: Tokenizer) -> None:
    before = tokenizer.to_json()
    ids = tokenizer.encode_batch(TEXT)
    keys = list(range(len(TEXT)))
    found = [Segmenter(tokenizer, 0.3, 9).segment(ids, keys, 4, 0) for _ in range(2)]
    assert found[0] == found[1] != ids
    assert tokenizer.to_json() == before
    assert "dropout" not in before or '"dropout": null' in before
    assert all(isinstance(i, int) for row in found[0] for i in row)


def test_of_a_merge_that_stands_twice_the_place_counts_that_the_library_takes(tokenizer: Tokenizer) -> None:
    """Learned vocabularies never do; files made by other programs may."""
    vocabulary = (*Specials().strings, *tokenizer.parts.vocabulary[4:FIRST_CHARACTER], MARK, *"abc", "ab", "bc")
    for merges in ([("a", "b"), ("b", "c"), ("a", "b")], [("b", "c"), ("a", "b"), ("b", "c")]):
        twice = BytePairTokenizer(Parts(vocabulary, tuple(merges)))
        ids = [twice.encode("abc"), twice.encode("abcabc")]
        assert Segmenter(twice, ALMOST_NOTHING, 1).segment(ids, [1, 2], 0, 0) == ids


@pytest.mark.parametrize("dropout", [-0.1, 1.1, math.nan])
def test_a_dropout_that_is_no_probability_is_refused(tokenizer: Tokenizer, dropout: float) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        Segmenter(tokenizer, dropout, 1)


def test_ids_of_another_tokenizer_are_refused(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("something")
    spelled = [i for one in ids for i in characters(tokenizer, tokenizer.decode([one]))][1:]
    with pytest.raises(InputError, match="sentence 2 of 2: these ids are not what this tokenizer makes"):
        Segmenter(tokenizer, 0.1, 1).segment([ids, spelled], [0, 1], 0, 0)
    with pytest.raises(InputError, match="1 sentences and 2 keys"):
        Segmenter(tokenizer, 0.1, 1).segment([ids], [0, 1], 0, 0)
