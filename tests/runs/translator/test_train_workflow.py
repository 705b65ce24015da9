"""Whole translator runs: stopped and resumed, finished, refused; what their folders contain."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from multihead import Translator, files, work_folder
from multihead.configuration import Machine, inspect_machine
from multihead.errors import ConfigurationError, DataError, FormatError, InputError, Interrupted, SurroundingsError
from multihead.models.config import PRESETS
from multihead.models.shrinking import parameters_of
from multihead.planning import choices
from multihead.planning.settings import PrepareSettings, RunConfig, TrainSettings
from multihead.preparing.prepare import prepare
from multihead.runs.translator import begin as beginning
from multihead.runs.translator import train as training
from multihead.runs.translator.train import TrainResult
from multihead.training import budget
from multihead.training.trainer import Trainer

if TYPE_CHECKING:
    from tests.conftest import Numbers


SHORT = {"updates": 12, "validate_every": 5, "log_every": 3, "dropout": 0.3, "seed": 3}
VARYING = ("timing.jsonl", "log.txt")


@pytest.fixture
def run(numbers: Numbers) -> Callable[..., TrainResult]:
    """Train a short run; ``polls`` is the poll that returns a signal."""

    def go(output=None, polls=None, said=None, **wishes):
        counter = itertools.count(1)
        given = {"output": output, **wishes}
        return numbers.learn(
            **given,
            say=(said if said is not None else []).append,
            stop_signal=lambda: signal.SIGINT if next(counter) == polls else None,
        )

    return go


@pytest.fixture(scope="session")
def wishes(numbers: Numbers) -> dict[str, Any]:
    return {**numbers.settings, **SHORT, **numbers.train, **numbers.valid}


@pytest.fixture(scope="session")
def whole(wishes: dict[str, Any], numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short uninterrupted run."""
    output = tmp_path_factory.mktemp("whole") / "run"
    numbers.learn(output, **wishes)
    return output


@pytest.fixture(scope="session")
def stopped(wishes: dict[str, Any], numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after update 3; tests copy it before they go on."""
    output, polls = tmp_path_factory.mktemp("stopped") / "run", itertools.count(1)
    with pytest.raises(Interrupted):
        numbers.learn(output, **wishes, stop_signal=lambda: signal.SIGINT if next(polls) == 5 else None)
    return output


def same_end(numbers, one, other):
    """Compare all files except timings and older checkpoints, which depend on when a run was stopped."""
    found = []
    for folder in (one, other):
        contents = numbers.contents(folder, without=VARYING)
        newest = max(path.name for path in (folder / "checkpoints").iterdir())
        found.append({k: v for k, v in contents.items() if not k.startswith("checkpoints/") or newest in k})
    assert found[0] == found[1]
    assert any("optimizer" in name for name in found[0])


# ------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("polls", [[2], [9, 1, 2, 1, 3]])
def test_a_run_that_was_stopped_ends_as_the_one_that_was_not(run, wishes, whole, numbers, tmp_path, polls):
    """Contract 9: weights, average, optimizer, log and model folder, byte for byte, with dropout."""
    output = tmp_path / "run"
    for number in polls:
        with pytest.raises(Interrupted, match="the same command") as stop:
            run(output, number, **wishes)
        assert stop.value.exit_status == 130
    result = run(output, **wishes)
    assert result.updates == 12
    same_end(numbers, output, whole)


def test_output_alone_goes_on(run, stopped, whole, numbers, tmp_path):
    output, said = shutil.copytree(stopped, tmp_path / "run"), []
    run(output, said=said)
    same_end(numbers, output, whole)
    assert said[0] == "going on after update 3 of 12"


def test_some_of_the_settings_go_on_too(run, wishes, stopped, tmp_path):
    output = shutil.copytree(stopped, tmp_path / "run")
    assert run(output, updates=12, source=wishes["source"]).updates == 12


def test_a_held_out_split_goes_on(run, numbers, wishes, tmp_path):
    plain = {name: value for name, value in wishes.items() if not name.startswith("valid_")} | {"held_out": 30}
    run(tmp_path / "whole", **plain)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", 4, **plain)
    run(tmp_path / "run", **plain)
    same_end(numbers, tmp_path / "run", tmp_path / "whole")


@pytest.fixture(scope="module")
def mixed(
    numbers: Numbers, wishes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """Weighted corpora with BPE-dropout, and an uninterrupted run on them."""
    folder = tmp_path_factory.mktemp("mixed")
    corpora = [
        {**numbers.write(folder, name, numbers.pairs(count, count)), "weight": weight}
        for name, count, weight in (("many", 90, 0.5), ("few", 25, 2.0))
    ]
    rest = {name: value for name, value in wishes.items() if name not in ("source", "target")}
    mixed = {**rest, "corpus": corpora, "bpe_dropout": 0.3, "accumulate": 2, "batch_tokens": 256}
    numbers.learn(folder / "run", **mixed)
    return mixed, folder / "run"


@pytest.mark.parametrize("polls", [[8, 2, 1]])
def test_weighted_corpora_and_dropped_merges_go_on_too(run, mixed, numbers, tmp_path, polls):
    """Pairs and segmentations of an epoch are a function of seed and epoch, over several epochs."""
    wishes, whole = mixed
    for number in polls:
        with pytest.raises(Interrupted):
            run(tmp_path / "run", number, **wishes)
    run(tmp_path / "run", **wishes)
    same_end(numbers, tmp_path / "run", whole)
    last = json.loads((whole / "log.jsonl").read_text(encoding="utf-8").splitlines()[-2])
    assert last["epoch"] >= 2


def test_what_a_mixed_run_learns_from(mixed, numbers, run, tmp_path):
    """Corpus weights and BPE-dropout each change the run, and run.json lists both corpora."""
    wishes, whole = mixed
    config = RunConfig.model_validate_json((whole / "run.json").read_text(encoding="utf-8"))
    assert [(c.pairs, c.weight, c.held_out, c.left_out) for c in config.data.corpora] == [
        (90, 0.5, 0, 0),
        (25, 2.0, 0, 0),
    ]
    assert config.training.bpe_dropout == 0.3
    weights = {(whole / "best" / "model.safetensors").read_bytes()}
    equal = [{**corpus, "weight": 1.0} for corpus in wishes["corpus"]]
    for name, change in (("a", {"bpe_dropout": 0.0}), ("b", {"corpus": equal})):
        run(tmp_path / name, **{**wishes, **change})
        weights.add((tmp_path / name / "best" / "model.safetensors").read_bytes())
    assert len(weights) == 3


def test_the_records_are_written_for_tensorboard_too(run, wishes, whole, numbers, tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(Interrupted):
        run(tmp_path / "run", 5, tensorboard=True, **wishes)
    run(tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_a_signal_while_the_data_are_prepared_leaves_nothing(run, wishes, tmp_path):
    with pytest.raises(Interrupted, match="while the data were prepared"):
        run(tmp_path / "run", 1, **wishes)
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """Simulates a killed process: nothing is done afterwards."""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("place", "after"),
    [
        ("beginning.write_data", False),
        ("work_folder.write", False),
        ("work_folder.write", True),
        ("training.save_bundle", True),
        ("Trainer._save", False),
        ("Trainer._save", True),
    ],
)
def test_killed_anywhere_the_same_command_ends_the_same(
    run, wishes, whole, numbers, tmp_path, monkeypatch, place, after
):
    """Killed while preparing, deciding, writing run.json or saving; a killed process removes nothing."""
    owner, _, name = place.rpartition(".")
    owner = {
        "beginning": beginning,
        "work_folder": work_folder,
        "training": training,
        "Trainer": Trainer,
    }[owner]
    original = getattr(owner, name)

    def dies(*args, **kwargs):
        if after:
            original(*args, **kwargs)
        for victim, method in ((work_folder, "_empty"), (work_folder.Path, "unlink"), (work_folder.Path, "rmdir")):
            patch.setattr(victim, method, lambda *_, **__: None)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            run(tmp_path / "run", **wishes)
    assert (tmp_path / "run").is_dir()
    run(tmp_path / "run", **wishes)
    same_end(numbers, tmp_path / "run", whole)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in whole.iterdir()}


def test_killed_while_the_marker_is_written(run, wishes, tmp_path):
    """A folder that contains only a draft can still be used."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".preparing.txt.unfinished-123").write_text("half")
    run(tmp_path / "run", **wishes)
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"updates": 13}, "updates was 12, now 13"),
        ({"dropout": 0.1, "seed": 4}, "dropout was 0.3, now 0.1, seed was 3, now 4"),
        ({"beam": 4}, "beam was not given, now 4"),
        ({"source": "other.de"}, "now other.de"),
    ],
)
def test_other_settings_are_refused_by_name(run, wishes, whole, numbers, change, said):
    before = numbers.contents(whole)
    with pytest.raises(ConfigurationError) as caught:
        run(whole, **{**wishes, **change})
    assert said in str(caught.value)
    assert "--output alone" in str(caught.value)
    assert numbers.contents(whole) == before


def test_a_finished_run_says_so_and_stays_as_it_is(run, wishes, whole, numbers):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in whole.rglob("*")}
    for given in (wishes, {}):
        said = []
        result = run(whole, said=said, **given)
        assert result.updates == 12
        assert len(said) == 1
        assert said[0].startswith("this run is finished: 12 updates")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in whole.rglob("*")} == before


def test_other_versions_are_said(run, stopped, tmp_path, numbers):
    output, said = shutil.copytree(stopped, tmp_path / "run"), []
    content = json.loads((output / "run.json").read_text(encoding="utf-8"))
    content["versions"]["torch"] = "1.0"
    (output / "run.json").write_text(json.dumps(content), encoding="utf-8")
    numbers.seal_again(output)
    run(output, said=said)
    assert "'torch': '1.0'" in said[1]
    assert torch.__version__ in said[1]


DAMAGES = [b"", b"{}", b"\xff", b"[]", None]


def damage(path: Path, content: bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize("content", DAMAGES)
def test_a_lost_description_is_written_again_from_its_copy(run, whole, stopped, tmp_path, numbers, content):
    output, said = shutil.copytree(stopped, tmp_path / "run"), []
    damage(output / "run.json", content)
    run(output, said=said)
    what = "missing" if content is None else "damaged"
    assert said[0].startswith(f"{output / 'run.json'} is {what}: written again from run.copy.json")
    assert numbers.contents(output, without=VARYING) == numbers.contents(whole, without=VARYING)


@pytest.mark.parametrize("other", ["damaged", "absent", "of older versions"])
@pytest.mark.parametrize("content", DAMAGES)
def test_a_damaged_run_without_an_intact_copy_is_refused(run, whole, tmp_path, numbers, content, other):
    output = shutil.copytree(whole, tmp_path / "run")
    if other == "damaged":
        (output / "run.copy.json").write_text((output / "run.json").read_text(encoding="utf-8").replace("12", "13"))
    else:
        (output / "run.copy.json").unlink()
        if other == "of older versions":
            numbers.seal_again(output)
    damage(output / "run.json", content)
    before = numbers.contents(output)
    with pytest.raises(FormatError, match=r"run\.json: (damaged|is missing).* restore the file from ") as caught:
        run(output)
    assert "\n" not in str(caught.value)
    assert numbers.contents(output) == before


def test_an_edited_description_is_not_overwritten(run, whole, tmp_path, numbers):
    output = shutil.copytree(whole, tmp_path / "run")
    text = (output / "run.json").read_text(encoding="utf-8")
    assert '"learning_rate": 0.01' in text
    (output / "run.json").write_text(text.replace('"learning_rate": 0.01', '"learning_rate": 0.02'), encoding="utf-8")
    before = numbers.contents(output)
    with pytest.raises(FormatError, match=r"run\.json: damaged, or changed.* from its copy run\.copy\.json, or begin"):
        run(output)
    assert numbers.contents(output) == before


def test_lost_data_are_said_to_be(run, whole, wishes, tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path / "run", 4, **wishes)
    (tmp_path / "run" / "data" / "valid.target.txt").unlink()
    with pytest.raises(FormatError, match=r"valid\.target\.txt"):
        run(tmp_path / "run")


# ------------------------------------------------------------------------------------------ what a run is


def test_what_stands_in_a_run(whole, wishes):
    names = {path.name for path in whole.iterdir()}
    logs = {"log.txt", "log.jsonl", "timing.jsonl"}
    assert names == {"run.json", "run.copy.json", "manifest.json", "data", "left-out.tsv", "checkpoints", "best"} | logs
    config = RunConfig.model_validate_json((whole / "run.json").read_text(encoding="utf-8"))
    asked = {
        name: str(value) if name.startswith(("source", "target", "valid_")) else value for name, value in wishes.items()
    }
    assert config.asked == asked
    assert config.versions["torch"] == torch.__version__
    assert config.training.updates == 12
    records = [json.loads(line) for line in (whole / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(r["kind"], r["step"]) for r in records] == [
        ("train", 3),
        ("validation", 5),
        ("train", 6),
        ("train", 9),
        ("validation", 10),
        ("train", 12),
        ("validation", 12),
    ]
    valid = records[-1]
    assert valid["sentences"] == 8
    assert valid["bleu_signature"].startswith("nrefs:1")
    assert {"loss", "perplexity", "accuracy", "bleu", "chrf", "sample"} <= valid.keys()


def test_the_best_model_is_that_of_the_best_validation(trained):
    records = [json.loads(line) for line in (trained / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = {r["step"]: r["bleu"] for r in records if r["kind"] == "validation"}
    best = json.loads((trained / "best" / "metrics.json").read_text(encoding="utf-8"))
    assert best["bleu"] == max(validations.values())
    assert validations[best["step"]] == best["bleu"]


@pytest.mark.parametrize(("score", "most"), [("chrf", max), ("loss", min)])
def test_another_score_can_choose_the_best_model(run, wishes, tmp_path, score, most):
    said: list[str] = []
    result = run(tmp_path / "run", said=said, best_by=score, **wishes)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = {r["step"]: r[score] for r in records if r["kind"] == "validation"}
    best = most(validations.values())
    assert validations[result.best_step] == best == abs(result.best_score)
    assert json.loads((tmp_path / "run" / "best" / "metrics.json").read_text(encoding="utf-8"))[score] == best
    shown = f"a validation chrF of {best:.2f} (greedy)" if score == "chrf" else f"a validation loss of {best:.3f}"
    assert shown in said[-1]


def test_the_logged_score_is_that_of_the_kept_model(trained, numbers):
    """Greedy search on the validation set, as in the validation of a run."""
    from multihead import evaluate

    found = evaluate(trained, numbers.valid["valid_source"], numbers.valid["valid_target"], beam=1)
    best = json.loads((trained / "best" / "metrics.json").read_text(encoding="utf-8"))
    assert found.scores.bleu == pytest.approx(best["bleu"], abs=1e-9)
    assert found.scores.bleu_signature == best["bleu_signature"]


def test_two_runs_of_the_same_settings_are_equal(run, wishes, whole, numbers, tmp_path):
    torch.manual_seed(12345)
    run(tmp_path / "run", **wishes)
    assert numbers.contents(tmp_path / "run", without=VARYING) == numbers.contents(whole, without=VARYING)


def test_the_generator_of_the_caller_is_left_alone(run, wishes, tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(tmp_path / "run", **{**wishes, "updates": 2})
    assert torch.equal(torch.rand(3), expected)


def test_two_vocabularies_of_one_size_have_no_common_embedding(run, numbers, wishes, tmp_path):
    """Also if the text was prepared ahead, so that the run itself was not asked for two."""
    text = prepare(**numbers.train, **numbers.valid, vocab_size=310, shared_vocabulary=False, output=tmp_path / "text")
    rest = {name: value for name, value in wishes.items() if name in TrainSettings.model_fields}
    rest = {name: value for name, value in rest.items() if name not in PrepareSettings.model_fields}
    config = run(tmp_path / "run", **{**rest, "updates": 1, "data": tmp_path / "text"}).translator().bundle.model.config
    assert (config.source_vocab, config.target_vocab) == (len(text.source_tokenizer), len(text.target_tokenizer))
    assert config.source_vocab == config.target_vocab
    assert not config.tie_embeddings
    with pytest.raises(ConfigurationError, match="tie_embeddings needs one vocabulary, and the text was prepared with"):
        run(tmp_path / "tied", **{**rest, "data": tmp_path / "text", "tie_embeddings": True})


def test_two_vocabularies_train_and_translate(run, numbers, wishes, tmp_path):
    result = run(tmp_path / "run", **{**wishes, "updates": 5, "shared_vocabulary": False})
    translator = result.translator()
    assert not translator.bundle.model.config.tie_embeddings
    assert (tmp_path / "run" / "best" / "source.tokenizer.json").is_file()
    assert (tmp_path / "run" / "best" / "target.tokenizer.json").is_file()
    assert len(translator.translate(["eins zwei", "", "drei"])) == 3
    map_ = translator.attention("eins zwei", "one two")
    assert (len(map_.source), len(map_.target)) == map_.weights.cross[-1].shape[-1:-3:-1]


def test_a_budget_limits_the_updates(run, numbers, wishes, tmp_path):
    given = {name: value for name, value in wishes.items() if name not in ("updates", "validate_every", "log_every")}
    result = run(tmp_path / "run", budget="2s", **given)
    config = RunConfig.model_validate_json((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert config.reasons["updates"].startswith("what fits into 2 s at ")
    assert config.asked["budget"] == config.training.budget == 2.0
    lines = [json.loads(line) for line in (tmp_path / "run" / "plan.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[-1]["step"] == result.updates >= 1  # how many depends on the load of the machine
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert 0 < lines[0]["spent"] <= lines[-1]["spent"]
    assert run(tmp_path / "run").updates == result.updates


def test_a_short_budget_trains_a_smaller_network(run, wishes, tmp_path, monkeypatch):
    """The pace of both is measured; the toy counts as one of the texts with which this was measured."""
    monkeypatch.setattr(choices, "_FEWEST", 1)
    sizes = (*choices.SIZES, "preset", "updates", "validate_every", "log_every", "positions")
    said: list[str] = []
    run(tmp_path / "run", said=said, budget="2s", **{k: v for k, v in wishes.items() if k not in sizes})
    config = RunConfig.model_validate_json((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    usual = config.model.model_copy(update=PRESETS["tiny"])
    assert (config.model.width, config.model.encoder_layers) == (64, usual.encoder_layers)
    assert parameters_of(config.model) <= parameters_of(usual) / 4
    assert re.fullmatch(r"learns more in this time than [\d,]+ updates of width 128 would", config.reasons["preset"])
    assert sum("measuring how fast" in line for line in said) == 2
    assert any(f"updates fit, so a smaller network learns more: {config.model.summary}" in line for line in said)


def test_the_measurement_changes_nothing_but_the_number(run, numbers, wishes, tmp_path, monkeypatch):
    """The run equals one without a budget that was given the resulting number of updates."""
    monkeypatch.setattr(beginning, "measure", lambda *_: beginning.Pace(100.0, 400.0))
    monkeypatch.setattr(budget, "choose", lambda _, plan, *__: plan.model_copy(update={"check": plan.updates}))
    given = {name: value for name, value in wishes.items() if name != "updates"}
    given["weight_decay"] = 0.1
    measured = run(tmp_path / "measured", budget=1000.0, **given)
    assert 5 <= measured.updates <= 10
    run(tmp_path / "given", updates=measured.updates, **given)
    plans = ("plan.jsonl", "state.json", "manifest.json")
    found, expected = (
        numbers.contents(tmp_path / name, without=(*VARYING, "run.json", "run.copy.json", *plans))
        for name in ("measured", "given")
    )
    assert found == expected


# ------------------------------------------------------------------------------------------ nothing left behind


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"source": "nowhere.de"}, DataError, "no such file"),
        ({"valid_target": "nowhere.en"}, DataError, "no such file"),
        ({"preset": "smal"}, ConfigurationError, "did you mean 'small'"),
        ({"heads": 5}, ConfigurationError, "width must be a multiple of heads"),
        ({"dropout": 1.5}, ConfigurationError, "dropout: input should be less than 1, got 1.5"),
        ({"updates": 0}, ConfigurationError, "updates: input should be greater than or equal to 1, got 0"),
        ({"beam": 0}, ConfigurationError, "beam"),
        ({"smoothing": -0.1}, ConfigurationError, "smoothing"),
        ({"vocab_size": 100}, InputError, "100"),
        ({"held_out": 3}, ConfigurationError, "held_out and valid_source exclude each other"),
        ({"budget": "1m"}, ConfigurationError, "updates and budget"),
        ({"device": "cuda"}, ConfigurationError, "no CUDA"),
        ({"output": None}, ConfigurationError, "output missing"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_what_cannot_be_leaves_nothing_behind(run, wishes, numbers, tmp_path, monkeypatch, change, error, said, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    output = tmp_path / "deep" / "run"
    if there:
        output.mkdir(parents=True)
    before = numbers.contents(tmp_path)
    given = {"output": output, **wishes, **change}
    with pytest.raises(error, match=said):
        run(**given)
    assert numbers.contents(tmp_path) == before


def test_settings_are_checked_before_the_work(run, wishes, tmp_path, monkeypatch):
    monkeypatch.setattr(beginning, "write_data", lambda *_: pytest.fail("it has begun to work"))
    for change in ({"preset": "x"}, {"heads": 5}, {"clip": -1.0}, {"alpha": -1.0}, {"warmup": -1}):
        with pytest.raises(ConfigurationError):
            run(tmp_path / "run", **{**wishes, **change})


def test_a_folder_that_holds_something_else_is_not_touched(run, wishes, numbers, tmp_path):
    output = tmp_path / "letters"
    output.mkdir()
    (output / "mother.txt").write_text("dear")
    before = numbers.contents(tmp_path)
    with pytest.raises(ConfigurationError, match="holds something that is not a run; nothing was touched"):
        run(output, **wishes)
    assert numbers.contents(tmp_path) == before


def test_a_marker_alone_makes_no_folder_ours(run, wishes, numbers, tmp_path):
    """Any user file might have that name."""
    for name in ("preparing.txt", "mother.txt"):
        (tmp_path / name).write_text("dear")
    before = numbers.contents(tmp_path)
    with pytest.raises(ConfigurationError, match="nothing was touched"):
        run(tmp_path, **wishes)
    assert numbers.contents(tmp_path) == before


@pytest.mark.parametrize("place", ["file", "file/run", "file/deep/run"])
def test_a_file_is_no_place_for_a_run(run, wishes, numbers, tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match=r"file: is a file; --output names a folder"):
        run(tmp_path / place, **wishes)
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("number", [28, 30, 13])
def test_a_disk_that_cannot_be_written_to_leaves_nothing(run, wishes, numbers, tmp_path, monkeypatch, number):
    """No space, a read-only disk, or no permission, in the middle of the preparation."""

    def fails(*_):
        raise OSError(number, "as the system says it")

    monkeypatch.setattr(files, "write_chunks", fails)
    with pytest.raises(SurroundingsError, match="cannot be written"):
        run(tmp_path / "run", **wishes)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_no_space_while_saving_keeps_what_there_is_and_goes_on(run, wishes, whole, numbers, tmp_path, monkeypatch):
    from multihead.training import checkpoint

    write, calls = checkpoint.write_tensors, itertools.count(1)

    def full(path, tensors):
        if next(calls) > 3:
            raise OSError(28, "No space left on device")
        return write(path, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(SurroundingsError, match=r"00000010: cannot be written: no space left") as caught:
            run(tmp_path / "run", **wishes)
    assert caught.value.exit_status == 1
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000005"]
    assert Translator.load(tmp_path / "run").translate(["eins"])
    run(tmp_path / "run", **wishes)
    same_end(numbers, tmp_path / "run", whole)


def test_on_a_processor_a_gpu_that_is_there_decides_nothing(run, wishes, tmp_path, monkeypatch):
    given = {**wishes, "device": "cpu", "updates": 1, "precision": None}
    configs = []
    for name in ("alone", "with"):
        run(tmp_path / name, **given)
        content = json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8"))
        configs.append((content["model"], content["training"]))
        threads, precision = (configs[0][1][key] for key in ("threads", "precision"))
        machine = Machine(threads, "cuda", precision == "float32", "a GPU that multiplies other numbers fast")
        monkeypatch.setattr(
            beginning,
            "inspect_machine",
            lambda device=None, machine=machine: inspect_machine("cpu") if device else machine,
        )
    assert configs[0] == configs[1]
