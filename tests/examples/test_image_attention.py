"""examples/image_attention.py: every module trains, one learns the task; printed table and plot."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from images.classifier import ImageAttentionName, ImageClassifier, ImageConfig
from images.pictures import SHAPES, Pictures

WithoutChecks = Callable[[], AbstractContextManager[None]]
SMALL = Pictures(side=16, smallest=4.0, largest=6.0, scraps=1)
"""A quarter of the example's pixels."""


def test_a_network_with_attention_learns_the_shapes(example: ModuleType, without_checks: WithoutChecks) -> None:
    """With fewer pictures than in the example; chance accuracy is one sixth."""
    task = example.make_task(SMALL, updates=150, rate=0.006, tested=300)
    with without_checks():
        network, seconds = example.train(task, "bam")
    found = example.evaluate(task, network, seconds)
    assert found.accuracy >= 0.7
    assert found.on_shape is not None


@pytest.mark.parametrize("name", ["se", "eca", "cbam", "bam", "shuffle", "sge", "polarized", "coordinate"])
def test_every_module_trains(example: ModuleType, name: ImageAttentionName) -> None:
    """A network memorizes a few pictures, and all parameters of its attention change."""
    task = example.make_task(SMALL, updates=1, rate=0.01)
    few = task.batches[0].part(0, 24)
    task = example.Task(SMALL, [few] * 25, few, task.rate, task.seed, widths=(8, 16))
    torch.manual_seed(task.seed)
    fresh = ImageClassifier(ImageConfig(classes=len(SHAPES), widths=task.widths, attention=name))
    network, seconds = example.train(task, name)
    with torch.no_grad():
        before, after = (one.train().loss(*few.inputs, smoothing=0.0).nll.item() for one in (fresh, network))
    assert after < before / 2
    for began, ended in zip(fresh.attention, network.attention, strict=True):
        moved = [not torch.equal(*pair) for pair in zip(began.parameters(), ended.parameters(), strict=True)]
        assert all(moved)
    assert example.evaluate(task, network.eval(), seconds).of_attention > 0


def test_maps_on_and_beside_the_shape(example: ModuleType) -> None:
    cover = torch.zeros(2, 4, 4)
    cover[:, :2, :2] = 1
    maps = torch.ones(2, 3, 2, 2)
    assert example.on_shape(maps, cover) == 1
    maps[:, :, 0, 0] = 3
    assert example.on_shape(maps, cover) == pytest.approx(3)
    assert example.on_shape(torch.ones(2, 3, 1, 1), cover) is None


def test_what_it_prints_and_draws(example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    words = ["--attention", "none", "eca", "sge", "--updates", "2", "--maps", str(tmp_path / "maps.png")]
    example.main(words)
    printed = capsys.readouterr().out
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +([\d,]+) +[\d.]+% +(-|[\d.]+) +\d+$", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["none", "eca", "sge"]
    parameters = [int(row[1].replace(",", "")) for row in rows]
    of_attention = [int(row[2].replace(",", "")) for row in rows]
    assert [whole - own for whole, own in zip(parameters, of_attention, strict=True)] == [parameters[0]] * 3
    assert of_attention == [0, 3 * 3, 3 * 2 * 4]
    assert [row[4] for row in rows[:2]] == ["-", "-"]
    assert imread(tmp_path / "maps.png").shape[0] > 100 * len(SHAPES) / 2


def test_every_name_is_compared_and_a_wrong_one_refused(example: ModuleType) -> None:
    assert len(example.NAMES) == 9
    assert list(example.parse_arguments(["--quick"]).attention) == list(example.NAMES)
    with pytest.raises(SystemExit):
        example.parse_arguments(["--attention", "cbma"])
