"""Training on real text with no options except file names: half an hour on two cores. `make proofs` runs it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from multihead.judging.evaluate import evaluate

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "multi30k"


@pytest.mark.proof
@pytest.mark.skipif(not DATA.is_dir(), reason="Multi30k is not beside the repository (../shared/data/multi30k)")
def test_german_to_english_reaches_40_bleu_within_30_minutes(tmp_path):
    run = tmp_path / "run"
    files = {
        "--source": DATA / "train.de.gz",
        "--target": DATA / "train.en.gz",
        "--valid-source": DATA / "val.de.gz",
        "--valid-target": DATA / "val.en.gz",
        "--output": run,
    }
    command = [sys.executable, "-m", "multihead", "train", *(str(word) for pair in files.items() for word in pair)]
    started = time.monotonic()
    subprocess.run(command, check=True)
    minutes = (time.monotonic() - started) / 60
    result = evaluate(run, DATA / "test_2016_flickr.de.gz", DATA / "test_2016_flickr.en.gz")
    print(f"{minutes:.1f} minutes\n{result.scores}")
    assert minutes <= 30
    assert result.scores.bleu >= 40.0
