"""Planted spans: position, answer, and that only neighboring letters reveal the span."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import log
from random import Random

import pytest
import torch
from torch import Tensor

from multihead.attention.structured import chain_marginals
from multihead.errors import ConfigurationError
from tasks.reordering import BEGIN, END, FIRST, PADDING
from tasks.spans import Planted, PlantedSpans, covered

SIZES = [
    PlantedSpans(),
    PlantedSpans(alphabet=2, shortest=2, longest=3, narrowest=1, widest=1, lead=1),
    PlantedSpans(alphabet=26, shortest=13, longest=13, narrowest=3, widest=12, inside=1.0, outside=0.0),
]


def drawn(task: PlantedSpans, count: int = 300) -> list[Planted]:
    random = Random(0)
    return [task.draw(random) for _ in range(count)]


@pytest.mark.parametrize("task", SIZES, ids=repr)
def test_a_text_is_what_the_task_says(task: PlantedSpans) -> None:
    for one in drawn(task):
        span = slice(one.start, one.start + one.width)
        assert task.shortest <= len(one.letters) == len(one.capital) <= task.longest
        assert task.narrowest <= one.width <= task.widest
        assert span.start >= 0
        assert span.stop <= len(one.letters)
        assert set(one.letters) <= set(range(task.alphabet))
        counted = [one.letters[span].count(letter) for letter in range(task.alphabet)]
        others = [count for letter, count in enumerate(counted) if letter != one.answer]
        assert counted[one.answer] - max(others) == one.lead >= task.lead


def test_capitals_without_noise_are_the_span() -> None:
    for one in drawn(SIZES[2]):
        assert [place for place, capital in enumerate(one.capital) if capital] == list(
            range(one.start, one.start + one.width)
        )


def test_every_place_of_a_span_and_every_letter_is_drawn() -> None:
    task = PlantedSpans(alphabet=2, shortest=4, longest=5, narrowest=1, widest=3, lead=1)
    seen = {(len(one.letters), one.width, one.start) for one in drawn(task, 2_000)}
    assert seen == {
        (length, width, start) for length in (4, 5) for width in (1, 2, 3) for start in range(length - width + 1)
    }
    assert Counter(one.answer for one in drawn(task, 2_000)).keys() == {0, 1}


def test_capitals_are_as_frequent_as_they_should_be_and_letters_alike_everywhere() -> None:
    task = PlantedSpans()
    capitals: dict[bool, list[bool]] = {True: [], False: []}
    agreeing = 0
    for one in drawn(task, 1_000):
        for place, capital in enumerate(one.capital):
            capitals[one.start <= place < one.start + one.width].append(capital)
        outside = (*one.letters[: one.start], *one.letters[one.start + one.width :])
        agreeing += Counter(outside).most_common(1)[0][0] == one.answer
    for within, wanted in ((True, task.inside), (False, task.outside)):
        assert sum(capitals[within]) / len(capitals[within]) == pytest.approx(wanted, abs=0.02)
    # The most frequent letter outside says nothing about the answer.
    assert agreeing / 1_000 == pytest.approx(1 / task.alphabet, abs=0.05)


def probabilities(task: PlantedSpans, one: Planted, neighbors: bool) -> Tensor:
    """The probability of being inside, given the task's parameters: for each position alone, or by a chain."""
    width = (task.narrowest + task.widest) / 2
    length = len(one.capital)
    share = width / length
    evidence = [log(task.inside / task.outside), log((1 - task.inside) / (1 - task.outside))]
    score = torch.tensor([evidence[0] if capital else evidence[1] for capital in one.capital])
    if not neighbors:
        return torch.sigmoid(score + log(share / (1 - share)))
    leave_inside, leave_outside = 1 / width, 2 / (length - width)
    transition = torch.tensor([[1 - leave_outside, leave_outside], [leave_inside, 1 - leave_inside]]).log()
    return chain_marginals(torch.stack((torch.zeros_like(score), score), -1)[None], transition)[0, :, 1]


@pytest.mark.parametrize(("neighbors", "least", "most"), [(True, 0.93, 1.0), (False, 0.5, 0.8)])
def test_a_chain_finds_the_answer_and_each_place_by_itself_does_not(neighbors: bool, least: float, most: float) -> None:
    """Why the task needs chains: nothing is learned here, both methods know the task's parameters."""
    task = PlantedSpans()
    examples, right = drawn(task, 400), 0
    for one in examples:
        weights = probabilities(task, one, neighbors)
        totals = torch.zeros(task.alphabet).index_add_(0, torch.tensor(one.letters), weights)
        right += int(totals.argmax()) == one.answer
    assert least <= right / len(examples) <= most


def test_a_batch_is_its_texts_as_ids() -> None:
    task = PlantedSpans()
    examples = drawn(task, 20)
    batch = task.batch(examples)
    inside = covered(examples, batch)
    for row, one in enumerate(examples):
        length = len(one.letters)
        ids = batch.source[row].tolist()
        assert ids[length] == END
        assert set(ids[length + 1 :]) <= {PADDING}
        assert [(token - FIRST) % task.alphabet for token in ids[:length]] == list(one.letters)
        assert [token - FIRST >= task.alphabet for token in ids[:length]] == list(one.capital)
        assert batch.target_input[row].tolist() == [BEGIN, FIRST + one.answer]
        assert batch.target_output[row].tolist() == [FIRST + one.answer, END]
        assert inside[row].nonzero().flatten().tolist() == list(range(one.start, one.start + one.width))
    assert int(batch.source.max()) < task.source_vocab
    assert int(batch.target_output.max()) < task.target_vocab


def test_texts_are_a_function_of_the_seed_and_held_out_ones_are_others() -> None:
    task = PlantedSpans()
    first, again, other = ([batch.source for batch in islice(task.batches(8, seed), 3)] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert task.held_out(5, 1) == task.held_out(5, 1) == task.held_out(9, 1)[:5]
    assert task.held_out(5, 1) != task.held_out(5, 2)
    trained_on = {tuple(row) for batch in islice(task.batches(64, 1), 5) for row in batch.source.tolist()}
    held_out = task.batch(task.held_out(100, 1))
    assert not trained_on & {tuple(row) for row in held_out.source.tolist()}


def test_a_text_for_people() -> None:
    assert str(Planted((1, 5, 0), (False, True, True), 1, 2)) == "b F A"


@pytest.mark.parametrize(
    "sizes",
    [
        {"alphabet": 1},
        {"alphabet": 27},
        {"lead": 0},
        {"lead": 11},
        {"narrowest": 15},
        {"shortest": 14},
        {"longest": 44},
        {"inside": 1.1},
        {"outside": -0.1},
        {"inside": 0.3},
    ],
)
def test_sizes_that_make_no_task(sizes: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        PlantedSpans(**sizes)  # type: ignore[arg-type]
