"""The line search is exact, a search never ends below its starts, and counts add up to sacreBLEU's score."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from multihead.judging.error_rate_training import Table, line_search, maximize
from multihead.metrics.bleu_counts import bleu_counts, bleu_of, length_ratio

WORDS = ["a", "dog", "cat", "runs", "sleeps", "fast", "the", "big", ",", "."]


def texts(draw: np.random.Generator, count: int) -> list[str]:
    return [" ".join(draw.choice(WORDS, draw.integers(0, 9))) for _ in range(count)]


def table_of(seed: int, sentences: int = 12, ties: bool = False) -> Table:
    """Random candidates, a different number for every sentence; with ``ties``, features have few distinct values."""
    draw = np.random.default_rng(seed)
    sizes = [int(size) for size in draw.integers(1, 6, sentences)]
    references = [f"a {text} ." for text in texts(draw, sentences)]
    features = [draw.integers(-1, 2, (size, 3)) + 0.0 if ties else draw.normal(size=(size, 3)) for size in sizes]
    rows = [bleu_counts([*texts(draw, size - 1), one], one) for size, one in zip(sizes, references, strict=True)]
    return Table.of(features, rows)


@pytest.mark.parametrize("seed", range(20))
def test_counts_add_up_to_sacrebleu(seed: int) -> None:
    """With zero counts, empty texts and smoothing; [...]: any number of sums at once."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(1, 5))
    ours, theirs = texts(draw, size), texts(draw, size)
    total = sum(bleu_counts([one], other) for one, other in zip(ours, theirs, strict=True))
    wanted = BLEU(force=True).corpus_score(ours, [theirs])
    assert bleu_of(np.stack([total, total])) == pytest.approx(np.full((2, 1), wanted.score), abs=1e-9)
    assert length_ratio(total[0]) == (wanted.sys_len / wanted.ref_len if wanted.ref_len else 1.0)


def brute_force(table: Table, start: Any, direction: Any, low: float, high: float) -> float:
    """The highest BLEU at a point between any two neighbors among all crossings of any two candidates."""
    points = [low, high]
    for row, present in zip(table.features, table.present, strict=True):
        lines = [(float(one @ start), float(one @ direction)) for one in row[present]]
        for (height, slope), (other, steeper) in itertools.combinations(lines, 2):
            if slope != steeper:
                points.append((height - other) / (steeper - slope))
    edges = sorted({point for point in points if low <= point <= high})
    middles = [(left + right) / 2 for left, right in itertools.pairwise(edges) if right - left > 1e-9]
    return max(table.bleu(start + middle * direction) for middle in middles)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_line_search_is_exact(seed: int, ties: bool) -> None:
    table, draw = table_of(seed, ties=ties), np.random.default_rng(seed)
    start, direction = draw.normal(size=(2, 3))
    step = line_search(table, start, direction, -4.0, 4.0)
    assert -4 <= step <= 4
    assert table.bleu(start + step * direction) == pytest.approx(brute_force(table, start, direction, -4, 4), abs=1e-9)


def test_a_search_stays_where_nothing_is_better() -> None:
    """All candidates of a sentence are equal: the step is 0."""
    table = table_of(3)
    same = Table(table.features, np.repeat(table.counts[:, :1], table.counts.shape[1], 1), table.present)
    assert line_search(same, np.ones(3), np.eye(3)[0], -1.0, 1.0) == 0
    assert same.bleu(np.ones(3)) == same.bleu(-np.ones(3))


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_never_worse_than_a_start_and_keep_their_signs(seed: int) -> None:
    table, starts = table_of(seed, 30), [*np.eye(3)[:2], np.array([1.0, 1.0, 0.0])]
    found = maximize(table, starts, [0, 1, 2], [2])
    assert table.bleu(found) >= max(table.bleu(start) for start in starts)
    assert table.bleu(found) > table.bleu(starts[0])
    assert (found[:2] >= -1e-12).all()
    assert np.abs(found).sum() == pytest.approx(1)
    assert (found == maximize(table, starts, [0, 1, 2], [2])).all()
    only = maximize(table, starts[:1], [0], ())
    assert only.tolist() == [1, 0, 0]


def test_a_choice_takes_the_first_of_equals_and_no_padding() -> None:
    counts = [np.zeros((size, 10), np.int64) for size in (1, 3)]
    table = Table.of([np.full((1, 3), -9.0), np.zeros((3, 3))], counts)
    assert table.chosen(np.ones(3)).tolist() == [0, 0]
