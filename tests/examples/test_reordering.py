"""Copying and reversing: targets, their known alignment, and reproducible draws."""

from __future__ import annotations

from itertools import islice
from random import Random

import jaxtyping
import pytest
import torch

from multihead.errors import ConfigurationError
from tasks.reordering import BEGIN, END, FIRST, PADDING, Reordering, share_right

TASKS = [Reordering("copy"), Reordering("reverse"), Reordering("reverse", symbols=3, shortest=1, longest=3)]


@pytest.mark.parametrize("task", TASKS)
def test_each_target_symbol_stands_where_the_alignment_says(task: Reordering) -> None:
    batch = next(task.batches(20, seed=1))
    alignment = task.alignment(batch)
    known = alignment >= 0
    read = batch.source.gather(1, alignment.clamp(min=0))
    assert torch.equal(read[known], batch.target_output[known])
    # All symbols except end symbols and padding have a position, and no two have the same.
    assert torch.equal(known, batch.target_output >= FIRST)
    for row, length in zip(alignment, batch.target_lengths, strict=True):
        assert sorted(row[: length - 1].tolist()) == list(range(length - 1))


def test_positions_are_those_of_the_task() -> None:
    sources = [(5, 3, 4), (7,)]
    copy, reverse = (Reordering(name, shortest=1) for name in ("copy", "reverse"))
    assert copy.alignment(copy.batch(sources)).tolist() == [[0, 1, 2, -1], [0, -1, -1, -1]]
    batch = reverse.batch(sources)
    assert reverse.alignment(batch).tolist() == [[2, 1, 0, -1], [0, -1, -1, -1]]
    assert batch.source.tolist() == [[5, 3, 4, END], [7, END, PADDING, PADDING]]
    assert batch.target_input.tolist() == [[BEGIN, 4, 3, 5], [BEGIN, 7, PADDING, PADDING]]
    assert batch.target_output.tolist() == [[4, 3, 5, END], [7, END, PADDING, PADDING]]


@pytest.mark.parametrize("task", TASKS)
def test_sources_are_of_the_sizes_asked_for(task: Reordering) -> None:
    random = Random(1)
    drawn = [task.draw(random) for _ in range(500)]
    assert {len(source) for source in drawn} == set(range(task.shortest, task.longest + 1))
    assert {symbol for source in drawn for symbol in source} == set(range(FIRST, task.vocabulary))
    assert all(len(set(source)) == len(source) for source in drawn)


def test_the_same_seed_draws_the_same() -> None:
    task = TASKS[0]

    def sources(seed: int) -> list[list[list[int]]]:
        return [batch.source.tolist() for batch in islice(task.batches(4, seed), 5)]

    assert sources(1) == sources(1) != sources(2)
    assert task.held_out(10, 1) == task.held_out(10, 1) != task.held_out(10, 2)


def test_what_is_held_out_is_not_trained_on() -> None:
    task = TASKS[2]  # 15 sources in all
    unseen = task.held_out(7, seed=1)
    assert len(set(unseen)) == 7
    rows = {
        tuple(row[row >= FIRST].tolist()) for batch in islice(task.batches(50, 1, unseen), 10) for row in batch.source
    }
    assert len(rows) == 8
    assert rows.isdisjoint(unseen)


def test_the_share_right_counts_the_highest_weights() -> None:
    weights = torch.tensor([[[0.6, 0.4, 0.0], [0.5, 0.1, 0.4], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    assert share_right(weights, torch.tensor([[0, 2, 2, -1]])) == (2, 3)
    task = TASKS[1]
    batch = next(task.batches(6, seed=1))
    alignment = task.alignment(batch)
    ideal = torch.nn.functional.one_hot(alignment.clamp(min=0), batch.source.shape[1]).float()
    words = batch.target_tokens - 6
    assert share_right(ideal, alignment) == (words, words)
    assert share_right(ideal.roll(1, -1), alignment) == (0, words)


def test_what_is_no_task_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"shortest=4, longest=3: expected 1 <= shortest"):
        Reordering("copy", shortest=4, longest=3)
    with pytest.raises(ConfigurationError, match=r"symbols=7.*longest=8: .*no symbol is drawn twice"):
        Reordering("copy", symbols=7)
    with pytest.raises(ConfigurationError, match=r"8 different sources of 15 possible"):
        TASKS[2].held_out(8, 1)


def test_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our message instead of jaxtyping's
    with pytest.raises(ConfigurationError, match=r"name='sort'.*'copy' or 'reverse'"):
        Reordering("sort")  # type: ignore[arg-type]
