"""The loop: what it does when, and that a run stopped anywhere ends as the one that was not stopped."""

import itertools
import json
import signal

import pytest
import torch

from multihead.data.batching import BatchStream
from multihead.errors import DivergenceError, Interrupted
from multihead.training.checkpoint import Checkpoint, RunState, save
from multihead.training.loss import sequence_loss
from multihead.training.progress import RunLog
from multihead.training.schedule import learning_rate
from multihead.training.trainer import Surroundings, Trainer, Validation

SETTINGS = {"updates": 13, "validate_every": 5, "log_every": 3, "average": 0.8, "learning_rate": 0.03}


class Run:
    """A run in a folder, judged by its loss on three pairs."""

    def __init__(self, toy, folder, dropout=0.3, scores=None, losses=None, **changes):
        self.toy, self.folder, self.config = toy, folder, toy.config(**{**SETTINGS, **changes})
        self.dropout, self.scores, self.losses = dropout, scores, losses or {}
        self.kept, self.said, self.updates, self.saved = [], [], 0, []

    def go(self, polls=None):
        """Goes on from the last checkpoint; a signal comes at poll number ``polls``."""
        log = RunLog(self.folder, self.said.append)
        checkpoint = Trainer.newest_checkpoint(self.folder, self.said.append)
        log.rewind(checkpoint.state.logged if checkpoint else 0)
        torch.manual_seed(5)
        self.trainer = Trainer(
            self.toy.model(dropout=self.dropout),
            self.config,
            width=8,
            padding_id=self.toy.pad,
            folder=self.folder,
            log=log,
            checkpoint=checkpoint,
        )
        ids = {"pad_id": 0, "bos_id": 2, "eos_id": 3}
        position = self.trainer.state.position
        stream = BatchStream(self.toy.store, self.config.batch_tokens, self.config.seed, **ids, position=position)
        counter = itertools.count(1)

        def stop():
            return signal.SIGTERM if next(counter) == polls else None

        return self.trainer.run(Surroundings(stream.take, lambda: stream.position, self._judge, self._keep, stop))

    def _judge(self, model):
        assert not model.training
        torch.rand(3)  # whatever a judge draws is nobody's business
        if self.scores is not None:
            score = self.scores[self.trainer.state.step]
        else:
            score = -sequence_loss(model, self.toy.batch(0, 1, 2), self.toy.pad, 0.0).nll.item()
        loss = self.losses.get(self.trainer.state.step, 1.0)
        return Validation(score, loss, {"score": score}, f"score {score:.2f}")

    def _keep(self, model, values):
        self.kept.append((values["step"], {name: p.detach().clone() for name, p in model.named_parameters()}))

    def records(self, kind=None):
        lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if kind in (None, record["kind"])]

    def last(self):
        """All that a finished run leaves: its last checkpoint byte for byte, the log, the state."""
        newest = max((self.folder / "checkpoints").iterdir())
        files = {path.name: path.read_bytes() for path in newest.iterdir()}
        return newest.name, self.trainer.state, files, self.records()


@pytest.fixture(scope="module")
def uninterrupted(toy, tmp_path_factory):
    run = Run(toy, tmp_path_factory.mktemp("whole"))
    run.go()
    return run


def test_what_happens_when(uninterrupted):
    assert [record["step"] for record in uninterrupted.records("train")] == [3, 6, 9, 12]
    assert [record["step"] for record in uninterrupted.records("validation")] == [5, 10, 13]
    state = uninterrupted.trainer.state
    assert (state.step, state.validated_at) == (13, 13)
    assert uninterrupted.trainer.finished
    names = sorted(path.name for path in (uninterrupted.folder / "checkpoints").iterdir())
    assert names == ["00000010", "00000013"]


@pytest.mark.parametrize("polls", [1, 2, 5, 6, 7, 13])
def test_stopped_after_any_update_it_ends_as_if_it_had_not_been(toy, tmp_path, uninterrupted, polls):
    """Contract 9, with dropout: weights, average, optimiser, state and log, byte for byte."""
    run = Run(toy, tmp_path)
    with pytest.raises(Interrupted, match=r"after update .*SIGTERM") as stop:
        run.go(polls)
    assert stop.value.exit_status == 143
    assert not run.trainer.finished
    run.go()
    assert run.last() == uninterrupted.last()
    best = run.kept[-1], uninterrupted.kept[-1]
    assert best[0][0] == best[1][0]
    assert all(torch.equal(best[0][1][name], best[1][1][name]) for name in best[0][1])


def test_stopped_again_and_again_with_one_update_in_between(toy, tmp_path, uninterrupted):
    run = Run(toy, tmp_path)
    for _ in range(7):
        with pytest.raises(Interrupted):
            run.go(2)
    run.go()
    assert run.last() == uninterrupted.last()


@pytest.mark.parametrize("changes", [{"accumulate": 2}, {"average": 0.0}, {"schedule": "noam"}, {"clip": 0.0}])
def test_the_same_with_other_settings(toy, tmp_path, changes):
    runs = [Run(toy, tmp_path / name, **changes) for name in ("whole", "stopped")]
    for run in runs:
        run.folder.mkdir()
    runs[0].go()
    for polls in (4, 5):
        with pytest.raises(Interrupted):
            runs[1].go(polls)
    runs[1].go()
    assert runs[0].last() == runs[1].last()


class Killed(BaseException):
    """The process ends here: nothing more is written."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["_judge", "_keep", "_save", "_report"])
@pytest.mark.parametrize("time", [1, 2])
def test_killed_while_judging_keeping_saving_or_logging(toy, tmp_path, uninterrupted, monkeypatch, where, time, after):
    """Right before and right after each of them; then the same folder goes on."""
    run, counter = Run(toy, tmp_path), itertools.count(1)
    owner = Trainer if hasattr(Trainer, where) else Run
    original = getattr(owner, where)

    def dies(self, *args):
        if next(counter) != time:
            return original(self, *args)
        if after:
            original(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, where, dies)
        with pytest.raises(Killed):
            run.go()
    run.go()
    assert run.last() == uninterrupted.last()


def test_the_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(toy, tmp_path, uninterrupted):
    run = Run(toy, tmp_path)
    with pytest.raises(Interrupted):
        run.go(12)
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "average.safetensors").write_bytes(b"")
    run.go()
    assert any(str(newest) in line and "damaged" in line for line in run.said)
    assert run.last() == uninterrupted.last()


def test_a_finished_run_has_nothing_left_to_do(toy, tmp_path):
    run = Run(toy, tmp_path)
    run.go()
    before = run.last()
    run.go()
    assert run.last() == before


def test_logged_means_are_of_the_updates_since_the_last_line(toy, tmp_path):
    """The sums over all lines are those of every single update."""
    each = Run(toy, tmp_path / "each", log_every=1)
    some = Run(toy, tmp_path / "some", log_every=3)
    for run in (each, some):
        run.folder.mkdir()
        run.go()
    singles, means = each.records("train"), some.records("train")
    for mean, parts in zip(means, _threes(singles), strict=False):
        tokens = sum(part["target_tokens"] for part in parts)
        assert mean["target_tokens"] == tokens
        for name in ("loss", "accuracy"):
            expected = sum(part[name] * part["target_tokens"] for part in parts) / tokens
            assert mean[name] == pytest.approx(expected, rel=1e-9)
        assert mean["gradient_norm"] == pytest.approx(sum(part["gradient_norm"] for part in parts) / 3)
        assert mean["learning_rate"] == learning_rate(some.config, mean["step"], 8)


def _threes(items):
    return [items[start : start + 3] for start in range(0, len(items) - 2, 3)]


def test_the_best_is_kept_and_a_tie_is_not_better(toy, tmp_path):
    run = Run(toy, tmp_path, scores={5: 1.0, 10: 3.0, 15: 3.0, 20: 2.0}, updates=20)
    state = run.go()
    assert [step for step, _ in run.kept] == [5, 10]
    assert (state.best_step, state.best_score, state.without_gain) == (10, 3.0, 2)


def test_of_equal_scores_the_lower_loss_is_better(toy, tmp_path):
    """Or a run that begins with 0 BLEU again and again would keep its worst model."""
    losses = {5: 6.0, 10: 4.0, 15: 4.0, 20: 5.0}
    run = Run(toy, tmp_path, scores=dict.fromkeys(losses, 0.0), losses=losses, updates=20)
    state = run.go()
    assert [step for step, _ in run.kept] == [5, 10]
    assert (state.best_step, state.best_score, state.best_loss, state.without_gain) == (10, 0.0, 4.0, 2)


def test_a_higher_score_is_better_whatever_its_loss(toy, tmp_path):
    run = Run(toy, tmp_path, scores={5: 1.0, 10: 2.0, 13: 1.0}, losses={5: 1.0, 10: 9.0, 13: 0.1})
    assert run.go().best_step == 10


def test_better_is_a_strict_order(toy):
    """(score, -loss): no model is better than itself, and of two that differ exactly one is better."""
    found = [(score, loss) for score in (0.0, 1.0, 2.0) for loss in (0.5, 1.5)]
    for one in found:
        state = RunState(best_score=one[0], best_loss=one[1])
        for other in found:
            assert state.is_better(*other) == ((other[0], -other[1]) > (one[0], -one[1]))
    assert RunState().is_better(-5.0, 9.0)
    assert not RunState(best_score=1.0).is_better(1.0, 0.0)  # of version 0.1: its loss is not known


@pytest.mark.parametrize("place", [None, "_judge", "_keep", "_save"])
def test_a_state_that_asks_for_it_is_validated_before_the_first_update(toy, tmp_path, monkeypatch, place):
    """As a run that starts from a given model does; killed there and gone on with, it logs that once."""
    run = Run(toy, tmp_path)
    model = {name: p.detach() for name, p in toy.model(seed=3).named_parameters()}
    save(run.folder / "checkpoints", Checkpoint(RunState(validated_at=-1), model, model, {}), keep=1)

    def dies(*_):
        raise Killed

    if place is not None:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer if hasattr(Trainer, place) else Run, place, dies)
            with pytest.raises(Killed):
                run.go()
    run.go()
    assert [record["step"] for record in run.records("validation")] == [0, 5, 10, 13]
    step, kept = run.kept[0]
    assert step == 0
    assert all(torch.equal(kept[name], model[name]) for name in model)


def test_what_is_judged_and_kept_is_the_average(toy, tmp_path):
    run = Run(toy, tmp_path, scores={13: 1.0}, validate_every=13)
    run.go()
    ((_, kept),) = run.kept
    average = dict(run.trainer.average.model.named_parameters())
    weights = dict(run.trainer.model.named_parameters())
    assert all(torch.equal(kept[name], average[name]) for name in kept)
    assert not all(torch.equal(kept[name], weights[name]) for name in kept)


@pytest.mark.parametrize(("patience", "end"), [(1, 15), (2, 20), (0, 40)])
def test_training_ends_early_when_nothing_is_gained(toy, tmp_path, patience, end):
    scores = {step: -abs(step - 10.0) for step in range(5, 45, 5)}
    run = Run(toy, tmp_path, scores=scores, updates=40, patience=patience)
    assert run.go().step == end
    assert run.trainer.finished
    assert run.go().step == end
    assert [record["step"] for record in run.records("validation")] == list(range(5, end + 1, 5))


def test_running_off_to_infinity_keeps_the_checkpoints(toy, tmp_path):
    run = Run(toy, tmp_path)
    with pytest.raises(Interrupted):
        run.go(6)
    before = sorted((tmp_path / "checkpoints").iterdir())
    run.config = run.config.model_copy(update={"learning_rate": 1e300})
    with pytest.raises(DivergenceError, match="checkpoints so far are kept"):
        run.go()
    assert set(before) <= set((tmp_path / "checkpoints").iterdir())


def test_a_signal_during_the_last_update_does_not_matter(toy, tmp_path):
    run = Run(toy, tmp_path)
    state = run.go(polls=99)
    assert state.step == 13
