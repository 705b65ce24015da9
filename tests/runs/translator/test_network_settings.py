"""Runs with settings of the network: stopped and resumed, searched by compiled code, refused by other formats."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead import Translator
from multihead.errors import Interrupted, MultiheadError
from multihead.interop.exporting import export_model
from multihead.planning.settings import read_run

if TYPE_CHECKING:
    from tests.conftest import Numbers

NETWORK: dict[str, Any] = {"positions": "shaw", "relative_distance": 3, "block": "parallel"}
REASONS = ("relative positions of keys and values", "parallel blocks")


def test_a_run_resumes_and_its_model_is_searched_but_not_exported(numbers: Numbers, tmp_path: Path) -> None:
    """Stopped and resumed, all files are those of the run that was not, with dropout."""
    short = {"updates": 4, "validate_every": 2, "log_every": 1, "dropout": 0.2, "threads": 1}
    wishes = {**numbers.settings, **short, **NETWORK, **numbers.test, **numbers.valid}
    whole, again, polls = tmp_path / "whole", tmp_path / "again", itertools.count(1)
    numbers.learn(whole, **wishes)
    with pytest.raises(Interrupted):
        numbers.learn(again, **wishes, stop_signal=lambda: signal.SIGINT if next(polls) == 5 else None)
    numbers.learn(again, **wishes)
    one, other = (numbers.contents(run, without=("timing.jsonl", "log.txt")) for run in (whole, again))
    last = {name for name in one if "checkpoints/00000002" not in name}  # older ones depend on when a run was stopped
    assert {name: one[name] for name in last} == {name: other.get(name) for name in last}
    assert "checkpoints/00000004/optimizer.safetensors" in last
    config = read_run(whole)
    assert config is not None
    assert {name: getattr(config.model, name) for name in NETWORK} == NETWORK

    translator = Translator.load(whole)
    assert translator.compiled
    assert len(translator.translate(["eins", "zwei drei"], beam=2)) == 2
    for format_ in ("ctranslate2", "onnx", "web", "transformers"):
        with pytest.raises(MultiheadError) as refusal:
            export_model(whole, format_, tmp_path / format_)
        reasons = REASONS[:1] if format_ == "web" else REASONS
        assert all(reason in str(refusal.value) for reason in reasons)
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / format_).exists()
