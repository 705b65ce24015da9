"""Averages of models: the arithmetic mean of each tensor, saved as an ordinary model folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from multihead import Translator, __version__
from multihead.bundle import load_bundle, save_bundle
from multihead.errors import ConfigurationError, FormatError
from multihead.models.transformer import Transformer
from multihead.runs.average import average, mean
from multihead.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tests.conftest import Numbers


@pytest.fixture(scope="module")
def run(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with four checkpoints, of updates 2, 4, 6 and 8."""
    output = tmp_path_factory.mktemp("averaged") / "run"
    short = {"updates": 8, "validate_every": 2, "keep_checkpoints": 4}
    numbers.learn(output, **numbers.train, **numbers.valid, **{**numbers.settings, **short})
    return output


def untrained(like, output, **changes):
    """A model with the subwords of another one, where their numbers agree, and with other settings."""
    given = load_bundle(like)
    shape = given.model.config.model_copy(update=changes)
    target = given.target_tokenizer
    if shape.target_vocab != len(target):
        target = Tokenizer.learn(["eins zwei drei vier fünf sechs"] * 30, shape.target_vocab)
        shape = shape.model_copy(update={"target_vocab": len(target)})
    save_bundle(output, replace(given, model=Transformer(shape), target_tokenizer=target), {}, "Untrained.")


def quiet(*folders, **options):
    return average(*folders, say=lambda _: None, **options)


def weights(folder):
    return load_file(folder / "model.safetensors")


# ------------------------------------------------------------------------------------------ the arithmetic


def test_it_is_the_arithmetic_mean_rounded_once():
    """Compared with exact fractions, for values of very different magnitudes."""
    torch.manual_seed(0)
    models = [{"a": torch.randn(3, 4) * 10.0**power, "b": torch.randn(5)} for power in (-6, 0, 3)]
    found = mean(iter(models))
    for name in ("a", "b"):
        exact = [
            sum(map(Fraction, values)) / 3 for values in zip(*(m[name].flatten().tolist() for m in models), strict=True)
        ]
        assert found[name].dtype == torch.float32
        assert found[name].flatten().tolist() == torch.tensor([float(value) for value in exact]).tolist()


def test_the_mean_of_a_model_with_itself_is_that_model(run, tmp_path):
    quiet(run, run, run, output=tmp_path / "mean")
    found, given = weights(tmp_path / "mean"), weights(run / "best")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


@pytest.mark.parametrize(("which", "part"), [(None, "model"), ("trained", "model"), ("average", "average")])
def test_the_last_checkpoints_of_a_run(run, tmp_path, which, part):
    quiet(run, last=3, weights=which, output=tmp_path / "mean")
    parts = [load_file(run / "checkpoints" / f"{step:08d}" / f"{part}.safetensors") for step in (4, 6, 8)]
    for name, tensor in weights(tmp_path / "mean").items():
        assert torch.equal(tensor, (sum(p[name].double() for p in parts) / 3).float())


def test_the_end_of_a_run_as_a_model(run, tmp_path):
    quiet(run, last=1, weights="average", output=tmp_path / "end")
    end, found = load_file(run / "checkpoints/00000008/average.safetensors"), weights(tmp_path / "end")
    assert found.keys() == end.keys()
    assert all(torch.equal(tensor, end[name]) for name, tensor in found.items())
    assert f"The weights by multihead {__version__}: {run}, update 8" in (tmp_path / "end/README.md").read_text()


def test_order_does_not_matter_beyond_rounding(run, tmp_path):
    runs = [run, shutil.copytree(run, tmp_path / "other")]
    for place, folders in enumerate((runs, runs[::-1])):
        quiet(*folders, last=2, output=tmp_path / str(place))
    one, other = weights(tmp_path / "0"), weights(tmp_path / "1")
    assert all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------ the folder


def test_it_translates_and_says_what_it_is_the_mean_of(run, tmp_path):
    said = []
    average(run, last=2, output=tmp_path / "mean", say=said.append)
    names = f"{run}, update 6 (trained weights); {run}, update 8 (trained weights)"
    assert json.loads((tmp_path / "mean" / "metrics.json").read_text(encoding="utf-8")) == {"mean_of": names}
    card = (tmp_path / "mean" / "README.md").read_text(encoding="utf-8")
    assert f"The mean of 2 models by multihead {__version__}: {names}." in card
    assert said == [f"{tmp_path / 'mean'}: the mean of {names}"]
    one, other = (Translator.load(folder).bundle for folder in (run, tmp_path / "mean"))
    assert one.generation == other.generation
    assert one.source_tokenizer.digest == other.source_tokenizer.digest
    assert (other.source_language, other.target_language) == ("de", "en")
    assert len(Translator.load(tmp_path / "mean").translate(["eins", "", "zwei"])) == 3


def test_nothing_of_the_models_is_touched(run, numbers, tmp_path):
    before = numbers.contents(run)
    quiet(run, run / "best", output=tmp_path / "mean")
    quiet(run, last=4, output=tmp_path / "other")
    assert numbers.contents(run) == before


# ------------------------------------------------------------------------------------------ what has none


def test_more_checkpoints_than_there_are(run, tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"5 checkpoints asked for, but .* updates 8, 6, 4, 2 are there.*--keep-ch"
    ):
        quiet(run, last=5, output=tmp_path / "mean")
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "checkpoints" / "00000006" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="updates 8, 4, 2 are there"):
        quiet(damaged, last=4, output=tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"width": 16}, "width is 32 in the first and 16 in the second"),
        (
            {"norm": "post", "heads": 1},
            "heads is 2 in the first and 1 in the second; norm is pre in the first and post",
        ),
        (
            {"target_vocab": 310, "tie_embeddings": False},
            r"target_vocab is 320 in the first and \d+ in the second;.*the target subwords differ",
        ),
    ],
)
def test_models_that_have_no_mean(run, numbers, tmp_path, wishes, said):
    untrained(run, tmp_path / "other", **wishes)
    with pytest.raises(ConfigurationError, match=said):
        quiet(run, tmp_path / "other", output=tmp_path / "mean")


def test_another_dropout_does_not_matter(run, numbers, tmp_path):
    untrained(run, tmp_path / "other", dropout=0.4, residual_dropout=0.1)
    assert quiet(run, tmp_path / "other", output=tmp_path / "mean") == tmp_path / "mean"


@pytest.mark.parametrize(
    ("folders", "options", "error", "said"),
    [
        (["run"], {}, ConfigurationError, "the mean of one model is that model"),
        (["run"], {"last": 0}, ConfigurationError, "last is 0"),
        (["run", "run"], {"weights": "average"}, ConfigurationError, "give last, too"),
        (["run/best"], {"last": 2}, FormatError, "is a model, not a run"),
        (["run", "nowhere"], {}, FormatError, "no such folder"),
        (["run", "run"], {"output": "run"}, ConfigurationError, "exists already; nothing was overwritten"),
        (["run", "run"], {"output": "run/run.json"}, ConfigurationError, "is a file; give the name of a new folder"),
    ],
)
def test_what_cannot_be_asked(run, numbers, tmp_path, folders, options, error, said):
    before = numbers.contents(run.parent)
    options = {"output": tmp_path / "mean", **options}
    options["output"] = run.parent / options["output"]
    with pytest.raises(error, match=said):
        quiet(*(run.parent / folder for folder in folders), **options)
    assert numbers.contents(run.parent) == before
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_moving_average_has_none_to_take(numbers, tmp_path):
    short = {"updates": 2, "validate_every": 1, "average": 0.0}
    numbers.learn(tmp_path / "run", **numbers.train, **numbers.valid, **{**numbers.settings, **short})
    with pytest.raises(ConfigurationError, match="keeps no moving average"):
        quiet(tmp_path / "run", last=2, weights="average", output=tmp_path / "mean")
    quiet(tmp_path / "run", last=2, output=tmp_path / "mean")
