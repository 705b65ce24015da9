"""Train a pointer network: ``multihead pointer train``.

A run is a folder without text:

    run.json            every decision with its reason: a `PointerRunConfig`; written once, before the first update
    run.copy.json       a copy of it, in case it is lost (`work_folder.restore`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run resumes
    best/               the model folder of the best validation so far

The examples of each update are a function of the seed and its number, so a resumed run goes on as if it had not
stopped. What solves problems is `Pointer`, in `runs.pointer.model`; fresh problems are measured by `evaluate`, in
`runs.pointer.evaluation`; what happens in which order is in `runs.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from multihead.configuration import build, inspect_machine, require_device
from multihead.data.batching import Batch
from multihead.data.toy.pointing import collate, generator
from multihead.models.pointer.network import PointerNetwork
from multihead.runs.pointer.evaluation import TRAINING, VALIDATION, measure
from multihead.runs.pointer.model import Pointer
from multihead.runs.pointer.settings import PointerRunConfig, PointerSettings, ProblemName, decide, default_folder
from multihead.runs.run import (
    BatchSource,
    Judge,
    NewRun,
    RunKind,
    RunResult,
    execute,
    installed_versions,
    log_decisions,
)
from multihead.training.context import RunContext, Validation
from multihead.training.progress import RunLog
from multihead.training.splitting import sequence_loss

_AT_ONCE = 250
"""Validation examples whose loss is computed together."""


class PointerResult(RunResult):
    """A finished run; its score is the percentage of the validation set that greedy search gets exactly right."""

    def pointer(self) -> Pointer:
        return Pointer.load(self.folder)


def train(
    problem: ProblemName,
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> PointerResult:
    """Train a pointer network, or resume a run that was stopped.

    Args:
        problem: "sort" or "hull".
        say: called with each line of output.
        stop_signal: called between updates; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads that the run is frozen to: see `runs.translator.train.train`.
        **settings: fields of `PointerSettings`; all of them may be left out.

    Raises:
        InputError: settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call resumes the run.
    """
    given = build(PointerSettings, settings, "the settings")
    return execute(PointerRun(problem, given, RunContext(say, stop_signal, use_threads)), PointerResult)


class NewPointerRun(NewRun[PointerRunConfig, None]):
    """A pointer network's run that begins; it stores no data."""

    def __init__(self, problem: ProblemName, settings: PointerSettings) -> None:
        self._config = decide(problem, settings, inspect_machine().threads, installed_versions())
        require_device(self._config.training.device)

    def prepare(self) -> None:
        """Nothing: the examples are drawn."""

    def decide(self, data: None) -> PointerRunConfig:
        del data
        return self._config

    def report(self, config: PointerRunConfig, data: None, log: RunLog) -> None:
        del data
        model, training, problem = config.model, config.training, config.task.problem
        sizes = ("heads", "inner", "positions") if model.encoder == "transformer" else ()
        fields = ("updates", "learning_rate", "warmup", "average", "threads")
        shown = {
            **config.task.model_dump(exclude={"problem"} if problem == "sort" else {"problem", "ascending"}),
            **{name: getattr(model, name) for name in ("encoder", "layers", "width", *sizes, "dropout")},
            "repeats": not model.no_repeats,
            "batch": config.batch,
            **{name: getattr(training, name) for name in fields},
        }
        log.say(f"a pointer network for '{problem}'; decided (run.json has it all):")
        log_decisions(config.reasons, shown, log)


class PointerRun(RunKind[PointerSettings, PointerRunConfig, None, PointerNetwork]):
    """A run that trains a pointer network."""

    config_class = PointerRunConfig
    outcome = ", gets {:.2f}% of the validation set exactly right (greedy) and is in"

    def __init__(self, problem: ProblemName, settings: PointerSettings, context: RunContext) -> None:
        super().__init__(settings, settings.output or default_folder(problem), context)
        self.problem = problem
        self.given = {"problem": problem, **self.given}

    def begin(self) -> NewPointerRun:
        return NewPointerRun(self.problem, self.settings)

    def open(self, config: PointerRunConfig) -> None:
        """Nothing is stored."""

    def network(self, config: PointerRunConfig) -> PointerNetwork:
        return PointerNetwork(config.model).to(config.training.device)

    def batches(self, config: PointerRunConfig, data: None, position: tuple[int, int]) -> BatchSource:
        del data
        return BatchSource(ExampleStream(config, position[1]), lambda rows: {"the store": sorted(rows.tolist())})

    def judge(self, config: PointerRunConfig, data: None) -> PointerJudge:
        del data
        return PointerJudge(config)


class ExampleStream:
    """An endless sequence of batches, each a function of the run's seed and the number of the batch.

    Args:
        config: the decisions of the run.
        taken: batches taken so far.
    """

    def __init__(self, config: PointerRunConfig, taken: int) -> None:
        self.config, self.taken = config, taken
        self._problem = Pointer.problem_of(config.task)

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, always 0, and the number of batches taken."""
        return 0, self.taken

    def take(self) -> Batch:
        task, random = self.config.task, generator(self.config.training.seed, TRAINING, self.taken)
        self.taken += 1
        return collate(self._problem.draw(random, self.config.batch, task.smallest, task.largest))


class PointerJudge(Judge[PointerNetwork]):
    """Judges models on validation examples drawn once for the whole run."""

    def __init__(self, config: PointerRunConfig) -> None:
        self.config, task = config, config.task
        random = generator(config.training.seed, VALIDATION)
        self.examples = Pointer.problem_of(task).draw(random, config.held_out, task.smallest, task.largest)

    def evaluate(self, model: PointerNetwork) -> Validation:
        """The percentage that greedy search gets exactly right, and the loss per symbol."""
        pointer = Pointer(model, self.config.task)
        answers = pointer.answers([example.inputs for example in self.examples])
        measured, loss = measure(pointer, self.examples, answers), self._loss(model)
        return Validation(
            100 * measured.exact, loss, {"loss": loss, **measured.as_dict()}, f"loss {loss:.4f}  {measured}"
        )

    @torch.no_grad()
    def _loss(self, model: PointerNetwork) -> float:
        nll, tokens = 0.0, 0
        for start in range(0, len(self.examples), _AT_ONCE):
            batch = collate(self.examples[start : start + _AT_ONCE]).to(self.config.training.device)
            nll, tokens = nll + sequence_loss(model, batch, 0.0).nll.item(), tokens + batch.target_tokens
        return nll / tokens

    def save(self, model: PointerNetwork, folder: Path, metrics: dict[str, Any]) -> None:
        Pointer(model, self.config.task).save(folder, metrics)
