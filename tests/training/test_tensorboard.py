"""TensorBoard events: content, and replacement by a resumed run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from multihead.errors import MissingDependencyError
from multihead.training.tensorboard import FOLDER, TensorBoard


def read(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / FOLDER), purge_orphaned_data=True)
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_scalars_come_back_under_their_names(tmp_path: Path) -> None:
    write = TensorBoard(tmp_path)
    write("train", 3, {"loss": 2.5, "epoch": 1}, {"tokens_per_second": 1000.0})
    write("validation", 3, {"bleu": 41.25, "sample": {"source": "a", "translation": "b"}}, {"seconds": 2.0})
    assert read(tmp_path) == {
        "train/loss": {3: 2.5},
        "train/epoch": {3: 1.0},
        "timing/tokens_per_second": {3: 1000.0},
        "validation/bleu": {3: 41.25},
        "timing/seconds": {3: 2.0},
    }


def test_going_on_replaces_later_records(tmp_path: Path) -> None:
    write = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        write("train", step, {"loss": float(step)}, {})
    again = TensorBoard(tmp_path, after=10)
    again("train", 20, {"loss": 21.0}, {})
    assert read(tmp_path)["train/loss"] == {10: 10.0, 20: 21.0}


def test_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it raises
    with pytest.raises(MissingDependencyError, match=r'pip install "multihead\[tensorboard\]"'):
        TensorBoard(tmp_path)
