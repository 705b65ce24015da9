"""Runs of every version of run.json, stored in tests/run_folders, can be read, resumed and used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from multihead import Translator, work_folder
from multihead.errors import ConfigurationError, FormatError
from multihead.planning.settings import RUN_VERSION, RunConfig, TrainSettings, read_run
from multihead.preparing.prepared import open_prepared
from multihead.runs.average import average

FOLDERS = Path(__file__).parent.parent / "run_folders"
VERSIONS = sorted(int(path.name.removeprefix("v")) for path in FOLDERS.glob("v*"))


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(FOLDERS / f"v{request.param}", tmp_path / "run")


def test_the_versions_before_this_one_are_here():
    assert [*range(1, RUN_VERSION)] == [version for version in VERSIONS if version < RUN_VERSION]


def test_its_decisions_are_read(old):
    config = read_run(old)
    written = json.loads((old / "run.json").read_text(encoding="utf-8"))
    assert config.format_version == written["format_version"]
    for name, values in (("model", config.model), ("training", config.training), ("generation", config.generation)):
        for field, value in written[name].items():
            assert getattr(values, field) == value, field
    (corpus,) = config.data.corpora
    assert [file.path for file in corpus.files] == ["train.de", "train.en"]
    assert (corpus.pairs, corpus.weight, corpus.held_out) == (config.data.pairs, 1.0, config.data.held_out)
    assert open_prepared(old, config.data).shares == ()


def test_it_goes_on_and_translates(old, numbers):
    said = []
    result = numbers.learn(old, say=said.append)
    assert said[0] == "going on after update 6 of 12"
    assert result.updates == 12
    assert len(Translator.load(old).translate(["eins", "zwei"])) == 2
    steps = [json.loads(line)["step"] for line in (old / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == [2, 4, 4, 6, 8, 8, 10, 12, 12]


def test_its_settings_are_still_compared(old, numbers):
    settings = TrainSettings(width=8, updates=12, source="train.de")
    work_folder.check_same_settings(old, work_folder.given_settings(settings), read_run(old).asked)
    with pytest.raises(ConfigurationError, match="width was 8, now 16"):
        numbers.learn(old, width=16)


def test_its_checkpoints_have_a_mean(old, tmp_path):
    average(old, old, last=1, output=tmp_path / "mean", say=lambda _: None)
    assert Translator.load(tmp_path / "mean").bundle.model.config.width == 8


def test_a_run_of_a_newer_version_is_refused(old, numbers):
    content = json.loads((old / "run.json").read_text(encoding="utf-8"))
    content["format_version"] = RUN_VERSION + 1
    (old / "run.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="a newer multihead began this run"):
        numbers.learn(old)


def test_version_1_with_validation_files():
    """Version 1 is converted with its validation files."""
    data = json.loads((FOLDERS / "v1" / "run.json").read_text(encoding="utf-8"))["data"]
    files = data["files"] | {"valid_source": {"path": "v.de", "sha256": "0", "lines": 7}}
    files["valid_target"] = files["valid_source"] | {"path": "v.en"}
    config = RunConfig.model_fields["data"].annotation(**{**data, "files": files, "held_out": 0})
    assert [file.path for file in config.valid.files] == ["v.de", "v.en"]
    assert [file.path for file in config.corpora[0].files] == ["train.de", "train.en"]
