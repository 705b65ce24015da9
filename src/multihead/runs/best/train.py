"""Train a translator in stages: ``multihead train --best``.

A run in stages is a folder:

    run.json         what was decided: a `BestConfig`; run.copy.json is a copy of it
    stages.jsonl     the budget of each stage and the time spent (`training.budget.Journal`)
    log.txt          the stages, and how the models are best used
    text/            the prepared text; text-both/, text-reverse/, text-right-to-left/, text-more/ and text-students/
                     are made from it (`preparing.derived`)
    pairs/           what the reverse models make of further text in the target language, and the part for students
    forward-1/ ...   ordinary runs of `runs.translator`; both-ways/, reverse-1/ ..., right-to-left/, student/, small/ as
                     well
    student-end/     the last weights of a student, if they translate better than what its training chose
    small-start/     parts of the best model, if the small one begins as them (`runs.shrink`)
    uses.json        ways to translate, with their flags and validation BLEU (`runs.best.comparison`)
    best/            the model folder of the best student or forward model, or of the small one if that is better

Every stage can be stopped and goes on where it was, as what it consists of can: text, runs, pairs, soft targets.
`runs.best.plan` says which stages there are, and divides the time.
"""

from __future__ import annotations

import string
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from multihead import work_folder
from multihead.configuration import LAST_SEED, build, inspect_machine
from multihead.data.order import Array
from multihead.data.store import TokenStore
from multihead.data.text_files import scan
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.files import atomic_file, copy_folder, write_errors
from multihead.lines.synthetic_pairs import write_pairs
from multihead.lines.translate_file import check_input
from multihead.model_folder import write_json
from multihead.models.config import TransformerConfig
from multihead.models.shrinking import narrow_half_of, narrower, parameters_of
from multihead.planning.choices import SIZES, USUAL_SCALE, CorpusSize, choose_preset, rehearse
from multihead.planning.corpus_settings import CorpusSettings
from multihead.planning.settings import Choices, PrepareSettings, TextFile, TrainSettings, read_begun_run
from multihead.preparing.corpora import file_record
from multihead.preparing.derived import Direction, derive
from multihead.preparing.journal import has_shards
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText, open_prepared, read_manifest, use_folder
from multihead.runs.average import average
from multihead.runs.best import plan
from multihead.runs.best.comparison import Pairs, Use, compare_uses, measure_alone
from multihead.runs.best.plan import BestConfig, Fitting, Stage
from multihead.runs.run import installed_versions, log_decisions
from multihead.runs.shrink import shrink
from multihead.runs.translator.begin import NewTranslatorRun
from multihead.runs.translator.train import SENTENCES, TrainResult, train
from multihead.text import languages
from multihead.text.segment import has_merges
from multihead.text.tokenizer import Tokenizer
from multihead.training.budget import JOURNAL, Journal
from multihead.training.context import RunContext
from multihead.training.progress import RunLog, format_duration
from multihead.translating.remember import remember
from multihead.urls import absolute
from multihead.uses_file import NEAR, USES, read_uses_file

_STAGES, _START, _END = "stages.jsonl", "small-start", "{}-end"
_OWN = {"data", "budget", "updates", *PrepareSettings.model_fields}
"""Settings that each training of the run gets from its stage, and those of the text."""
_SIZES = ("preset", "encoder_layers", "decoder_layers", "inner", "alignment_layer")
"""Settings of the size of a network, which a small model that begins with parts of another does not share."""
_KINDS = ("right_to_left", "student", "small", "datastore")
"""Decisions about the stages after those of forward and reverse models."""
_NO_TRAININGS = (plan.PAIRS, plan.MORE_TEXT, plan.DATASTORE, plan.BEST)
_TAGS: tuple[str, ...] = (plan.USUAL_TAG, *string.ascii_letters)
"""Words that can begin a source that a reverse model made."""
_LOOKED_AT = 1 << 20
"""Sources whose beginnings are looked at together."""
_MOST_STAGES = 100
"""More than there ever are: each training has a seed of its own."""
_LATEST = 1.5
"""When the translation of further text ends at the latest, in relation to the time planned for it."""
_NOTING = 20.0
"""Seconds after which a stage that is no training notes its time."""


def _nothing(_: float) -> None:
    """Note no time: a training does so itself."""


def train_best(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    started: float | None = None,
    monolingual: Path | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a translator in stages, or resume such a run.

    Args:
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads of each training.
        started: when the budget begins, by `time.monotonic`; now if ``None``.
        monolingual: a file of further text in the target language, a sentence a line.
        **settings: fields of `TrainSettings`. ``budget`` is the time of all stages together, ``updates`` the number of
            each training; text and subwords are common to all of them, and network, training and search are the same.

    Returns:
        The training of the best model, with the run as its folder.

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
            config = _begin(given, folder, context, monolingual)
        else:
            files = {} if monolingual is None else {"monolingual": str(absolute(monolingual))}
            begun = {} if config.monolingual is None else {"monolingual": str(absolute(Path(config.monolingual.path)))}
            asked = work_folder.given_settings(given) | files
            work_folder.check_same_settings(folder, asked, {**config.asked, **begun})
            work_folder.remove_leftovers(folder)
            given = build(TrainSettings, {**config.asked, "output": folder}, "run.json")
        return BestRun(given, folder, config, context).run()


def _begin(given: TrainSettings, folder: Path, context: RunContext, monolingual: Path | None) -> BestConfig:
    """Prepare the text and decide the stages; if that fails, leave the folder as it was.

    Raises:
        ConfigurationError: settings that a run in stages cannot have, or that no training could have.
        DataError: a text file cannot be read.
    """
    for name in ("from_model", "teacher"):
        if getattr(given, name) is not None:
            raise ConfigurationError(f"{name}: a run in stages trains its own models; leave it out, or train one model")
    if given.terms is not None:
        raise ConfigurationError(
            "terms: a run in stages trains the opposite direction, too, whose targets would have annotations; leave it "
            "out, or train one model"
        )
    for name in ("weights", "alignments"):
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"{name}: their lines are those of the text, and a run in stages also trains on text that it makes; "
                "leave them out, or train one model"
            )
    if (given.seed or 0) > LAST_SEED - _MOST_STAGES:
        raise ConfigurationError(f"seed: each training takes the next one: expected {LAST_SEED - _MOST_STAGES} at most")
    machine, choices = inspect_machine(given.device), Choices(given)
    of_student = {name: value for name, value in given.model_dump(exclude_none=True).items() if name not in _OWN}
    student = build(TrainSettings, {**of_student, "teacher": (folder,)}, "the settings of a student")
    text = None if given.data is None else use_folder(given.data, choices, context.say)
    read = None if text is None else text.source_tokenizer
    stored = {"context": read is not None and read.context, "source_factors": read is not None and read.factors > 1}
    for name, found in stored.items():
        if found or getattr(given, name) is not None:
            raise ConfigurationError(
                f"{name}: a run in stages trains the opposite direction, too, whose targets would have it; leave it "
                "out, or train one model"
            )
    if given.right_to_left or (text is not None and text.target_tokenizer.backwards):
        raise ConfigurationError(
            "right_to_left: a run in stages trains such a model itself, to judge what the others write; leave it out, "
            "or train one model"
        )
    for settings in (given, student):
        rehearse(settings, 1 if text is None else text.config.pairs, machine)
    further = None if monolingual is None else _record(absolute(monolingual))

    def kept() -> bool:
        return given.data is None and has_shards(folder / plan.TEXT)

    with work_folder.preparing(folder, resumed=[plan.TEXT] if kept() else (), kept=kept):
        if text is None:
            text = prepare(say=context.say, stop_signal=context.stop_signal, **_text_settings(given, folder))
        else:
            derive(text, folder / plan.TEXT, context)
        if text.config.directions and monolingual is not None:
            raise ConfigurationError(
                "monolingual: the text has several directions, and further text would be of one: make pairs of it by "
                "`multihead backtranslate`, and name them as one more corpus"
            )
        shared, several = text.config.shared_vocabulary, bool(text.config.directions)

        def measure(budget: float) -> Fitting:
            output = folder / plan.FORWARD.format(1)
            own = {**_common_settings(given), "budget": budget, "data": folder / plan.TEXT, "output": output}
            run = NewTranslatorRun(build(TrainSettings, own, "the settings"), output, context)
            usual = run.decide(text)
            narrow = narrower(usual.model) if isinstance(usual.model, TransformerConfig) else None
            return Fitting(usual.training.updates, _sizes_of(narrow))

        known = choices, text.config.pairs, installed_versions(), further
        tag = plan.USUAL_TAG if further is None else _choose_tag(text.source_tokenizer, text.train.source)
        config = plan.decide(*known, tag=tag, shared=shared, several=several, measure=measure)
        work_folder.write(folder, config)
    log = RunLog(folder, context.say)
    log.say(f"{text.config.pairs:,} training pairs, {machine.name}; a run in stages, decided (run.json has it all):")
    length = "budget" if config.updates is None else "updates"
    narrow = () if config.narrow is None else ("narrow",)
    log_decisions(
        config.reasons,
        {name: getattr(config, name) for name in (length, "seed", "both_ways", "forward", "reverse", *_KINDS, *narrow)},
        log,
    )
    if config.left_out:
        log.say(f"{monolingual} is left out: {config.reasons['left_out']}")
    return config


def _sizes_of(network: TransformerConfig | None) -> dict[str, int] | None:
    return None if network is None else {name: getattr(network, name) for name in SIZES}


def _text_settings(given: TrainSettings, folder: Path) -> dict[str, Any]:
    """The settings of the preparation of the text, which tied embeddings need in one vocabulary."""
    values = {name: getattr(given, name) for name in PrepareSettings.model_fields}
    values |= {"shared_vocabulary": True} if given.tie_embeddings else {}
    return {**values, "output": folder / plan.TEXT}


def _common_settings(given: TrainSettings) -> dict[str, Any]:
    """The settings that all trainings have."""
    return {name: getattr(given, name) for name in TrainSettings.model_fields if name not in _OWN}


def _choose_tag(tokenizer: Tokenizer, sources: TokenStore) -> str:
    """A word of few symbols with which no source of the text begins: ``<bt>``, or a letter."""
    spelled = {word: tokenizer.encode(word) for word in _TAGS}
    free = {word: ids for word, ids in spelled.items() if tokenizer.unk_id not in ids}
    for start in range(0, len(sources), _LOOKED_AT):
        if not free:
            break
        stop = min(start + _LOOKED_AT, len(sources))
        columns = [sources.ids_at(place, start, stop) for place in range(max(map(len, free.values())))]
        lengths = sources.lengths_of(np.arange(start, stop))
        free = {word: ids for word, ids in free.items() if not _begin_with(ids, columns, lengths)}
    return min(free, key=lambda word: len(free[word]), default=plan.USUAL_TAG)


def _begin_with(ids: Sequence[int], columns: Sequence[Array], lengths: Array) -> bool:
    """Whether any sequence begins with these ids, by the columns of their ids."""
    begun = lengths >= len(ids)
    for one, column in zip(ids, columns, strict=False):
        begun &= column == one
    return bool(begun.any())


def _record(path: Path) -> TextFile:
    """What run.json says about a text file.

    Raises:
        DataError: it cannot be read, or is empty.
    """
    found = check_input(path)
    if not found.lines:
        raise DataError("is empty: expected text in the target language, a sentence a line", path)
    return file_record(found)


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
        self._several = bool(read_manifest(folder / plan.TEXT).data.directions)
        self._forward = [folder / plan.FORWARD.format(i + 1) for i in range(config.forward)]
        self._reverse = [folder / plan.REVERSE.format(i + 1) for i in range(config.reverse)]
        self._students = [folder / name for name in plan.students_of(config)]
        self._results: dict[str, TrainResult] = {}
        self._measured: dict[Path, list[float]] = {}
        self._note_time: Callable[[float], None] = _nothing

    def run(self) -> TrainResult:
        """Do the stages that are left."""
        first, total = self._journal.last_step, self._config.budget
        began = self._context.started
        if self._settings.threads is not None:  # trainings do so themselves, the other stages do not
            self._context.use_threads(self._settings.threads)
        for index in range(first, len(self._stages)):
            stage, before, now = self._stages[index], self._journal.spent, time.monotonic()
            budget, spent = self._journal.value(index, "budget"), before + now - began
            if budget is None and total is not None:
                budget = round(plan.budget_of(self._stages, index, total, spent), 3)
                before, began = spent, now  # the budget is of the time from here on
                self._journal.append({"step": index, "spent": round(before, 3), "budget": budget})
            self._announce(index, spent, budget)
            if stage.name in _NO_TRAININGS:  # a training notes its time itself
                self._note_time = self._noting(index, before, began)
            try:
                self._work(stage, budget, began)
            except Interrupted:
                self._note_time(0.0)
                raise
            self._note_time = _nothing
            now = time.monotonic()
            seconds = max(now - began, Journal(self._folder / stage.name / JOURNAL, self._log.say).spent)
            self._journal.append({"step": index + 1, "spent": round(before + seconds, 3)})
            began = now
        if total is not None:
            spent = self._journal.spent
            self._log.say(f"{format_duration(spent)} of the budget of {format_duration(total)} are spent")
        best = self._folder / plan.BEST
        if first == len(self._stages):
            self._context.say(f"this run is finished: its model is in {best}; for another one choose a new folder")
        else:
            self._log.say(f"done: the model is in {best}")
        return replace(self._result(self._chosen().name), folder=self._folder)

    def _chosen(self) -> Path:
        """The training whose model is in ``best``, which uses.json names."""
        chosen = self._folder / Path(str((read_uses_file(self._folder) or {}).get("model"))).name
        return chosen if work_folder.is_begun(chosen, work_folder.RUN) else self._best()

    def _announce(self, index: int, spent: float, budget: float | None) -> None:
        stage, total = self._stages[index], self._config.budget
        line = f"stage {index + 1} of {len(self._stages)}: {stage.name}"
        if total is not None and budget is not None:
            line += f", {format_duration(budget)} ({format_duration(spent)} of {format_duration(total)} are spent)"
        self._log.say(line)

    def _work(self, stage: Stage, budget: float | None, began: float) -> None:
        """Do a stage, or what is left of it."""
        self._check_stop()
        if stage.name == plan.BEST:
            self._finish()
        elif stage.name == plan.SMALL and not self._begin_small():
            pass
        elif stage.name == plan.DATASTORE:
            self._remember(self._folder / stage.name)
        elif stage.name == plan.PAIRS:
            until = None if budget is None else began - self._spent_on(stage) + _LATEST * budget
            self._make_pairs(self._folder / stage.name, until)
        elif stage.name == plan.MORE_TEXT:
            derive(self._text(), self._folder / stage.name, self._context, added=self._added())
        else:
            self._results[stage.name] = self._train(stage.name, budget, began, say=self._context.say)
            if (run := self._folder / stage.name) in self._students:
                self._consider_end(run)

    def _check_stop(self) -> None:
        if (number := self._stop_signal()) is not None:
            raise Interrupted(number, "stopped between two trainings; run the same command again to continue")

    def _stop_signal(self) -> int | None:
        """The signal that asks the run to stop, if there is one; the time of a stage that asks is noted."""
        self._note_time(_NOTING)
        return self._context.stop_signal()

    def _noting(self, index: int, before: float, began: float) -> Callable[[float], None]:
        """Returns what notes the time of a stage if the last note is so many seconds old.

        The time of a process that is killed counts as far as it is noted.

        Args:
            index: of the stage.
            before: seconds that the run had spent when this start began with the stage.
            began: that moment, by `time.monotonic`.
        """
        noted = began

        def note(seconds: float) -> None:
            nonlocal noted
            if (now := time.monotonic()) - noted >= seconds:
                noted = now
                self._journal.append({"step": index, "spent": round(before + now - began, 3)})

        return note

    def _spent_on(self, stage: Stage) -> float:
        """Seconds that earlier starts have spent on a stage that is no training."""
        first = self._journal.value(self._stages.index(stage), "spent")
        return 0.0 if first is None else max(self._journal.spent - first, 0.0)

    # ----------------------------------------------------------------------- trainings

    def _train(self, name: str, budget: float | None, began: float, say: Callable[[str], None]) -> TrainResult:
        """Train the model of a stage, or go on with it; a training that is finished is only read."""
        output = self._folder / name
        settings: dict[str, Any] = {}  # those of a run that has begun are in its run.json
        if not work_folder.is_begun(output, work_folder.RUN):
            settings = _common_settings(self._settings) | self._sizes(output)
            settings |= {"budget": budget} if self._config.updates is None else {"updates": self._config.updates}
            settings["seed"] = self._config.seed + [stage.name for stage in self._stages].index(name)
            settings |= self._stage_settings(name)
        return train(
            say=say,
            stop_signal=self._context.stop_signal,
            use_threads=self._context.use_threads,
            started=began,
            soft_targets_of=next((run for run in self._students if run != output), None),
            **{**settings, "data": self._text_for(output), "output": output},
        )

    def _sizes(self, output: Path) -> dict[str, Any]:
        """The sizes of several models: all have those that the run decided, whatever fits into the time of each.

        A single model has what fits into its time (`planning.choices.narrowings`).
        """
        given = self._settings
        if self._config.narrow is not None:
            return self._config.narrow
        if self._config.forward == 1 or given.preset is not None:
            return {}
        corpus = CorpusSize(self._config.pairs if output in self._reverse else self._config.epoch_pairs, 0, 0, 0, 0)
        machine = inspect_machine(given.device)
        return {"preset": choose_preset(given.model or "transformer", corpus, machine)[0]}

    def _text_for(self, output: Path) -> Path:
        """The prepared text that a training reads."""
        if output in self._reverse:
            return self._derived(plan.REVERSE_TEXT, "reverse")
        if output.name == plan.BOTH and not self._several:
            return self._derived(plan.BOTH_TEXT, "both")
        if output in self._students or output.name == plan.SMALL:
            return self._text_of_students()
        forward = plan.TEXT if self._config.further is None else plan.MORE_TEXT
        if output.name == plan.RIGHT_TO_LEFT:
            return self._derived(plan.BACKWARDS_TEXT, "backwards", of=forward)
        return self._folder / forward

    def _text_of_students(self) -> Path:
        """The text of models with teachers: the real pairs, and at most as many of those that were made.

        With all made pairs, the predictions of the teachers would take most of their time (docs/lab-notes.md,
        "Captions").
        """
        made, few, output = (self._folder / name for name in (plan.PAIRS, plan.FEW_MADE, plan.STUDENT_TEXT))
        if work_folder.is_begun(output, work_folder.PREPARED):
            return output
        if self._config.further is None or not made.stat().st_size:
            return self._folder / plan.TEXT
        if not few.exists():
            lines, most = scan(made).lines, self._config.pairs
            with atomic_file(few) as draft, made.open("rb") as read, draft.open("wb") as written:
                for number, line in enumerate(read):  # evenly spread
                    if (number + 1) * most // lines > number * most // lines or lines <= most:
                        written.write(line)
        derive(self._text(), output, self._context, added=[CorpusSettings(source=few, weight=1.0)])
        return output

    def _derived(self, name: str, direction: Direction, of: str = plan.TEXT) -> Path:
        derive(self._text(of), self._folder / name, self._context, direction=direction)
        return self._folder / name

    def _stage_settings(self, name: str) -> dict[str, Any]:
        """What a training does not have from the user.

        The learning rate of both ways stays constant, and that of the models that begin there falls. The first student
        begins as the best forward model, the second as the next, and they have a lower rate. The second one reads other
        subwords, so that the two differ more. Where students start from scratch, each forward model has those before it
        as its teachers.
        """
        free, run = self._settings.schedule is None, self._folder / name
        if name == plan.BOTH:
            return {"schedule": "constant"} if free else {}
        if run in self._forward[1:] and self._config.fresh_students:
            earlier = self._forward[: self._forward.index(run)]
            return {"teacher": tuple(earlier), **self._less_dropout(plan.SMALL_DROPOUT)}
        if run in self._students:
            place, narrow = self._students.index(run), self._config.narrow is not None
            return {
                "teacher": tuple(self._forward),
                **({} if self._config.fresh_students else self._student_settings(place)),
                **self._less_dropout(plan.SMALL_DROPOUT if narrow else plan.STUDENT_DROPOUT),
                **(self._other_cuts() if place and not narrow else {}),
            }
        if name == plan.SMALL:
            own = self._narrow_sizes()  # of a new network, planned like any other; they override a preset's
            if not own:
                continued = {**self._continuing(self._forward[0], 1.0), "from_model": self._folder / _START}
                own = {**dict.fromkeys(_SIZES), **continued}
            return {"teacher": tuple(self._forward), **self._less_dropout(plan.SMALL_DROPOUT), **own}
        if not self._config.both_ways:
            return {}
        own_rate = free and self._settings.learning_rate is None
        return self._continuing(self._folder / plan.BOTH, plan.FALLING_RATE if own_rate else 1.0)

    def _student_settings(self, place: int) -> dict[str, Any]:
        """Those of the student that begins as the forward model at a place, by score."""
        start = self._by_score(self._forward)[place]
        own = self._continuing(start, plan.STUDENT_RATE)
        if self._settings.learning_rate is None and own["muon_scale"] < USUAL_SCALE:
            return self._continuing(start, plan.CAREFUL_RATE)
        return own

    def _other_cuts(self) -> dict[str, float]:
        """The BPE-dropout of the second student, unless the user gave one or the vocabulary has no merges."""
        free = self._settings.bpe_dropout is None and has_merges(self._text().source_tokenizer)
        return {"bpe_dropout": plan.STUDENT_BPE_DROPOUT} if free else {}

    def _less_dropout(self, rate: float) -> dict[str, float]:
        """The dropout of a model with teachers, unless the user gave one."""
        return {"dropout": rate} if self._settings.dropout is None else {}

    def _continuing(self, run: Path, rate: float) -> dict[str, Any]:
        """Begin as the model of a run, and train as that did, with its learning rate times ``rate``."""
        training = read_begun_run(run).training
        return {
            "from_model": run / "best",
            "optimizer": training.optimizer,
            "muon_scale": training.muon_scale,
            "weight_decay": training.weight_decay,
            "learning_rate": training.learning_rate * rate,
        }

    def _result(self, name: str) -> TrainResult:
        """The result of a training that is finished, perhaps by an earlier start."""
        if name not in self._results:
            self._results[name] = self._train(name, None, self._context.started, say=lambda _: None)
        return self._results[name]

    def _consider_end(self, run: Path) -> None:
        """Keep the last weights of a student, too, if they translate better than those that its training chose.

        A student begins as the best of many validated models, so its first score, of greedy search, is too high and may
        stay the highest although the student improves (docs/lab-notes.md, "Two students").
        """
        end, training = self._end_of(run), read_begun_run(run).training
        if end.exists() or training.best_by != "bleu":
            return
        with TemporaryDirectory() as folder:
            weights: Literal["average", "trained"] = "average" if training.average else "trained"
            last = average(run, last=1, weights=weights, output=Path(folder) / "model", say=lambda _: None)
            scores = self._bleu(run / "best"), self._bleu(last)
            self._log.say(
                f"{run.name}: validation BLEU as it translates {scores[0]:.2f}, with its last weights {scores[1]:.2f}"
            )
            if scores[1] > scores[0]:
                copy_folder(last, end)
                self._measured[end] = self._measured[last]

    def _model_of(self, run: Path) -> Path:
        """The model folder of a training that is finished."""
        end = self._end_of(run)
        return end if end.exists() else run / "best"

    def _end_of(self, run: Path) -> Path:
        """Where the last weights of a student are kept if they translate better."""
        return self._folder / _END.format(run.name)

    def _bleu(self, model: Path) -> float:
        """Validation BLEU of a model as it translates, the mean of its directions."""
        scores = self._bleu_of_each_direction(model)
        return sum(scores) / len(scores)

    def _bleu_of_each_direction(self, model: Path) -> list[float]:
        if model not in self._measured:
            self._measured[model] = [
                measure_alone(model, valid, language, lambda _: self._check_stop(), direction)
                for direction, valid, language in self._validations()
            ]
        return self._measured[model]

    def _validations(self) -> Iterator[tuple[languages.Direction | None, Pairs, str | None]]:
        """Each direction, with its part of the validation set and the language of the references."""
        text = self._text()
        for direction, place in text.valid_parts:
            shown = slice(place.start, min(place.stop, place.start + max(SENTENCES // len(text.valid_parts), 1)))
            language = text.config.target_language if direction is None else direction.target
            yield direction, (text.valid_sources[shown], text.valid_targets[shown]), language

    def _by_score(self, trainings: list[Path]) -> list[Path]:
        """Trainings from the best to the worst; of equal ones, the first one first."""
        return sorted(trainings, key=lambda path: -self._score(path))

    def _score(self, run: Path) -> float:
        """Validation BLEU of a training's model as it translates; if that was chosen by another score, that score."""
        if read_begun_run(run).training.best_by == "bleu":
            return self._bleu(self._model_of(run))
        return self._result(run.name).best_score

    def _best_of_full_size(self) -> Path:
        """The best training of a model of full size."""
        return self._by_score(self._students or self._forward)[0]

    def _best(self) -> Path:
        """The training whose model this run results in: that of full size, or the small one if it translates better.

        Where there are few updates, a student gains little, and the small model, which makes more of them, can be
        ahead (docs/results.md, "An hour on a slow machine").
        """
        small = self._folder / plan.SMALL
        return self._by_score([self._best_of_full_size(), *([small] if (small / "best").is_dir() else [])])[0]

    def _narrow_sizes(self) -> dict[str, Any]:
        """The settings of a small model that starts from scratch; empty if it begins with parts of the best one."""
        whole = read_begun_run(self._best_of_full_size()).model
        narrow = narrow_half_of(whole) if isinstance(whole, TransformerConfig) else None
        return _sizes_of(narrow) or {}

    def _begin_small(self) -> bool:
        """Write what the small model begins as, if it is something; False if there is no network of half the size."""
        if self._narrow_sizes():
            return True
        start = self._folder / _START
        try:
            if not start.exists():
                shrink(self._model_of(self._best_of_full_size()), output=start, say=self._log.say)
        except ConfigurationError as error:
            self._log.say(f"there will be no small model: {error}")
            return False
        return True

    def _text(self, name: str = plan.TEXT) -> PreparedText:
        folder = self._folder / name
        return open_prepared(folder, read_manifest(folder).data)

    # ----------------------------------------------------------------------- further text

    def _make_pairs(self, output: Path, until: float | None) -> None:
        """Let the reverse models translate the further text, or as much of it as there is time for.

        Raises:
            ConfigurationError: it is no longer what it was when the run began.
        """
        further = self._config.further
        assert further is not None
        path = Path(further.path)
        if _record(path) != further:
            raise ConfigurationError(f"{path}: not the text with which this run began: put it back, or start a new run")
        with write_errors(output.parent):
            output.parent.mkdir(exist_ok=True)
        if not output.exists():
            known = self._reverse, path, output, replace(self._context, stop_signal=self._stop_signal)
            write_pairs(*known, backwards=True, tag=self._config.tag, until=until)

    def _added(self) -> list[CorpusSettings]:
        """The file of pairs; a model that has learned nothing makes none that are good enough.

        However many they are, an epoch has no more of them than of real pairs (docs/lab-notes.md, "Captions").
        """
        path = self._folder / plan.PAIRS
        if path.stat().st_size:
            weight = min(self._config.pairs / scan(path).lines, 1.0)
            return [CorpusSettings(source=path, weight=round(weight, 6))]
        self._log.say(f"{path}: there is no pair that is good enough to learn from; the forward models learn without")
        return []

    # ----------------------------------------------------------------------- the end

    def _remember(self, output: Path) -> None:
        """Make the datastore of the best model, for the ensemble that it is the first model of."""
        if output.exists():
            return
        best = self._best()
        others = [self._model_of(path) for path in self._members() if path != best]
        model, data = self._model_of(best), self._folder / plan.TEXT
        try:
            say, check = self._log.say, self._check_stop
            remember(model, output=output, data=data, others=others, say=say, progress=check)
        except ConfigurationError as error:
            self._log.say(f"there will be no datastore: {error}")

    def _members(self) -> list[Path]:
        """The trainings whose models are an ensemble."""
        return self._students if len(self._students) > 1 else self._forward

    def _finish(self) -> None:
        """Copy the best model to ``best``, and measure how the models are best used, in each direction."""
        best, sentences, uses, alone = self._best(), 0, list[Use](), list[float]()
        members, store = self._members(), self._folder / plan.DATASTORE
        small = self._folder / plan.SMALL / "best"
        model, others = self._model_of(best), [self._flag_of(path) for path in members if path != best]
        self._log.say(f"validation BLEU, and the flags of `multihead translate {self._folder}`:")
        for direction, valid, language in self._validations():
            sentences += len(valid[0])
            own = compare_uses(
                model,
                others,
                self._reverse_models(direction, best),
                valid,
                language,
                found=lambda use: self._log.say(f"  {use}"),
                progress=lambda _: self._check_stop(),
                direction=direction,
                datastore=store if store.exists() else None,
                judge=self._folder / plan.RIGHT_TO_LEFT if self._config.right_to_left else None,
            )
            uses += own
            alone.append(own[0].bleu)
        found: dict[str, Any] = {"model": best.name, "sentences": sentences, "uses": [use.as_dict() for use in uses]}
        if small.is_dir():
            found["small"] = self._describe_small(self._bleu_of_each_direction(small), alone)
        with atomic_file(self._folder / USES) as draft:
            write_json(draft, found)
        copy_folder(model, self._folder / plan.BEST)

    def _flag_of(self, run: Path) -> Path:
        """What a flag names for the model of a training: its run, or the folder of its last weights."""
        model = self._model_of(run)
        return run if model == run / "best" else model

    def _describe_small(self, scores: list[float], of_best: list[float]) -> dict[str, Any]:
        """What uses.json says of the small model, by its BLEU and that of the best model in each direction."""
        configs = [read_begun_run(path) for path in (self._folder / plan.SMALL, self._best_of_full_size())]
        parameters, of = (parameters_of(config.model) for config in configs)
        behind = max(best - own for own, best in zip(scores, of_best, strict=True))
        shown = ", ".join(f"{own:.2f}" for own in scores)
        self._log.say(
            f"  {self._folder / plan.SMALL}: {shown} with {parameters / of:.0%} of the parameters; "
            + (
                f"exports for browsers take it ({behind:.2f} BLEU behind the best model, at most {NEAR})"
                if behind <= NEAR
                else f"exports for browsers take the best model, since it is {behind:.2f} BLEU behind, more than {NEAR}"
            )
        )
        bleu = [round(own, 2) for own in scores]
        return {"model": plan.SMALL, "parameters": parameters, "of": of, "bleu": bleu, "behind": round(behind, 2)}

    def _reverse_models(self, direction: languages.Direction | None, best: Path) -> list[Path]:
        """The models that choose among candidates; a model of several directions does so if it has the opposite one."""
        if direction is None or self._config.forward == 1:
            return self._reverse
        known = {(record.source, record.target) for record in self._text().config.directions}
        return [best] if (direction.target, direction.source) in known else []
