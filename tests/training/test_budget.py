"""A budget holds: simulated machines, decisions that are replayed, and a damaged journal."""

from __future__ import annotations

import itertools
import json
import random
import signal

import pytest
import torch

from multihead.configuration import Launch
from multihead.data.batching import BatchStream
from multihead.errors import Interrupted
from multihead.training import trainer as trainer_module
from multihead.training.budget import JOURNAL, Journal, Pacer
from multihead.training.context import TrainerInputs, Validation
from multihead.training.optimizer import learning_rate
from multihead.training.progress import RunLog
from multihead.training.splitting import SINGLE_PROCESS, SingleProcess
from multihead.training.trainer import Trainer


class Machine:
    """A clock that work advances; ``slower(now)`` is the factor by which everything takes longer."""

    def __init__(self, update=1.0, validation=0.0, saving=0.0, slower=lambda _: 1.0, noise=0.0):
        self.update, self.validation, self.saving, self.slower = update, validation, saving, slower
        self.now, self.noise, self.draw = 0.0, noise, random.Random(3)

    def __call__(self):
        return self.now

    def work(self, seconds):
        """A piece of work, during which the machine may become slower."""
        seconds *= 1 + self.draw.uniform(-self.noise, self.noise)
        for _ in range(20):
            self.now += seconds / 20 * self.slower(self.now)


class Writer:
    """A replacement for `CheckpointWriter`; the end of a run waits for it."""

    def __init__(self, machine):
        self.machine, self.seconds, self.saved = machine, 0.0, 0

    def save(self, checkpoint, before=lambda _: None):
        before(checkpoint)
        self.seconds, self.saved = self.machine.saving * self.machine.slower(self.machine.now), self.saved + 1

    def check(self):
        pass

    wait = check

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.machine.work(self.machine.saving)


class Run:
    """A run with a budget on a simulated machine, whose updates take time and nothing else, unless ``real``."""

    def __init__(self, toy, folder, budget, machine, *, real=False, preparation=0.0, **changes):
        estimate = changes.pop("updates", max(int(0.88 * (budget - preparation) / machine.update), 1))
        free = {"updates": estimate, "validate_every": max(estimate // 16, 10), "average": 0.8, "log_every": 1000}
        free |= {"replanned": ("validate_every", "average"), "warmup": max(min(400, estimate // 8), 1)}
        self.config = toy.config(**{**free, "budget": budget, "learning_rate": 0.03, **changes})
        self.toy, self.folder, self.machine, self.real = toy, folder, machine, real
        self.preparation, self.said, self.rates, self.best = preparation, [], [], []
        folder.mkdir(exist_ok=True)

    def go(self, monkeypatch, polls=None, processes=SINGLE_PROCESS):
        """Start or resume; a signal comes at poll number ``polls``."""
        started = self.machine.now
        self.machine.work(self.preparation)
        log = RunLog(self.folder, self.said.append)
        checkpoint = Trainer.newest_checkpoint(self.folder, self.said.append)
        log.rewind(checkpoint.state.logged if checkpoint else 0)
        torch.manual_seed(5)
        counter = itertools.count(1)
        with monkeypatch.context() as patch:
            if not self.real:
                patch.setattr(trainer_module, "CheckpointWriter", lambda *_: Writer(self.machine))
                patch.setattr(Trainer, "_update", self._pretend)
            self.trainer = Trainer(
                self.toy.model(dropout=0.3),
                self.config,
                width=8,
                folder=self.folder,
                log=log,
                checkpoint=checkpoint,
                processes=processes,
                pacer=Pacer(self.folder, self.config, log.say, started, self.machine) if processes.is_first else None,
            )
            ids, position = {"pad_id": 0, "bos_id": 2, "eos_id": 3}, self.trainer.state.position
            stream = BatchStream(self.toy.store, self.config.batch_tokens, self.config.seed, **ids, position=position)

            def take():
                self.machine.work(self.machine.update)
                return stream.take()

            batch = self.toy.batch(0)
            self.trainer.run(
                TrainerInputs(
                    take if self.real else lambda: batch,
                    lambda: stream.position,
                    self._judge,
                    lambda _, values: self.best.append(values["step"]),
                    lambda: signal.SIGTERM if next(counter) == polls else None,
                    evaluate_part=self._judge_part,
                    rehearse=self._rehearse,
                )
            )
        return self.machine.now / self.config.budget

    def _pretend(self, _batches, _inputs):
        step = self.trainer.state.step + 1
        self.machine.work(self.machine.update)
        self.rates.append(self.trainer._learning_rate(step))
        self.trainer._set_state(step=step)
        self.trainer._pacer.updated()

    def _judge(self, _model):
        self.machine.work(self.machine.validation)
        return Validation(float(self.trainer.state.step), 1.0, {}, "")

    def _judge_part(self, _model, part):
        assert part > 1
        self.machine.work(self.machine.validation / part)
        return Validation(float(self.trainer.state.step), 1.0, {"part": part}, "")

    def _rehearse(self, _model):
        self.machine.work(self.machine.validation / 16)
        return self.machine.validation * self.machine.slower(self.machine.now)

    def records(self, kind):
        lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def newest(self):
        """The files of the newest checkpoint."""
        path = max((self.folder / "checkpoints").iterdir())
        return path.name, {file.name: file.read_bytes() for file in path.iterdir()}


def halfway(factor, budget):
    """Everything takes ``factor`` times as long from the middle of the budget."""
    return lambda now: factor if now > budget / 2 else 1.0


# ------------------------------------------------------------------------------------------ it holds

ALL = ("validate_every", "average", "sentences")
QUIET = [
    pytest.param(600.0, {"update": 2.0, "validation": 5.0, "saving": 0.5}, id="ten minutes"),
    pytest.param(60.0, {"update": 0.3, "validation": 5.0, "saving": 0.5, "noise": 0.2}, id="a minute, with noise"),
    pytest.param(600.0, {"update": 3.0, "validation": 60.0, "saving": 10.0}, id="a validation is a tenth of it"),
    pytest.param(600.0, {"update": 3.0, "validation": 180.0}, id="a validation is a third of it"),
    pytest.param(86400.0, {"update": 400.0, "validation": 300.0, "saving": 60.0}, id="a day"),
]


@pytest.mark.parametrize(("budget", "machine"), QUIET)
@pytest.mark.parametrize("factor", [1.0, *(pytest.param(factor, marks=pytest.mark.proof) for factor in (2.0, 0.5))])
def test_a_budget_holds_on_a_quiet_machine(toy, tmp_path, monkeypatch, budget, machine, factor):
    """Also if updates take twice or half of what was measured at the start."""
    run = Run(toy, tmp_path, budget, Machine(slower=lambda _: factor, **machine), preparation=0.1 * budget)
    assert 0.95 <= run.go(monkeypatch) <= 1.01
    steps = [record["step"] for record in run.records("validation")]
    assert steps[-1] == run.trainer.state.step == len(run.rates)
    assert len(steps) == 1 or len(steps) * machine["validation"] * factor <= 0.12 * budget
    assert run.trainer.finished


@pytest.mark.parametrize(("budget", "machine"), [given for given in QUIET if "third" not in str(given.id)])
@pytest.mark.parametrize("factor", [2.0, pytest.param(0.5, marks=pytest.mark.proof)])
def test_a_budget_holds_on_a_machine_that_changes_halfway(toy, tmp_path, monkeypatch, budget, machine, factor):
    """Except for the machine on which the last validation alone takes the rest of the time."""
    run = Run(toy, tmp_path, budget, Machine(slower=halfway(factor, budget), **machine), preparation=0.1 * budget)
    assert 0.85 <= run.go(monkeypatch) <= 1.1
    rates = run.rates
    top = rates.index(max(rates))
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(rates[top:]))
    assert rates[-1] < 0.2 * max(rates)


def test_at_a_constant_pace_the_schedule_is_that_of_a_given_number_of_updates(toy, tmp_path, monkeypatch):
    """On a machine for which the estimate was right, no decision changes, and the rates are equal."""
    run = Run(toy, tmp_path, 1200.0, Machine(update=4.0, validation=8.0, saving=2.0), updates=285, validate_every=57)
    assert 0.95 <= run.go(monkeypatch) <= 1.0
    assert run.records("plan") == []
    assert run.rates == [learning_rate(run.config, step, 8) for step in range(1, 286)]
    assert [record["step"] for record in run.records("validation")] == list(range(57, 286, 57))


def test_an_interval_that_the_user_gave_stays_and_its_time_counts(toy, tmp_path, monkeypatch):
    machine = Machine(update=3.0, validation=10.0)
    run = Run(toy, tmp_path, 600.0, machine, validate_every=7, replanned=(), average=0.7)
    assert 0.95 <= run.go(monkeypatch) <= 1.0
    end = run.trainer.state.step
    assert [r["step"] for r in run.records("validation")] == [*range(7, end, 7), end]
    assert run.trainer.average.decay == 0.7


def test_a_single_validation_that_is_too_long_translates_fewer_sentences(toy, tmp_path, monkeypatch):
    """So that validations stay within a tenth of the budget, even if one takes longer than the whole budget."""
    for name, validation, part in (("half", 30.0, 5), ("double", 120.0, 8), ("short", 5.0, None)):
        run = Run(toy, tmp_path / name, 60.0, Machine(update=0.5, validation=validation), replanned=ALL)
        assert 0.95 <= run.go(monkeypatch) <= 1.05
        assert [record.get("part") for record in run.records("validation")] == [part]


def test_a_run_whose_time_is_over_ends_with_a_validation(toy, tmp_path, monkeypatch):
    """After the update during which the machine becomes 30 times slower; the model of that validation is kept."""
    update, validation, slow, budget = 1.0, 2.0, 30.0, 60.0
    machine = Machine(update, validation, slower=lambda now: slow if now > budget / 2 else 1.0)
    run = Run(toy, tmp_path, budget, machine)
    assert 1.0 < run.go(monkeypatch) <= 0.5 + slow * (update + validation) / budget
    last = run.trainer.state.step
    assert last == len(run.rates) < run.config.updates
    assert [record["step"] for record in run.records("validation")] == run.best == [last]


def test_checkpoints_are_written_though_no_validation_is_due(toy, tmp_path, monkeypatch):
    """Otherwise a run with time for one validation would lose everything if it is killed."""
    saved = []
    monkeypatch.setattr(Writer, "save", lambda self, checkpoint, *_: saved.append(checkpoint.state.step))
    run = Run(toy, tmp_path, 600.0, Machine(update=4.0, validation=90.0))
    run.go(monkeypatch)
    assert len(run.records("validation")) == 1
    assert 8 <= len(saved) <= 20
    assert saved[-1] == run.trainer.state.step


@pytest.mark.parametrize("validation", [2.0, 5.0, 10.0])
def test_no_checkpoint_is_written_between_an_update_and_its_validation(toy, tmp_path, monkeypatch, validation):
    """Otherwise a run that was killed after the validation would make and record it again."""
    saved = []
    monkeypatch.setattr(Writer, "save", lambda self, checkpoint, *_: saved.append(checkpoint.state.step))
    run = Run(toy, tmp_path, 600.0, Machine(update=2.0, validation=validation))
    run.go(monkeypatch)
    assert len(run.records("validation")) > 1
    assert len(saved) == len(set(saved))


def test_compiling_the_first_update_does_not_shorten_the_run(toy, tmp_path, monkeypatch):
    """It takes a tenth of the budget; the pace is that of the other updates."""
    machine = Machine(update=4.0, slower=lambda now: 15.0 if now < 4.0 else 1.0)
    run = Run(toy, tmp_path, 600.0, machine, updates=125)
    assert 0.95 <= run.go(monkeypatch) <= 1.0
    assert all(record["updates"] > 100 for record in run.records("plan"))


# ------------------------------------------------------------------------------------------ stopped and resumed


def files(run):
    return run.newest(), run.records("plan"), run.records("validation"), run.trainer.state


def real_run(toy, folder, machine=None):
    """A run whose machine becomes slower; its updates are made."""
    machine = machine or Machine(update=2.0, validation=2.0, slower=lambda now: 2.0 if now > 30 else 1.0, noise=0.1)
    return Run(toy, folder, 60.0, machine, real=True, updates=26)


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    run = real_run(toy, tmp_path_factory.mktemp("budget") / "whole")
    run.go(pytest.MonkeyPatch())
    assert len(run.records("plan")) > 3
    return run


@pytest.mark.parametrize("polls", [6, *(pytest.param(polls, marks=pytest.mark.proof) for polls in (1, 14))])
def test_the_same_decisions_give_the_same_weights(toy, tmp_path, monkeypatch, whole, polls):
    """Stopped after any update, and resumed with the journal of an uninterrupted run: no decision is made again.

    The resumed run is on a machine of another speed, and loses time.
    """
    run = real_run(toy, tmp_path, Machine(update=0.1, validation=9.0))
    (tmp_path / JOURNAL).write_bytes((whole.folder / JOURNAL).read_bytes())
    with pytest.raises(Interrupted):
        run.go(monkeypatch, polls)
    run.machine.now += 1000.0
    run.go(monkeypatch)
    assert files(run) == files(whole)
    assert (tmp_path / "log.jsonl").read_bytes() == (whole.folder / "log.jsonl").read_bytes()


class Following(SingleProcess):
    """A process that is not the first: it has no journal, and receives decisions."""

    is_first = False

    def __init__(self, decisions):
        super().__init__(Launch())
        self.decisions = decisions

    def broadcast(self, value):
        assert value is None
        return self.decisions.pop(0)


def test_other_processes_take_the_decisions_of_the_first_one(toy, tmp_path, monkeypatch, whole):
    lines = [json.loads(line) for line in (whole.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
    journal = Journal(whole.folder / JOURNAL, pytest.fail)
    other = Following([journal.decision(line["step"]) for line in lines if "updates" in line])
    run = real_run(toy, tmp_path, Machine(update=7.0))
    run.go(monkeypatch, processes=other)
    assert other.decisions == []
    assert run.trainer.state == whole.trainer.state
    weights = [dict(found.trainer.model.named_parameters()) for found in (run, whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not (tmp_path / JOURNAL).exists()


class Killed(BaseException):
    """The process ends; nothing more is written."""


KILLS = [("append", 2), ("append", 7), ("after", 10), ("_update", 11)]


@pytest.mark.parametrize(
    ("where", "calls"),
    [("after", 7), ("_judge", 1), *(pytest.param(*given, marks=pytest.mark.proof) for given in KILLS)],
)
def test_killed_anywhere_it_repeats_what_it_had_decided(toy, tmp_path, monkeypatch, where, calls):
    """Killed before or after a decision is on disk, in an update, or in a validation.

    Its later decisions depend on the clock. So its journal is given to a run that is not killed, which must end with
    the same weights.
    """
    run, counter = real_run(toy, tmp_path / "killed"), itertools.count(1)
    owner, name = {"append": (Journal, "append"), "after": (Journal, "append")}.get(where) or (
        (Trainer, where) if hasattr(Trainer, where) else (Run, where)
    )
    original, first = getattr(owner, name), calls

    def dies(self, *args):
        if next(counter) != first:
            return original(self, *args)
        if where == "after":
            original(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            run.go(monkeypatch)
    before = Journal(run.folder / JOURNAL, pytest.fail)
    run.go(monkeypatch)
    after = Journal(run.folder / JOURNAL, pytest.fail)
    assert all(after.decision(step) == before.decision(step) for step in range(100) if before.decision(step))
    other = real_run(toy, tmp_path / "other", Machine(update=3.0))
    (other.folder / JOURNAL).write_bytes((run.folder / JOURNAL).read_bytes())
    other.go(monkeypatch)
    assert files(other) == files(run)


def test_pauses_do_not_count_and_lost_time_does(toy, tmp_path, monkeypatch):
    """Only the time that the journal records counts."""
    run = Run(toy, tmp_path, 600.0, Machine(update=20.0, validation=5.0), real=True)
    with pytest.raises(Interrupted):
        run.go(monkeypatch, 10)
    stopped = run.machine.now
    spent = run.trainer._pacer.spent
    assert spent == pytest.approx(stopped, rel=0.01)
    run.machine.now += 5000.0
    run.go(monkeypatch)
    assert run.machine.now - 5000.0 == pytest.approx(0.97 * 600.0, rel=0.03)


# ------------------------------------------------------------------------------------------ the journal


@pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.proof)])
def test_every_flipped_bit_of_the_journal_is_said(tmp_path, stride):
    path = tmp_path / JOURNAL
    journal = Journal(path, pytest.fail)
    entry = {"updates": 9, "validate_every": 3, "average": 0.5, "check": 7}
    for step in (2, 4, 6):
        journal.append({"step": step, "spent": 10.0 * step, **entry})
    whole = path.read_bytes()
    assert Journal(path, pytest.fail).decision(4) == journal.decision(4)
    for number in range(0, 8 * len(whole), stride):
        (place, bit), damaged, said = divmod(number, 8), bytearray(whole), []
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        left = Journal(path, said.append)
        assert 1 <= len(said) <= 2
        assert all("is damaged; what it decided is decided again" in line for line in said)
        assert [left.decision(step) in (None, journal.decision(step)) for step in (2, 4, 6)] == [True] * 3
        assert Journal(path, pytest.fail).spent == left.spent


@pytest.mark.parametrize("left", [0, 1, 30, -30, -1])
def test_a_journal_that_was_cut_off_is_read_up_to_there(tmp_path, left):
    path, said = tmp_path / JOURNAL, []
    journal = Journal(path, pytest.fail)
    for step in (2, 4):
        journal.append({"step": step, "spent": 1.5 * step})
    path.write_bytes(path.read_bytes()[:left])
    again = Journal(path, said.append)
    assert len(said) == (0 if left in (0, -1) else 1)
    assert again.spent == {-30: 3.0, -1: 6.0}.get(left, 0.0)


def test_a_lost_journal_is_said_and_the_time_is_estimated(toy, tmp_path, monkeypatch):
    run = Run(toy, tmp_path, 100.0, Machine(update=4.0), real=True)
    with pytest.raises(Interrupted):
        run.go(monkeypatch, 12)
    (tmp_path / JOURNAL).unlink()
    before = run.machine.now
    run.go(monkeypatch)
    assert any("ends before update" in line and "are assumed" in line for line in run.said)
    assert run.machine.now - before == pytest.approx(50, abs=10)


def test_decisions_of_another_course_are_not_taken(tmp_path):
    path = tmp_path / JOURNAL
    journal = Journal(path, pytest.fail)
    entry = {"updates": 9, "validate_every": 3, "average": 0.5, "check": 7}
    for step in (2, 4, 6):
        journal.append({"step": step, "spent": 1.0, **entry})
    journal.discard_after(2)
    assert journal.decision(2) is not None
    assert journal.decision(4) is None
    assert Journal(path, pytest.fail).decision(6) is None
