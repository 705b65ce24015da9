"""``multihead train --best``: several models teach a final one."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import string
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.conftest import SETTINGS, WORDS

from multihead import Translator
from multihead.bundle import load_bundle
from multihead.data.store import TokenStore
from multihead.errors import ConfigurationError, Interrupted
from multihead.judging import error_rate_training, tune
from multihead.lines import windows
from multihead.lines.synthetic_pairs import write_pairs
from multihead.lines.translate_shards import Models
from multihead.planning.choices import Pace
from multihead.planning.settings import AS_ASKED, Choices, TextFile, TrainSettings
from multihead.preparing import journal, shards
from multihead.preparing.prepare import prepare
from multihead.runs.best import comparison, plan
from multihead.runs.best import train as best_train
from multihead.runs.best.comparison import compare_uses, measure_alone
from multihead.runs.best.plan import (
    FALLING_RATE,
    SMALL_DROPOUT,
    STUDENT_BPE_DROPOUT,
    STUDENT_DROPOUT,
    STUDENT_RATE,
    BestConfig,
    Fitting,
    budget_of,
    decide,
    stages_of,
    students_of,
)
from multihead.runs.best.train import BestRun, train_best
from multihead.runs.run import RunResult
from multihead.runs.translator import begin
from multihead.serving import uses as served_uses
from multihead.serving.folders import find_models
from multihead.serving.settings import ServeSettings
from multihead.serving.uses import read_uses
from multihead.text.languages import Direction, Languages
from multihead.text.tokenizer import Tokenizer
from multihead.training import trainer
from multihead.training.context import RunContext
from multihead.translating.companions import Companions
from multihead.translating.request import Weights

if TYPE_CHECKING:
    from tests.conftest import Numbers

TIMES = ("log.txt", "timing.jsonl", "stages.jsonl", "log.jsonl")


def learn(output: Path, **wishes: Any) -> RunResult:
    threads = torch.get_num_threads()
    try:
        quiet: dict[str, Any] = {"say": lambda _: None, "use_threads": torch.set_num_threads}
        return train_best(output=output, **{**quiet, **wishes})
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def fewer_searches() -> Iterator[None]:
    """Tune weights of uses on one split, once along each axis: tuning takes half the time of runs as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "_SPLITS", 1)
        patch.setattr(error_rate_training, "_LINES", 0)
        patch.setattr(error_rate_training, "_ROUNDS", 1)
        yield


@pytest.fixture
def leave_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change decisions about a run, to leave out stages that a test does not need."""

    def change(**decisions: Any) -> None:
        def decide_less(*given: Any, **more: Any) -> BestConfig:
            return decide(*given, **more).model_copy(update=decisions)

        monkeypatch.setattr(plan, "decide", decide_less)

    return change


@pytest.fixture(scope="module")
def wishes(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        **numbers.write(tmp_path_factory.mktemp("text"), "train", numbers.pairs(150, 0)),
        **numbers.valid,
        **SETTINGS,
        "inner": 256,  # so that there is a network of half the size
        "dropout": 0.0,
        "smoothing": 0.0,
        "updates": 8,
        "validate_every": 8,
    }


@pytest.fixture(scope="module")
def whole(wishes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("best") / "run"
    learn(folder, **wishes)
    return folder


# --------------------------------------------------------------------------- the plan


def config(budget: float | None, forward: int, reverse: int, *, both_ways: bool, small: bool = False) -> BestConfig:
    updates = 5 if budget is None else None
    own: dict[str, Any] = {"versions": {}, "asked": {}, "seed": 1, "reasons": {}}
    own |= {"both_ways": both_ways, "student": not small, "small": small}
    return BestConfig(budget=budget, updates=updates, forward=forward, reverse=reverse, **own)


@given(st.floats(100, 1e5), st.integers(1, 8), st.integers(0, 8), st.booleans(), st.booleans(), st.data())
def test_a_run_ends_in_time_whatever_the_stages_before_the_last_training_take(
    total: float, forward: int, reverse: int, both_ways: bool, small: bool, data: Any
) -> None:
    stages, spent = stages_of(config(total, forward, reverse, both_ways=both_ways, small=small)), 0.0
    for index in range(len(stages)):
        budget = budget_of(stages, index, total, spent)
        assert budget > 0
        last = index + 2 >= len(stages)
        spent += budget * (1.0 if last else data.draw(st.floats(0.5, 1.3)))
    assert spent <= 0.985 * total + 1e-6


@given(st.floats(200, 1e5), st.integers(1, 8), st.integers(0, 8), st.booleans())
def test_the_shares_are_those_of_the_weights(total: float, forward: int, reverse: int, both_ways: bool) -> None:
    stages, spent, budgets = stages_of(config(total, forward, reverse, both_ways=both_ways)), 0.0, []
    for index in range(len(stages)):
        budgets.append(budget_of(stages, index, total, spent))
        spent += budgets[-1]
    assert spent == pytest.approx(0.985 * total)
    weights = [stage.weight for stage in stages]
    assert [b / spent for b in budgets] == pytest.approx([w / sum(weights) for w in weights])


def test_more_text_gets_more_time_and_a_short_run_fewer_models() -> None:
    def chosen(pairs: int, shared: bool = True, **settings: Any) -> BestConfig:
        return decide(Choices(TrainSettings(**settings)), pairs, {}, shared=shared)

    assert chosen(30_000).budget == 3600
    assert chosen(120_000).budget == 7200
    short, long = chosen(30_000, budget=600), chosen(30_000, budget=3600)
    assert (short.forward, short.reverse) == (1, 0) < (long.forward, long.reverse)
    assert chosen(30_000, updates=7).budget is None
    assert (short.small, long.small, short.student, long.student) == (False, True, 0, 2)
    assert not short.both_ways
    assert not long.both_ways
    for other in (chosen(30_000, budget=7200), chosen(30_000, updates=7), chosen(4_999, budget=1200)):
        assert (other.both_ways, other.small, other.student) == (True, True, 0)
    assert not chosen(5_000, budget=1200).both_ways
    assert not chosen(4_999, shared=False).both_ways
    assert chosen(4_999, shared=False).student == 2
    assert [one.right_to_left for one in (short, long, chosen(4_999, budget=1200))] == [False, True, False]


def test_the_updates_of_the_whole_time_count_not_only_its_length() -> None:
    """On a slow machine, as few updates fit into an hour as into minutes on a fast one."""

    def chosen(budget: float, seconds: float, pairs: int = 30_000, **settings: Any) -> BestConfig:
        choices = Choices(TrainSettings(budget=budget, **settings))
        return decide(choices, pairs, {}, measure=lambda length: Fitting(round(length / seconds), {"width": 192}))

    assert [chosen(3600, seconds).forward for seconds in (0.25, 0.5, 2.0)] == [3, 3, 1]
    assert [chosen(4 * 3600, seconds).both_ways for seconds in (0.25, 0.5, 2.0)] == [True, True, False]
    assert [chosen(60.0, seconds).forward for seconds in (0.001, 2.0)] == [1, 1]
    assert "1,800 updates" in chosen(3600, 2.0).reasons["forward"]
    given = chosen(4 * 3600, 1.5)
    assert (given.forward, given.student, given.small, given.right_to_left, given.datastore) == (3, 2, True, True, True)


def test_several_models_are_narrow_where_few_updates_of_each_fit() -> None:
    """Then none of the models is the small one, the students, which start from scratch, have more time, and each
    forward model learns from those before it."""
    half = {"width": 192}

    def chosen(updates: int, found: dict[str, int] | None = half, pairs: int = 30_000, **settings: Any) -> BestConfig:
        choices = Choices(TrainSettings(budget=3600, **settings))
        return decide(choices, pairs, {}, measure=lambda _: Fitting(updates, found), shared=pairs > 5_000)

    slow, fast = chosen(7_000), chosen(13_800)
    assert (slow.narrow, slow.small, slow.student) == (half, False, 2)
    assert "1,059 updates" in slow.reasons["narrow"]
    assert (fast.narrow, fast.small, fast.student) == (None, True, 2)
    assert (slow.fresh_students, fast.fresh_students) == (True, False)
    shares = [[stage.weight for stage in stages_of(one) if stage.name == "student"] for one in (slow, fast)]
    assert shares == [[1.0], [0.7]]
    for other in (
        chosen(7_000, None),
        chosen(7_000, width=256),
        chosen(7_000, model="recurrent"),
        chosen(7_000, pairs=4_999),
    ):
        assert (other.narrow, other.small) == (None, True)


@pytest.mark.parametrize("name", ["updates", "budget"])
def test_a_given_length_is_said_to_be_given(name: str) -> None:
    found = decide(Choices(TrainSettings(**{name: 4_000})), 30_000, {})
    assert (getattr(found, name), found.reasons[name]) == (4_000, AS_ASKED)


def test_a_short_run_of_many_pairs_leaves_further_text_out() -> None:
    def chosen(pairs: int, budget: float) -> BestConfig:
        further = TextFile(path="more", sha256="0" * 64, lines=100_000)
        return decide(Choices(TrainSettings(budget=budget)), pairs, {}, further)

    for pairs, budget, used in ((30_000, 3600.0, True), (30_000, 600.0, False), (10_000, 600.0, True)):
        found = chosen(pairs, budget)
        assert (found.further is not None) == used == (not found.left_out) == ("left_out" not in found.reasons)
        names = [stage.name for stage in stages_of(found)]
        assert (plan.PAIRS in names) == ("reverse-1" in names) == used
        assert found.epoch_pairs == (2 if used else 1) * pairs


@pytest.mark.parametrize(("seconds", "forward"), [(2.0, 1), (0.001, 3)])
def test_a_run_measures_how_many_updates_fit(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, forward: int
) -> None:
    monkeypatch.setattr(plan, "_SHORT", 0.0)
    monkeypatch.setattr(begin, "measure", lambda *_: Pace(seconds, 300.0))
    run, own = tmp_path / "run", {name: value for name, value in wishes.items() if name != "updates"}
    with pytest.raises(Interrupted):
        learn(run, **own, budget=100.0, stop_signal=lambda: 15 if (run / "run.json").exists() else None)
    found = BestConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))
    assert (found.forward, found.budget) == (forward, 100.0)
    assert sorted(path.name for path in run.iterdir() if path.is_dir()) == ["text"]


def test_there_are_at_most_as_many_students_as_forward_models_and_old_runs_have_one() -> None:
    def students(forward: int, student: int | bool) -> list[str]:
        values = config(None, forward, 0, both_ways=False).model_dump() | {"student": student}
        return students_of(BestConfig.model_validate_json(json.dumps(values)))

    assert students(3, 2) == ["student", "student-2"]
    assert students(3, True) == ["student"]  # as run.json of version 0.6 has it
    assert students(3, False) == students(1, 2) == []
    assert students(2, 8) == ["student", "student-2"]


# --------------------------------------------------------------------------- the run


def test_what_stands_in_a_run(whole: Path, numbers: Numbers) -> None:
    forward = [f"forward-{i + 1}" for i in range(3)]
    runs = {
        name: json.loads((whole / name / "run.json").read_text())
        for name in ("both-ways", *forward, "reverse-1", "small")
    }
    assert [run["training"]["seed"] for run in runs.values()] == [1, 2, 3, 4, 5, 6]
    best = json.loads((whole / "uses.json").read_text())["model"]
    assert best in (*forward, "small")
    assert numbers.contents(whole / "best") == numbers.contents(whole / best / "best")
    ensemble = Translator.load(whole / "best").ensemble([Translator.load(whole / name) for name in forward])
    assert len(ensemble.translate(["eins"])) == 1


def test_the_small_model_is_half_of_the_best_and_is_taught_by_all(wishes: dict[str, Any], whole: Path) -> None:
    valid = [Path(wishes[f"valid_{side}"]).read_text(encoding="utf-8").splitlines() for side in ("source", "target")]
    scores = {
        name: measure_alone(whole / name / "best", (valid[0], valid[1]), "en", lambda _: None)
        for name in ("forward-1", "forward-2", "forward-3", "small")
    }
    run, uses = (json.loads((whole / name).read_text()) for name in ("small/run.json", "uses.json"))
    assert uses["model"] == max(scores, key=lambda name: scores[name])
    del scores["small"]
    whole_best = max(scores, key=lambda name: scores[name])
    assert [Path(teacher["path"]).name for teacher in run["teachers"]] == list(scores)
    first = json.loads((whole / "forward-1/run.json").read_text())["training"]
    assert run["training"]["learning_rate"] == first["learning_rate"]
    assert run["training"]["optimizer"] == first["optimizer"]
    small, best, start = (load_bundle(whole / name).model for name in ("small", whole_best, "small-start"))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (small, best)]
    assert [uses["small"]["parameters"], uses["small"]["of"]] == counts
    assert counts[0] <= counts[1] / 2
    origin = json.loads((whole / "small-start/metrics.json").read_text())["parts_of"]
    assert origin == str(whole / whole_best / "best")
    begun = dict(start.named_parameters())
    assert torch.equal(
        begun["encoder.0.self_attention.in_projection.weight"], best.encoder[0].self_attention.in_projection.weight
    )


@pytest.mark.parametrize(("given", "share"), [({}, 0.0), ({"dropout": 0.3, "width": 64}, 1.0)])
def test_the_small_model_has_no_dropout_unless_it_is_given(
    unchecked: None,
    leave_out: Callable[..., None],
    wishes: dict[str, Any],
    tmp_path: Path,
    given: dict[str, float],
    share: float,
) -> None:
    """Where there is a narrower network of half the size, it starts from scratch, otherwise as parts of the best."""
    leave_out(forward=2, reverse=0, datastore=False)
    asked = {name: value for name, value in wishes.items() if name != "dropout"}
    learn(tmp_path / "run", **{**asked, **given, "updates": 1, "validate_every": 1})
    runs = [json.loads((tmp_path / "run" / name / "run.json").read_text()) for name in ("forward-1", "small")]
    forward, small = (run["model"]["dropout"] for run in runs)
    assert forward > 0
    assert small == share * forward
    narrow = "width" in given
    assert (tmp_path / "run/small-start").exists() is not narrow
    assert (runs[1]["from_model"] is None) is narrow
    assert [run["model"]["width"] for run in runs] == ([64, 32] if narrow else [32, 32])
    sizes = json.loads((tmp_path / "run/uses.json").read_text())["small"]
    assert sizes["parameters"] <= sizes["of"] / 2


def test_browsers_get_the_small_model_if_it_is_nearly_as_good(
    whole: Path, call: Callable[..., Any], tmp_path: Path, numbers: Numbers
) -> None:
    """A folder of the run that is named is exported itself."""

    def exported(model: Path, name: str) -> tuple[int, str]:
        ended = call("export", model, "--format", "web", "-o", tmp_path / name, "--no-certificate")
        assert ended.status == 0, ended.err
        return (tmp_path / name / "weights.bin").stat().st_size, ended.err

    run = Path(shutil.copytree(whole, tmp_path / "run"))
    uses = json.loads((run / "uses.json").read_text())
    sizes = {}
    for behind, name in ((0.29, "near"), (0.31, "far")):
        uses["small"]["behind"] = behind
        (run / "uses.json").write_text(json.dumps(uses))
        sizes[name], said = exported(run, name)
        assert f"{behind:.2f} BLEU behind" in said
    assert sizes["near"] == exported(run / "small", "small")[0] < sizes["far"] == exported(run / "best", "best")[0]
    shutil.rmtree(run / "small")
    ended = call("export", run, "--format", "web", "-o", tmp_path / "none", "--no-certificate")
    assert (ended.status, (tmp_path / "none").exists()) == (2, False)
    assert "names the model small, which is not in" in ended.err


def test_tied_embeddings_have_one_vocabulary(tmp_path: Path) -> None:
    found = {tied: best_train._text_settings(TrainSettings(tie_embeddings=tied), tmp_path) for tied in (True, False)}
    assert [found[tied]["shared_vocabulary"] for tied in (True, False)] == [True, None]


def test_the_others_begin_as_the_model_of_both_ways(whole: Path) -> None:
    both = json.loads((whole / "both-ways/run.json").read_text())
    one_way = json.loads((whole / "text/prepared.json").read_text())["data"]["pairs"]
    assert (both["data"]["pairs"], both["training"]["schedule"]) == (2 * one_way, "constant")
    for name in ("forward-1", "forward-2", "forward-3", "reverse-1"):
        run = json.loads((whole / name / "run.json").read_text())
        assert Path(run["from_model"]["path"]).parent.name == "both-ways"
        assert run["training"]["learning_rate"] == both["training"]["learning_rate"] == SETTINGS["learning_rate"]
        assert run["training"]["optimizer"] == both["training"]["optimizer"]
        assert run["training"]["muon_scale"] == both["training"]["muon_scale"]


def test_a_rate_that_nobody_asked_for_is_higher_where_it_falls(wishes: dict[str, Any], tmp_path: Path) -> None:
    free = {name: value for name, value in wishes.items() if name != "learning_rate"}
    begun = [tmp_path / "run" / name / "run.json" for name in ("both-ways", "forward-1", "reverse-1")]
    short = {**free, "updates": 1, "validate_every": 1}
    with pytest.raises(Interrupted):
        learn(tmp_path / "run", **short, stop_signal=lambda: 15 if begun[-1].exists() else None)
    runs = [json.loads(path.read_text())["training"] for path in begun]
    both, forward, reverse = (run["learning_rate"] for run in runs)
    assert forward == reverse == FALLING_RATE * both


def test_languages_with_vocabularies_of_their_own_are_not_trained_both_ways(
    unchecked: None, leave_out: Callable[..., None], wishes: dict[str, Any], tmp_path: Path
) -> None:
    """The students begin as the best of their teachers; embeddings that are most of the network have no half."""
    leave_out(reverse=0, datastore=False)
    folder = tmp_path / "run"
    short = {"shared_vocabulary": False, "updates": 1, "validate_every": 1, "dropout": None}
    learn(folder, **{**wishes, **short})
    assert "there will be no small model: " in (folder / "log.txt").read_text()
    assert not (folder / "small").exists()
    assert json.loads((folder / "uses.json").read_text()).keys() == {"model", "sentences", "uses"}
    assert not (folder / "both-ways").exists()
    first, *students = (
        json.loads((folder / name / "run.json").read_text()) for name in ("forward-1", "student", "student-2")
    )
    assert "from_model" not in first["asked"]
    scores = {
        path.name: json.loads((path / "best/metrics.json").read_text())["bleu"]
        for path in sorted(folder.glob("forward-*"))
    }
    starts = [Path(student["from_model"]["path"]).parent.name for student in students]
    assert starts == sorted(scores, key=lambda name: -scores[name])[:2]
    assert [one["training"]["bpe_dropout"] for one in (first, *students)] == [0.0, 0.0, STUDENT_BPE_DROPOUT]
    for student in students:
        assert [Path(teacher["path"]).name for teacher in student["teachers"]] == list(scores)
        assert student["training"]["learning_rate"] == STUDENT_RATE * first["training"]["learning_rate"]
        assert student["model"]["dropout"] == STUDENT_DROPOUT
    found = json.loads((folder / "uses.json").read_text())
    (ensemble,) = [use for use in found["uses"] if use["use"] == "an ensemble"]
    members = {found["model"], *_others(ensemble)}
    assert members - {"small"} == {"student", "student-2"}
    judge, text = (
        Translator.load(folder / "right-to-left"),
        Translator.load(folder / "forward-1").bundle.target_tokenizer,
    )
    assert judge.bundle.target_tokenizer.encode("one two") == text.encode("one two")[::-1]


def test_the_small_model_is_the_best_one_if_it_translates_better(
    unchecked: None,
    leave_out: Callable[..., None],
    wishes: dict[str, Any],
    numbers: Numbers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out(both_ways=False, forward=2, reverse=0, datastore=False)
    monkeypatch.setattr(best_train, "measure_alone", lambda model, *_: float(model.parent.name == "small"))
    folder = tmp_path / "run"
    learn(folder, **{**wishes, "updates": 1, "validate_every": 1})
    found = json.loads((folder / "uses.json").read_text())
    assert found["model"] == "small"
    assert found["small"]["parameters"] <= found["small"]["of"] / 2
    assert numbers.contents(folder / "best") == numbers.contents(folder / "small" / "best")
    (ensemble,) = [use for use in found["uses"] if use["use"] == "an ensemble"]
    assert _others(ensemble) == ["forward-1", "forward-2"]
    assert learn(folder).folder == folder


def test_the_end_of_a_student_counts_if_it_translates_better(
    unchecked: None,
    leave_out: Callable[..., None],
    wishes: dict[str, Any],
    numbers: Numbers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first student's last weights are better, not the second's; the teachers' predictions are computed once."""
    leave_out(forward=2, reverse=0, right_to_left=False, small=False, datastore=False)
    ends = iter([1.0, -1.0])

    def measured(model: Path, *_: Any) -> float:
        return next(ends) if model.name == "model" else 0.0

    monkeypatch.setattr(best_train, "measure_alone", measured)
    monkeypatch.setattr(trainer.RunState, "is_better", lambda state, *_: state.best_score is None)
    folder, said = tmp_path / "run", list[str]()
    short = {"shared_vocabulary": False, "updates": 2, "validate_every": 1}
    learn(folder, **{**wishes, **short}, say=said.append)
    found = json.loads((folder / "uses.json").read_text())
    assert found["model"] == "student"
    assert numbers.contents(folder / "best") == numbers.contents(folder / "student-end")
    end = load_file(folder / "student/checkpoints/00000002/average.safetensors")
    weights = load_file(folder / "best/model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in end.items())
    assert not (folder / "student-2-end").exists()
    (ensemble,) = [use for use in found["uses"] if use["use"] == "an ensemble"]
    assert _others(ensemble) == ["student-2"]
    assert sum("teachers predict at" in line for line in said) == 1
    assert sum("teachers predict is copied" in line for line in said) == 1
    stores = [numbers.contents(folder / name / "teachers") for name in ("student", "student-2")]
    assert stores[0] == stores[1]


def test_the_flags_of_each_use_give_its_validation_score(
    whole: Path, wishes: dict[str, Any], call: Callable[..., Any]
) -> None:
    """For uses that choose, the score is held out; their flags are accepted, and translate all lines."""
    uses = json.loads((whole / "uses.json").read_text())["uses"]
    plain = [use["use"] for use in uses if "--weights" not in use["flags"]]
    assert plain[:2] == ["the model alone", "an ensemble"]
    assert set(plain[2:]) <= {f"{name} and a datastore" for name in plain[:2]}  # those that gain
    assert (whole / "datastore" / "datastore.json").is_file()
    compiled = Translator.load(whole).engine is not None
    assert ["--precision" in use["flags"] for use in uses] == [False, *[compiled] * (len(uses) - 1)]
    text = {name: wishes[f"valid_{name}"] for name in ("source", "target")}
    for use in uses:
        flags = ("--source", text["source"], "--target", text["target"], "--json")
        ended = call("evaluate", whole, *use["flags"], *flags)
        assert ended.status == 0
        if "--weights" not in use["flags"]:
            assert round(json.loads(ended.out)["measures"][0]["score"], 2) == use["bleu"]


def test_narrow_models_have_half_of_the_parameters_and_narrow_students_begin_from_nothing(
    unchecked: None, leave_out: Callable[..., None], wishes: dict[str, Any], tmp_path: Path
) -> None:
    narrow = {"width": 32, "heads": 2, "inner": 64, "encoder_layers": 2, "decoder_layers": 1}
    leave_out(narrow=narrow, small=False)
    folder = tmp_path / "run"
    learn(folder, **{**wishes, "shared_vocabulary": False, "updates": 1, "validate_every": 1, "dropout": None})
    names = [*(f"forward-{i + 1}" for i in range(3)), "reverse-1", "right-to-left", "student", "student-2"]
    runs = [json.loads((folder / name / "run.json").read_text()) for name in names]
    assert all({name: run["model"][name] for name in narrow} == narrow for run in runs)
    assert [run["from_model"] for run in runs] == [None] * len(names)
    for place, forward in enumerate(runs[:3]):  # each learns from those before it
        assert [Path(teacher["path"]).name for teacher in forward["teachers"]] == names[:place]
        assert (forward["model"]["dropout"] == SMALL_DROPOUT) is (place > 0)
    assert [run["teachers"] for run in runs[3:5]] == [[], []]
    for student in runs[-2:]:
        assert [Path(teacher["path"]).name for teacher in student["teachers"]] == names[:3]
        assert student["model"]["dropout"] == SMALL_DROPOUT < runs[0]["model"]["dropout"]
        assert student["training"]["learning_rate"] == runs[0]["training"]["learning_rate"]
    found = json.loads((folder / "uses.json").read_text())
    assert found["model"] in names[-2:]
    assert found.keys() == {"model", "sentences", "uses"}


def test_several_models_have_the_usual_size_however_short_their_time_is(whole: Path) -> None:
    """The size of the preset for such a text: a given size is never replaced by a smaller one."""
    asked = [json.loads((whole / name / "run.json").read_text())["asked"] for name in ("both-ways", "forward-2")]
    assert [one["preset"] for one in asked] == ["tiny", "tiny"]


def test_a_judge_chooses_among_more_candidates(
    unchecked: None, whole: Path, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def tuned(translator: Translator, sources: Any, references: Any, request: Any, **how: Any) -> Any:
        asked.append((request.search.beam, translator.judge is not None))
        return tune.tune_texts(translator, sources, references, request, **how)

    monkeypatch.setattr(comparison, "tune_texts", tuned)
    pairs = numbers.pairs(20, 9)
    valid = [source for source, _ in pairs], [target for _, target in pairs]
    arguments: dict[str, Any] = {"found": lambda _: None, "progress": lambda _: None}
    for judge in (None, whole / "forward-1"):
        found = compare_uses(whole / "best", [], [whole / "reverse-1"], valid, "en", judge=judge, **arguments)
        widths = [use.flags[use.flags.index("--beam") + 1] for use in found if "--weights" in use.flags]
        assert set(widths) <= {str(asked[-1][0])}
    assert asked == [(12, False), (24, True)]


def test_the_server_offers_every_use(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the flags that the run wrote, so that writer and reader agree on the file; and one use with all flags."""
    uses = json.loads((whole / "uses.json").read_text())["uses"]
    models = {"--with": "forward-2", "--reverse": "reverse-1", "--judge": "forward-3", "--datastore": "datastore"}
    every = {flag: str(whole / name) for flag, name in models.items()}
    every |= {"--beam": "7", "--precision": "int8", "--weights": str(Weights(forward=0.2, judge=0.8))}
    uses.append({"use": "a use of everything", "flags": list(itertools.chain.from_iterable(every.items()))})
    monkeypatch.setattr(served_uses, "read_uses_file", lambda _: {"uses": uses})
    teams = read_uses(whole)
    assert [team.name for team in teams] == [use["use"].partition(" ")[2] for use in uses]
    for team, use in zip(teams, uses, strict=True):
        flags = list(zip(use["flags"][::2], use["flags"][1::2], strict=True))
        offered: list[tuple[str, Any]] = [("--datastore", team.datastore), ("--weights", team.weights)]
        offered += [("--with", path) for path in team.others]
        offered += [("--reverse", path) for path in team.reverse]
        offered += [("--judge", path) for path in team.judge]
        offered += [(f"--{name}", value) for name, value in team.search.items()]
        assert sorted((flag, str(value)) for flag, value in offered if value is not None) == sorted(flags)
    assert {team.name for team in teams} >= {"model alone", "ensemble"}


def _others(use: dict[str, Any]) -> list[str]:
    """The further members of an ensemble."""
    flags = zip(use["flags"][::2], use["flags"][1::2], strict=True)
    return [Path(value).name for flag, value in flags if flag == "--with"]


def _stop(asked: Iterator[int], most: int) -> int | None:
    return 15 if next(asked) >= most else None


def test_a_run_that_was_stopped_ends_as_the_one_that_was_not(
    unchecked: None, wishes: dict[str, Any], whole: Path, numbers: Numbers, tmp_path: Path
) -> None:
    """Stopped again and again, each time after more polls for a signal."""
    for stops in itertools.count(1):
        asked = itertools.count()
        try:
            learn(tmp_path / "run", **wishes, stop_signal=lambda asked=asked, most=30 * stops: _stop(asked, most))
        except Interrupted:
            wishes = {} if stops > 1 else wishes
        else:
            break
    assert stops > 2
    assert (tmp_path / "run/uses.json").read_text() == (whole / "uses.json").read_text().replace(
        str(whole), str(tmp_path / "run")
    )
    for name in ("best", "text-reverse/data"):
        assert numbers.contents(tmp_path / "run" / name) == numbers.contents(whole / name)


def test_prepared_text_gives_the_same(wishes: dict[str, Any], whole: Path, numbers: Numbers, tmp_path: Path) -> None:
    shutil.copytree(whole / "text", tmp_path / "text")
    own = {name: value for name, value in wishes.items() if name not in (*numbers.train, *numbers.valid, "vocab_size")}
    with pytest.raises(Interrupted):
        learn(tmp_path / "run", data=tmp_path / "text", **own, stop_signal=lambda: 15)
    assert numbers.contents(tmp_path / "run/text/data") == numbers.contents(whole / "text/data")


def test_the_preparation_of_a_run_goes_on_with_its_shards(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", 25)
    said = list[str]()
    for _ in range(2):
        asked = itertools.count()
        with pytest.raises(Interrupted, match="again to continue"):
            learn(tmp_path / "run", **wishes, say=said.append, stop_signal=lambda asked=asked: _stop(asked, 1))
        assert journal.has_shards(tmp_path / "run/text")
    assert "going on after 50 of 150 pairs" in said


def test_a_finished_run_says_so_and_stays_as_it_is(wishes: dict[str, Any], whole: Path, numbers: Numbers) -> None:
    before, said = numbers.contents(whole), list[str]()
    assert learn(whole, **wishes, say=said.append).folder == whole
    assert "this run is finished" in said[0]
    assert numbers.contents(whole) == before


def test_the_command_knows_its_run(
    call: Callable[..., Any], whole: Path, wishes: dict[str, Any], tmp_path: Path
) -> None:
    ended = call("train", "--output", whole)
    assert (ended.status, "is finished" in ended.err) == (0, True)
    ended = call("train", "--output", whole, "--updates", 7)
    assert ended.status == 2
    assert "updates was 8, now 7" in ended.err
    ended = call("train", "--best", "--output", whole / "small")
    assert ended.status == 2
    assert "holds a run of `multihead train`" in ended.err


def test_the_command_knows_a_run_whose_description_is_lost(
    call: Callable[..., Any], whole: Path, tmp_path: Path, numbers: Numbers
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run/run.json").unlink()
    ended = call("train", "--output", tmp_path / "run")
    assert (ended.status, "is finished" in ended.err) == (0, True)
    without = ("log.txt",)  # says so
    assert numbers.contents(tmp_path / "run", without=without) == numbers.contents(whole, without=without)


def test_a_fresh_run_does_not_say_that_it_was_finished(whole: Path) -> None:
    log = (whole / "log.txt").read_text(encoding="utf-8")
    assert "finished" not in log
    assert log.splitlines()[-1] == f"done: the model is in {whole / 'best'}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"from_model": "small"}, "from_model: a run in stages trains its own models"),
        ({"weights": "weights.txt"}, "weights: their lines are those of the text, and a run in stages"),
        ({"alignments": "ibm1"}, "alignments: their lines are those of the text, and a run in stages"),
        ({"right_to_left": True}, "right_to_left: a run in stages trains such a model itself"),
        ({"seed": (1 << 63) - 9}, "seed: each training takes the next one: expected 9223372036854775707 at most"),
        ({"budget": 60.0}, "updates and budget exclude each other"),
        ({"width": 33}, "width"),
        ({"target": "missing.en"}, "missing.en"),
        ({"output": None}, "output missing"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(
    wishes: dict[str, Any], whole: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    if "from_model" in change:
        wishes = {name: value for name, value in wishes.items() if name != "vocab_size"}
        change = {"from_model": whole / change["from_model"]}
    with pytest.raises(Exception, match=said) as raised:
        learn(**{"output": tmp_path / "run", **wishes, **change})
    assert not isinstance(raised.value, AssertionError)
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------- several directions


@pytest.fixture(scope="module")
def several(wishes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The settings of a run from German to English and back, and the run."""
    one_way = ("source", "target", "valid_source", "valid_target")
    own = {name: value for name, value in wishes.items() if name not in one_way}
    own |= {
        kind: [{"source": str(wishes[names[0]]), "target": str(wishes[names[1]]), "both_ways": True}]
        for kind, names in (("corpus", one_way[:2]), ("valid", one_way[2:]))
    }
    folder = tmp_path_factory.mktemp("several") / "run"
    learn(folder, **{**own, "updates": 4, "validate_every": 4})
    return own, folder


def test_every_model_of_several_directions_has_them_all(several: tuple[dict[str, Any], Path], numbers: Numbers) -> None:
    _, run = several
    text = json.loads((run / "text/prepared.json").read_text())["data"]
    assert [(one["source"], one["target"]) for one in text["directions"]] == [("de", "en"), ("en", "de")]
    names = ["both-ways", "forward-1", "forward-2", "forward-3", "small"]
    assert {path.parent.name for path in run.glob("*/run.json")} == set(names)
    for name in names:
        config = json.loads((run / name / "run.json").read_text())
        assert (config["data"]["pairs"], Path(config["data"]["prepared"]["path"])) == (text["pairs"], run / "text")
        for languages in (Languages("de", "en"), Languages("en", "de")):
            assert len(Translator.load(run / name, languages=languages).translate(["eins"])) == 1
    assert not (run / "text-both").exists()
    best = json.loads((run / "uses.json").read_text())["model"]
    assert numbers.contents(run / "best") == numbers.contents(run / best / "best")


def test_the_uses_of_each_direction_name_it(
    several: tuple[dict[str, Any], Path], wishes: dict[str, Any], call: Callable[..., Any]
) -> None:
    _, run = several
    companions = Companions((run / "forward-1",), reverse=(run / "forward-2",))
    joined = Models(run, companions, languages=Languages("en", "de")).load()
    assert joined.reverse is not None
    assert joined.reverse.bundle.target_language == "en"
    uses = json.loads((run / "uses.json").read_text())["uses"]
    plain = [use for use in uses if "--weights" not in use["flags"]]
    assert [use["use"] for use in plain] == [
        f"{system}, {direction}" for direction in ("de-en", "en-de") for system in ("the model alone", "an ensemble")
    ]
    for use in plain:
        sides = ("source", "target") if use["use"].endswith("de-en") else ("target", "source")
        text = [word for flag, side in zip(("--source", "--target"), sides, strict=True)
                for word in (flag, wishes[f"valid_{side}"])]  # fmt: skip
        ended = call("evaluate", run, *use["flags"], *text, "--json")
        assert ended.status == 0, ended.err
        assert round(json.loads(ended.out)["measures"][0]["score"], 2) == use["bleu"]
    served = find_models({None: run}, {}, "cpu", ServeSettings(), read_uses(run))
    assert sorted((str(one.pair), one.name) for one in served) == sorted(
        (direction, use["use"].removeprefix("the ").removeprefix("an ").replace(f", {direction}", ""))
        for use in uses
        for direction in ("de-en", "en-de")
        if f", {direction}" in use["use"]
    )


def test_a_model_of_both_directions_chooses_among_its_own_candidates(numbers: Numbers, tmp_path: Path) -> None:
    """The flags that compare_uses prints for the opposite direction are accepted, and choose."""
    both = [{**numbers.train, "both_ways": True}]
    numbers.learn(tmp_path / "run", corpus=both, **{**numbers.settings, "updates": 2, "held_out": 40})
    pairs = numbers.pairs(6, 9)
    valid = [source for source, _ in pairs], [target for _, target in pairs]
    arguments: dict[str, Any] = {"found": lambda _: None, "progress": lambda _: None}
    found = compare_uses(
        tmp_path / "run", [], [tmp_path / "run"], valid, "en", direction=Direction("de", "en"), **arguments
    )
    asked = ("--source-language", "de", "--target-language", "en")
    assert all(use.flags[:4] == asked for use in found)
    assert found[0].name == "the model alone, de-en"


def test_further_text_of_several_directions_is_refused(
    several: tuple[dict[str, Any], Path], wishes: dict[str, Any], tmp_path: Path
) -> None:
    own, _ = several
    with pytest.raises(ConfigurationError, match="make pairs of it by `multihead backtranslate`"):
        learn(tmp_path / "run", **own, monolingual=wishes["target"])
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------- further text


def test_further_text_is_translated_first_and_learned_then(
    wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    lines = [target for _, target in numbers.pairs(30, seed=5)]
    further = tmp_path / "more.en"
    further.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run, short = tmp_path / "run", {**wishes, "updates": 2, "validate_every": 2, "schedule": "cosine"}
    with pytest.raises(Interrupted):
        learn(run, monolingual=further, **short, stop_signal=lambda: 15 if (run / "pairs").exists() else None)
    further.write_text("one\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"more\.en: not the text with which this run began"):
        learn(run)
    further.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"monolingual was .*, now .*other"):
        learn(run, monolingual=Path("other"))
    spent = [entry["spent"] for entry in map(json.loads, (run / "stages.jsonl").read_text().splitlines())]
    assert spent[-1] > spent[-2]  # of the stage in which the run was stopped, too
    used: list[int] = []
    with pytest.raises(Interrupted):
        learn(
            run,
            stop_signal=lambda: 15 if (run / "forward-1/run.json").exists() else None,
            use_threads=used.append,
        )
    assert used[0] == SETTINGS["threads"]  # before the translation goes on, on as many threads as it began
    rows = [row.split("\t") for row in (run / "pairs/monolingual.tsv").read_text(encoding="utf-8").splitlines()]
    assert {target for _, target in rows} <= set(lines)
    tag = json.loads((run / "run.json").read_text())["tag"]
    assert all(source.startswith(f"{tag} ") for source, _ in rows)
    text, more = (
        json.loads((run / name / "prepared.json").read_text())["data"]["pairs"] for name in ("text", "text-more")
    )
    assert more == text + len(rows)
    assert json.loads((run / "forward-1/run.json").read_text())["data"]["pairs"] == more
    assert json.loads((run / "both-ways/run.json").read_text())["training"]["schedule"] == "cosine"
    assert json.loads((run / "reverse-1/run.json").read_text())["data"]["pairs"] == text


@pytest.mark.parametrize("begun", ["", "b", "abcd", string.ascii_letters, f"{string.ascii_letters}<"])
def test_the_tag_is_the_shortest_word_with_which_no_source_begins(begun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched among a few sources at a time; "<" stands for "<bt>" itself."""
    monkeypatch.setattr(best_train, "_LOOKED_AT", 7)
    tokenizer, draw = Tokenizer.learn([" ".join(string.ascii_letters)] * 3, 400), random.Random(1)
    texts = ["<bt> a" if letter == "<" else f"{letter} z" for letter in begun] + ["zz", "", "<b"] * 9
    draw.shuffle(texts)
    sources = [tokenizer.encode(text) for text in texts]
    spelled = {word: tokenizer.encode(word) for word in ("<bt>", *string.ascii_letters)}
    free = [word for word, ids in spelled.items() if not any(source[: len(ids)] == ids for source in sources)]
    expected = min(free, key=lambda word: len(spelled[word]), default="<bt>")
    assert best_train._choose_tag(tokenizer, TokenStore.from_lists(sources)) == expected


def test_the_beginnings_of_the_sources_are_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_train, "_LOOKED_AT", 1000)
    tokenizer = Tokenizer.learn([" ".join(string.ascii_letters)] * 3, 400)
    sources = TokenStore.from_lists([[*divmod(number, 200), 300, 301] for number in range(20_000)])
    best_train._choose_tag(tokenizer, sources)  # the signature checks are made now
    tracemalloc.start()
    try:
        best_train._choose_tag(tokenizer, sources)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_a_judge_and_students_learn_further_text_and_no_more_of_it_than_there_are_real_pairs(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_pairs, further, run = 1500, tmp_path / "more.en", tmp_path / "run"
    further.write_text("one two\n" * made_pairs, encoding="utf-8")

    def write(models: Any, text: Path, output: Path, context: Any, *, backwards: bool, tag: str, until: Any) -> None:
        assert backwards
        rows = (f"{tag} eins {number}\tone {number}\n" for number in range(made_pairs))
        output.write_text("".join(rows), encoding="utf-8")

    monkeypatch.setattr(best_train, "write_pairs", write)
    short = {**wishes, "shared_vocabulary": False, "updates": 1, "validate_every": 1}
    with pytest.raises(Interrupted):
        learn(
            run,
            monolingual=further,
            **short,
            stop_signal=lambda: 15 if (run / "student/run.json").exists() else None,
        )
    stages = ["reverse-1", "pairs/monolingual.tsv", "text-more", "forward-1", "forward-2", "right-to-left", "student"]
    found = BestConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))
    assert [stage.name for stage in stages_of(found)][:7] == stages
    own, turned = (
        json.loads((run / name / "prepared.json").read_text())["data"] for name in ("text-more", "text-right-to-left")
    )
    assert ("right_to_left" in own, turned["right_to_left"]) == (False, True)
    real, made = own["corpora"]
    assert (real["pairs"], made["pairs"]) == (found.pairs, made_pairs)
    assert made["weight"] == pytest.approx(found.pairs / made_pairs, abs=1e-6)
    assert real["weight"] == 1.0
    assert turned["corpora"] == own["corpora"]
    of_student = json.loads((run / "student/run.json").read_text())["data"]["corpora"]
    assert [(corpus["pairs"], corpus["weight"]) for corpus in of_student] == [(found.pairs, 1.0)] * 2
    every, few = ((run / name).read_text().splitlines() for name in (plan.PAIRS, plan.FEW_MADE))
    places = [every.index(row) for row in few]
    steps = [after - before for before, after in itertools.pairwise([-1, *places])]
    assert max(steps) - min(steps) <= 1  # evenly spread
    assert places[-1] == made_pairs - 1


def test_two_forward_models_take_the_time_of_three() -> None:
    usual = config(3600.0, 3, 1, both_ways=False)
    further = TextFile(path="more", sha256="0" * 64, lines=0)
    weights = []
    for forward in (2, 3):
        found = usual.model_copy(update={"monolingual": further, "forward": forward})
        weights.append([stage.weight for stage in stages_of(found) if stage.name.startswith("forward")])
    assert weights == [[1.5] * 2, [1.0] * 3]


def test_the_tag_of_made_sources_is_short_and_begins_no_source(numbers: Numbers, tmp_path: Path) -> None:
    def chosen(sources: list[str]) -> tuple[str, int]:
        targets = [f"{number} {source}" for number, source in enumerate(sources)]
        files = numbers.write(tmp_path, f"of-{len(sources)}", list(zip(sources, targets, strict=True)))
        folder = tmp_path / f"text-{len(sources)}"
        text = prepare(**files, vocab_size=300, held_out=2, output=folder, say=lambda _: None)
        tag = best_train._choose_tag(text.source_tokenizer, text.train.source)
        ids = [text.source_tokenizer.encode(word) for word in (tag, "<bt>")]
        assert len(ids[0]) <= len(ids[1])
        return tag, len(ids[0])

    usual = [f"{word} {other}" for word in WORDS for other in WORDS]
    tag, length = chosen(usual)
    assert length < 4
    again, _ = chosen([*usual, *(f"{tag} {word}" for word in WORDS)])
    assert again != tag


@pytest.mark.parametrize("late", [False, True])
def test_pairs_take_no_more_time_than_there_is(
    trained: Path, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 5)
    lines, output, said = tmp_path / "lines", tmp_path / "pairs.tsv", list[str]()
    lines.write_text("".join(f"{target}\n" for _, target in numbers.pairs(12, 3)), encoding="utf-8")
    until = time.monotonic() + (-1.0 if late else 1e9)
    context = RunContext(said.append, lambda: None, lambda _: None)
    write_pairs([trained], lines, output, context, backwards=True, until=until)
    assert 0 < len(output.read_text().splitlines()) <= (5 if late else 12)
    assert any("no time for more than 5 of 12 lines" in line for line in said) == late
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("pairs")] == ["pairs.tsv"]


class KilledError(Exception):
    """Simulates the sudden end of a process."""


def test_the_time_of_a_killed_stage_without_a_training_is_counted(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is recorded every 20 seconds; the rest of a stage gets the rest of its time."""
    further, run, now, spent = tmp_path / "more.en", tmp_path / "run", [1000.0], list[float]()
    further.write_text("one two\n", encoding="utf-8")
    untils, journal = list[float](), run / "stages.jsonl"

    def write(*known: Any, until: float, **_: Any) -> None:
        """Poll every second for 55 seconds, then be killed."""
        untils.append(until - now[0])
        for _ in range(55):
            now[0] += 1
            known[-1].stop_signal()
        raise KilledError

    def trained(*_: Any, **__: Any) -> None:
        now[0] += 7

    monkeypatch.setattr(best_train.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(BestRun, "_train", trained)
    monkeypatch.setattr(best_train, "write_pairs", write)
    own = {name: value for name, value in wishes.items() if name != "updates"}
    for again in (False, True):
        with pytest.raises(KilledError):
            learn(run, **({} if again else {**own, "budget": 3000.0}), monolingual=further, started=now[0])
        spent.append(max(json.loads(line)["spent"] for line in journal.read_text().splitlines()))
    trainings = 2 * 7.0  # both ways, reverse
    assert spent == [trainings + 40, trainings + 40 + 40]  # 15 seconds of each start are not known
    assert untils[0] - untils[1] == pytest.approx(40)


def test_the_time_of_preparing_is_counted_once(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage gets its share of the remaining time, counted from the beginning of the stage."""
    asked = dict[str, Any]()

    def trained(*, started: float, **settings: Any) -> None:
        asked.update(settings, started=started)
        raise Interrupted(15, "stopped")

    monkeypatch.setattr(best_train, "train", trained)
    own, began = {name: value for name, value in wishes.items() if name != "updates"}, time.monotonic() - 500
    with pytest.raises(Interrupted):
        learn(tmp_path / "run", **own, budget=1000.0, started=began)
    ready = asked["started"] - began
    assert 500 < ready < time.monotonic() - began
    found = BestConfig.model_validate_json((tmp_path / "run/run.json").read_text(encoding="utf-8"))
    assert asked["budget"] == pytest.approx(budget_of(stages_of(found), 0, 1000.0, ready), abs=0.01)
    (line,) = (tmp_path / "run/stages.jsonl").read_text().splitlines()
    assert json.loads(line)["spent"] == pytest.approx(ready, abs=0.01)


def test_further_text_without_stages_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    ended = call("train", "--output", tmp_path / "run", "--monolingual", tmp_path / "more.en")
    assert ended.status == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.proof
def test_the_best_and_the_small_model_learn_what_there_is_to_learn(
    wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    """Rows of three words, all of them but a few in the text."""
    rows = list(itertools.product(list(WORDS.items())[:5], repeat=3))
    pairs = [(" ".join(word for word, _ in row), " ".join(word for _, word in row)) for row in rows]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    texts = numbers.write(tmp_path, "train", 2 * shuffled[20:])
    learn(tmp_path / "run", **{**wishes, **texts, "updates": 120, "validate_every": 120, "batch_tokens": 256})
    for model in ("run", "run/small"):
        found = Translator.load(tmp_path / model).translate([source for source, _ in shuffled[:20]])
        assert sum(one == target for one, (_, target) in zip(found, shuffled, strict=False)) >= 17
