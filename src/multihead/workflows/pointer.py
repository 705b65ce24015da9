"""Pointer networks, from drawn problems to a model that solves them: a run begins or goes on.

A run is a folder, as a translator's is (`workflows.train`), without text:

    run.json            everything decided, with reasons: a `PointerRun`; written once, before the first update
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on
    best/               the model folder of the best validation so far

Its examples are drawn anew for each update, as a function of seed and update; so a run that was stopped goes on as if
it had not been. What solves problems is `Pointer`, in `workflows.pointer_search`; how good it is says `evaluate`, in
`workflows.pointer_evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multihead.configuration import build
from multihead.data.batching import Batch
from multihead.data.pointing import collate, generator
from multihead.files import write_text
from multihead.models.pointer_network import PointerNetwork
from multihead.training.checkpoint import RunState
from multihead.training.progress import RunLog
from multihead.training.trainer import Surroundings, Trainer
from multihead.workflows import run_folder
from multihead.workflows.begin import tell_other_versions, versions
from multihead.workflows.machine import inspect_machine, require_device
from multihead.workflows.pointer_evaluation import TRAINING, Best, evaluate
from multihead.workflows.pointer_search import Answer, Pointer
from multihead.workflows.pointer_settings import (
    RUN_VERSION,
    PointerRun,
    PointerSettings,
    ProblemName,
    decide,
    default_folder,
)

__all__ = ["Answer", "Pointer", "Result", "evaluate", "train"]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    updates: int
    best_step: int
    best_score: float
    """Percent of the validation set that greedy search gets exactly right."""

    def pointer(self) -> Pointer:
        """The best model."""
        return Pointer.load(self.folder)


def train(
    problem: ProblemName,
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Result:
    """Trains a pointer network, or goes on with one that was stopped.

    Args:
        problem: "sort" or "hull".
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        use_threads: is told how many threads the run is frozen to: see `workflows.train.train`.
        **wishes: fields of `PointerSettings`; all of them may be left out.

    Raises:
        InputError: settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(PointerSettings, wishes, "the settings")
    folder = settings.output or default_folder(problem)
    with run_folder.holding(folder):
        config = run_folder.read(folder, PointerRun, run_folder.POINTER, RUN_VERSION)
        if config is None:
            config = _begin(problem, settings, folder, say)
        else:
            run_folder.check_same(folder, {"problem": problem, **run_folder.asked_for(settings)}, config.asked)
            run_folder.clear_up(folder)
        require_device(config.training.device)
        use_threads(config.training.threads)
        with torch.random.fork_rng():
            return _train(config, folder, say, stop_signal)


class Examples:
    """The batches of a run, without end: a function of its seed and the number of the update.

    Args:
        config: the run.
        taken: batches that were taken already.
    """

    def __init__(self, config: PointerRun, taken: int) -> None:
        self.config, self.taken = config, taken
        self._problem = Pointer.problem_of(config.task)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch, of which there is one, and place in it."""
        return 0, self.taken

    def take(self) -> Batch:
        """The next batch."""
        task, random = self.config.task, generator(self.config.training.seed, TRAINING, self.taken)
        self.taken += 1
        return collate(self._problem.draw(random, self.config.batch, task.smallest, task.largest))


def _begin(problem: ProblemName, settings: PointerSettings, folder: Path, say: Callable[[str], None]) -> PointerRun:
    """Decides everything, says so, and freezes it."""
    machine = inspect_machine()
    config = decide(problem, settings, machine.threads, versions())
    require_device(config.training.device)
    with run_folder.preparing(folder):
        write_text(folder / run_folder.RUN, config.model_dump_json(indent=2) + "\n")
    _show(config, RunLog(folder, say))
    return config


def _show(config: PointerRun, log: RunLog) -> None:
    """Says what was decided and why."""
    model, training = config.model, config.training
    names = (
        ["layers", "width", "heads", "inner", "positions"] if model.encoder == "transformer" else ["layers", "width"]
    )
    shown = {
        **config.task.model_dump(exclude={"problem"} if config.task.problem == "sort" else {"problem", "ascending"}),
        **{name: getattr(model, name) for name in ("encoder", *names, "dropout")},
        "repeats": not model.no_repeats,
        "batch": config.batch,
        **{name: getattr(training, name) for name in ("updates", "learning_rate", "warmup", "average", "threads")},
    }
    log.say(f"a pointer network for '{config.task.problem}'; decided (run.json has it all):")
    for name, value in shown.items():
        log.say(f"  {name:<14} {value}  ({config.reasons.get(name, 'the usual value')})")


def _train(
    config: PointerRun, folder: Path, say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> Result:
    log, training = RunLog(folder, say), config.training
    torch.manual_seed(training.seed)
    model = PointerNetwork(config.model).to(training.device)
    checkpoint = Trainer.newest_checkpoint(folder, log.say)
    trainer = Trainer(model, training, width=config.model.width, folder=folder, log=log, checkpoint=checkpoint)
    if trainer.finished:
        say(f"this run is finished: {_outcome(trainer.state, folder)}. For another one choose a new folder by --output")
        return _result(trainer.state, folder)
    log.rewind(trainer.state.logged)
    if checkpoint is not None:
        log.say(f"going on after update {checkpoint.state.step} of {training.updates}")
        tell_other_versions(config.versions, log)
    examples, best = Examples(config, trainer.state.position[1]), Best(config, folder)
    around = Surroundings(examples.take, lambda: examples.position, best.evaluate, best.keep, stop_signal)
    state = trainer.run(around)
    log.say(f"done: {_outcome(state, folder)}")
    return _result(state, folder)


def _outcome(state: RunState, folder: Path) -> str:
    return (
        f"{state.step} updates; the best model, of update {state.best_step}, gets {state.best_score:.2f}% of the "
        f"validation set exactly right (greedy) and is in {folder / 'best'}"
    )


def _result(state: RunState, folder: Path) -> Result:
    assert state.best_score is not None
    return Result(folder, state.step, state.best_step, state.best_score)
