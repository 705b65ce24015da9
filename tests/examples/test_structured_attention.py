"""examples/structured_attention.py: chains and trees learn what a softmax does not; its output."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import pytest
import torch

from multihead.models.network import AttentionWeights, Output
from tasks.expressions import Expressions, Question, heads
from tasks.spans import PlantedSpans

WithoutChecks = Callable[[], AbstractContextManager[None]]


def test_a_chain_learns_to_find_a_span_that_a_softmax_does_not(
    example: ModuleType, without_checks: WithoutChecks
) -> None:
    """With shorter texts, fewer letters and fewer updates than in the example."""
    spans = PlantedSpans(alphabet=4, shortest=40, longest=40, narrowest=10, widest=12, inside=0.9, outside=0.35)
    task = example.span_task(spans, updates=300, seed=1, examples=200)
    with without_checks():
        networks = {name: example.train(task, name, 0.01, seed=1)[0] for name in ("softmax", "segmentation")}
    scores = {name: task.measure(network, True) for name, network in networks.items()}
    assert scores["segmentation"]["right answers"] >= 0.85
    assert scores["segmentation"]["F1 of span"] >= 0.7
    assert scores["softmax"]["right answers"] <= scores["segmentation"]["right answers"] - 0.1
    assert scores["softmax"]["F1 of span"] <= scores["segmentation"]["F1 of span"] - 0.2


@pytest.mark.proof
def test_trees_learn_what_a_softmax_does_not(example: ModuleType, without_checks: WithoutChecks) -> None:
    """With shorter expressions and fewer updates than in the example."""
    task = example.tree_task(Expressions(2, 4, operands=6), updates=250, seed=1, examples=200)
    with without_checks():
        networks = {name: example.train(task, name, 0.004, seed=1)[0] for name in ("softmax", "tree")}
    scores = {name: task.measure(network, True) for name, network in networks.items()}
    assert scores["tree"]["right answers"] >= 0.7
    assert scores["tree"]["before 1st fault"] >= 0.8
    assert scores["softmax"]["right answers"] <= scores["tree"]["right answers"] - 0.2


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_example_in_full(example: ModuleType, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    example.main(["--seed", str(seed)])
    spans, trees = capsys.readouterr().out.split("Expressions(")
    (softmax, f1_softmax), (sigmoid, _), (chain, f1) = (
        figures(spans, name)[:2] for name in ("softmax", "sigmoid", "segmentation")
    )
    assert chain >= 90
    assert f1 >= 75
    assert max(softmax, sigmoid) <= chain - 15
    assert f1_softmax <= f1 - 20
    assert figures(trees, "tree")[0] >= 85
    assert max(figures(trees, name)[0] for name in ("none", "softmax")) <= 50


def figures(printed: str, name: str) -> list[float]:
    """The numbers of the line that begins with ``name``."""
    (line,) = re.findall(rf"^{re.escape(name)}  +(.*)$", printed, re.MULTILINE)
    return [float(word.strip("%")) for word in line.split() if word != "-"]


def test_what_it_prints(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = (
        example.span_task(PlantedSpans(), updates=1, seed=1, examples=10),
        example.tree_task(Expressions(1, 2, operands=4), updates=1, seed=1, examples=10),
    )
    for task in tasks:
        scores = example.compare(task, [0.001, 0.002], seed=1)
        printed = capsys.readouterr().out
        assert printed.startswith(f"{task.title}, 1 updates of 64 rows, seed 1\n\nattention ")
        for name, found in scores.items():
            *shares, rate, _ = figures(printed, name)
            assert shares == pytest.approx([100 * share for share in found.values() if share is not None], abs=0.06)
            assert rate in (0.001, 0.002)


def test_networks_of_a_task_differ_in_their_attention_alone(example: ModuleType) -> None:
    for task in (example.span_task(PlantedSpans(), 1, 1), example.tree_task(Expressions(), 1, 1)):
        configs = [task.build(name).config.model_dump() for name in task.names]
        differing = {key for key in configs[0] if len({str(config[key]) for config in configs}) > 1}
        assert len(differing) == 1
        assert differing <= {"alignment", "encoder_attention"}
    sigmoid = example.span_task(PlantedSpans(), 1, 1).build("sigmoid")
    assert not sigmoid.decoder.attention.align.transition.requires_grad
    assert not sigmoid.decoder.attention.align.transition.any()


def test_a_rate_is_chosen_by_other_examples_than_those_of_the_table(example: ModuleType) -> None:
    task = example.tree_task(Expressions(1, 2, operands=4), updates=1, seed=1, examples=10)
    asked = []

    def measure(network: object, final: bool) -> dict[str, float]:
        asked.append(final)
        return {"right answers": float(len(asked) == 2)}

    task = example.replace(task, measure=measure)
    _, rate, _ = example.train_best(task, "none", [0.001, 0.002, 0.003], seed=1)
    assert (asked, rate) == ([False] * 3, 0.002)


def test_the_measures(example: ModuleType) -> None:
    assert example.correct_prefix([1, 2, 3], [1, 2, 3]) == 3
    assert example.correct_prefix([1, 9, 3], [1, 2, 3]) == 1
    assert example.correct_prefix([1, 2], [1, 2, 3]) == 2
    assert example.correct_prefix([], [1]) == 0
    planted = torch.tensor([[False, True, True, False]])
    assert example.overlap(planted.float(), planted, 0.5) == 1
    assert example.overlap(torch.tensor([[0.9, 0.9, 0.1, 0.1]]), planted, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("with_root", [True, False])
def test_heads_are_counted_where_they_are(example: ModuleType, with_root: bool) -> None:
    """A network that attends only to heads, and one that attends only to the word after the head."""
    expressions = Expressions()
    test = expressions.held_out(30, 1)
    for shift, wanted in ((0, 1.0), (1, 0.0)):
        output = attending(expressions, test, shift, with_root)
        found = example.right_heads(lambda *_, output=output, **__: output, expressions, test)
        assert set(found.values()) == {wanted}


def attending(expressions: Expressions, test: list[Question], shift: int, with_root: bool) -> Output:
    batch = expressions.batch(test)
    rows, length = batch.source.shape
    weights = torch.zeros(rows, 1, length, length + 2)
    for row, question in enumerate(test):
        for place, head in enumerate(heads(question.symbols)):
            weights[row, 0, place, head + shift] = 1.0
    weights = weights[..., : length + 1] if with_root else weights[..., 1 : length + 1]
    return Output(torch.zeros(rows, 1, 1), AttentionWeights((weights,), (), ()))
