"""Pointer networks, from drawn problems to a model that solves them: a run begins or goes on.

A run is a folder, as a translator's is (`runs.translator.train`), without text:

    run.json            everything decided, with reasons: a `PointerRun`; written once, before the first update
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on
    best/               the model folder of the best validation so far

Its examples are drawn anew for each update, as a function of seed and update; so a run that was stopped goes on as if
it had not been. What solves problems is `Pointer`, in `runs.pointer.model`; how good it is says `evaluate`, in
`runs.pointer.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from multihead import work_folder
from multihead.configuration import build
from multihead.data.batching import Batch
from multihead.data.toy.pointing import collate, generator
from multihead.files import write_text
from multihead.machine import inspect_machine, require_device
from multihead.models.pointer.network import PointerNetwork
from multihead.runs.pointer.evaluation import TRAINING, Best, evaluate
from multihead.runs.pointer.model import Answer, Pointer
from multihead.runs.pointer.settings import (
    RUN_VERSION,
    PointerRun,
    PointerSettings,
    ProblemName,
    decide,
    default_folder,
)
from multihead.runs.run import versions
from multihead.training.checkpoint import RunState
from multihead.training.progress import RunLog
from multihead.training.trainer import TrainerInputs

__all__ = ["Answer", "Pointer", "Result", "evaluate", "train"]
from multihead.runs.run import Finished, Kind, carry_out, show, train_to_the_end


class Result(Finished):
    """A finished run; its score is the percentage of the validation set that greedy search gets exactly right."""

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
        use_threads: is told how many threads the run is frozen to: see `runs.translator.train.train`.
        **wishes: fields of `PointerSettings`; all of them may be left out.

    Raises:
        InputError: settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(PointerSettings, wishes, "the settings")
    folder = settings.output or default_folder(problem)
    return carry_out(
        folder,
        Kind(work_folder.POINTER, PointerRun, RUN_VERSION),
        {"problem": problem, **work_folder.given_settings(settings)},
        begin=lambda: _begin(problem, settings, folder, say),
        work=lambda config: _train(config, folder, say, stop_signal),
        use_threads=use_threads,
    )


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
    with work_folder.preparing(folder):
        write_text(folder / work_folder.RUN, config.model_dump_json(indent=2) + "\n")
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
    show(config, shown, log)


def _train(
    config: PointerRun, folder: Path, say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> Result:
    torch.manual_seed(config.training.seed)
    model = PointerNetwork(config.model).to(config.training.device)

    def around(state: RunState) -> TrainerInputs[PointerNetwork]:
        examples, best = Examples(config, state.position[1]), Best(config, folder)
        return TrainerInputs(examples.take, lambda: examples.position, best.evaluate, best.keep, stop_signal)

    merit = ", gets {:.2f}% of the validation set exactly right (greedy) and is in"
    done = train_to_the_end(model, config.model.width, config, folder, say, around, merit=merit)
    return Result(**vars(done))
