"""examples/hard_attention.py: its output, and REINFORCE learns the alignment."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import pytest

from tasks.reordering import Reordering

WithoutChecks = Callable[[], AbstractContextManager[None]]


def figures(printed: str, name: str) -> list[float]:
    """The numbers of the line that begins with ``name``."""
    (line,) = re.findall(rf"^ *{re.escape(name)}  +(.*)$", printed, re.MULTILINE)
    return [float(word.strip("%")) for word in line.split()]


def test_hard_attention_learns_where_to_look(example: ModuleType, without_checks: WithoutChecks) -> None:
    """From rewards alone, with shorter sequences and fewer updates than in the example."""
    task = Reordering("reverse", symbols=6, shortest=2, longest=4)
    sizes = example.Sizes(task, width=32, rows=96, updates=140, measured_at=(0.1,), draws=40)
    held_out = task.held_out(100, seed=1)
    with without_checks():
        trained = example.train("hard", sizes, held_out)
    before = example.evaluate(sizes.network("hard"), task, held_out)
    assert before.positions < 0.5
    assert trained.evaluation.positions >= 0.95
    assert trained.evaluation.sequences >= 0.9
    (seen,) = trained.variances
    assert seen.with_it < 0.5 * seen.without


def test_the_example_prints_a_line_for_each_alignment(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--quick", "--updates", "20", "--draws", "3", "--task", "copy", "--wiring", "before"])
    printed = capsys.readouterr().out
    for name in example.ALIGNMENTS:
        sequences, positions, _ = figures(printed, name)
        assert 0 <= sequences <= 100
        assert 0 <= positions <= 100
    for update in (1, 2, 4, 8):
        _, without, with_it, times = figures(printed, str(update))
        assert times == pytest.approx(without / with_it, abs=0.1, rel=0.02)
    (source,), (target,) = (re.findall(rf"^{row} +(.+)$", printed, re.MULTILINE) for row in ("source", "target"))
    assert source == target


@pytest.mark.proof
def test_what_the_page_says_of_the_example(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main([])
    printed = capsys.readouterr().out
    for name in ("soft", "hard", "straight-through", "Gumbel"):
        sequences, positions, _ = figures(printed, name)
        assert sequences >= 95
        assert positions >= 95
    assert figures(printed, "hard, no baseline")[1] < 50
    assert all(figures(printed, str(update))[-1] > 2 for update in (25, 50, 100))
    assert re.findall(r"^read at +(.+)$", printed, re.MULTILINE) == ["7  6  5  4  3  2  1  0"]


@pytest.mark.proof
@pytest.mark.parametrize("wiring", ["fed", "after", "before"])
@pytest.mark.parametrize("task", ["reverse", "copy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hard_attention_learns_whatever_the_seed(example: ModuleType, wiring: str, task: str, seed: int) -> None:
    sizes = example.Sizes(Reordering(task), wiring=wiring, seed=seed, measured_at=())  # type: ignore[arg-type]
    judged = example.train("hard", sizes, sizes.task.held_out(200, seed)).judged
    assert judged.positions >= 0.95
    assert judged.sequences >= 0.95
