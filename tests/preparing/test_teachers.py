"""Word-level distillation: what teachers predict is computed once, and a run learns it."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from multihead.bundle import load_bundle, save_bundle
from multihead.configuration import Launch
from multihead.data.batching import collate
from multihead.data.soft_store import SoftDescription, SoftStore
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.planning.settings import RunConfig
from multihead.preparing import teachers
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.training.budget import JOURNAL, Journal
from multihead.training.context import RunContext
from multihead.training.splitting import SingleProcess

if TYPE_CHECKING:
    from tests.conftest import Numbers

SIZES = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
SHORT = {"updates": 6, "validate_every": 3, "log_every": 2, "batch_tokens": 512, "threads": 1, "precision": "float32"}
STUDENT: dict[str, Any] = {**SIZES, **SHORT, "keep_checkpoints": 9}


@pytest.fixture(scope="module")
def text(trained: Path, numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with the teacher's vocabulary, prepared."""
    folder = tmp_path_factory.mktemp("text") / "prepared"
    prepare(**numbers.train, **numbers.valid, from_model=trained, output=folder, say=lambda _: None)
    return folder


@pytest.fixture(scope="module")
def other(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second teacher: the first one, with noise."""
    bundle = load_bundle(trained)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
        bundle.model.output.weight[bundle.target_tokenizer.pad_id] = 0.0
    folder = tmp_path_factory.mktemp("other") / "model"
    save_bundle(folder, bundle, {}, "For a test.")
    return folder


@pytest.fixture(scope="module")
def taught(
    trained: Path, other: Path, text: Path, numbers: Numbers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A finished run with two teachers, and what it said."""
    output, said = tmp_path_factory.mktemp("taught") / "run", []
    numbers.learn(output, data=text, teacher=(trained, other), say=said.append, **STUDENT)
    return output, said


@pytest.fixture
def unchecked(without_checks) -> Iterator[None]:
    """Without comparing calls with their signatures, which the fixture ``taught`` does."""
    with without_checks():
        yield


def config_of(run: Path) -> RunConfig:
    return RunConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))


def text_of(run: Path) -> PreparedText:
    return open_training_text(run, config_of(run).data, None)


def store_of(run: Path) -> SoftStore:
    prepared, config = text_of(run), config_of(run)
    lengths = prepared.train.target.lengths.astype(np.int64) + 1
    weights = tuple(teacher.weights for teacher in config.teachers)
    vocabulary = len(prepared.target_tokenizer)
    description = SoftDescription.of(weights, teachers.SYMBOLS, vocabulary, lengths)
    return SoftStore.open(run, description, lengths, vocabulary)


def trains(run: Path) -> list[dict[str, Any]]:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "train"]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_bundle(run).model.named_parameters())


# ------------------------------------------------------------------------------------------ what is stored


def test_the_stored_distributions_are_the_mean_of_the_teachers(taught, trained, other) -> None:
    """Compared with the models' probabilities, computed pair by pair."""
    run, _ = taught
    prepared, store = text_of(run), store_of(run)
    models = [load_bundle(folder).model for folder in (trained, other)]
    ids = prepared.target_tokenizer.special_ids
    for index in (0, 17, len(prepared.train) - 1):
        batch = collate(prepared.train, np.array([index]), **ids)
        with torch.no_grad():
            logits = [model(batch.source, batch.source_lengths, batch.target_input).logits[0] for model in models]
        mean = torch.stack([one.softmax(-1) for one in logits]).mean(0)
        found = store.gather(np.array([index]), 0.5)
        assert len(found.ids) == batch.target_tokens
        best = mean.topk(teachers.SYMBOLS).values
        torch.testing.assert_close(found.probabilities, best, rtol=0, atol=4e-5)
        torch.testing.assert_close(mean.gather(-1, found.ids), best, rtol=0, atol=4e-5)
        assert (found.probabilities.sum(-1) <= 1 + 1e-6).all()


def test_the_rows_of_a_batch_are_those_of_its_pairs(taught) -> None:
    store = store_of(taught[0])
    several = np.array([5, 3, 500, 3])
    whole = store.gather(several, 0.5)
    parts = [store.gather(np.array([index]), 0.5) for index in several]
    assert torch.equal(whole.ids, torch.cat([part.ids for part in parts]))
    assert torch.equal(whole.probabilities, torch.cat([part.probabilities for part in parts]))


def test_a_part_of_a_batch_keeps_its_rows(taught) -> None:
    run, _ = taught
    prepared, store = text_of(run), store_of(run)
    batch = prepared.batches(config_of(run).training, (0, 0)).take()
    batch = teachers.with_soft_targets(batch, store, 0.5)
    start, stop = 2, len(batch) - 1
    alone = store.gather(batch.indices[start:stop], 0.5)
    part = batch.part(start, stop)
    assert part.soft is not None
    assert len(part.soft.ids) == part.target_tokens
    assert torch.equal(part.soft.ids, alone.ids)
    assert torch.equal(part.soft.probabilities, alone.probabilities)


def test_what_is_said_and_recorded(taught, trained, other) -> None:
    run, said = taught
    config = config_of(run)
    assert [teacher.path for teacher in config.teachers] == [str(trained), str(other)]
    assert (config.training.teacher_weight, config.reasons["teacher_weight"][:4]) == (0.5, "half")
    assert any("what the 2 teachers predict at" in line for line in said)
    assert all(0 < record["teacher_loss"] < 10 for record in trains(run))
    assert any(f"(teachers {trains(run)[0]['teacher_loss']:.3f})" in line for line in said)
    card = (run / "best" / "README.md").read_text(encoding="utf-8")
    assert f"weights are {config.teachers[0].weights[:12]}, {config.teachers[1].weights[:12]}." in card
    assert not (run / "teachers.part").exists()


# ------------------------------------------------------------------------------------------ equal runs


@pytest.mark.usefixtures("unchecked")
def test_without_weight_nothing_changes(trained, text, numbers, tmp_path) -> None:
    numbers.learn(tmp_path / "plain", data=text, **STUDENT)
    numbers.learn(tmp_path / "taught", data=text, teacher=trained, teacher_weight=0.0, **STUDENT)
    plain, taught = (numbers.contents(tmp_path / name) for name in ("plain", "taught"))
    differing = {name for name in plain.keys() | taught.keys() if plain.get(name) != taught.get(name)}
    changed = {"run.json", "run.copy.json", "manifest.json", "log.txt", "timing.jsonl"}
    card = {"best/README.md", "best/manifest.json"}  # it names the teacher
    assert differing <= changed | card
    assert "log.jsonl" in plain


@pytest.mark.usefixtures("unchecked")
def test_a_run_that_is_stopped_anywhere_equals_an_uninterrupted_one(trained, text, numbers, tmp_path, monkeypatch):
    """Stopped twice while the teacher's predictions are computed, and once between updates."""
    monkeypatch.setattr(teachers, "_CHUNK", 100)
    wishes = {**STUDENT, "data": text, "teacher": trained}
    numbers.learn(tmp_path / "whole", **wishes)
    stops, said = iter((0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1)), []
    for _ in range(3):
        with pytest.raises(Interrupted) as stopped:
            numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(stops, 0) else None, **wishes)
        said.append(str(stopped.value).split(";")[0])
    assert said[:2] == [f"stopped after {pairs} pairs of the teachers" for pairs in (200, 400)]
    assert said[2].startswith("stopped after update")
    numbers.learn(tmp_path / "run", **wishes)
    whole, resumed = (numbers.contents(tmp_path / n, without=("log.txt", "timing.jsonl")) for n in ("whole", "run"))
    assert {name for name in whole if whole[name] != resumed.get(name)} == set()


@pytest.mark.usefixtures("unchecked")
def test_a_teacher_is_not_needed_once_its_predictions_are_stored(trained, text, numbers, tmp_path) -> None:
    teacher = Path(shutil.copytree(trained / "best", tmp_path / "teacher"))
    wishes = {**STUDENT, "data": text, "teacher": teacher}
    polls = iter([0] * 4 + [1])
    with pytest.raises(Interrupted, match="after update"):
        numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(polls, 0) else None, **wishes)
    shutil.rmtree(teacher)
    numbers.learn(tmp_path / "run", **wishes)
    shutil.rmtree(tmp_path / "run" / "teachers")
    (tmp_path / "run" / "checkpoints" / "00000006" / "state.json").unlink()  # so that there is something to train
    with pytest.raises(FormatError, match="teacher"):
        numbers.learn(tmp_path / "run", **wishes)


@pytest.mark.usefixtures("unchecked")
def test_a_run_goes_on_from_another_directory_and_after_it_was_moved_with_its_teacher(
    trained, text, numbers, tmp_path, monkeypatch
) -> None:
    here = tmp_path / "here"
    shutil.copytree(trained / "best", here / "teacher")
    monkeypatch.chdir(here)
    monkeypatch.setattr(teachers, "_CHUNK", 100)
    wishes, polls = {**STUDENT, "data": text}, iter((0, 0, 1, 1))
    stops = {"stop_signal": lambda: signal.SIGINT if next(polls, 0) else None}
    with pytest.raises(Interrupted, match="pairs of the teachers"):
        numbers.learn(Path("run"), teacher=Path("teacher"), **wishes, **stops)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted, match="pairs of the teachers"):
        numbers.learn(here / "run", **stops)
    here.rename(tmp_path / "there")
    numbers.learn(tmp_path / "there/run")
    assert (tmp_path / "there/run/teachers").is_dir()


class Together(SingleProcess):
    """Threads that exchange values as processes do."""

    def __init__(self, rank: int, gathering: threading.Barrier, values: list[Any]) -> None:
        super().__init__(Launch(rank=rank, size=gathering.parties))
        self._gathering, self._values = gathering, values

    def all_gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._gathering.wait(60)
        gathered = list(self._values)
        self._gathering.wait(60)
        return gathered


def test_several_processes_store_what_one_does(taught, tmp_path, monkeypatch) -> None:
    """Three processes share the chunks; a signal to one of them stops all at the same place."""
    monkeypatch.setattr(teachers, "_CHUNK", 50)
    run, config, prepared = tmp_path / "run", config_of(taught[0]), text_of(taught[0])
    run.mkdir()
    (tmp_path / "alone").mkdir()
    teachers.soft_targets(tmp_path / "alone", config, prepared, RunContext(say=lambda _: None))
    signals, said = iter([None, signal.SIGTERM]), []

    def work(rank: int, gathering: threading.Barrier, values: list[Any]) -> str:
        stop = (lambda: next(signals, None)) if rank == 1 else lambda: None
        context = RunContext(said.append, stop, processes=Together(rank, gathering, values))
        try:
            store = teachers.soft_targets(run, config, prepared, context)
        except Interrupted as stopped:
            return str(stopped)
        return str(len(store.gather(np.arange(len(prepared.train)), 0.5).ids))

    found = []
    for _ in range(2):
        gathering, values = threading.Barrier(3), [None] * 3
        with ThreadPoolExecutor(3) as pool:
            found.append(set(pool.map(work, range(3), [gathering] * 3, [values] * 3)))
    assert found[0] == {"stopped after 300 pairs of the teachers; run the same command again to continue (SIGTERM)"}
    assert found[1] == {str(int((prepared.train.target.lengths + 1).sum()))}
    assert len([line for line in said if "positions, once" in line]) == 2
    alone, shared = (Path(folder) / "teachers" for folder in (tmp_path / "alone", run))
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == {
        p.name: p.read_bytes() for p in shared.iterdir()
    }


def test_the_time_until_a_stop_counts_to_the_budget(taught, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(teachers, "_CHUNK", 50)
    config, prepared = config_of(taught[0]), text_of(taught[0])
    config = config.model_copy(update={"training": config.training.model_copy(update={"budget": 100.0})})
    for starts in (1, 2):
        began = time.monotonic() - 7.0
        with pytest.raises(Interrupted):
            teachers.soft_targets(
                tmp_path, config, prepared, RunContext(lambda _: None, lambda: signal.SIGINT, started=began)
            )
        assert 7.0 * starts < Journal(tmp_path / JOURNAL, pytest.fail).spent < 7.0 * starts + 5.0


# ------------------------------------------------------------------------------------------ what it learns


@pytest.mark.usefixtures("unchecked")
def test_a_taught_student_is_nearer_to_its_teacher(other, text, numbers, tmp_path) -> None:
    """The Kullback-Leibler divergence from the teacher, on sentences that neither has seen."""
    found = {}
    for name, wishes in {"taught": {"teacher": other}, "alone": {}}.items():
        long = {"updates": 80, "validate_every": 80, "dropout": 0.0, "smoothing": 0.0}
        numbers.learn(tmp_path / name, data=text, **{**STUDENT, **long, **wishes})
        prepared, models = text_of(tmp_path / name), [load_bundle(f).model for f in (other, tmp_path / name)]
        batch = collate(prepared.valid, np.arange(8), **prepared.target_tokenizer.special_ids)
        real = batch.target_output != prepared.target_tokenizer.pad_id
        with torch.no_grad():
            logits = [model(batch.source, batch.source_lengths, batch.target_input).logits[real] for model in models]
        p, q = (one.log_softmax(-1) for one in logits)
        found[name] = float((p.exp() * (p - q)).sum(-1).mean())
    assert found["taught"] < 0.8 * found["alone"]


def test_fine_tuning_with_a_teacher_corpora_with_weights_and_its_vocabulary(trained, other, numbers, tmp_path) -> None:
    """Text without preparation gets the vocabulary of the given model, or of the first teacher."""
    files = f"{numbers.train['source']} {numbers.train['target']} weight=0.5"
    short = {**SHORT, "updates": 2, "validate_every": 2, "corpus": (files,), **numbers.valid}
    for name, wishes in {"new": SIZES, "tuned": {"from_model": trained}}.items():
        numbers.learn(tmp_path / name, teacher=other, **short, **wishes)
        own, theirs = load_bundle(tmp_path / name), load_bundle(other)
        assert own.target_tokenizer.digest == theirs.target_tokenizer.digest
        assert (tmp_path / name / "teachers" / "manifest.json").exists()
        assert trains(tmp_path / name) or config_of(tmp_path / name).training.log_every > 2


@pytest.mark.usefixtures("unchecked")
def test_recurrent_networks_teach_and_learn(trained, text, numbers, tmp_path) -> None:
    small = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "model": "recurrent"}
    few = {**SHORT, "updates": 2, "validate_every": 2, "log_every": 1}
    numbers.learn(tmp_path / "one", data=text, teacher=trained, **small, **few)
    numbers.learn(tmp_path / "two", data=text, teacher=(tmp_path / "one", trained), **STUDENT)
    assert trains(tmp_path / "one")[0]["teacher_loss"] > 0
    with pytest.raises(ConfigurationError, match="samples positions"):
        numbers.learn(tmp_path / "bad", data=text, teacher=trained, alignment="sample", **small, **few)
    assert not (tmp_path / "bad").exists()


@pytest.mark.usefixtures("unchecked")
def test_other_cuts_of_the_source_leave_the_predictions_in_their_places(trained, text, numbers, tmp_path) -> None:
    """If targets were segmented anew, predictions stored for their positions could not be attached."""
    numbers.learn(tmp_path / "cut", data=text, teacher=trained, bpe_dropout=0.3, **STUDENT)
    numbers.learn(tmp_path / "plain", data=text, teacher=trained, **STUDENT)
    cut, plain = weights_of(tmp_path / "cut"), weights_of(tmp_path / "plain")
    assert all(record["teacher_loss"] > 0 for record in trains(tmp_path / "cut"))
    assert any(not torch.equal(cut[name], plain[name]) for name in plain)


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"vocab_size": 300}, "a teacher brings its own subwords"),
        ({"teacher_weight": 1.5}, "teacher_weight"),
        ({"teacher": ()}, "teacher is empty"),
        ({"teacher": None, "teacher_weight": 0.5}, "teacher_weight is given without teacher"),
        ({"teacher": "nowhere"}, "nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(trained, text, numbers, tmp_path, wishes, message):
    with pytest.raises((ConfigurationError, FormatError), match=message):
        numbers.learn(tmp_path / "run", data=text, **{"teacher": trained, **STUDENT, **wishes})
    assert not (tmp_path / "run").exists()


def test_another_vocabulary_is_refused_and_both_are_named(trained, numbers, tmp_path, call) -> None:
    prepare(**numbers.train, **numbers.valid, vocab_size=300, output=tmp_path / "text", say=lambda _: None)
    result = call("train", "--data", tmp_path / "text", "--teacher", trained, "--output", tmp_path / "run")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"{trained}: a teacher with another source vocabulary" in result.err
    assert f"than the text {tmp_path / 'text'}" in result.err
    assert not (tmp_path / "run").exists()


def test_changed_teachers_and_damaged_predictions_are_noticed(taught, trained, other, text, numbers, tmp_path) -> None:
    run = Path(shutil.copytree(taught[0], tmp_path / "run"))
    (run / "checkpoints" / "00000006" / "state.json").unlink()
    path = run / "teachers" / "probabilities.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"probabilities\.bin: damaged.*remove the folder"):
        numbers.learn(run)
    shutil.rmtree(run / "teachers")
    numbers.learn(run)  # computed again
    assert numbers.contents(run / "teachers") == numbers.contents(taught[0] / "teachers")
    (run / "checkpoints" / "00000006" / "state.json").unlink()
    description = json.loads((run / "teachers" / "teachers.json").read_text(encoding="utf-8"))
    description["teachers"].reverse()
    (run / "teachers" / "teachers.json").write_text(json.dumps(description), encoding="utf-8")
    numbers.seal_again(run / "teachers")
    with pytest.raises(FormatError, match="not made from the teachers and the text of this run"):
        numbers.learn(run)
