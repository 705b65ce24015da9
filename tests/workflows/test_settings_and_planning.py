"""What a user may say, and what is decided where nothing was said: always with a reason, never against the user."""

import json
import tomllib

import pytest
import torch
from click.testing import CliRunner

from multihead.cli.main import multihead
from multihead.cli.options import with_file
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.training.config import TrainingConfig
from multihead.workflows import planning
from multihead.workflows.machine import Machine, inspect_machine, require_device
from multihead.workflows.planning import Choices, Corpus, Pace
from multihead.workflows.settings import RunConfig, TrainSettings

SLOW = Machine(2, "cpu", False, "two cores")
FAST = Machine(8, "cuda", True, "a GPU")
FILES = {"source", "target", "valid_source", "valid_target", "output"}

OTHER = {
    "source": "a.de",
    "target": "a.en",
    "valid_source": "v.de",
    "valid_target": "v.en",
    "output": "out",
    "source_language": "fr",
    "target_language": "zh",
    "preset": "tiny",
    "vocab_size": 777,
    "shared_vocabulary": False,
    "max_tokens": 33,
    "held_out": 17,
    "width": 48,
    "heads": 6,
    "inner": 99,
    "encoder_layers": 5,
    "decoder_layers": 7,
    "dropout": 0.33,
    "attention_dropout": 0.07,
    "norm": "post",
    "tie_embeddings": False,
    "tie_output": False,
    "updates": 1234,
    "budget": "1h30m",
    "batch_tokens": 321,
    "accumulate": 3,
    "schedule": "noam",
    "learning_rate": 0.123,
    "warmup": 45,
    "smoothing": 0.22,
    "clip": 0.5,
    "weight_decay": 0.01,
    "average": 0.5,
    "validate_every": 11,
    "patience": 4,
    "log_every": 6,
    "precision": "float32",
    "threads": 1,
    "device": "cpu",
    "keep_checkpoints": 5,
    "beam": 9,
    "alpha": 0.7,
    "seed": 42,
}
"""A value for every field that nothing would choose by itself."""
EXCLUDED = {"held_out": {"valid_source", "valid_target"}, "budget": {"updates"}}
"""Fields that exclude others."""


def without(*names):
    return {name: value for name, value in OTHER.items() if name not in names}


# ------------------------------------------------------------------------------------------ one mechanism


def test_the_example_has_every_field():
    assert OTHER.keys() == TrainSettings.model_fields.keys()


def flags_of(values):
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


@pytest.fixture
def received(monkeypatch):
    """What ``multihead train`` hands to the workflow."""
    got = {}
    monkeypatch.setattr("multihead.workflows.train.train", lambda **wishes: got.update(wishes))
    monkeypatch.setattr("multihead.cli.process.own_the_process", lambda: None)
    monkeypatch.setattr("multihead.cli.process.StopSignal", lambda: None)

    def call(*words):
        result = CliRunner().invoke(
            multihead, ["train", *map(str, words)], catch_exceptions=False, standalone_mode=False
        )
        assert result.exit_code == 0
        wishes = {name: value for name, value in got.items() if name not in ("say", "stop_signal", "use_threads")}
        got.clear()
        return TrainSettings(**wishes)

    return call


def toml_of(values):
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@pytest.mark.parametrize("left_out", [["held_out", "budget"], ["valid_source", "valid_target", "updates"]])
def test_flags_toml_and_python_say_the_same(received, tmp_path, left_out):
    values = without(*left_out)
    expected = TrainSettings(**values)
    (tmp_path / "a.toml").write_text(toml_of(values), encoding="utf-8")
    assert received(*flags_of(values)) == expected
    assert received("--config", tmp_path / "a.toml") == expected
    assert expected.model_fields_set == set(values)


def test_nothing_said_is_nothing_decided(received):
    assert received() == TrainSettings()
    assert set(TrainSettings().model_dump().values()) == {None}


def test_flags_override_the_file(received, tmp_path):
    (tmp_path / "a.toml").write_text(toml_of({"width": 64, "heads": 2, "tie_output": True}), encoding="utf-8")
    found = received("--config", tmp_path / "a.toml", "--width", "128", "--no-tie-output")
    assert (found.width, found.heads, found.tie_output) == (128, 2, False)


def test_every_flag_has_a_sentence():
    text = CliRunner().invoke(multihead, ["train", "--help"]).output
    flat = " ".join(text.split())
    for name, field in TrainSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description, name
        assert " ".join(field.description.split()) in flat, name


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        ("widht = 3", {}, "there is no setting 'widht'; did you mean 'width'?"),
        ("width = 'a'", {}, "width: input should be a valid integer"),
        ("norm = 'midle'", {}, "'post' or 'pre'"),
        ("budget = '25 minutes'", {}, "expected a duration such as 25m, 1h30m or 90s"),
        ("updates = 3", {"budget": "1m"}, "updates and budget both say how long"),
        (
            "held_out = 3",
            {"valid_source": "a", "valid_target": "b"},
            "held_out is given together with validation files",
        ),
        ("valid_source = 'a'", {}, "valid_source is given without valid_target"),
        ("shared_vocabulary = false", {"tie_embeddings": True}, "tie_embeddings needs one vocabulary"),
        ("[train]\nwidth = 3", {}, "there is no setting 'train'"),
    ],
)
def test_faults_name_the_file(tmp_path, content, flags, said):
    path = tmp_path / "a.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        with_file(TrainSettings, path, flags)
    assert str(caught.value).startswith(f"{path}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("25m", 1500), ("1h30m", 5400), ("2d", 172800), ("0.5h", 1800), ("90", 90), (90, 90), (1.5, 1.5)],
)
def test_durations(text, seconds):
    assert TrainSettings(budget=text).budget == seconds


@pytest.mark.parametrize("text", ["", "m", "25 m", "1h 30m", "-5m", "0s", 0, -1, "five", "1m30", "inf", float("inf")])
def test_what_is_no_duration(text):
    with pytest.raises(ConfigurationError, match="budget"):
        build(TrainSettings, {"budget": text}, "here")


def test_a_toml_of_all_fields_is_valid_toml():
    assert tomllib.loads(toml_of(OTHER)) == OTHER


# ------------------------------------------------------------------------------------------ planning


def decide(settings, pairs=30_000, machine=SLOW, pace=None, target_tokens=None):
    """Everything that planning decides, by name, with the reasons."""
    choices = Choices(settings)
    size = planning.choose_vocabulary(choices, pairs)
    tokens = 14 * pairs if target_tokens is None else target_tokens
    corpus = Corpus(pairs, tokens, size, size, 0)
    model = planning.choose_model(choices, corpus, machine)
    speed = pace or (lambda *_: Pace(0.2, 3000.0))
    training = planning.choose_training(choices, corpus, model, machine, speed)
    generation = planning.choose_generation(choices)
    decided = {**model.model_dump(), **training.model_dump(), **generation.model_dump(), "vocab_size": size}
    return decided, choices.reasons


BY_PREPARING = FILES | {"source_language", "target_language", "shared_vocabulary", "max_tokens", "held_out"}


@pytest.mark.parametrize("machine", [SLOW, FAST])
@pytest.mark.parametrize("pairs", [100, 4_999, 30_000, 3_000_000])
def test_the_user_is_always_right(pairs, machine):
    asked = without("budget", "held_out", *BY_PREPARING)
    decided, reasons = decide(
        TrainSettings(**asked), pairs, machine, pace=lambda *_: pytest.fail("measured for nothing")
    )
    for name, value in asked.items():
        assert reasons[name] == "as asked", name
        if name != "preset":
            assert decided[name] == value, name


@pytest.mark.parametrize("machine", [SLOW, FAST])
@pytest.mark.parametrize("schedule", [None, "noam", "inverse_sqrt"])
@pytest.mark.parametrize("pairs", [2, 100, 4_999, 30_000, 150_000, 3_000_000])
def test_every_choice_can_be_made_and_has_a_reason(pairs, schedule, machine):
    settings = TrainSettings(schedule=schedule)
    decided, reasons = decide(settings, pairs, machine)
    for name in TrainSettings.model_fields.keys() - BY_PREPARING - {"budget"}:
        assert reasons[name].strip(), name
    assert decided["warmup"] <= decided["updates"]
    assert decided["validate_every"] <= max(decided["updates"], 10)


def test_a_run_has_a_reason_for_everything(trained):
    config = RunConfig.model_validate_json((trained / "run.json").read_text(encoding="utf-8"))
    chosen = TrainSettings.model_fields.keys() - FILES - {"budget"}
    assert chosen <= config.reasons.keys()
    assert all(reason.strip() for reason in config.reasons.values())
    for name in config.asked.keys() - FILES:
        assert config.reasons[name] == "as asked"
    fields = set(type(config.training).model_fields) - {"beta1", "beta2"}
    assert fields <= set(config.reasons)


def test_larger_corpora_get_larger_models():
    previous = 0
    for pairs in (1_000, 30_000, 300_000, 3_000_000):
        decided, _ = decide(TrainSettings(), pairs, FAST)
        size = decided["width"] * decided["vocab_size"]
        assert size >= previous
        previous = size


@pytest.mark.parametrize("budget", [1.0, 60.0, 3600.0, 86400.0])
@pytest.mark.parametrize("seconds", [0.01, 2.0])
def test_a_budget_is_what_is_spent(budget, seconds):
    decided, reasons = decide(TrainSettings(budget=budget), pace=lambda *_: Pace(seconds, 3000.0))
    assert decided["updates"] * seconds <= max(budget, seconds)
    assert decided["updates"] >= min(0.8 * budget / seconds, 1)
    assert "what fits into" in reasons["updates"]


def test_without_a_budget_a_slow_machine_does_less_than_a_fast_one():
    slow, why = decide(TrainSettings(), pace=lambda *_: Pace(5.0, 3000.0))
    fast, because = decide(TrainSettings(), pace=lambda *_: Pace(0.001, 3000.0))
    assert slow["updates"] < fast["updates"]
    assert "set aside" in why["updates"]
    assert "epochs" in because["updates"]


def test_the_pace_is_measured_for_the_batch_that_was_chosen():
    asked = []

    def pace(tokens, accumulate):
        asked.append((tokens, accumulate))
        return Pace(0.1, 3000.0)

    decide(TrainSettings(batch_tokens=777, accumulate=2), pace=pace)
    assert asked == [(777, 2)]


def test_two_vocabularies_are_never_tied():
    for settings in (TrainSettings(shared_vocabulary=False), TrainSettings(shared_vocabulary=False, preset="tiny")):
        assert decide(settings)[0]["tie_embeddings"] is False
    assert decide(TrainSettings())[0]["tie_embeddings"] is True


@pytest.mark.parametrize("wish", [{"width": 30, "heads": 4}, {"preset": "hughe"}, {"average": 1.0}, {"beam": 0}])
def test_a_rehearsal_finds_what_cannot_be(wish):
    with pytest.raises(ConfigurationError):
        planning.rehearse(TrainSettings(**wish), 500, SLOW)


@pytest.mark.parametrize("name", ["tiny", "small", "base", "big"])
def test_presets_can_be_rehearsed_and_changed(name):
    planning.rehearse(TrainSettings(preset=name), 500, SLOW)
    decided, reasons = decide(TrainSettings(preset=name, encoder_layers=1))
    assert decided["encoder_layers"] == 1
    assert decided["decoder_layers"] > 1
    assert (reasons["encoder_layers"], reasons["decoder_layers"]) == ("as asked", "the preset's")


def test_everything_decided_can_be_written_down_and_read():
    decided, _ = decide(TrainSettings())
    training = TrainingConfig(**{name: decided[name] for name in TrainingConfig.model_fields})
    assert TrainingConfig.model_validate_json(training.model_dump_json()) == training


# ------------------------------------------------------------------------------------------ the machine


def test_the_machine_is_looked_at_and_not_changed():
    found = inspect_machine()
    assert found.threads == torch.get_num_threads()
    assert found == inspect_machine()


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    require_device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ConfigurationError, match="finds no CUDA"):
            require_device(name)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    require_device("cuda")
