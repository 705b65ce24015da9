"""Settings of runs, and the rules for those left open: every choice has a reason, given settings are kept."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from multihead.cli.main import multihead
from multihead.cli.options import merge_config_file
from multihead.cli.prepare import prepare
from multihead.cli.train import train
from multihead.configuration import Machine, build, inspect_machine, require_device
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.models.config import ARCHITECTURES, PRESETS, TransformerConfig
from multihead.planning import choices as planning
from multihead.planning.choices import CorpusSize, Pace
from multihead.planning.sections import HEADINGS, section_of
from multihead.planning.settings import Choices, PrepareSettings, RunConfig, TrainSettings
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import learning_rate

SLOW = Machine(2, "cpu", False, "two cores")
FAST = Machine(8, "cuda", True, "a GPU")
FILES = {
    "parallel",  # settings of a start, not of a run
    *("source", "target", "corpus", "valid_source", "valid_target", "valid", "temperature", "temperature_over"),
    *("output", "data", "from_model", "teacher", "weights", "alignments", "terms"),
}
"""Fields with files, and how their pairs are mixed."""

OTHER = {
    "source": "a.de",
    "target": "a.en",
    "corpus": [{"source": "a b.de", "target": "b.en", "weight": 0.5}, {"source": "c.tsv"}],
    "temperature": 5.0,
    "temperature_over": "corpora",
    "valid": [{"source": "v.tsv", "source_language": "de"}, {"source": "w.de", "target": "w.en"}],
    "valid_source": "v.de",
    "valid_target": "v.en",
    "output": "out",
    "data": "ready",
    "from_model": "other",
    "source_language": "fr",
    "target_language": "zh",
    "terms": "terms.tsv",
    "preset": "tiny",
    "vocab_size": 777,
    "shared_vocabulary": False,
    "min_frequency": 7,
    "coverage": 0.98,
    "symbols": ["<pad>", "<unknown>", "<begin>", "<end>"],
    "user_symbols": ["<b>", "</b>"],
    "placeholders": ["numbers,urls"],
    "context": 2,
    "right_to_left": True,
    "source_factors": "case",
    "min_tokens": 3,
    "max_tokens": 33,
    "held_out": 17,
    "width": 48,
    "heads": 6,
    "kv_heads": 3,
    "key_dim": 10,
    "value_dim": 12,
    "attention_bias": False,
    "inner": 99,
    "feed_forward": "geglu",
    "feed_forward_bias": False,
    "encoder_layers": 5,
    "decoder_layers": 7,
    "positions": "learned",
    "sinusoid": "halves",
    "max_positions": 77,
    "relative_buckets": 24,
    "relative_distance": 99,
    "embedding_scale": "none",
    "embedding_norm": True,
    "dropout": 0.33,
    "embedding_dropout": 0.01,
    "residual_dropout": 0.02,
    "feed_forward_dropout": 0.03,
    "attention_dropout": 0.07,
    "norm": "post",
    "block": "parallel",
    "final_norm": True,
    "norm_kind": "rms",
    "query_key_norm": "layer",
    "encoder_window": 55,
    "norm_eps": 1e-4,
    "tie_embeddings": False,
    "tie_output": False,
    "output_bias": True,
    "alignment_layer": 2,
    "source_end": False,
    "initialization": "xavier",
    "model": "recurrent",
    "cell": "lstm",
    "attend": "after",
    "input_feeding": True,
    "score": "low_rank",
    "alignment": "sample",
    "baseline": "none",
    "entropy_weight": 0.44,
    "encoder_attention": "tree",
    "updates": 1234,
    "budget": "1h30m",
    "batch_tokens": 321,
    "accumulate": 3,
    "optimizer": "adam",
    "muon_scale": 0.15,
    "schedule": "noam",
    "learning_rate": 0.123,
    "warmup": 45,
    "smoothing": 0.22,
    "teacher": ["run 1", "run2"],
    "teacher_weight": 0.7,
    "weights": "weights.txt",
    "alignments": "links.txt",
    "alignment_weight": 0.2,
    "lora": 3,
    "lora_alpha": 4.5,
    "bpe_dropout": 0.06,
    "clip": 0.5,
    "skip_above": 50.0,
    "skip_limit": 5,
    "weight_decay": 0.01,
    "average": 0.5,
    "validate_every": 11,
    "patience": 4,
    "best_by": "chrf",
    "comet": "model.ckpt",
    "compile": True,
    "gradient_checkpointing": True,
    "log_every": 6,
    "precision": "float32",
    "threads": 1,
    "device": "cpu",
    "parallel": "sum",
    "keep_checkpoints": 5,
    "tensorboard": True,
    "beam": 9,
    "alpha": 0.7,
    "min_length": 2,
    "max_length": 60,
    "seed": 42,
}
"""For every field, a value that no rule would choose."""
SUBWORDS = (
    *("vocab_size", "shared_vocabulary", "min_frequency", "coverage", "symbols"),
    *("user_symbols", "placeholders", "context", "right_to_left", "source_factors"),
)
GIVEN = (
    "from_model",
    "lora",
    "lora_alpha",
    "teacher",
    "teacher_weight",
    "weights",
    "alignments",
    "alignment_weight",
    "alignment_layer",
)
"""Fields of other models, and fields that only apply to them."""
TOGETHER = [
    ["held_out", "budget", "corpus", *GIVEN, "valid", "context", "source_factors"],
    ["held_out", "budget", "corpus", *GIVEN, "valid_source", "valid_target", "placeholders", "terms", "source_factors"],
    [*("valid", "valid_source", "valid_target", "updates", "source", "target", "bpe_dropout", "compile"), *SUBWORDS],
]
"""Fields to omit so that no two fields exclude each other."""


OF_ANOTHER = {
    architecture: {
        name
        for other in ARCHITECTURES.values()
        for name in other.model_fields
        if name not in cls.model_fields and name in OTHER
    }
    for architecture, cls in ARCHITECTURES.items()
}
"""For each network, the settings that belong to other networks only."""


def without(*names):
    return {name: value for name, value in OTHER.items() if name not in names}


# ------------------------------------------------------------------------------------------ one mechanism


def test_the_example_has_every_field():
    assert OTHER.keys() == TrainSettings.model_fields.keys()


def flags_of(values):
    """The settings as command-line flags; lists become repeated flags, symbols one word."""
    words = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif name in ("corpus", "valid"):
            for one in value:
                files = [shlex.quote(one[side]) for side in ("source", "target") if side in one]
                more = [f"{key}={text}" for key, text in one.items() if key not in ("source", "target")]
                words += [flag, " ".join([*files, *more])]
        elif name == "teacher":
            words += [word for one in value for word in (flag, one)]
        else:
            words += [flag, " ".join(value) if isinstance(value, list) else str(value)]
    return words


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainSettings]:
    """The arguments that ``multihead train`` passes on."""
    got = {}
    monkeypatch.setattr("multihead.runs.translator.train.train", lambda **wishes: got.update(wishes))
    monkeypatch.setattr("multihead.cli.process.configure_process", lambda **_: None)
    monkeypatch.setattr("multihead.cli.process.StopSignal", lambda: None)

    def call(*words):
        result = CliRunner().invoke(
            multihead, ["train", *map(str, words)], catch_exceptions=False, standalone_mode=False
        )
        assert result.exit_code == 0
        own = ("say", "stop_signal", "use_threads", "processes", "started")
        wishes = {name: value for name, value in got.items() if name not in own}
        got.clear()
        return TrainSettings(**wishes)

    return call


def toml_of(values):
    plain = {name: value for name, value in values.items() if name not in ("corpus", "valid")}
    tables = [f"[[{name}]]\n{toml_of(table)}" for name in ("corpus", "valid") for table in values.get(name, [])]
    return "".join([*(f"{name} = {json.dumps(value)}\n" for name, value in plain.items()), *tables])


@pytest.mark.parametrize("left_out", TOGETHER)
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


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes have no names here")
def test_the_file_may_be_a_pipe(received):
    """As in ``--config <(command)``."""
    reader, writer = os.pipe()
    os.write(writer, b"width = 64\nheads = 2\n")
    os.close(writer)
    try:
        found = received("--config", f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert (found.width, found.heads) == (64, 2)


def test_every_flag_has_a_sentence():
    text = CliRunner().invoke(multihead, ["train", "--help"]).output
    for name, field in TrainSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description, name
        assert "".join(field.description.split()) in "".join(text.split()), name


@pytest.mark.parametrize(
    ("cls", "command", "further"), [(TrainSettings, train, []), (PrepareSettings, prepare, ["Engines"])]
)
def test_every_flag_stands_under_one_heading(cls, command, further):
    """Flags are in the order of the headings; flags without a heading come first, flags that are not settings last."""
    blocks = CliRunner().invoke(multihead, [command.name, "--help"]).output.split("\n\n")
    shown = {
        block.split(":\n")[0]: re.findall(r"^  --([\w-]+)", block, re.MULTILINE) for block in blocks if ":\n" in block
    }
    headings = [heading for heading in HEADINGS if heading in shown]
    assert list(shown) == ["Examples", "Options", *headings, *further]
    assert headings[0] == "Folders"
    flags = [flag.replace("-", "_") for heading in headings for flag in shown[heading]]
    assert sorted(flags) == sorted(cls.model_fields)
    for name in cls.model_fields:
        assert name.replace("_", "-") in shown[section_of(cls, name)]


SEARCH_OWN = {*Search.model_fields} - {*Search.stored} | {"length_factor", "length_margin", "length_penalty"}
"""Settings of a single request, and three that no run decides."""


def test_the_network_can_be_asked_for_in_full():
    """Each field that the text does not decide is a setting of the same type, with the same choices."""
    decided = (*((cls, planning.FROM_TEXT) for cls in ARCHITECTURES.values()), (Search, SEARCH_OWN))
    for cls, given in decided:
        for name in cls.model_fields:
            if name not in given:
                wanted, wish = ({*_types(c.model_fields[name].annotation)} for c in (cls, TrainSettings))
                assert wish == wanted | {type(None)}, name


def _types(annotation):
    parts = typing.get_args(annotation)
    return [annotation] if not parts or typing.get_origin(annotation) is typing.Literal else parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.tsv", {"source": "a.tsv"}),
        ("a.de a.en", {"source": "a.de", "target": "a.en"}),
        ("a=b.tsv both-ways=true", {"source": "a=b.tsv", "both_ways": True}),
        ("a.csv columns=1,2", {"source": "a.csv", "columns": ("1", "2")}),
        ("weight=0.5 a.de a.en", {"source": "a.de", "target": "a.en", "weight": 0.5}),
        ("'my file.de' \"my file.en\" weight=2", {"source": "my file.de", "target": "my file.en", "weight": 2}),
    ],
)
def test_a_corpus_as_it_is_typed(text, expected):
    assert TrainSettings(corpus=[text]) == TrainSettings(corpus=[expected])


def test_prepare_takes_the_file_of_train(tmp_path):
    """It ignores settings of the model, but reports faults in them."""
    (tmp_path / "a.toml").write_text("source = 'a'\ntarget = 'b'\nwidth = 64\n", encoding="utf-8")
    given = merge_config_file(PrepareSettings, tmp_path / "a.toml", {"held_out": 3}, within=TrainSettings)
    assert given == {"source": "a", "target": "b", "held_out": 3}
    (tmp_path / "a.toml").write_text("source = 'a'\nwidht = 64\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="'widht'; did you mean 'width'"):
        merge_config_file(PrepareSettings, tmp_path / "a.toml", {}, within=TrainSettings)


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        ("widht = 3", {}, "there is no setting 'widht'; did you mean 'width'?"),
        ("width = 'a'", {}, "width: input should be a valid integer"),
        ("norm = 'midle'", {}, "'post' or 'pre'"),
        ("budget = '25 minutes'", {}, "expected a duration such as 25m, 1h30m or 90s"),
        ("updates = 3", {"budget": "1m"}, "updates and budget exclude each other: both say how long to train"),
        ("held_out = 3", {"valid_source": "a", "valid_target": "b"}, "held_out and valid_source exclude each other"),
        ("source = 'a'", {"corpus": ("b c",)}, "corpus and source exclude each other: name every corpus in one way"),
        ("from_model = 'a'", {"vocab_size": 9}, "from_model and vocab_size exclude each other: a model that is fine-t"),
        ("lora = 8", {}, "lora is given without from_model: adapters change a model that has learned"),
        ("lora = 0", {"from_model": "a"}, "lora: input should be greater than or equal to 1"),
        ("lora_alpha = 8", {"from_model": "a"}, "lora_alpha is given without lora: name the rank"),
        ("lora = 8", {"from_model": "a", "optimizer": "muon"}, "lora and optimizer muon exclude each other: Adam"),
        ("lora = 8", {"from_model": "a", "parallel": "sharded"}, "lora and parallel sharded exclude each other"),
        ("model = 'recurrent'", {"parallel": "sharded"}, "model recurrent and parallel sharded exclude each other"),
        ("min_tokens = 9", {"max_tokens": 8}, "min_tokens is 9, above max_tokens, 8"),
        ("positions = 'sinusoidal'", {"max_positions": 8}, "max_positions and positions exclude each other"),
        ("[[corpus]]\nsource = 'a'\nwieght = 2", {}, "corpus.0.wieght"),
        ("[[corpus]]\nsource = 'a'\nweight = 0", {}, "corpus.0.weight: input should be greater than 0, got 0"),
        ("corpus = []", {}, "corpus is empty"),
        ("corpus = ['a b c']", {}, "corpus.0: expected FILE [FILE] [weight=NUMBER]"),
        ("corpus = ['weight=2']", {}, "expected FILE [FILE] [weight=NUMBER]"),
        ("corpus = ['a \"b']", {}, "cannot be read"),
        ("symbols = '<pad> <s>'", {}, "symbols"),
        ("valid_source = 'a'", {}, "valid_source is given without valid_target"),
        ("shared_vocabulary = false", {"tie_embeddings": True}, "tie_embeddings needs one vocabulary"),
        ("[train]\nwidth = 3", {}, "there is no setting 'train'"),
    ],
)
def test_faults_name_the_file(tmp_path, content, flags, said):
    path = tmp_path / "a.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        merge_config_file(TrainSettings, path, flags)
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

PRESET = {"transformer": "big", "recurrent": "luong"}
"""One that no rule would choose."""


def decide(settings, pairs=30_000, machine=SLOW, pace=None, target_tokens=None):
    """All decisions by name, and their reasons."""
    choices = Choices(settings)
    size = planning.choose_vocabulary(choices, pairs)
    tokens = 14 * pairs if target_tokens is None else target_tokens
    corpus = CorpusSize(pairs, tokens, size, size, 0, shared=settings.shared_vocabulary is not False)
    model = planning.choose_model(choices, corpus, machine)
    speed = pace or (lambda *_: Pace(0.2, 3000.0))
    training = planning.choose_training(choices, corpus, model, machine, speed)
    model = planning.adapt_dropout(choices, model, corpus, training)
    generation = planning.choose_generation(choices)
    decided = {**model.model_dump(), **training.model_dump(), **generation.stored_values(), "vocab_size": size}
    return decided, choices.reasons


BY_PREPARING = (
    FILES | set(SUBWORDS[1:]) | {"source_language", "target_language", "min_tokens", "max_tokens", "held_out"}
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("machine", [SLOW, FAST])
@pytest.mark.parametrize("pairs", [100, 4_999, 30_000, 3_000_000])
def test_the_user_is_always_right(pairs, machine, architecture):
    asked = without("budget", "held_out", *GIVEN, *BY_PREPARING, *SUBWORDS[1:], *OF_ANOTHER[architecture])
    asked |= {"compile": False, "gradient_checkpointing": architecture == "transformer"}
    asked |= {"model": architecture, "preset": PRESET[architecture]}
    asked |= {"norm": "pre"} if "block" in asked else {}  # parallel blocks are never post-norm
    decided, reasons = decide(
        TrainSettings(**asked), pairs, machine, pace=lambda *_: pytest.fail("measured for nothing")
    )
    for name, value in asked.items():
        assert reasons[name] == "as asked", name
        if name != "preset":
            assert decided["architecture" if name == "model" else name] == value, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_setting_of_another_network_is_refused(architecture):
    """Such settings are refused rather than ignored, before anything is prepared."""
    for name in OF_ANOTHER[architecture]:
        with pytest.raises(ConfigurationError, match=f"{name} is a setting of the .* model, .* is {architecture}"):
            planning.rehearse(TrainSettings(**{"model": architecture, name: OTHER[name]}), 30_000, SLOW)


def test_runs_of_few_pairs_by_muon_get_weight_decay():
    def chosen(pairs=30_000, **settings):
        return decide(TrainSettings(**settings), pairs)[0]["weight_decay"]

    assert chosen(budget=600) > 0
    assert chosen(budget=600, weight_decay=0.0) == 0
    assert chosen() > 0
    assert chosen(budget=600, learning_rate=0.001) > chosen(learning_rate=0.001) == 0
    assert chosen(budget=600, optimizer="adam") == chosen(3_000_000, budget=600) == 0
    assert chosen(budget=600, from_model="model") == 0


def test_only_a_transformer_is_compiled():
    with pytest.raises(ConfigurationError, match="only a Transformer is compiled, and this model is recurrent"):
        planning.rehearse(TrainSettings(model="recurrent", compile=True), 30_000, SLOW)


def test_layers_are_computed_again_in_a_transformer_that_is_not_compiled():
    with pytest.raises(ConfigurationError, match="only a Transformer has it, and this model is recurrent"):
        planning.rehearse(TrainSettings(model="recurrent", gradient_checkpointing=True), 30_000, SLOW)
    with pytest.raises(ConfigurationError, match="--gradient-checkpointing and --compile exclude each other"):
        planning.rehearse(TrainSettings(compile=True, gradient_checkpointing=True), 30_000, SLOW)
    planning.rehearse(TrainSettings(compile=False, gradient_checkpointing=True), 30_000, SLOW)


@pytest.mark.parametrize("architecture", [None, *ARCHITECTURES])
@pytest.mark.parametrize("machine", [SLOW, FAST])
@pytest.mark.parametrize("schedule", [None, "noam", "inverse_sqrt", "cosine", "trapezoid", "constant"])
@pytest.mark.parametrize("pairs", [2, 100, 4_999, 30_000, 150_000, 3_000_000])
def test_every_choice_can_be_made_and_has_a_reason(pairs, schedule, machine, architecture):
    settings = TrainSettings(schedule=schedule, model=architecture)
    decided, reasons = decide(settings, pairs, machine)
    assert decided["architecture"] == architecture or architecture is None
    for name in TrainSettings.model_fields.keys() - BY_PREPARING - {"budget"} - OF_ANOTHER[decided["architecture"]]:
        assert reasons[name].strip(), name
    assert decided["warmup"] <= decided["updates"]
    assert decided["validate_every"] <= max(decided["updates"], 10)


def test_a_run_has_a_reason_for_everything(trained):
    config = RunConfig.model_validate_json((trained / "run.json").read_text(encoding="utf-8"))
    chosen = TrainSettings.model_fields.keys() - FILES - {"budget"} - OF_ANOTHER["transformer"]
    assert chosen <= config.reasons.keys()
    assert all(reason.strip() for reason in config.reasons.values())
    for name in config.asked.keys() - FILES:
        assert config.reasons[name] == "as asked"
    fields = set(type(config.training).model_fields) - {"beta1", "beta2", "replanned"}
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


def test_a_budget_counts_from_the_start_of_the_command():
    """Time used before the first update is not available for updates."""
    whole, _ = decide(TrainSettings(budget=600.0), pace=lambda *_: Pace(0.5, 3000.0))
    rest, reasons = decide(TrainSettings(budget=600.0), pace=lambda *_: Pace(0.5, 3000.0, spent=300.0))
    assert rest["updates"] == whole["updates"] // 2
    assert reasons["updates"].startswith("what fits into 10:00 at 0.50 s an update after 5:00 of preparation")
    gone, _ = decide(TrainSettings(budget=60.0), pace=lambda *_: Pace(0.5, 3000.0, spent=300.0))
    assert gone["updates"] == 1


def test_what_the_user_left_open_is_decided_anew():
    def replanned(**given):
        return decide(TrainSettings(**given), pace=lambda *_: Pace(0.5, 3000.0))[0]["replanned"]

    assert replanned(budget=60.0) == ("validate_every", "average", "sentences")
    assert replanned(budget=60.0, validate_every=7) == ("average", "sentences")
    assert replanned(budget=60.0, average=0.5, from_model=Path("m")) == ("validate_every",)
    assert replanned(updates=7) == replanned() == ()


def test_without_a_budget_a_slow_machine_does_less_than_a_fast_one():
    slow, why = decide(TrainSettings(), pace=lambda *_: Pace(5.0, 3000.0))
    fast, because = decide(TrainSettings(), pace=lambda *_: Pace(0.001, 3000.0))
    assert slow["updates"] < fast["updates"]
    assert "set aside" in why["updates"]
    assert "epochs" in because["updates"]


def test_the_pace_is_measured_for_the_batch_that_was_chosen():
    asked = []

    def pace(trial):
        asked.append((trial.batch_tokens, trial.accumulate, trial.optimizer))
        return Pace(0.1, 3000.0)

    decide(TrainSettings(batch_tokens=777, accumulate=2, optimizer="muon"), pace=pace)
    assert asked == [(777, 2, "muon")]


def test_what_is_seen_often_is_learned_with_more_dropout():
    """Text of 420,000 tokens is seen once in 121 updates."""

    def chosen(pairs=30_000, **wishes):
        return decide(TrainSettings(**wishes), pairs=pairs)[0]["dropout"]

    rates = [chosen(updates=updates) for updates in (1, 2_400, 2_500, 3_600, 3_700, 10_000)]
    assert rates == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert chosen(updates=1_800, batch_tokens=2048) == 0.1 < chosen(updates=1_800, accumulate=2) == 0.2
    assert chosen() == 0.3
    assert chosen(pairs=200_000, updates=100_000) == chosen(model="recurrent", updates=1) == 0.2
    assert chosen(pairs=600_000, updates=100_000) == 0.1
    assert chosen(dropout=0.05) == 0.05
    assert chosen(dropout=0.25, updates=1) == 0.25


def test_a_short_training_has_a_small_network_unless_the_user_chose_one():
    """With 0.5 s an update, and 88% of the time for updates."""

    def halved(pairs=30_000, **wishes):
        choices = Choices(TrainSettings(**wishes))
        corpus = CorpusSize(pairs, 14 * pairs, 4_000, 4_000, 0)
        model = planning.choose_model(choices, corpus, SLOW)
        training = planning.choose_training(choices, corpus, model, SLOW, lambda *_: Pace(0.5, 3000.0))
        return planning.narrowings(choices, model.architecture, pairs, training.updates)

    most = sorted(planning._SHORT, reverse=True)
    for times, updates in enumerate(most):
        assert halved(budget=(updates + 1) * 0.5 / 0.88) == times
        assert halved(budget=(updates - 2) * 0.5 / 0.88) == times + 1
    short = {"budget": 60.0}
    assert halved(**short) == len(most) > halved() == 0
    assert halved(updates=100) == 0  # time is not the limit
    assert halved(**short, alignments="ibm1") == 0
    for name, value in {"preset": "small", "width": 256, "inner": 512, "decoder_layers": 3, "heads": 4}.items():
        assert halved(**short, **{name: value}) == 0
    assert halved(**short, model="recurrent") == halved(4_999, **short) == halved(200_000, **short) == 0


def test_muon_where_its_products_are_few_beside_those_of_an_update():
    """Chosen for a new Transformer, but not with a paper's schedule or given weights."""

    def chosen(**wishes):
        return decide(TrainSettings(**wishes))[0]["optimizer"]

    assert chosen() == "muon"
    assert chosen(batch_tokens=1024) == "adam"
    assert chosen(batch_tokens=1024, accumulate=4) == chosen(batch_tokens=2048) == "muon"
    assert chosen(width=512) == chosen(width=128, batch_tokens=128) == "adam"
    assert chosen(width=128, batch_tokens=256) == "muon"
    assert chosen(schedule="noam") == chosen(model="recurrent") == "adam"
    assert chosen(batch_tokens=1024, optimizer="muon") == "muon"


def test_muon_learns_faster_with_as_many_pairs_as_were_tried():
    names = ("learning_rate", "muon_scale", "weight_decay")

    def chosen(pairs=30_000, **wishes):
        return tuple(decide(TrainSettings(**wishes), pairs)[0][name] for name in names)

    rate, scale, decay = chosen()
    usual, whole, none = chosen(2_000_000)
    assert chosen(500_000) == chosen()
    assert (rate, 2 * scale, none) == (8 * usual, whole, 0)  # so matrices learn four times as fast
    assert decay > 0
    assert chosen(width=128)[0] == rate  # the highest that was tried
    assert chosen(width=512, optimizer="muon")[0] == rate / 2
    assert chosen(schedule="constant") == (rate / 4, scale, decay)
    assert chosen(optimizer="adam") == (usual, whole, 0)
    assert chosen(from_model=Path("m"))[:2] == (usual / 10, whole)
    assert chosen(learning_rate=usual)[:2] == (usual, whole)  # a rate from another program keeps its meaning
    assert chosen(schedule="noam", optimizer="muon")[1] == whole


def test_one_vocabulary_unless_a_small_text_has_two_languages():
    def shared(pairs=30_000, alike=0.05, directions=False, **wishes):
        choices = Choices(TrainSettings(**wishes))
        return planning.choose_sharing(choices, pairs, lambda: alike, directions=directions)

    two = planning._TWO_VOCABULARIES
    pairs = (1, two.start - 1, two.start, two.stop - 1, two.stop, 10**7)
    assert list(map(shared, pairs)) == [True, True, False, False, True, True]
    assert [shared(alike=share) for share in (0.0, planning._ALIKE - 0.01, planning._ALIKE, 1.0)] == [
        False,
        False,
        True,
        True,
    ]
    assert shared(directions=True) is shared(tie_embeddings=True) is shared(shared_vocabulary=True) is True
    assert shared(100, shared_vocabulary=False) is shared(100, source_factors="case") is False


def test_two_vocabularies_are_never_tied():
    for settings in (TrainSettings(shared_vocabulary=False), TrainSettings(shared_vocabulary=False, preset="tiny")):
        assert decide(settings)[0]["tie_embeddings"] is False
    assert decide(TrainSettings())[0]["tie_embeddings"] is True


@pytest.mark.parametrize("wish", [{"width": 30, "heads": 4}, {"preset": "hughe"}, {"average": 1.0}, {"beam": 0}])
def test_a_rehearsal_finds_what_cannot_be(wish):
    with pytest.raises(ConfigurationError):
        planning.rehearse(TrainSettings(**wish), 500, SLOW)


@pytest.mark.parametrize("name", PRESETS)
def test_everything_that_a_preset_fixes_is_the_default_and_a_wish_wins(name):
    fixed = PRESETS[name]
    decided, reasons = decide(TrainSettings(preset=name))
    for key, value in fixed.items():
        assert (decided[key], reasons[key]) == (value, "the preset's")
    for key in fixed:
        other = {"heads": 2, "width": 2048, "key_dim": 20, "value_dim": 20}.get(key, OTHER[key])
        wish = {key: other} | ({"value_dim": 64, "key_dim": 64} if key == "heads" else {})
        decided, reasons = decide(TrainSettings(preset=name, **wish))
        assert (decided[key], reasons[key]) == (other, "as asked")


def test_max_positions_are_learned_ones():
    assert decide(TrainSettings(), pairs=3_000_000)[0]["positions"] == "sinusoidal"
    assert decide(TrainSettings(), pairs=900)[0]["positions"] == "sinusoidal"
    assert decide(TrainSettings(max_positions=99))[0]["positions"] == "learned"


@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "trapezoid", "inverse_sqrt", "noam"])
def test_all_schedules_that_fall_have_the_same_peak(schedule, width):
    """The highest learning rate of the run suits the width, whatever the unit of the setting."""
    decided, _ = decide(TrainSettings(schedule=schedule, width=width, heads=4, updates=5000, optimizer="adam"))
    config = TrainingConfig(**{name: decided[name] for name in TrainingConfig.model_fields})
    assert max(learning_rate(config, step, width) for step in range(1, 5001)) == pytest.approx(0.64 / width)
    assert (config.patience == 0) is (schedule in ("linear", "cosine", "trapezoid"))


def test_a_given_model_is_trained_more_carefully_and_for_less_long():
    new, _ = decide(TrainSettings(optimizer="adam"), pace=lambda *_: Pace(0.001, 3000.0))
    given, reasons = decide(TrainSettings(from_model="a"), pace=lambda *_: Pace(0.001, 3000.0))
    assert given["learning_rate"] == pytest.approx(new["learning_rate"] / 10)
    assert given["updates"] == pytest.approx(new["updates"] / 4, rel=0.01)
    assert given["warmup"] < new["warmup"]
    assert "what was learned is kept" in reasons["learning_rate"]


def test_what_a_given_model_has_not_is_named():
    """Also for settings that a folder omits because they have the default value."""
    given = TransformerConfig(source_vocab=9, target_vocab=9)
    message = r"\(norm_kind is layer, but rms was requested; query_key_norm is none, but rms was requested\); leave"
    with pytest.raises(ConfigurationError, match=message):
        planning.choose_given_model(
            Choices(TrainSettings(from_model="a", norm_kind="rms", query_key_norm="rms", relative_buckets=32)), given
        )


def test_adapters_learn_as_fast_as_a_new_model_and_weigh_twice():
    new, _ = decide(TrainSettings(optimizer="adam"))
    given, reasons = decide(TrainSettings(from_model="a", lora=6))
    assert (given["lora"], given["lora_alpha"], reasons["lora_alpha"]) == (6, 12.0, "twice the rank")
    assert given["learning_rate"] == new["learning_rate"]
    assert given["optimizer"] == "adam"
    assert (new["lora"], new["lora_alpha"]) == (0, 0.0)
    assert decide(TrainSettings(from_model="a", lora=6, lora_alpha=6.5))[0]["lora_alpha"] == 6.5


@pytest.mark.parametrize("name", PRESETS)
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
