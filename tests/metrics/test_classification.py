"""Accuracy, F1 and confusion matrix against counting document by document."""

from __future__ import annotations

import random

import numpy as np
import pytest

from multihead.errors import InputError
from multihead.metrics.classification import score_predictions

LABELS = ("ant", "bee", "cat", "dog")


def by_hand(actual: list[int], predicted: list[int], count: int) -> list[tuple[float, float, float] | None]:
    """Precision, recall and F1 of each class from their definitions; None for a class that does not occur."""
    found = []
    for label in range(count):
        pairs = list(zip(actual, predicted, strict=True))
        right = sum(a == p == label for a, p in pairs)
        said, there = sum(p == label for _, p in pairs), sum(a == label for a, _ in pairs)
        precision, recall = right / said if said else 0.0, right / there if there else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        found.append((precision, recall, f1) if said or there else None)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_figure_is_that_of_counting(seed: int) -> None:
    draw = random.Random(seed)
    classes, size = draw.randint(2, 4), draw.randint(1, 30)
    used = draw.sample(range(4), classes - 1) if seed % 3 == 0 else range(4)  # some classes never occur
    actual, predicted = (draw.choices(list(used), k=size) for _ in range(2))
    found = score_predictions(actual, predicted, LABELS)
    each = by_hand(actual, predicted, 4)
    for place, scores in enumerate(each):
        got = (found.precision[place], found.recall[place], found.f1[place])
        assert got == pytest.approx(scores or (0, 0, 0))
    assert found.macro_f1 == pytest.approx(np.mean([scores[2] for scores in each if scores]))
    assert found.accuracy == sum(a == p for a, p in zip(actual, predicted, strict=True)) / size
    for a in range(4):
        for p in range(4):
            count = sum(pair == (a, p) for pair in zip(actual, predicted, strict=True))
            assert found.confusion[a, p] == count
    assert found.documents == size


def test_always_the_frequent_class_is_accurate_and_has_a_poor_macro_f1() -> None:
    found = score_predictions([0] * 95 + [1] * 5, [0] * 100, ("often", "rarely"))
    assert found.accuracy == 0.95
    assert found.macro_f1 == pytest.approx((2 * 95 / 195 + 0) / 2)
    assert found.as_dict()["confusion"] == [[95, 0], [5, 0]]


def test_the_tables_have_every_label() -> None:
    text = str(score_predictions([0, 1, 2], [0, 2, 2], ("好", "schlecht", "c")))
    assert text.startswith("accuracy 66.67%   macro-F1 55.56%   3 documents\n")
    rows = text.split("\n\n")
    assert [line.split()[0] for line in rows[1].splitlines()[1:]] == ["好", "schlecht", "c"]
    assert rows[2].splitlines()[2].split() == ["schlecht", "·", "·", "1"]


@pytest.mark.parametrize(
    ("actual", "predicted", "words"),
    [([], [], "at least one"), ([0], [0, 1], "1 labels and 2 answers"), ([0], [4], "no class 4"), ([-1], [0], "-1")],
)
def test_what_cannot_be_counted(actual: list[int], predicted: list[int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        score_predictions(actual, predicted, LABELS)
