"""Fine-tuning runs start with the weights, sizes and subwords of a given model, and do not need it afterwards."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from multihead import Translator
from multihead.bundle import load_bundle
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import sha256_of
from multihead.planning.settings import RunConfig
from multihead.preparing.prepare import prepare

if TYPE_CHECKING:
    from tests.conftest import Numbers


SHORT = {"updates": 9, "validate_every": 3, "log_every": 3, "threads": 1, "precision": "float32", "keep_checkpoints": 9}


@pytest.fixture(scope="module")
def news(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A corpus new to the given model: rows of number words in another order."""
    folder = tmp_path_factory.mktemp("news")
    pairs = [(f"{source} neun null", f"{target} nine zero") for source, target in numbers.pairs(120, 77)]
    return {**numbers.write(folder, "news", pairs), **numbers.valid}


@pytest.fixture(scope="module")
def tuned(trained: Path, news: dict[str, Any], numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fine-tuning run."""
    output = tmp_path_factory.mktemp("tuned") / "run"
    numbers.learn(output, from_model=trained, **news, **SHORT)
    return output


def config_of(run):
    return RunConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))


def validations(run):
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return {r["step"]: r for r in map(json.loads, lines) if r["kind"] == "validation"}


# ------------------------------------------------------------------------------------------ what it starts from


@pytest.mark.parametrize("average", [0.9, 0.0])
def test_it_starts_with_the_given_weights_bit_for_bit(trained, news, numbers, tmp_path, average):
    polls = iter([None, signal.SIGINT])  # first poll: text prepared; second: before update 1
    wishes = {**news, **SHORT, "average": average}
    with pytest.raises(Interrupted, match="after update 0"):
        numbers.learn(tmp_path / "run", from_model=trained, stop_signal=lambda: next(polls), **wishes)
    given = load_file(trained / "best" / "model.safetensors")
    for place in ("checkpoints/00000000/model.safetensors", "best/model.safetensors"):
        found = load_file(tmp_path / "run" / place)
        assert found.keys() == given.keys()
        assert all(torch.equal(found[name], given[name]) for name in given)
    assert (
        load_file(tmp_path / "run/checkpoints/00000000/average.safetensors").keys() == (given if average else {}).keys()
    )


def test_it_is_judged_before_the_first_update(trained, tuned, numbers):
    """The scores are those of `evaluate`, so the log shows the improvement."""
    from multihead import evaluate

    found = evaluate(trained, numbers.valid["valid_source"], numbers.valid["valid_target"], beam=1)
    assert validations(tuned)[0]["bleu"] == pytest.approx(found.scores.bleu, abs=1e-9)
    assert list(validations(tuned)) == [0, 3, 6, 9]


def test_what_run_json_says_of_it(trained, tuned):
    config, given = config_of(tuned), load_bundle(trained)
    assert config.from_model.path == str(trained)
    assert config.from_model.weights == sha256_of(trained / "best" / "model.safetensors")
    assert config.model == given.model.config
    assert config.generation == given.generation
    assert (config.data.source_language, config.data.target_language) == ("de", "en")
    assert config.reasons["width"] == config.reasons["vocab_size"] == config.reasons["dropout"] == "the given model's"
    assert (config.data.vocab_size, config.data.min_frequency) == (len(given.target_tokenizer), None)
    card = (tuned / "best" / "README.md").read_text(encoding="utf-8")
    assert f"on 120 sentence pairs, from a model whose weights are {config.from_model.weights[:12]}" in card


def test_it_keeps_the_subwords(trained, tuned):
    for side in ("source", "target"):
        names = [f"{side}_tokenizer"] * 2
        one, other = (getattr(load_bundle(folder), name) for folder, name in zip((trained, tuned), names, strict=True))
        assert one.digest == other.digest


def test_a_run_that_only_does_harm_keeps_the_given_model(trained, news, numbers, tmp_path):
    result = numbers.learn(
        tmp_path / "run", from_model=trained, **news, **{**SHORT, "updates": 3, "learning_rate": 0.5, "average": 0.0}
    )
    assert result.best_step == 0
    given = load_file(trained / "best" / "model.safetensors")
    assert all(torch.equal(given[k], v) for k, v in load_file(tmp_path / "run/best/model.safetensors").items())


def test_it_learns_faster_than_from_nothing(trained, tuned, news, numbers, tmp_path):
    """Compares the loss on the new corpus, update by update."""
    sizes = {name: numbers.settings[name] for name in ("width", "heads", "inner", "encoder_layers", "decoder_layers")}
    numbers.learn(tmp_path / "run", vocab_size=320, **news, **sizes, **{**SHORT, "validate_every": 9})
    logs = [
        [json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines() if '"train"' in line]
        for run in (tuned, tmp_path / "run")
    ]
    assert len(logs[0]) == len(logs[1]) == 3
    assert all(tuned < new for tuned, new in zip(*logs, strict=True))
    assert logs[0][-1] < logs[0][0]


# ------------------------------------------------------------------------------------------ stopped, gone on with


@pytest.mark.parametrize("polls", [2, 3, 7])
def test_it_goes_on_without_the_folder_it_came_from(trained, tuned, news, numbers, tmp_path, polls):
    """Stopped before update 1, after it, and later; the given model is deleted before resuming."""
    given = shutil.copytree(trained / "best", tmp_path / "given")
    signals = iter([None] * (polls - 1) + [signal.SIGTERM])
    with pytest.raises(Interrupted):
        numbers.learn(tmp_path / "run", from_model=given, stop_signal=lambda: next(signals), **news, **SHORT)
    shutil.rmtree(given)
    numbers.learn(tmp_path / "run", from_model=given, **news, **SHORT)
    for name in ("checkpoints/00000009", "best"):
        found, expected = (numbers.contents(run / name, without=("README.md",)) for run in (tmp_path / "run", tuned))
        assert found == expected
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (tuned / "log.jsonl").read_bytes()


class Killed(BaseException):
    """Simulates a killed process."""


@pytest.mark.parametrize(
    ("place", "after"), [("work_folder.write", False), ("work_folder.write", True), ("TranslatorJudge.save", True)]
)
def test_killed_around_its_beginning(trained, tuned, news, numbers, tmp_path, monkeypatch, place, after):
    from multihead.runs.translator import begin, train

    owner, name = place.split(".")
    owner = {"work_folder": begin.work_folder, "TranslatorJudge": train.TranslatorJudge}[owner]
    original = getattr(owner, name)

    def dies(*args, **kwargs):
        if after:
            original(*args, **kwargs)
        patch.setattr(begin.work_folder, "_empty", lambda *_: None)  # a killed process does not clean up
        patch.setattr(begin.work_folder.Path, "unlink", lambda *_, **__: None)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            numbers.learn(tmp_path / "run", from_model=trained, **news, **SHORT)
    numbers.learn(tmp_path / "run", from_model=trained, **news, **SHORT)
    assert numbers.contents(tmp_path / "run" / "best") == numbers.contents(tuned / "best")
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (tuned / "log.jsonl").read_bytes()


# ------------------------------------------------------------------------------------------ what may be asked


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"width": 64}, "width is 32, but 64 was requested"),
        ({"heads": 4, "norm": "post"}, "heads is 2, but 4 was requested; norm is pre, but post was requested"),
        ({"preset": "tiny"}, "width is 32, but 128 was requested"),
        ({"preset": "tyni"}, "the transformer model has no preset"),
        ({"positions": "learned"}, "positions is sinusoidal, but learned was requested"),
        ({"tie_output": False}, "tie_output is True, but False was requested"),
        ({"vocab_size": 320}, "from_model and vocab_size exclude each other"),
        ({"coverage": 0.5}, "from_model and coverage exclude each other"),
    ],
)
def test_wishes_that_the_weights_do_not_allow(trained, news, numbers, tmp_path, wishes, said):
    with pytest.raises(ConfigurationError, match=said):
        numbers.learn(tmp_path / "run", from_model=trained, **news, **{**SHORT, **wishes})
    assert list(tmp_path.iterdir()) == []


def test_what_is_free(trained, news, numbers, tmp_path):
    free = {"dropout": 0.4, "attention_dropout": 0.1, "residual_dropout": 0.3, "bpe_dropout": 0.1, "smoothing": 0.2}
    wishes = {**SHORT, **free, "width": 32, "schedule": "constant", "beam": 3, "updates": 3}
    numbers.learn(tmp_path / "run", from_model=trained, **news, **wishes)
    config = config_of(tmp_path / "run")
    assert (config.model.dropout, config.model.attention_dropout, config.model.residual_dropout) == (0.4, 0.1, 0.3)
    assert (config.training.bpe_dropout, config.training.smoothing, config.generation.beam) == (0.1, 0.2, 3)
    assert Translator.load(tmp_path / "run").translate(["eins"])


def test_what_the_text_does_not_say_of_its_languages_the_model_does(trained, numbers, tmp_path):
    pairs = "".join(f"{source}\t{target}\n" for source, target in numbers.pairs(30, 5))
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    numbers.learn(tmp_path / "run", from_model=trained, source=tmp_path / "pairs.tsv", **{**SHORT, "updates": 1})
    config = config_of(tmp_path / "run")
    assert (config.data.source_language, config.data.target_language) == ("de", "en")
    assert config.reasons["target_language"] == "the given model's"
    assert Translator.load(tmp_path / "run").bundle.target_language == "en"


def test_a_model_that_is_none(numbers, news, tmp_path):
    with pytest.raises(FormatError, match="no such folder"):
        numbers.learn(tmp_path / "run", from_model=tmp_path / "nowhere", **news)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ prepared text


def test_prepared_text_needs_the_same_subwords(trained, news, tuned, numbers, tmp_path):
    prepare(output=tmp_path / "other", vocab_size=300, say=lambda _: None, **news)
    with pytest.raises(ConfigurationError, match=r"source subwords are not those of the model.*prepare --from-model"):
        numbers.learn(tmp_path / "run", from_model=trained, data=tmp_path / "other", **SHORT)
    assert not (tmp_path / "run").exists()
    prepare(output=tmp_path / "same", from_model=trained, say=lambda _: None, **news)
    numbers.learn(tmp_path / "run", from_model=trained, data=tmp_path / "same", **SHORT)
    assert numbers.contents(tmp_path / "run" / "checkpoints") == numbers.contents(tuned / "checkpoints")
