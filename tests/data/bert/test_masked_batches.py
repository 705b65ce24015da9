"""15% of the words, of which 80% are hidden, 10% replaced and 10% shown; a function of seed, epoch and example."""

from __future__ import annotations

import numpy as np
import pytest

from multihead.data.bert.batches import Corruption
from multihead.errors import ConfigurationError, InputError

PAD, HIDDEN, FIRST, END = SPECIAL = (0, 1, 2, 3)
VOCAB = 40
BEGINS = np.arange(VOCAB) % 4 != 0
"""Three of four entries begin a word."""


def corruption(seed=1, **options):
    return Corruption(HIDDEN, SPECIAL, BEGINS, seed, **options)


def row(seed, words):
    """[CLS], words, [SEP], words, [SEP]."""
    ids = np.random.default_rng(seed).integers(4, VOCAB, words)
    half = words // 2
    return np.array([FIRST, *ids[:half], END, *ids[half:], END])


def words_of(ids):
    """The places of each word, by a plain loop."""
    words = []
    for place, index in enumerate(ids.tolist()):
        if index in SPECIAL:
            continue
        if BEGINS[index] or not words or words[-1][-1] != place - 1:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize("whole_words", [False, True])
def test_it_is_a_function_of_seed_epoch_and_example(whole_words: bool) -> None:
    ids = row(0, 40)
    keys = [(seed, epoch, example) for seed in (1, 2) for epoch in (0, 1) for example in (0, 1, 9)]
    found = {}
    for seed, epoch, example in keys:
        one, other = (corruption(seed, whole_words=whole_words).corrupt(ids, epoch, example) for _ in range(2))
        assert (one.shown == other.shown).all()
        assert (one.chosen == other.chosen).all()
        found[seed, epoch, example] = tuple(one.shown)
    assert len(set(found.values())) == len(keys)


@pytest.mark.parametrize("words", [1, 2, 3, 9, 10, 33, 200])
def test_so_many_words_are_chosen_and_symbols_never_are(words: int) -> None:
    ids = row(words, words)
    for example in range(20):
        shown, chosen = corruption().corrupt(ids, 0, example)
        assert chosen.sum() == max(1, round(0.15 * words))
        assert not np.isin(ids[chosen], SPECIAL).any()
        assert (shown[~chosen] == ids[~chosen]).all()
        assert np.isin(shown[chosen], (HIDDEN, *range(4, VOCAB))).all()


@pytest.mark.parametrize("whole_words", [False, True])
def test_80_10_10_and_every_place_alike(whole_words: bool) -> None:
    """Within five standard deviations of independent draws."""
    ids = row(3, 100)
    ids = np.where(ids > 3, np.where(ids % 4 == 0, ids + 1, ids), ids)  # words of one token each
    draws = [corruption(whole_words=whole_words).corrupt(ids, 0, example) for example in range(2000)]
    chosen = np.array([one.chosen for one in draws])
    shown = np.array([one.shown for one in draws])
    counts = chosen.sum(0)[ids > 3]
    assert abs(counts - 2000 * 0.15).max() < 5 * (2000 * 0.15 * 0.85) ** 0.5
    total = chosen.sum()
    hidden, kept = (shown == HIDDEN)[chosen].sum(), (shown == ids)[chosen].sum()
    for count, share in ((hidden, 0.8), (kept, 0.1 + 0.1 / 36), (total - hidden - kept, 0.1 - 0.1 / 36)):
        assert abs(count - share * total) < 5 * (share * (1 - share) * total) ** 0.5
    others = shown[chosen & (shown != HIDDEN) & (shown != ids)]
    assert set(others.tolist()) == set(range(4, VOCAB))  # any word, no symbol


@pytest.mark.parametrize("seed", range(20))
def test_whole_words(seed: int) -> None:
    """Whole words are chosen, and no further word would fit."""
    ids = row(seed, 50)
    words = words_of(ids)
    taken = [corruption(whole_words=True).corrupt(ids, 0, example).chosen for example in range(10)]
    for chosen in taken:
        whole = [word for word in words if chosen[word].all()]
        assert sum(map(len, whole)) == chosen.sum() <= round(0.15 * 50)
        room = round(0.15 * 50) - chosen.sum()
        assert all(len(word) > room for word in words if not chosen[word].any())
    assert len({tuple(chosen) for chosen in taken}) > 1


def test_where_no_word_has_room_the_shortest_is_chosen() -> None:
    ids = np.array([FIRST, 5, 8, 8, 6, 8, END, 8, 8, 8, END])  # of 3, 2 and 3 tokens: the third begins behind [SEP]
    chosen = corruption(whole_words=True).corrupt(ids, 0, 0).chosen
    assert chosen.nonzero()[0].tolist() == [4, 5]


def test_all_words_on_request() -> None:
    ids = row(0, 10)
    assert (corruption(share=1.0).corrupt(ids, 0, 0).chosen == ~np.isin(ids, SPECIAL)).all()


def test_what_cannot_be() -> None:
    with pytest.raises(InputError, match="a row without words"):
        corruption().corrupt(np.array([FIRST, END]), 0, 0)
    with pytest.raises(ConfigurationError, match="share of words to be hidden is 0"):
        corruption(share=0.0)
    with pytest.raises(ConfigurationError, match="special symbols alone"):
        Corruption(HIDDEN, range(VOCAB), BEGINS, 1)
