"""What all runs have in common, whatever they train: how they begin or go on, and how they end.

What is decided, what is learned from and how models are judged is the business of the workflow that calls this:
`runs.pointer.train`, `runs.bert.train`, `runs.classifier.train`. A translator's run (`runs.translator.train`), which
several
processes may share, begins in its own way (`runs.translator.begin`) and ends as all do.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from multihead import work_folder
from multihead.configuration import Settings
from multihead.files import sha256_of
from multihead.kernels.native import native
from multihead.machine import require_device
from multihead.model_folder import locate
from multihead.planning.settings import GivenModel
from multihead.training.checkpoint import Checkpoint, RunState
from multihead.training.config import TrainingConfig
from multihead.training.loss import Model
from multihead.training.parallel import SINGLE_PROCESS, Processes
from multihead.training.progress import RunLog, SilentLog
from multihead.training.tensorboard import TensorBoard
from multihead.training.trainer import Trainer, TrainerInputs


@runtime_checkable
class Decided(Protocol):
    """What ``run.json`` says of every kind of run."""

    @property
    def asked(self) -> dict[str, Any]:
        """The settings that were given."""

    @property
    def versions(self) -> dict[str, str]:
        """Of what it was begun with."""

    @property
    def training(self) -> TrainingConfig:
        """How it is trained."""

    @property
    def reasons(self) -> dict[str, str]:
        """Why, by setting."""


Run = TypeVar("Run", bound=Settings)
Ended = TypeVar("Ended")


@dataclass(frozen=True)
class Kind(Generic[Run]):
    """A kind of run, as its folder says it."""

    name: str
    """One of `work_folder`'s."""
    decisions: type[Run]
    version: int
    """Of its ``run.json``, the newest that is known."""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Path
    updates: int
    best_step: int
    best_score: float
    """What the best model is chosen by."""


def carry_out(
    folder: Path,
    kind: Kind[Run],
    asked: dict[str, object],
    begin: Callable[[], Run],
    work: Callable[[Run], Ended],
    use_threads: Callable[[int], None],
) -> Ended:
    """Begins a run in ``folder``, or goes on with the one that is there, as the only process that does.

    Args:
        folder: where it is, or will be.
        kind: what it is.
        asked: the settings that were given now.
        begin: decides everything and writes ``run.json``.
        work: trains it to its end.
        use_threads: is told how many threads it is frozen to.

    Raises:
        InputError: the folder holds something else, or a run with other settings; nothing was overwritten.
    """
    with work_folder.locked(folder):
        config = work_folder.read(folder, kind.decisions, kind.name, kind.version)
        if config is None:
            config = begin()
        else:
            assert isinstance(config, Decided)
            work_folder.check_same_settings(folder, asked, config.asked)
            work_folder.remove_leftovers(folder)
        assert isinstance(config, Decided)
        require_device(config.training.device)
        use_threads(config.training.threads)
        with torch.random.fork_rng():
            return work(config)


def show(config: Decided, shown: dict[str, object], log: RunLog) -> None:
    """Says what was decided and why, a line each."""
    for name, value in shown.items():
        log.say(f"  {name:<14} {value}  ({config.reasons.get(name, 'the usual value')})")


def train_to_the_end(
    model: Model,
    width: int,
    config: Decided,
    folder: Path,
    say: Callable[[str], None],
    around: Callable[[RunState], TrainerInputs[Model]],
    *,
    merit: str,
    start: str | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> Finished:
    """Trains, from the newest checkpoint if there is one, and says how it ended.

    Args:
        model: with its first values, on its device.
        width: of the model, for the schedule.
        config: of the run.
        folder: of the run.
        say: is told each line of progress.
        around: what the loop is given, from the state in which it begins.
        merit: what is said between the update of the best model and its folder, as in ", gets {:.2f}% right and is in".
        start: what is said where it begins with a checkpoint of update 0.
        processes: those that train it together; the first one speaks and writes.
    """
    if not processes.is_first:
        say = lambda _: None  # noqa: E731
    log = RunLog(folder, say) if processes.is_first else SilentLog(folder, say)
    checkpoint = Trainer.newest_checkpoint(folder, log.say, processes)
    trainer = Trainer(
        model, config.training, width=width, folder=folder, log=log, checkpoint=checkpoint, processes=processes
    )
    if trainer.finished:
        say(f"this run is finished: {_outcome(trainer.state, folder, merit)}. For another one choose a new folder")
        return _finished(trainer.state, folder)
    log.rewind(trainer.state.logged)
    if config.training.tensorboard and processes.is_first:
        log.copy_to(TensorBoard(folder, after=trainer.state.logged))
    _say_from_where(config, checkpoint, start, log)
    state = trainer.run(around(trainer.state))
    log.say(f"done: {_outcome(state, folder, merit)}")
    return _finished(state, folder)


def _say_from_where(config: Decided, checkpoint: Checkpoint | None, start: str | None, log: RunLog) -> None:
    """Nothing where a new run begins."""
    if checkpoint is None:
        return
    again = f"going on after update {checkpoint.state.step} of {config.training.updates}"
    log.say(start if start is not None and checkpoint.state.step == 0 else again)
    tell_other_versions(config.versions, log)


def _outcome(state: RunState, folder: Path, merit: str) -> str:
    best = f"the best model, of update {state.best_step}{merit.format(state.best_score)}"
    return f"{state.step} updates; {best} {folder / 'best'}"


def _finished(state: RunState, folder: Path) -> Finished:
    assert state.best_score is not None
    return Finished(folder, state.step, state.best_step, state.best_score)


def versions() -> dict[str, str]:
    """What a run depends on, and which kernels compute it: compiled ones differ from plain ones in the last digits."""
    return {
        "multihead": version("multihead"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernels": "plain" if native().library is None else "compiled",
    }


def tell_other_versions(begun_with: dict[str, str], log: RunLog) -> None:
    """Says so where a run goes on with others than it began with."""
    if begun_with != versions():
        log.say(f"  begun with {begun_with}, now {versions()}: the result may differ in its last digits")


def given_model(folder: Path) -> GivenModel:
    """What run.json records of the model that a run starts from."""
    return GivenModel(path=str(folder), weights=sha256_of(locate(folder) / "model.safetensors"))
