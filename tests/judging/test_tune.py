"""Weights are tuned at equal length: a feature that only lengthens translations gains nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multihead.judging.error_rate_training import Table
from multihead.judging.tune import tuned_rows
from multihead.metrics.bleu_counts import WORDS, bleu_counts, bleu_of
from multihead.translating.choosing import FEATURES, as_array

pytestmark = pytest.mark.usefixtures("fewer_splits")

SENTENCES = 12
LETTERS = list("abcdefgh")


def table_of(rows: list[tuple[str, list[tuple[str, dict[str, float]]]]]) -> Table:
    """Of references, and of candidates with their features."""
    features = [np.array([[one.get(name, 0.0) for name in FEATURES] for _, one in row]) for _, row in rows]
    return Table.of(features, [bleu_counts([text for text, _ in row], reference) for reference, row in rows])


def found(table: Table) -> dict[tuple[str, ...], Any]:
    return {row.features: row for row in tuned_rows(table, ["forward", "length"])}


def test_words_that_only_lengthen_a_translation_gain_nothing() -> None:
    """The longer candidate has no additional match but a higher BLEU, since the reference is longer than both."""
    short, longer, reference = "a b c d e f", "a b c d e f x", "a b c d e f g h i j"
    table = table_of(
        [(reference, [(short, {"forward": 0.0, "length": 0.6}), (longer, {"forward": -1, "length": 0.7})])]
    )
    table = table.select(np.zeros(SENTENCES, np.int64))
    assert bleu_of(table.counts[:, 1].sum(0)) > bleu_of(table.counts[:, 0].sum(0))
    rows = found(table)
    own, both = rows["forward",], rows["forward", "length"]
    assert (table.chosen(as_array(both.weights)) == 0).all()
    assert both.held_out_at_equal_length == own.held_out_at_equal_length == pytest.approx(100)
    assert both.bleu == both.held_out == own.bleu == pytest.approx(100 * np.exp(1 - 10 / 6))


def test_words_of_the_reference_are_gained_whatever_its_length() -> None:
    """The longer candidate matches more of the reference, so it wins whether or not the reference is as long."""
    for rest in ("", " k l m n"):
        own = ("a b c d x", {"forward": 0.0, "length": 0.5})
        better = ("a b c d e f g", {"forward": -1.0, "length": 0.7})
        table = table_of([("a b c d e f g" + rest, [own, better])]).select(np.zeros(SENTENCES, np.int64))
        rows = found(table)
        both = rows["forward", "length"]
        assert (table.chosen(as_array(both.weights)) == 1).all()
        assert both.held_out_at_equal_length > rows["forward",].held_out_at_equal_length
        assert both.gain[0] > 0


def test_where_references_have_the_words_of_the_own_choice_it_is_bleu() -> None:
    draw, rows = np.random.default_rng(1), []
    for _ in range(SENTENCES):
        reference = " ".join(draw.choice(LETTERS, 8))
        texts = [" ".join(draw.choice(LETTERS, 8)), *(" ".join(draw.choice(LETTERS, size)) for size in (6, 9, 11))]
        rows.append((reference, [(text, {"forward": -place, "length": len(text)}) for place, text in enumerate(texts)]))
    table = table_of(rows)
    assert (table.counts[:, 0, WORDS] == 8).all()
    for row in found(table).values():
        assert row.bleu == row.at_equal_length
        assert row.held_out == row.held_out_at_equal_length


def test_weights_are_at_least_as_good_as_each_feature_at_equal_length() -> None:
    draw, rows = np.random.default_rng(2), []
    for _ in range(SENTENCES):
        texts = [" ".join(draw.choice(LETTERS, size)) for size in (5, 7, 9, 12)]
        rows.append(
            (" ".join(draw.choice(LETTERS, 10)), [(t, {"forward": draw.normal(), "length": len(t)}) for t in texts])
        )
    tuned = found(table_of(rows))
    assert tuned["forward", "length"].at_equal_length >= tuned["forward",].at_equal_length
