"""``multihead report``: curves equal the log, interrupted reports resume, and nothing is left half-written."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
import torch
from tests.conftest import WORDS

from multihead import work_folder
from multihead.bundle import load_bundle, save_bundle
from multihead.configuration import build, inspect_machine
from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, DataError, InputError, Interrupted
from multihead.judging.errors import find_errors
from multihead.metrics.power_law import Training, estimate_gain
from multihead.models.config import ARCHITECTURES, TransformerConfig, preset
from multihead.planning.choices import CorpusSize, Pace, choose_model, choose_training, usual_epochs
from multihead.planning.settings import Choices, GivenModel, RunConfig, TrainSettings, read_run
from multihead.preparing.derived import nested_part
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import open_prepared, open_training_text
from multihead.runs.best.plan import BestConfig
from multihead.runs.curves import read_curves
from multihead.runs.report import card, parts
from multihead.runs.report.parts import _expected
from multihead.runs.report.plan import Part, ReportSettings, decide, seconds, training_settings
from multihead.runs.report.report import _training_words, report
from multihead.text.languages import Direction, Languages
from multihead.translating.translator import Translator

if TYPE_CHECKING:
    from tests.conftest import Numbers

CHANGING = ("trainings.jsonl", "timing.jsonl", "log.txt", "run.json", "run.copy.json", "manifest.json")
"""Files that contain times or the path of the report."""


def write(run: Path, output: Path, **wishes: Any) -> card.Report:
    threads = torch.get_num_threads()
    try:
        quiet: dict[str, Any] = {"say": lambda _: None, "use_threads": torch.set_num_threads}
        return report(run, output=output, **{**quiet, **wishes})
    finally:
        torch.set_num_threads(threads)


PACE = 20.0
"""Seconds of an update, long enough for any machine."""


@pytest.fixture(scope="module")
def short(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run, as if it had made 24 slow updates, so that trainings on parts of the text are short."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("short") / "run"))
    for name in ("log.jsonl", "timing.jsonl"):
        records = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for record in records:
            record["step"] = max(round(record["step"] * 24 / 250), 1)
            record |= {"elapsed": PACE * record["step"]} if "elapsed" in record else {}
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (folder / name).write_text(text, encoding="utf-8")
    config = config_of(folder)
    training = config.training.model_copy(update={"updates": 24, "validate_every": 12})
    for name in ("run.json", "run.copy.json"):
        (folder / name).unlink()
    work_folder.write(folder, config.model_copy(update={"training": training}))
    return folder


BUDGET = 800.0


@pytest.fixture(scope="module")
def whole(short: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "report"
    write(short, folder, budget=BUDGET)
    return folder


def config_of(run: Path) -> RunConfig:
    config = read_run(run)
    assert config is not None
    return config


# --------------------------------------------------------------------------- the plan


def planned(run: Path, budget: float, pace: float = 1.0, updates: int = 2000) -> Any:
    return decide(ReportSettings(run="run", budget=budget), config_of(run), updates, pace, {}, "")


def test_the_trainings_are_as_long_as_planned_and_fit_into_the_budget(trained: Path) -> None:
    config = config_of(trained)
    total = config.data.pairs
    for budget in (230.0, 700.0, 1500.0, 3000.0, 9000.0):
        found = planned(trained, budget)
        assert seconds(found.parts, 1.0) <= budget + 5
        for part in found.parts:
            expected = found.length * 2000 * usual_epochs(part.pairs) * part.pairs / (usual_epochs(total) * total)
            assert part.updates == pytest.approx(expected, abs=0.6)
            assert part.pairs == pytest.approx(part.share * total, abs=1)
            assert -(-part.updates // part.validate_every) in ((4, 3) if found.length > 0.5 else (1,))
        assert found.whole == (found.length == 1.0)
        assert {part.share for part in found.parts} == {0.125, 0.25, 0.5} | (set() if found.whole else {1.0})
    assert [len(planned(trained, budget).parts) for budget in (700.0, 1500.0, 4500.0, 9000.0)] == [4, 4, 6, 9]
    with pytest.raises(ConfigurationError, match="too short to learn from"):
        planned(trained, 60.0)


@pytest.mark.parametrize(("corpora", "pairs"), [(16, 4), (13, 5)])
def test_parts_that_are_empty_or_equal_are_refused(trained: Path, corpora: int, pairs: int) -> None:
    """An eighth of 4 pairs rounds to zero; an eighth and a quarter of 5 both round to one."""
    config = config_of(trained)
    many = tuple(config.data.corpora[0].model_copy(update={"pairs": pairs}) for _ in range(corpora))
    data = config.data.model_copy(update={"corpora": many, "pairs": corpora * pairs})
    with pytest.raises(ConfigurationError, match="which say nothing; join corpora"):
        decide(ReportSettings(run="run", budget=1e4), config.model_copy(update={"data": data}), 2000, 1.0, {}, "")


def test_parts_are_trained_with_the_settings_of_the_run(trained: Path, whole: Path) -> None:
    config = config_of(trained)
    for part in json.loads((whole / "run.json").read_text(encoding="utf-8"))["parts"]:
        made = config_of(next((whole / "trainings").glob(f"{part['pairs']}-pairs-seed-{part['seed']}")) / "run")
        assert made.model == config.model
        differing = {n for n, v in made.training.model_dump().items() if v != getattr(config.training, n)}
        follows = {"updates", "warmup", "average", "validate_every", "log_every", "keep_checkpoints"}
        assert differing - {"seed"} <= follows
        assert (made.data.pairs, made.training.updates) == (part["pairs"], part["updates"])
    limited = training_settings(config, planned(trained, 9000.0).parts[0], 5.0)
    assert limited["budget"] == 5.0
    assert "updates" not in limited


@pytest.mark.parametrize(
    "network",
    [
        preset("tiny") | {"positions": "learned", "max_positions": 50, "heads": 4, "kv_heads": 2, "norm_kind": "rms"},
        preset("tiny") | {"positions": "relative", "feed_forward": "relu", "tie_output": False, "dropout": 0.4},
        preset("tiny", "recurrent") | {"architecture": "recurrent", "cell": "lstm", "score": "dot"},
    ],
)
@pytest.mark.parametrize("schedule", ["linear", "noam"])
def test_the_settings_of_any_run_give_its_network_and_training(trained: Path, network: Any, schedule: Any) -> None:
    """As if the run had these settings: a part is trained with the same ones."""
    run = config_of(trained)
    ids = {name: getattr(run.model, name) for name in ("source_vocab", "target_vocab", "padding_id")}
    model = ARCHITECTURES[network.get("architecture", "transformer")](**{**network, **ids})
    training = run.training.model_copy(update={"schedule": schedule, "weight_decay": 0.3, "smoothing": 0.2})
    config = run.model_copy(update={"model": model, "training": training})
    part = Part(share=0.5, seed=5, pairs=300, updates=40, validate_every=10)
    settings = build(TrainSettings, training_settings(config, part, None), "the settings")
    choices, corpus = Choices(settings), CorpusSize(300, 3000, model.source_vocab, model.target_vocab, 0)
    assert choose_model(choices, corpus, inspect_machine()).model_dump() == model.model_dump()
    made = choose_training(choices, corpus, model, inspect_machine(), lambda _: Pace(1.0, 100.0))
    assert (made.updates, made.seed, made.budget, made.validate_every) == (40, 5, None, 10)
    for name in ("schedule", "weight_decay", "smoothing", "optimizer", "batch_tokens", "precision", "clip"):
        assert getattr(made, name) == getattr(training, name), name
    tuned = config.model_copy(update={"from_model": GivenModel(path="given", weights="0" * 64)})
    again = build(TrainSettings, training_settings(tuned, part, None), "the settings")
    if isinstance(model, TransformerConfig):
        guided = tuned.model_copy(
            update={"model": model.model_copy(update={"alignment_layer": 1}), "alignments": "ibm1"}
        )
        assert training_settings(guided, part, None) == training_settings(tuned, part, None)
    assert again.model_copy(update={"from_model": None}) == settings
    assert again.from_model == Path("given")
    scored = training.model_copy(update={"best_by": "comet", "comet": "a/model"})
    assert training_settings(config.model_copy(update={"training": scored}), part, None)["comet"] == "a/model"
    of_adapters = {"lora": 4, "lora_alpha": 8.0, "optimizer": "adam"}
    low = tuned.model_copy(update={"training": training.model_copy(update=of_adapters)})
    adapted = build(TrainSettings, training_settings(low, part, None), "the settings")
    assert (adapted.lora, adapted.lora_alpha) == (4, 8.0)
    assert adapted.model_copy(update={"lora": None, "lora_alpha": None, "optimizer": again.optimizer}) == again


@pytest.mark.parametrize(("best_by", "step"), [("bleu", 2), ("loss", 3), ("chrf", 1)])
def test_the_kept_model_is_the_best_by_the_score_of_the_run(
    short: Path, monkeypatch: pytest.MonkeyPatch, best_by: Any, step: int
) -> None:
    rows = [(1, 3.0, 10.0, 50.0), (2, 2.0, 30.0, 40.0), (3, 1.0, 20.0, 30.0)]
    log = [
        {"kind": "validation", "step": number, "loss": loss, "bleu": bleu, "chrf": chrf}
        for number, loss, bleu, chrf in rows
    ]
    config = config_of(short)
    training = config.training.model_copy(update={"best_by": best_by})
    monkeypatch.setattr(parts, "read_begun_run", lambda _: config.model_copy(update={"training": training}))
    assert (parts.kept_record(log, short)["step"], parts.kept_record(log, short)["last"]) == (step, 3)


def test_a_training_takes_what_its_updates_and_validations_take() -> None:
    before = [{"made": 10, "seconds": 9.0, "validating": 4.0}, {"made": 30, "seconds": 19.0, "validating": 4.0}]
    assert _expected(before, 100) == pytest.approx(100 * 0.5 + 4)
    assert _expected([], 100) == 0.0


# --------------------------------------------------------------------------- nested parts


def test_parts_contain_smaller_ones_and_keep_their_sentences(trained: Path, whole: Path) -> None:
    text = open_training_text(trained, config_of(trained).data, None)
    parts = [nested_part(text, share, 3).tolist() for share in (0.125, 0.25, 0.5, 1.0)]
    assert [len(part) for part in parts] == [round(share * len(text.train)) for share in (0.125, 0.25, 0.5, 1.0)]
    for smaller, larger in itertools.pairwise(parts):
        assert set(smaller) < set(larger)
        assert larger == sorted(larger)
    assert nested_part(text, 0.5, 4).tolist() != parts[2]
    kept = nested_part(text, 0.25, config_of(trained).training.seed)
    folder = whole / f"trainings/{len(kept)}-pairs-seed-1"
    part = open_prepared(folder / "text", config_of(folder / "run").data)
    for ours, theirs in ((part.train.source, text.train.source), (part.train.target, text.train.target)):
        assert [ours[i].tolist() for i in range(len(ours))] == [theirs[i].tolist() for i in kept.tolist()]
    assert part.train.lines.tolist() == text.train.lines[kept].tolist()
    assert part.valid_sources == text.valid_sources


# --------------------------------------------------------------------------- the report


def test_its_curves_are_the_log_and_its_errors_those_of_the_model(short: Path, whole: Path) -> None:
    found = json.loads((whole / "report.json").read_text(encoding="utf-8"))
    logged = [
        (record["step"], record["loss"], record["bleu"])
        for record in map(json.loads, (short / "log.jsonl").read_text(encoding="utf-8").splitlines())
        if record["kind"] == "validation"
    ]
    (curve,) = found["curves"].values()
    assert [(one["updates"], one["loss"], one["bleu"]) for one in curve] == logged
    assert [one["seconds"] for one in curve] == [PACE * step for step, *_ in logged]
    text = open_training_text(short, config_of(short).data, None)
    translations = Translator.load(short).translate(text.valid_sources)
    errors = find_errors(translations, text.valid_targets, text.valid_sources, language="en")
    assert found["errors"]["bleu"] == errors.bleu
    assert found["errors"]["lines"] == len(text.valid_sources)


def test_its_gain_is_that_of_its_trainings(short: Path, whole: Path) -> None:
    found = json.loads((whole / "report.json").read_text(encoding="utf-8"))["gain"]
    logs = {pairs: whole / f"trainings/{pairs}-pairs-seed-1/run/log.jsonl" for pairs in (75, 150, 300)}
    logs[600] = short / "log.jsonl"
    trainings = []
    for point in found["points"]:
        records = map(json.loads, logs[point["pairs"]].read_text(encoding="utf-8").splitlines())
        judged = [record for record in records if record["kind"] == "validation"]
        best = max(judged, key=lambda record: (record["bleu"], -record["loss"]))
        assert (point["loss"], point["bleu"]) == (best["loss"], best["bleu"])
        trainings.append(Training(point["pairs"], point["loss"], point["bleu"]))
    assert [one.pairs for one in trainings] == [75, 150, 300, 600]
    assert found["sentence"] == str(estimate_gain(trainings, 600))
    assert card.escape(found["sentence"]) in (whole / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("unchecked")
def test_a_report_that_was_stopped_ends_as_the_one_that_was_not(
    short: Path, whole: Path, numbers: Numbers, tmp_path: Path
) -> None:
    for stops in itertools.count(1):
        asked = itertools.count()
        try:
            signal_after: Iterator[int] = asked
            write(
                short,
                tmp_path / "report",
                **({"budget": BUDGET} if stops < 3 else {}),
                stop_signal=lambda asked=signal_after, most=5 * stops: 15 if next(asked) >= most else None,
            )
        except Interrupted:
            assert not (tmp_path / "report/report.md").exists()
        else:
            break
    assert stops > 2
    found, expected = (numbers.contents(folder, without=CHANGING) for folder in (tmp_path / "report", whole))
    assert found == expected
    before = numbers.contents(whole)
    write(short, whole)
    assert numbers.contents(whole) == before


def test_the_run_is_compared_as_it_was_when_the_report_was_begun(short: Path, whole: Path, tmp_path: Path) -> None:
    moved, log = Path(shutil.copytree(whole, tmp_path / "moved")), short / "log.jsonl"
    before = log.read_bytes()
    later = {"kind": "validation", "step": 30, "loss": 0.001, "bleu": 99.0, "chrf": 99.0}
    try:
        log.write_bytes(before + f"{json.dumps(later)}\n".encode())
        write(short, moved)
    finally:
        log.write_bytes(before)
    found, expected = (json.loads((folder / "report.json").read_text(encoding="utf-8")) for folder in (moved, whole))
    assert found["curves"] != expected["curves"]
    assert found["gain"] == expected["gain"]


def test_parts_are_not_compared_with_a_run_that_has_not_ended(short: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(short, tmp_path / "run"))
    for name in ("log.jsonl", "timing.jsonl"):
        lines = (run / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (run / name).write_text("".join(line for line in lines if json.loads(line)["step"] < 24), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"run: after 19 of 24 updates, this run has not ended"):
        write(run, tmp_path / "report", budget=BUDGET)
    assert not (tmp_path / "report").exists()
    assert write(run, tmp_path / "report").gain is None


@pytest.mark.parametrize(
    ("validated", "patience", "plans", "ended"),
    [
        (4, 0, [], True),
        (3, 0, [], False),
        (3, 2, [], False),
        (3, 1, [], True),
        (3, 0, [30, 18], True),
        (4, 0, [18, 30], False),
    ],
)
def test_a_run_ends_by_its_updates_its_plan_or_its_patience(
    short: Path, validated: int, patience: int, plans: list[int], ended: bool
) -> None:
    """Validations after 6, 12, 18 and 24 updates; the second one is the best."""
    log: list[dict[str, Any]] = [{"kind": "plan", "step": 1, "updates": planned} for planned in plans]
    log += [
        {"kind": "validation", "step": 6 * (place + 1), "loss": 2.0, "bleu": bleu, "chrf": bleu}
        for place, bleu in enumerate((10.0, 30.0, 20.0, 20.0)[:validated])
    ]
    training = config_of(short).training.model_copy(update={"patience": patience})
    with contextlib.nullcontext() if ended else pytest.raises(ConfigurationError, match="has not ended"):
        parts.require_finished(log, training, short)


def test_an_outcome_that_is_damaged_is_read_again(short: Path, whole: Path, tmp_path: Path) -> None:
    """The report may have been moved, too."""
    moved = Path(shutil.copytree(whole, tmp_path / "moved"))
    lines = (moved / "trainings.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    damaged = [line.replace("bleu", "blue") if '"made"' in line and n < 4 else line for n, line in enumerate(lines)]
    assert damaged != lines
    (moved / "trainings.jsonl").write_text("".join(damaged), encoding="utf-8")
    said: list[str] = []
    write(short, moved, say=said.append)
    assert any("is damaged" in line for line in said)
    for name in ("report.json", "report.md"):
        assert (moved / name).read_bytes() == (whole / name).read_bytes()


def in_stages(tmp_path: Path, *runs: Path) -> Path:
    """The parts of a run in stages that a report reads: its forward model and its student."""
    folder = tmp_path / "stages"
    own: dict[str, Any] = {"versions": {}, "asked": {}, "seed": 1, "reasons": {}, "budget": None, "updates": 9}
    folder.mkdir()
    work_folder.write(folder, BestConfig(forward=3, reverse=1, **own))
    for name, run in zip(("forward-1", "student"), runs, strict=False):
        shutil.copytree(run, folder / name)
    return folder


def test_a_run_in_stages_without_a_forward_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"forward-1: no run has begun there: there is no run\.json in it"):
        write(in_stages(tmp_path), tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_errors_are_those_of_the_model_that_a_run_in_stages_ends_with(short: Path, tmp_path: Path) -> None:
    """A student may use its last weights instead of those that its training chose."""
    folder = in_stages(tmp_path, short, short)
    bundle = load_bundle(short)
    with torch.no_grad():
        for tensor in bundle.model.parameters():
            tensor += 0.05 * torch.randn_like(tensor)
    save_bundle(folder / "best", bundle, {}, "Made by a test.")
    found = write(folder, tmp_path / "report")
    text = open_training_text(short, config_of(short).data, None)
    expected = find_errors(
        Translator.load(folder).translate(text.valid_sources), text.valid_targets, text.valid_sources, language="en"
    )
    assert found.errors.bleu == expected.bleu
    assert found.errors.bleu != write(short, tmp_path / "other").errors.bleu


@pytest.mark.parametrize("students", [0, 1])
def test_parts_do_not_begin_as_a_model_that_has_seen_all_pairs(
    short: Path, trained: Path, tmp_path: Path, students: int
) -> None:
    """For a forward model that started from the model of both directions, parts and whole are trained from scratch."""
    folder = in_stages(tmp_path, *[short] * (1 + students))
    given = GivenModel(path=str(trained / "best"), weights="0" * 64)
    config = config_of(short).model_copy(update={"from_model": given})
    for name in ("run.json", "run.copy.json"):
        (folder / "forward-1" / name).unlink(missing_ok=True)
    work_folder.write(folder / "forward-1", config)
    assert config_of(folder / "forward-1").from_model == given
    with pytest.raises(Interrupted):
        write(
            folder,
            tmp_path / "report",
            budget=2 * BUDGET,
            stop_signal=lambda: 15 if list((tmp_path / "report").glob("trainings/*/run/run.json")) else None,
        )
    decided = json.loads((tmp_path / "report/run.json").read_text(encoding="utf-8"))
    assert not decided["whole"]
    assert [part["share"] for part in decided["parts"]][:4] == [0.125, 0.25, 0.5, 1.0]
    (begun,) = (tmp_path / "report").glob("trainings/*/run")
    assert config_of(begun).from_model is None


@pytest.mark.proof
def test_killed_at_any_time_it_goes_on(short: Path, whole: Path, numbers: Numbers, tmp_path: Path) -> None:
    start = processes.starter()
    words = ["report", str(short), "-o", str(tmp_path / "report"), "--budget", f"{BUDGET:.0f}s"]
    for kills in itertools.count():
        process = start(words, tmp_path / "said")
        process.join(2.0 + 1.7 * kills)
        if process.exitcode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        time.sleep(0.01)
    assert process.exitcode == 0, (tmp_path / "said").read_text()
    assert kills > 0
    ours, theirs = (json.loads((folder / "report.json").read_text()) for folder in (tmp_path / "report", whole))
    assert ours == theirs
    assert not [path for path in (tmp_path / "report").rglob("*") if "unfinished" in path.name]


def test_the_command_compares_with_a_table(
    call: Callable[..., Any], short: Path, trained: Path, numbers: Numbers, tmp_path: Path
) -> None:
    table = tmp_path / "theirs.csv"
    table.write_text("name,seconds,bleu,loss\nother|one,7,12.5,\nother|one,9,55,1.5\n", encoding="utf-8")
    test = numbers.flags(numbers.test)
    ended = call("report", short, "-o", tmp_path / "report", *test, "--against", table, "--against", trained)
    assert ended.status == 0, ended.err
    found = json.loads((tmp_path / "report/report.json").read_text(encoding="utf-8"))
    assert found["curves"]["other|one"] == [
        {"updates": None, "seconds": 7.0, "loss": None, "bleu": 12.5},
        {"updates": None, "seconds": 9.0, "loss": 1.5, "bleu": 55.0},
    ]
    assert len(found["curves"]) == 3
    assert found["gain"] is None
    assert found["errors"]["text"] == str(numbers.test["target"])
    written = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    assert "other\\|one" in written
    assert "curves.svg" in written
    assert "other" in (tmp_path / "report/curves.svg").read_text(encoding="utf-8")
    assert ended.text.splitlines()[-1].endswith("report.md")
    references = list(read_lines(numbers.test["target"]))
    translations = Translator.load(short).translate(list(read_lines(numbers.test["source"])))
    assert found["errors"]["bleu"] == find_errors(translations, references, references, language="en").bleu


def errors_of(report: card.Report) -> Any:
    return json.loads(json.dumps(report.as_dict()["errors"]))


def test_a_run_in_stages_has_the_report_of_its_student(short: Path, whole: Path, trained: Path, tmp_path: Path) -> None:
    """The gain is that of the original text, without the pairs that the models generated."""
    own: dict[str, Any] = {"versions": {}, "asked": {}, "seed": 1, "reasons": {}}
    stages = BestConfig(budget=100.0, updates=None, forward=1, reverse=0, **own)
    (tmp_path / "staged").mkdir()
    work_folder.write(tmp_path / "staged", stages)
    shutil.copytree(trained, tmp_path / "staged/student")
    shutil.copytree(short, tmp_path / "staged/forward-1")
    found = write(tmp_path / "staged", tmp_path / "report")
    assert [*found.logs.values()] == [*read_curves([trained, short]).values()]
    assert errors_of(found) == json.loads((whole / "report.json").read_text(encoding="utf-8"))["errors"]


def test_a_damaged_log_is_no_traceback(short: Path, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(short, tmp_path / "run"))
    odd = [
        '{"kind": ["x"], "step": 1}',
        '{"kind": "validation", "step": 2, "loss": "low", "bleu": NaN}',
        '{"kind": "validation", "step": 1e999}',
        '{"kind": "validation", "step": 3, "elapsed": "long"}',
    ]
    for name in ("log.jsonl", "timing.jsonl"):
        with (run / name).open("a", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in odd)
    found = errors_of(write(run, tmp_path / "report"))
    assert found == json.loads((whole / "report.json").read_text(encoding="utf-8"))["errors"]
    (run / "log.jsonl").write_text("".join(f"{line}\n" for line in odd), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="nothing was validated yet"):
        write(run, tmp_path / "other")


def test_time_to_a_score() -> None:
    records = [{"seconds": 1.0, "bleu": None}, {"seconds": 2.0, "bleu": 5.0}, {"seconds": 3.0, "bleu": 4.0}]
    assert [card.time_to(records, level) for level in (4, 5, 6)] == [2.0, 2.0, None]


def test_text_is_never_markup() -> None:
    said = card.table([["a|b", "*c*"], ["<script>", "[x](y)\n# z"]])
    assert said.count("\n") == 2
    assert r"a\|b" in said
    assert r"\<script\>" in said
    assert r"\[x\](y)" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "missing.de"}, "give both"),
        ({"source": "missing.de", "target": "missing.en"}, "missing"),
        ({"source": "EMPTY", "target": "EMPTY"}, "is empty"),
        ({"against": ["nothing"]}, "no run that has begun"),
        ({"budget": "soon"}, "budget"),
        ({"budget": 1.0}, "too short"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(short: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    change = {name: empty if value == "EMPTY" else value for name, value in change.items()}
    with pytest.raises(InputError, match=said):
        write(short, tmp_path / "report", **change)
    assert list(tmp_path.iterdir()) == [empty]


def test_other_folders_are_refused(short: Path, whole: Path, numbers: Numbers, tmp_path: Path) -> None:
    before = numbers.contents(whole)
    for run, output, wishes, said in (
        (short / "best", tmp_path / "report", {}, "is not a run"),
        (whole, tmp_path / "report", {}, "multihead report"),
        (short, whole, {"budget": 2 * BUDGET}, "budget was 800.0, now 1600.0"),
        (short, short, {}, "holds a run of"),
    ):
        with pytest.raises(InputError, match=said):
            write(run, output, **wishes)
    assert numbers.contents(whole) == before
    assert not (tmp_path / "report").exists()


# --------------------------------------------------------------------------- several directions


@pytest.fixture(scope="module")
def both_ways(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from German to English and back, from prepared text that was moved since."""
    folder = tmp_path_factory.mktemp("both")
    valid = [{"source": numbers.valid["valid_source"], "target": numbers.valid["valid_target"], "both_ways": True}]
    prepare(
        output=folder / "text", corpus=[{**numbers.train, "both_ways": True}], valid=valid, vocab_size=320,
        say=lambda _: None,
    )  # fmt: skip
    own = {name: value for name, value in numbers.settings.items() if name != "vocab_size"}
    numbers.learn(folder / "run", data=folder / "text", **{**own, "updates": 6, "validate_every": 6})
    (folder / "text").rename(folder / "moved")
    return folder


def test_text_that_was_moved_is_named(both_ways: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data"):
        write(both_ways / "run", tmp_path / "report")
    assert write(both_ways / "run", tmp_path / "report", data=both_ways / "moved").errors.lines == 16


@pytest.mark.parametrize(("target", "lines"), [(None, 16), ("en", 8), ("de", 8)])
def test_the_errors_of_the_directions_that_are_asked_for(
    both_ways: Path, numbers: Numbers, tmp_path: Path, target: str | None, lines: int
) -> None:
    report = write(both_ways / "run", tmp_path / "report", data=both_ways / "moved", languages=Languages(None, target))
    directions = [Direction("de", "en"), Direction("en", "de")]
    chosen = [one for one in directions if target in (None, one.target)]
    assert report.text == f"the validation text ({', '.join(map(str, chosen))})"
    sides = {code: list(read_lines(path)) for code, path in zip(("de", "en"), numbers.valid.values(), strict=True)}
    found, references, sources = list[str](), list[str](), list[str]()
    for one in chosen:
        translator = Translator.load(both_ways / "run", languages=Languages(*one))
        found += translator.translate(sides[str(one.source)])
        sources += sides[str(one.source)]
        references += sides[one.target]
    expected = find_errors(found, references, sources, language=target)
    assert (report.errors.lines, report.errors.bleu) == (lines, expected.bleu)
    config, targets = config_of(both_ways / "run"), None if target is None else frozenset([target])
    words = _training_words(open_training_text(both_ways / "run", config.data, both_ways / "moved"), targets)
    assert set(words) == ({*WORDS} if target != "en" else set()) | ({*WORDS.values()} if target != "de" else set())


def test_a_text_of_ones_own_is_of_one_direction(both_ways: Path, numbers: Numbers, tmp_path: Path) -> None:
    moved: dict[str, Any] = {"data": both_ways / "moved", **numbers.test}
    for languages, said in (
        (None, "this model translates de-en, en-de; say which, by --target-language"),
        (Languages("fr"), "does not translate from fr; it translates de-en, en-de"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            write(both_ways / "run", tmp_path / "report", languages=languages, **moved)
        assert not (tmp_path / "report").exists()
    assert write(both_ways / "run", tmp_path / "report", languages=Languages("de"), **moved).errors.lines == 20


def test_a_model_of_one_direction_has_no_other(short: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it translates de-en"):
        write(short, tmp_path / "report", languages=Languages("en", "de"))
    assert not (tmp_path / "report").exists()


# --------------------------------------------------------------------------- tables of other programs


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "seconds,bleu\n1,x\n", "a.csv:2: bleu: expected a number"),
        ("a.csv", "seconds,bleu\n-1,5\n", "a.csv:2: seconds: expected a number"),
        ("a.csv", "seconds,bleu\n1,\n", "a.csv:2: expected when"),
        ("a.csv", "bleu\n1\n", "a.csv:2: expected when"),
        ("a.csv", "seconds,bleu\n", "has no rows"),
        ("a.jsonl", '{"seconds": 1, "bleu": 2}\n[1]\n', "a.jsonl:2: expected a JSON object"),
        ("a.jsonl", '{"seconds": NaN, "bleu": 2}\n', "a.jsonl:1: seconds: expected a number"),
        ("a.txt", "x\n", "ends in .csv or .jsonl"),
    ],
)
def test_a_damaged_table_names_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_curves([tmp_path / name])


def test_both_kinds_of_table_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("updates,seconds,bleu,loss\n1,2,3,4\n5,,,6\n", encoding="utf-8")
    rows = [{"updates": 1, "seconds": 2, "bleu": 3, "loss": 4}, {"updates": 5, "loss": 6}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    one, other = (read_curves([tmp_path / name]) for name in ("a.csv", "a.jsonl"))
    assert one == other
    assert [*one] == ["a"]
    (tmp_path / "b.csv").write_text("name,updates,bleu\na,1,2\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="two curves are called 'a'"):
        read_curves([tmp_path / "a.csv", tmp_path / "b.csv"])
