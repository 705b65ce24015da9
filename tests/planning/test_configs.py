"""Each shipped configuration trains: here with small networks, in `make proofs` in full size."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from multihead import Translator
from multihead.configuration import build
from multihead.planning.settings import RunConfig, TrainSettings

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
TINY = {"width": 16, "heads": 2, "inner": 16, "encoder_layers": 1, "decoder_layers": 1, "batch_tokens": 512}
"""Small sizes for the short tests; all other settings are those of the file."""
SHORT = {"updates": 20, "validate_every": 20, "log_every": 5, "threads": 1}


def learn(path, numbers, trained, output, **changes):
    """Train for 20 updates with a file's settings and ``changes``, on a tiny corpus."""
    wishes = tomllib.loads(path.read_text(encoding="utf-8")) | SHORT | changes
    if path.stem == "fine-tune":  # as its comment says, these are given on the command line
        wishes = {name: value for name, value in wishes.items() if name not in TINY} | {"from_model": trained}
        wishes["corpus"] = [{**numbers.train, "weight": 0.05}, {**numbers.test, "weight": 2.0}]
    else:
        wishes |= numbers.test
    numbers.learn(output, **wishes, **numbers.valid)
    return wishes


def check(output, wishes):
    config = RunConfig.model_validate_json((output / "run.json").read_text(encoding="utf-8"))
    decided = {**config.data.model_dump(), **config.model.model_dump(), **config.training.model_dump()}
    decided |= config.generation.stored_values()
    for name, value in wishes.items():
        if name in decided:
            assert decided[name] == value, name
        assert config.reasons.get(name, "as asked") in ("as asked", "the given model's"), name
    records = [json.loads(line) for line in (output / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert records[-1]["step"] == 20
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] + 0.1
    assert len(Translator.load(output).translate(["eins", ""], beam=1)) == 2


def test_there_are_some():
    assert {"multi30k-tiny", "paper-base", "low-resource", "fine-tune"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_trains(path, numbers, trained, tmp_path):
    wishes = learn(path, numbers, trained, tmp_path / "run", **TINY)
    check(tmp_path / "run", wishes)


@pytest.mark.proof
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_trains_in_its_full_size(path, numbers, trained, tmp_path):
    wishes = learn(path, numbers, trained, tmp_path / "run", accumulate=1)
    check(tmp_path / "run", wishes)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_its_comment_says_how_to_use_it(path):
    text = path.read_text(encoding="utf-8")
    assert f"--config configs/{path.name}" in text
    for word in re.findall(r"--([a-z-]+)", text):
        name = word.replace("-", "_")
        assert name in TrainSettings.model_fields or word in ("config", "last"), word
    for name in re.findall(r"\b(\w+) = ", text):
        assert name in TrainSettings.model_fields, name
    build(TrainSettings, tomllib.loads(text), path.name)


def test_the_table_names_each():
    text = (CONFIGS[0].parent / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE)) == [path.name for path in CONFIGS]
