"""The demo: short here, in full in `make proofs`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from multihead import demo as demo_module
from multihead.demo import demo
from multihead.errors import ConfigurationError

PATTERNS = {"date", "time", "datetime", "unit", "currency"}


def test_the_demo_goes_all_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an almost untrained network, files, run, scores and picture exist all the same."""
    monkeypatch.setattr(demo_module, "TRAIN", 600)
    monkeypatch.setattr(demo_module, "VALID", 20)
    monkeypatch.setattr(demo_module, "TEST", 40)
    said = []
    small = {"width": 16, "inner": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 400}
    quick = {"updates": 4, "validate_every": 4, "warmup": 2, "log_every": 2, "batch_tokens": 512, "beam": 2}
    result = demo(tmp_path / "demo", say=said.append, **small, **quick)
    assert set(result.exact) == PATTERNS
    assert 0 <= result.exact_in_all <= 1
    assert "tok:13a" in result.scores.bleu_signature
    assert result.picture.read_bytes().startswith(b"\x89PNG")
    sources = (tmp_path / "demo" / "data-de-en" / "train.de").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(sources) == len(set(sources)) == 600
    text = "\n".join(said)
    assert all(pattern in text for pattern in PATTERNS)
    assert (tmp_path / "demo" / "run-de-en" / "best" / "model.safetensors").is_file()


def test_hidden_files_are_no_reason_to_refuse_a_folder(tmp_path: Path) -> None:
    """Files of the system, and files that a killed demo left."""
    for name in (".DS_Store", ".attention-de-en.png.unfinished-17", "attention-de-en.png"):
        (tmp_path / name).touch()
    demo_module._check_folder(tmp_path)
    (tmp_path / "notes").touch()
    with pytest.raises(ConfigurationError, match=r"holds something that is not a demo \(notes\)"):
        demo_module._check_folder(tmp_path)


@pytest.mark.proof
def test_the_demo_learns_its_task_in_three_minutes(tmp_path: Path) -> None:
    """The requirement for two cores: 97% overall and 90% of each pattern within three minutes."""
    started = time.monotonic()
    result = demo(tmp_path / "demo")
    seconds = time.monotonic() - started
    assert result.exact_in_all >= 0.97
    assert min(result.exact.values()) >= 0.90
    assert seconds < 180
