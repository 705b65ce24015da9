"""Train a translator in stages: ``multihead train --best``.

A run in stages is a folder:

    run.json         what was decided: a `BestConfig`; run.copy.json is a copy of it
    stages.jsonl     the budget of each stage and the time spent (`training.budget.Journal`)
    log.txt          the stages, and how the models compare
    text/            the prepared text; text-reverse/, text-student/ are made from it (`preparing.derived`)
    forward-1/ ...   ordinary runs of `runs.translator`; reverse-1/ ..., student/ as well
    pairs/           the sentences of both sides, and the pairs that the models make of them
    best/            the model folder of the student

Every stage can be stopped and goes on where it was, as what it consists of can: runs, files of pairs, prepared text.
`runs.best.plan` says which stages there are, and divides the time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from multihead import work_folder
from multihead.configuration import build, inspect_machine
from multihead.errors import ConfigurationError, Interrupted
from multihead.files import atomic_folder, write_errors
from multihead.lines.synthetic_pairs import write_pairs
from multihead.metrics.scores import score
from multihead.planning.choices import rehearse
from multihead.planning.sections import CorpusSettings
from multihead.planning.settings import Choices, PrepareSettings, TrainSettings
from multihead.preparing.derived import derive, write_sentences
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText, open_prepared, read_manifest, use_folder
from multihead.runs.best import plan
from multihead.runs.best.plan import BestConfig, Stage
from multihead.runs.run import installed_versions, log_decisions
from multihead.runs.translator.train import SENTENCES, TrainResult, train
from multihead.training.budget import JOURNAL, Journal
from multihead.training.context import RunContext
from multihead.training.progress import RunLog, format_duration
from multihead.translating.translator import Translator

_STAGES = "stages.jsonl"
_OWN = {"data", "budget", "updates", *PrepareSettings.model_fields}
"""Settings that each training of the run gets from its stage, and those of the text."""


def train_best(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    started: float | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a translator in stages, or resume such a run.

    Args:
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads of each training.
        started: when the budget begins, by `time.monotonic`; now if ``None``.
        **settings: fields of `TrainSettings`. ``budget`` is the time of all stages together, ``updates`` the number of
            each training; text and subwords are common to all of them, and network, training and search are the same.

    Returns:
        The training of the student, with the run as its folder.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call resumes the run.
    """
    given = build(TrainSettings, settings, "the settings")
    folder = work_folder.require_output(given.output)
    context = RunContext(say, stop_signal, use_threads, started=time.monotonic() if started is None else started)
    with work_folder.locked(folder):
        work_folder.restore(folder, BestConfig, say)
        config = work_folder.read(folder, BestConfig)
        if config is None:
            config = _begin(given, folder, context)
        else:
            work_folder.check_same_settings(folder, work_folder.given_settings(given), config.asked)
            work_folder.remove_leftovers(folder)
            given = build(TrainSettings, {**config.asked, "output": folder}, "run.json")
        return BestRun(given, folder, config, context).run()


def _begin(given: TrainSettings, folder: Path, context: RunContext) -> BestConfig:
    """Prepare the text and decide the stages; if that fails, leave the folder as it was.

    Raises:
        ConfigurationError: settings that a run in stages cannot have, or that no training could have.
    """
    for name in ("from_model", "teacher"):
        if getattr(given, name) is not None:
            raise ConfigurationError(f"{name}: a run in stages trains its own models; leave it out, or train one model")
    machine, choices = inspect_machine(), Choices(given)
    text = None if given.data is None else use_folder(given.data, choices)
    rehearse(given, 1 if text is None else text.config.pairs, machine)
    with work_folder.preparing(folder):
        if text is None:
            values = {name: getattr(given, name) for name in PrepareSettings.model_fields}
            text = prepare(say=context.say, stop_signal=context.stop_signal, **{**values, "output": folder / plan.TEXT})
        else:
            derive(text, folder / plan.TEXT, context)
        config = plan.decide(choices, text.config.pairs, installed_versions())
        work_folder.write(folder, config)
    log = RunLog(folder, context.say)
    log.say(f"{text.config.pairs:,} training pairs, {machine.name}; a run in stages, decided (run.json has it all):")
    length = "budget" if config.updates is None else "updates"
    log_decisions(config.reasons, {name: getattr(config, name) for name in (length, "seed", "forward", "reverse")}, log)
    return config


class BestRun:
    """A run in stages that has begun.

    Args:
        settings: the user's.
        folder: the run folder.
        config: its decisions.
        context: how to report, and what stops the run.
    """

    def __init__(self, settings: TrainSettings, folder: Path, config: BestConfig, context: RunContext) -> None:
        self._settings, self._folder, self._config, self._context = settings, folder, config, context
        self._log = RunLog(folder, context.say)
        self._journal = Journal(folder / _STAGES, self._log.say)
        self._stages = plan.stages_of(config)
        self._forward = [folder / plan.FORWARD.format(i + 1) for i in range(config.forward)]
        self._reverse = [folder / plan.REVERSE.format(i + 1) for i in range(config.reverse)]
        self._student: TrainResult | None = None

    def run(self) -> TrainResult:
        """Do the stages that are left."""
        first, total = self._journal.last_step, self._config.budget
        if first == len(self._stages):
            self._context.say(
                f"this run is finished: its model is in {self._folder / 'best'}; for another one choose a new folder"
            )
        began = self._context.started
        for index in range(first, len(self._stages)):
            stage, before = self._stages[index], self._journal.spent
            budget = self._journal.value(index, "budget")
            if budget is None and total is not None:
                spent = before + time.monotonic() - began
                budget = round(plan.budget_of(self._stages, index, total, spent), 3)
                self._journal.append({"step": index, "spent": round(before, 3), "budget": budget})
            self._announce(index, before, budget)
            self._work(stage, budget, began)
            now = time.monotonic()
            seconds = max(now - began, Journal(self._folder / stage.name / JOURNAL, self._log.say).spent)
            self._journal.append({"step": index + 1, "spent": round(before + seconds, 3)})
            began = now
        if total is not None:
            spent = self._journal.spent
            self._log.say(f"{format_duration(spent)} of the budget of {format_duration(total)} are spent")
        if self._student is None:  # trained by an earlier start
            self._student = self._train(plan.STUDENT, None, began, say=lambda _: None)
        return replace(self._student, folder=self._folder)

    def _announce(self, index: int, spent: float, budget: float | None) -> None:
        stage, total = self._stages[index], self._config.budget
        line = f"stage {index + 1} of {len(self._stages)}: {stage.name}"
        if total is not None and budget is not None:
            line += f", {format_duration(budget)} ({format_duration(spent)} of {format_duration(total)} are spent)"
        self._log.say(line)

    def _work(self, stage: Stage, budget: float | None, began: float) -> None:
        """Do a stage, or what is left of it."""
        if (number := self._context.stop_signal()) is not None:
            raise Interrupted(number, f"stopped before the stage {stage.name}; the same command goes on from there")
        if stage.name.startswith(f"{plan.PAIRS}/"):
            self._make_pairs(self._folder / stage.name)
        elif stage.name == plan.STUDENT_TEXT:
            derive(self._text(), self._folder / stage.name, self._context, added=self._added())
        elif stage.name == "best":
            self._finish()
        else:
            result = self._train(stage.name, budget, began, say=self._context.say)
            if stage.name == plan.STUDENT:
                self._student = result

    # ----------------------------------------------------------------------- trainings

    def _train(self, name: str, budget: float | None, began: float, say: Callable[[str], None]) -> TrainResult:
        """Train the model of a stage; a training that is finished is only read."""
        order = [path.name for path in (*self._forward, *self._reverse)]
        given = {name: getattr(self._settings, name) for name in TrainSettings.model_fields if name not in _OWN}
        text = self._folder / plan.TEXT
        if name == plan.STUDENT:
            text = self._folder / plan.STUDENT_TEXT
        elif self._folder / name in self._reverse:
            text = self._folder / plan.REVERSE_TEXT
            derive(self._text(), text, self._context, exchanged=True)
        seed = self._config.seed + (order.index(name) if name in order else len(order))
        length = {"budget": budget} if self._config.updates is None else {"updates": self._config.updates}
        return train(
            say=say,
            stop_signal=self._context.stop_signal,
            use_threads=self._context.use_threads,
            started=began,
            **{**given, **length, "data": text, "seed": seed, "output": self._folder / name},
        )

    # ----------------------------------------------------------------------- text

    def _text(self) -> PreparedText:
        folder = self._folder / plan.TEXT
        return open_prepared(folder, read_manifest(folder).data)

    def _make_pairs(self, output: Path) -> None:
        """Let the forward models translate the sources, or a reverse model the targets."""
        if output.exists():
            return
        backwards = output.stem != "forward"
        text = output.with_name("targets.txt" if backwards else "sources.txt")
        with write_errors(output.parent):
            output.parent.mkdir(exist_ok=True)
        if not text.exists():
            write_sentences(self._text(), int(backwards), text)
        models = [self._folder / output.stem] if backwards else self._forward
        write_pairs(models, text, output, self._context, backwards=backwards)

    def _added(self) -> list[CorpusSettings]:
        """The files of pairs; a model that has learned nothing makes none that are good enough."""
        files = [self._folder / stage.name for stage in self._stages if stage.name.startswith(f"{plan.PAIRS}/")]
        for path in files:
            if not path.stat().st_size:
                self._log.say(f"{path}: there is no pair that is good enough to learn from; the student learns without")
        return [CorpusSettings(source=path) for path in files if path.stat().st_size]

    # ----------------------------------------------------------------------- the end

    def _finish(self) -> None:
        """Compare the student with the forward models on the validation set, and copy it to ``best``."""
        student, text = self._folder / plan.STUDENT / "best", self._text()
        translators = [Translator.load(student), *map(Translator.load, self._forward)]

        def bleu(translator: Translator) -> float:
            found = translator.translate(text.valid_sources[:SENTENCES])
            return score(found, text.valid_targets[:SENTENCES], text.config.target_language).bleu

        alone, together = bleu(translators[0]), bleu(translators[0].ensemble(translators[1:]))
        with atomic_folder(self._folder / "best") as draft:
            shutil.copytree(student, draft, dirs_exist_ok=True)
        flags = " ".join(f"--with {path}" for path in self._forward)
        self._log.say(f"the student has a validation BLEU of {alone:.2f} and is in {self._folder / 'best'}")
        self._log.say(
            f"as an ensemble with the forward models {together:.2f}: multihead translate {self._folder} {flags}"
        )
