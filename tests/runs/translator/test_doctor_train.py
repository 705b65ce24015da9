"""The quick check of `train`: reported before the first update, without effect on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multihead import Translator
from multihead.diagnosis import doctor as doctor_quick
from multihead.diagnosis.doctor import doctor
from multihead.errors import DataError
from multihead.runs.translator import begin

pytestmark = pytest.mark.usefixtures("one_thread", "look_for_faults")

SHORT: dict[str, Any] = {"updates": 3, "validate_every": 3, "log_every": 1}


def trained_with(numbers: Any, output: Path, **wishes: Any) -> list[str]:
    said: list[str] = []
    numbers.learn(output, say=said.append, **{**numbers.settings, **SHORT, **numbers.valid, **wishes})
    return said


def test_it_is_said_before_the_first_update_and_changes_nothing(
    numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = trained_with(numbers, tmp_path / "with", **numbers.train)
    (place,) = [place for place, line in enumerate(said) if line.startswith("looked for faults")]
    assert f"multihead doctor {tmp_path / 'with'}" in said[place]
    assert place < min(number for number, line in enumerate(said) if "loss" in line and "looked" not in line)
    assert said[place] in (tmp_path / "with" / "log.txt").read_text(encoding="utf-8")
    wishes = {**numbers.settings, **SHORT, **numbers.train, **numbers.valid}
    assert f": {doctor(**wishes, quick=True).counted()};" in said[place]
    monkeypatch.setattr(begin, "log_quick_check", lambda *_: None)
    trained_with(numbers, tmp_path / "without", **numbers.train)
    weights = [(tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert weights[0] == weights[1]


def test_faults_are_said_with_their_lines_and_stop_nothing(numbers: Any, tmp_path: Path) -> None:
    pairs = numbers.pairs(600, 5)
    for line in (20, 70, 400):
        pairs[line - 1] = ("sechs sieben acht neun zehn", "sechs sieben acht neun zehn")
    pairs[99] = ("three four five seven eight", "drei vier fünf sieben acht")
    said = trained_with(numbers, tmp_path / "run", **numbers.write(tmp_path, "some", pairs))
    grave = [line for line in said if line.startswith(("  warning ", "  error "))]
    assert any("swapped-pairs" in line and "(line 100)" in line for line in grave)
    assert not any("equal-sides" in line for line in grave)  # 3 of 600: a note, which is only counted
    assert len(Translator.load(tmp_path / "run").translate(["eins"])) == 1


def test_files_that_are_gone_stop_nothing(numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise DataError("there is no such file; check the name", "train.de")

    monkeypatch.setattr(doctor_quick, "diagnose", gone)
    said = trained_with(numbers, tmp_path / "run", **numbers.train)
    assert "not looked for faults: train.de: there is no such file; check the name" in said
    assert (tmp_path / "run" / "best").exists()
