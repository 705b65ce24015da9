"""IBM Model 1: equal to its equations written as loops, and it finds a planted lexicon."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from multihead.data.store import ParallelStore
from multihead.translating import shortlist as lexicon

VOCAB = 30


def planted(count: int = 200) -> tuple[list[list[int]], list[list[int]]]:
    """Each symbol s becomes 29 - s, in another order; sometimes with a symbol that nothing explains."""
    draw = random.Random(3)
    sources = [[draw.randrange(2, VOCAB) for _ in range(draw.randint(1, 7))] for _ in range(count)]
    targets = [[VOCAB - 1 - s for s in source] + [0] * (draw.random() < 0.3) for source in sources]
    for target in targets:
        draw.shuffle(target)
    return sources, targets


def loops(sources: list[list[int]], targets: list[list[int]], rounds: int) -> dict[tuple[int, int], float]:
    """Brown et al.'s model 1, word by word; the empty word has the number VOCAB."""
    t: Any = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            words = [VOCAB, *source]
            for y in target:
                sum_of = sum(t[x, y] for x in words)
                for x in words:
                    counts[x, y] += t[x, y] / sum_of
                    totals[x] += t[x, y] / sum_of
        t = {(x, y): count / totals[x] for (x, y), count in counts.items()}
    return dict(t)


@pytest.mark.parametrize("cells", [17, 10**6])
@pytest.mark.parametrize("rounds", [1, 4])
def test_it_is_its_equations(cells: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of pairs at a time; a pair without a target has no effect."""
    monkeypatch.setattr(lexicon, "_CELLS", cells)
    sources, targets = planted(60)
    targets[7] = []
    found = lexicon.learn(ParallelStore.from_lists(sources, targets), VOCAB, VOCAB, rounds)
    expected = loops(sources, targets, rounds)
    assert list(zip(found.source.tolist(), found.target.tolist(), strict=True)) == sorted(expected)
    assert found.probability == pytest.approx([expected[key] for key in sorted(expected)])
    assert np.bincount(found.source, found.probability)[2:] == pytest.approx(1.0)


def test_what_was_planted_is_found() -> None:
    found = lexicon.learn(ParallelStore.from_lists(*planted()), VOCAB, VOCAB)
    for symbol in range(2, VOCAB):
        own = found.source == symbol
        assert found.target[own][found.probability[own].argmax()] == VOCAB - 1 - symbol
    nobody = found.source == VOCAB
    assert found.target[nobody][found.probability[nobody].argmax()] == 0


def test_so_many_pairs_are_looked_at() -> None:
    sources, targets = planted(100)
    few = lexicon.learn(ParallelStore.from_lists(sources, targets), VOCAB, VOCAB, pairs=50)
    every_other = lexicon.learn(ParallelStore.from_lists(sources[::2], targets[::2]), VOCAB, VOCAB)
    assert np.array_equal(few.source, every_other.source)
    assert np.array_equal(few.probability, every_other.probability)
    nothing = lexicon.learn(ParallelStore.from_lists([], []), VOCAB, VOCAB)
    assert len(nothing.source) == 0
