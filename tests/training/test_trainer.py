"""The training loop: order of events, and equality of resumed runs."""

from __future__ import annotations

import itertools
import json
import math
import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from multihead.data.batching import BatchStream
from multihead.errors import DivergenceError, Interrupted, SurroundingsError
from multihead.training import step as step_module
from multihead.training import trainer as trainer_module
from multihead.training.checkpoint import Checkpoint, RunState, read_weights, save
from multihead.training.context import TrainerInputs, Validation
from multihead.training.optimizer import learning_rate, optimizer_tensors
from multihead.training.progress import ModelFlops, RunLog
from multihead.training.splitting import sequence_loss
from multihead.training.trainer import Trainer

if TYPE_CHECKING:
    from tests.training.conftest import Toy


SETTINGS = {"updates": 13, "validate_every": 5, "log_every": 3, "average": 0.8, "learning_rate": 0.03}
SHORT = {"updates": 7, "validate_every": 3, "log_every": 2}
"""For the tests that compare a run with `uninterrupted`."""


class Run:
    """A run in a folder, scored by its loss on three pairs."""

    def __init__(self, toy, folder, dropout=0.3, scores=None, losses=None, **changes):
        self.inputs = {}
        self.toy, self.folder, self.config = toy, folder, toy.config(**{**SETTINGS, **changes})
        self.dropout, self.scores, self.losses = dropout, scores, losses or {}
        self.kept, self.said, self.updates, self.saved = [], [], 0, []

    def go(self, polls=None):
        """Start or resume; a signal comes at poll number ``polls``."""
        log = RunLog(self.folder, self.said.append)
        checkpoint = Trainer.newest_checkpoint(self.folder, self.said.append)
        log.rewind(checkpoint.state.logged if checkpoint else 0)
        torch.manual_seed(5)
        self.trainer = Trainer(
            self.toy.model(dropout=self.dropout),
            self.config,
            width=8,
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

        given = stream.take, lambda: stream.position, self._judge, self._keep, stop
        return self.trainer.run(TrainerInputs(*given, **self.inputs))

    def _judge(self, model):
        assert not model.training
        torch.rand(3)  # random numbers that a judge draws must not affect training
        if self.scores is not None:
            score = self.scores[self.trainer.state.step]
        else:
            score = -sequence_loss(model, self.toy.batch(0, 1, 2), 0.0).nll.item()
        loss = self.losses.get(self.trainer.state.step, 1.0)
        return Validation(score, loss, {"score": score}, f"score {score:.2f}")

    def _keep(self, model, values):
        self.kept.append((values["step"], {name: p.detach().clone() for name, p in model.named_parameters()}))

    def records(self, kind=None):
        lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if kind in (None, record["kind"])]

    def last(self):
        """Everything that a finished run leaves: the last checkpoint, its state, the log."""
        newest = max((self.folder / "checkpoints").iterdir())
        files = {path.name: path.read_bytes() for path in newest.iterdir()}
        return newest.name, self.trainer.state, files, self.records()


@pytest.fixture(scope="module")
def uninterrupted(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(toy, tmp_path_factory.mktemp("whole"), **SHORT)
    run.go()
    return run


def test_what_happens_when(uninterrupted):
    assert [record["step"] for record in uninterrupted.records("train")] == [2, 4, 6]
    assert [record["step"] for record in uninterrupted.records("validation")] == [3, 6, 7]
    state = uninterrupted.trainer.state
    assert (state.step, state.validated_at) == (7, 7)
    assert uninterrupted.trainer.finished
    names = sorted(path.name for path in (uninterrupted.folder / "checkpoints").iterdir())
    assert names == ["00000006", "00000007"]


@pytest.mark.parametrize("polls", [1, 2, 3, 4, 5, 7])
def test_stopped_after_any_update_it_ends_as_if_it_had_not_been(toy, tmp_path, uninterrupted, polls):
    """Contract 9, with dropout: weights, average, optimizer, state and log, byte for byte."""
    run = Run(toy, tmp_path, **SHORT)
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
    run = Run(toy, tmp_path, **SHORT)
    for _ in range(4):
        with pytest.raises(Interrupted):
            run.go(2)
    run.go()
    assert run.last() == uninterrupted.last()


@pytest.mark.parametrize("changes", [{"accumulate": 2}, {"average": 0.0}, {"schedule": "noam"}, {"clip": 0.0}])
def test_the_same_with_other_settings(toy, tmp_path, changes):
    runs = [Run(toy, tmp_path / name, **SHORT, **changes) for name in ("whole", "stopped")]
    for run in runs:
        run.folder.mkdir()
    runs[0].go()
    for polls in (3, 3):
        with pytest.raises(Interrupted):
            runs[1].go(polls)
    runs[1].go()
    assert runs[0].last() == runs[1].last()


class Killed(BaseException):
    """The process ends; nothing more is written."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["_judge", "_keep", "_save", "_report"])
@pytest.mark.parametrize("time", [1, 2])
def test_killed_while_judging_keeping_saving_or_logging(toy, tmp_path, uninterrupted, monkeypatch, where, time, after):
    """Killed right before and right after each of them; then the run is resumed."""
    run, counter = Run(toy, tmp_path, **SHORT), itertools.count(1)
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


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_a_checkpoint_with_one_flipped_bit_is_passed_over_and_the_end_is_the_same(toy, tmp_path, uninterrupted, name):
    run = Run(toy, tmp_path, **SHORT)
    with pytest.raises(Interrupted):
        run.go(6)
    newest = max((tmp_path / "checkpoints").iterdir())
    damaged = newest / name
    content = bytearray(damaged.read_bytes())
    content[random.Random(name).randrange(len(content))] ^= 1 << random.Random(name).randrange(8)
    damaged.write_bytes(content)
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
    """The sums over all lines equal those over all updates."""
    each = Run(toy, tmp_path / "each", log_every=1)
    some = Run(toy, tmp_path / "some", log_every=3)
    for run in (each, some):
        run.folder.mkdir()
        run.go()
    singles, means = each.records("train"), some.records("train")
    assert len(singles) == 13
    assert len({part["target_tokens"] for part in singles}) > 1  # so the weights of a mean matter
    for mean, parts in zip(means, _threes(singles), strict=True):
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
    """Otherwise a run with 0 BLEU in its first validations would keep its worst model."""
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
    """As in a run that starts from a given model; killed after it and resumed, the run logs the validation once."""
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


def test_what_is_kept_is_of_the_validation_though_training_goes_on(toy, tmp_path, monkeypatch):
    """The model is still being written when the next update is made, but has the weights of its checkpoint."""
    run, keep = Run(toy, tmp_path, scores={5: 1.0, 10: 2.0, 13: 3.0}, keep_checkpoints=9), Run._keep
    moved = []

    def slow(self, model, values):
        deadline = time.monotonic() + 30
        while self.trainer.state.step == values["step"] < 13 and time.monotonic() < deadline:
            time.sleep(0.001)
        moved.append(self.trainer.state.step > values["step"])
        keep(self, model, values)

    monkeypatch.setattr(Run, "_keep", slow)
    run.go()
    assert [step for step, _ in run.kept] == [5, 10, 13]
    assert moved == [True, True, False]
    for step, kept in run.kept:
        saved = read_weights(tmp_path / "checkpoints" / f"{step:08d}", "average")
        assert kept.keys() == saved.keys()
        assert all(torch.equal(kept[name], saved[name]) for name in kept)


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


# ------------------------------------------------------------------------------------------ refused updates


POISONED = 7
"""A pair whose batches get a wrong loss."""


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Multiply the loss of batches with the pair `POISONED`, or of all batches."""

    def apply(factor, everywhere=False):
        def loss(model, batch, smoothing):
            found = sequence_loss(model, batch, smoothing)
            wrong = everywhere or POISONED in batch.indices
            return found._replace(total=found.total * factor) if wrong else found

        monkeypatch.setattr(step_module, "sequence_loss", loss)

    return apply


@pytest.mark.parametrize(("factor", "accumulate"), [(math.nan, 1), (math.inf, 2)])
def test_a_skipped_update_changes_nothing_and_names_its_pairs(toy, tmp_path, poison, monkeypatch, factor, accumulate):
    poison(factor)
    run, seen, taken = Run(toy, tmp_path, accumulate=accumulate, updates=20), [], {}
    update = Trainer._update

    def watched(self, batches, around):
        parts = [{**self.model.state_dict()}, {**self.average.model.state_dict()}, optimizer_tensors(*both(self))]
        before = [{name: tensor.clone() for name, tensor in part.items()} for part in parts]
        update(self, batches, around)
        bad = [batch.indices for batch in batches if POISONED in batch.indices]
        if bad:
            seen.append(self.state.step)
            taken[self.state.step] = sorted(i for indices in bad for i in indices.tolist())
            after = [self.model.state_dict(), self.average.model.state_dict(), optimizer_tensors(*both(self))]
            assert all(torch.equal(a[n], b[n]) for a, b in zip(after, before, strict=True) for n in a)
            assert any(step == self.state.step for step in self.state.skipped)

    monkeypatch.setattr(Trainer, "_update", watched)
    state = run.go()
    assert state.step == 20
    assert seen
    assert [record["step"] for record in run.records("skipped")] == seen
    for record in run.records("skipped"):
        assert record["lines"] == {"the store": taken[record["step"]]}
        assert record["loss"] is None
    tokens = sum(record["target_tokens"] for record in run.records("train"))
    assert tokens < 20 * accumulate * 24
    assert any(f"update {seen[0]} skipped: the loss is {factor} a token" in line for line in run.said)


def both(trainer):
    return trainer.model, trainer.optimizer


@pytest.mark.parametrize(("polls", "log_every"), [(3, 1), (8, 3)])
def test_a_run_that_skips_goes_on_as_if_it_had_not_been_stopped(toy, tmp_path, poison, polls, log_every):
    poison(math.nan)
    runs = [Run(toy, tmp_path / name, log_every=log_every) for name in ("whole", "stopped")]
    for run in runs:
        run.folder.mkdir()
    runs[0].go()
    assert runs[0].records("skipped")
    for number in (polls, 3):
        with pytest.raises(Interrupted):
            runs[1].go(number)
    runs[1].go()
    assert runs[0].last() == runs[1].last()


@pytest.mark.parametrize(("limit", "end"), [(0, 1), (3, 4), (10, 11)])
def test_after_repeated_ones_the_run_stops_with_advice(toy, tmp_path, poison, limit, end):
    poison(math.nan, everywhere=True)
    run = Run(toy, tmp_path, skip_limit=limit, validate_every=50, updates=50)
    with pytest.raises(DivergenceError, match=f"update {end}: .*{end} of the last 100 .*lower learning rate"):
        run.go()
    assert len(run.records("skipped")) == end
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("factor", "changes", "norms", "skips"),
    [
        (1e4, {}, 64, True),
        (20.0, {}, 64, False),
        (20.0, {"skip_above": 5.0}, 64, True),
        (1e4, {"skip_above": 0.0}, 64, False),
        (1e4, {"warmup": 71}, 64, False),
        (1e4, {}, 63, False),
    ],
)
def test_an_exploding_gradient_is_skipped_after_the_warm_up(
    toy, tmp_path, poison, monkeypatch, factor, changes, norms, skips
):
    """The run resumes after update 70 with this many norms; update 71 has ``factor`` times its gradient."""
    run = Run(toy, tmp_path, **{"updates": 72, "validate_every": 100, "learning_rate": 1e-3, "log_every": 1, **changes})
    state = RunState(step=70, norms=(0.5, *[1.0] * (norms - 2), 2.0))
    model = {name: p.detach() for name, p in toy.model(seed=3).named_parameters()}
    save(run.folder / "checkpoints", Checkpoint(state, model, model, {}), keep=1)
    calls = itertools.count(1)

    def loss(model, batch, smoothing):
        found = sequence_loss(model, batch, smoothing)
        return found._replace(total=found.total * (factor if next(calls) == 1 else 1.0))

    monkeypatch.setattr(step_module, "sequence_loss", loss)
    run.inputs = {"source_lines": lambda pairs: {"train.de": (pairs + 1).tolist()}}
    run.go()
    records = run.records("skipped")
    assert [record["step"] for record in records] == ([71] if skips else [])
    for record in records:
        assert record["gradient_norm"] > run.config.skip_above * 1.0
        assert list(record["lines"]) == ["train.de"]
        assert any("train.de: " in line and "skipped" in line for line in run.said)
    assert len(run.trainer.state.norms) == min(64, norms + 2 - skips)


@pytest.mark.parametrize(("share", "skips"), [(0.9, False), (1.1, True)])
@pytest.mark.parametrize("clip", [0.0, 1.0, 100.0])
def test_what_a_learned_model_gets_wrong_is_learned_however_small_the_usual_norm_is(
    toy, tmp_path, monkeypatch, clip, share, skips
):
    """Unless the norm also exceeds ``clip``, or 1, by the factor by which it may exceed the usual norm."""
    factors = [1.0, share]
    state = RunState(step=70, norms=(1e-5,) * 64)
    model = {name: p.detach() for name, p in toy.model(seed=3).named_parameters()}

    def loss(model, batch, smoothing):
        found = sequence_loss(model, batch, smoothing)
        return found._replace(total=found.total * factors[0])

    monkeypatch.setattr(step_module, "sequence_loss", loss)
    for place, kept in ((tmp_path / "usual", 0.0), (tmp_path / "large", clip)):
        run = Run(toy, place, updates=71, validate_every=100, learning_rate=1e-3, log_every=1, clip=kept)
        save(run.folder / "checkpoints", Checkpoint(state, model, model, {}), keep=1)
        run.inputs = {"source_lines": lambda pairs: {"train.de": (pairs + 1).tolist()}}
        run.go()
        assert [record["step"] for record in run.records("skipped")] == [71] * (skips and place.name == "large")
        norm = run.trainer.state.norms[-1]
        factors = [share * run.config.skip_above * (clip or 1.0) / norm]
    assert skips or norm == pytest.approx(0.9 * run.config.skip_above * (clip or 1.0), rel=1e-3)


def test_norms_are_of_the_last_updates_and_skipped_ones_are_forgotten():
    norms, skipped = (), ()
    for step in range(1, 300):
        norms = step_module.append_norm(norms, float(step))
        if step % 10 == 0:
            skipped = step_module.append_skipped(skipped, step)
    assert norms == tuple(float(step) for step in range(236, 300))
    assert skipped == tuple(range(200, 300, 10))


def test_a_model_that_is_no_number_is_never_kept_or_saved(toy, tmp_path):
    run = Run(toy, tmp_path, losses={5: math.nan})
    with pytest.raises(DivergenceError, match=r"update 5: the loss of the validation set is nan"):
        run.go()
    assert run.kept == []
    assert not (tmp_path / "checkpoints").exists()


# ------------------------------------------------------------------------------------------ memory


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, int]]]:
    """Batches of more than this many cells do not fit; returns the sizes that were tried."""

    def apply(limit, error=torch.OutOfMemoryError):
        tried = []

        def loss(model, batch, smoothing):
            tried.append((batch.cells, len(batch)))
            if batch.cells > limit:
                raise error("CUDA out of memory. Tried to allocate 20.00 MiB")
            return sequence_loss(model, batch, smoothing)

        monkeypatch.setattr(step_module, "sequence_loss", loss)
        return tried

    return apply


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_batch_that_does_not_fit_is_cut_and_the_run_is_the_same(toy, tmp_path, small_memory, uninterrupted, error):
    """With dropout; no pair is omitted, and the log differs only by rounding."""
    small_memory(15, error)
    run = Run(toy, tmp_path, **SHORT)
    state = run.go()
    assert state.room is not None
    assert state.room <= 15
    assert any("did not fit into memory" in line for line in run.said)
    check_equal_up_to_rounding(run, uninterrupted)


def check_equal_up_to_rounding(run: Run, expected: Run) -> None:
    """Lines of the log, and the weights of the models that were kept."""
    for record, other in zip(run.records("train"), expected.records("train"), strict=True):
        assert [*record] == [*other]
        assert [*record.values()][1:] == pytest.approx([*other.values()][1:], rel=1e-6)
    assert [step for step, _ in run.kept] == [step for step, _ in expected.kept]
    for (_, kept), (_, other) in zip(run.kept, expected.kept, strict=True):
        torch.testing.assert_close(kept, other, rtol=1e-6, atol=1e-7)  # Adam divides rounding errors by rounding errors


def test_what_is_known_not_to_fit_is_not_tried_again(toy, tmp_path, small_memory):
    """Nor after a restart: the limit is in the state."""
    tried = small_memory(15)
    run = Run(toy, tmp_path)
    with pytest.raises(Interrupted):
        run.go(9)
    room = run.trainer.state.room
    tried.clear()
    run.go()
    assert all(cells <= room or rows == 1 for cells, rows in tried)
    assert run.trainer.state.room == room


def test_a_single_pair_that_does_not_fit_is_named(toy, tmp_path, small_memory):
    small_memory(0)
    run = Run(toy, tmp_path)
    with pytest.raises(SurroundingsError, match=r"a single pair does not fit into memory: the store: \d+.*max_tokens"):
        run.go()


def test_other_errors_are_not_taken_for_a_lack_of_memory(toy, tmp_path, monkeypatch):
    def loss(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(step_module, "sequence_loss", loss)
    with pytest.raises(RuntimeError, match="something else"):
        Run(toy, tmp_path).go()


def test_the_largest_batches_are_tried_before_the_first_update(toy, tmp_path, small_memory, monkeypatch, uninterrupted):
    """As on a GPU: batches are split from the first update on, and the run, with dropout, is the same."""
    tried = small_memory(15)
    run = Run(toy, tmp_path, **SHORT)
    run.inputs = {"largest_batches": lambda: [toy.batch(*range(12))]}
    monkeypatch.setattr(trainer_module, "can_probe_memory", lambda device: True)
    run.go()
    assert tried[0] == (toy.batch(*range(12)).cells, 12)
    first = next(place for place, (cells, _) in enumerate(tried) if cells <= 15)
    assert all(cells <= 15 or rows == 1 for cells, rows in tried[first:])
    assert [line.split(":")[0] for line in run.said if "did not fit into memory" in line] == ["after update 0"]
    check_equal_up_to_rounding(run, uninterrupted)


# ------------------------------------------------------------------------------------------ the log


def test_the_share_of_the_peak_stands_with_the_timings(toy, tmp_path):
    run = Run(toy, tmp_path)
    run.inputs = {"flops": ModelFlops(source=0.0, target=6.0, peak_flops=1e3)}
    run.go()
    rows = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text(encoding="utf-8").splitlines()]
    shares = [row for row in rows if row["kind"] == "train"]
    assert shares
    for row in shares:
        assert row["share_of_peak"] == pytest.approx(6.0 * row["tokens_per_second"] / 1e3, rel=1e-2)
    assert any("% of peak)" in line for line in run.said)


def test_speed_after_a_stop_counts_what_was_done_since(toy, tmp_path, monkeypatch):
    """The first line after a restart includes tokens from before it, whose time is not known."""
    run = Run(toy, tmp_path, log_every=6, validate_every=50)
    with pytest.raises(Interrupted):
        run.go(6)
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: next(clock))
    run.go()
    rows = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[0]["tokens_per_second"] < 3 * 24 < run.records("train")[0]["target_tokens"]
