"""Begin a translator's run: decide what the user left open.

The first of several processes decides; the others take part where it measures how fast all of them train together
(`assist_measurement`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from multihead import work_folder
from multihead.bundle import Bundle, build_network, load_bundle
from multihead.configuration import Machine, inspect_machine, require_device
from multihead.diagnosis.doctor import log_quick_check
from multihead.engine.weights import load_search_library
from multihead.errors import ConfigurationError, Interrupted
from multihead.kernels.native import load_kernels
from multihead.models.config import NetworkConfig, TransformerConfig
from multihead.models.network import Network
from multihead.models.shrinking import narrower
from multihead.models.transformer import Transformer
from multihead.planning.choices import (
    SIZES,
    CorpusSize,
    Pace,
    adapt_dropout,
    choose_generation,
    choose_given_model,
    choose_model,
    choose_training,
    narrowings,
    rehearse,
)
from multihead.planning.settings import Choices, RunConfig, TextFile, TrainSettings
from multihead.preparing.corpora import TextFiles, scan_files
from multihead.preparing.prepare import FEW_LINES, journal_for, write_data
from multihead.preparing.prepared import PreparedText, open_training_text, use_folder
from multihead.preparing.subwords import keep_vocabulary
from multihead.runs.pace import Trial, time_updates
from multihead.runs.run import (
    NewRun,
    combine,
    given_model,
    installed_versions,
    log_decisions,
    require_divisible,
    require_memory,
)
from multihead.skeletons import without_values
from multihead.text.languages import Languages
from multihead.text.tokenizer import Tokenizer
from multihead.training.adam import Optimizer
from multihead.training.checkpoint import Checkpoint, RunState
from multihead.training.config import Combination, TrainingConfig
from multihead.training.context import RunContext
from multihead.training.optimizer import Average, build_optimizer
from multihead.training.progress import RunLog
from multihead.training.splitting import SINGLE_PROCESS, Processes
from multihead.training.tensorboard import require_tensorboard

if TYPE_CHECKING:
    from multihead.data.ahead import Ahead, Stream

_CORPORA_SHOWN = 24
"""Corpora, or files of them, that the log lists."""
_MEASURING = 0.02
"""Share of the budget after which the measurement ends, though it had fewer updates."""


class NewTranslatorRun(NewRun[RunConfig, PreparedText]):
    """A translator's run that begins; the constructor refuses what cannot be trained before anything is written."""

    def __init__(self, settings: TrainSettings, folder: Path, context: RunContext) -> None:
        self._settings, self._folder, self._context = settings, folder, context
        self._choices = Choices(settings)
        self._machine = _joint_machine(context.processes, settings.device)
        for build_library in (
            load_kernels,
            load_search_library,
        ):  # compile now, where needed, and not while updates are timed
            build_library(context.say)
        self.device = device = self._machine.device
        require_device(device, settings.precision, compiled=settings.compile)
        context.processes.require_devices(device)
        if settings.tensorboard:
            require_tensorboard()
        languages = Languages(settings.source_language, settings.target_language)
        given = settings.from_model
        self._given = None if given is None else load_bundle(given, languages=languages)
        model = None if self._given is None else choose_given_model(Choices(settings), self._given.model.config)
        self._text: PreparedText | TextFiles
        if settings.data is None:
            self._text = scan_files(settings)
            pairs = self._text.lines
        else:
            self._text = use_folder(settings.data, self._choices, context.say)
            pairs = self._text.config.pairs
            if self._given is not None:
                _check_tokenizers(self._given, self._text, settings)
        self._tokenizers = None if self._given is None else (self._given.source_tokenizer, self._given.target_tokenizer)
        if settings.teacher is not None:
            self._tokenizers = self._check_teachers(settings.teacher, languages)
        rehearse(settings, pairs, self._machine, model)
        self._weights = None if settings.weights is None else self._check_weights(settings.weights)
        self._alignments = None if settings.alignments is None else self._check_alignments(settings.alignments)
        if model is not None and (rank := settings.lora) is not None:  # refuse what cannot be adapted
            without_values(lambda: _with_adapters(build_network(model), rank, 1.0))
        if model is not None and settings.parallel == "sharded":
            require_divisible(lambda: build_network(model))
        self._journal = None
        if isinstance(self._text, TextFiles) and self._text.lines > FEW_LINES:
            self._journal = journal_for(folder, settings, self._text, self._tokenizers)

    def _check_teachers(self, folders: Sequence[Path], languages: Languages) -> tuple[Tokenizer, Tokenizer]:
        """Check that the student and its teachers have the same vocabulary; returns its tokenizers."""
        from multihead.preparing.teachers import load_teacher

        name, like = f"the model {self._settings.from_model}", self._tokenizers
        if isinstance(self._text, PreparedText):
            name, like = f"the text {self._settings.data}", (self._text.source_tokenizer, self._text.target_tokenizer)
        for folder in folders:
            teacher = load_teacher(folder, like, name, languages)
            if like is None:
                name, like = f"the teacher {folder}", (teacher.source_tokenizer, teacher.target_tokenizer)
        assert like is not None
        return like

    def _check_weights(self, path: Path) -> TextFile:
        from multihead.preparing.weights import check_weights

        return check_weights(path, self._text)

    def _check_alignments(self, path: Path) -> TextFile | Literal["ibm1", "ibm1-grow"]:
        from multihead.preparing.alignments import check_alignments

        return check_alignments(path, self._text)

    def prepare(self) -> PreparedText:
        """Store the text, unless it was prepared ahead."""
        if isinstance(self._text, PreparedText):
            prepared = self._text
        else:
            kept = self._tokenizers
            vocabulary = None if kept is None else keep_vocabulary(self._choices, *kept)
            write = self._choices, self._text, self._folder, self._context, vocabulary
            prepared = write_data(*write, journal=self._journal)
        if (number := self._context.stop_signal()) is not None:
            again = "to start over" if self._journal is None else "to continue"
            raise Interrupted(number, f"stopped while the data were prepared; run the same command again {again}")
        return prepared

    def resumed(self) -> Sequence[str]:
        """The text that is stored so far, if there is enough of it for a journal."""
        return () if self._journal is None else self._journal.names()

    def decide(self, data: PreparedText) -> RunConfig:
        """Choose model, training and search; measure the pace if the length of the run depends on it."""
        choices, given, corpus, text = self._choices, self._given, _corpus_size(data), data.config
        if given is None:
            model = choose_model(choices, corpus, self._machine)
        else:
            model = choose_given_model(choices, given.model.config)
            known = _known_languages(data, given)
            choices.reasons |= dict.fromkeys(known, "the given model's")
            text = text.model_copy(update=known)

        def pace(trial: TrainingConfig) -> Pace:
            build, asked = lambda: new_network(model, trial), self._settings.parallel
            processes = self._context.processes
            require_memory(build, trial, combine(build, trial, processes, asked)[0], processes)
            self._context.say("measuring how fast this machine trains the model")
            self._context.use_threads(processes.threads_per_process(trial.threads))
            if processes.size > 1:
                processes.all_gather((model, trial, text))
            budget = self._settings.budget
            limit = math.inf if budget is None else _MEASURING * budget
            measured = measure(model, trial, data, processes, limit, asked)
            return replace(measured, spent=time.monotonic() - self._context.started)

        training = choose_training(choices, corpus, model, self._machine, pace)
        if given is None:
            usual, model = model, _fit_to_time(choices, model, corpus, training)
            if model != usual:
                few = f"{training.updates:,} updates fit"
                self._context.say(f"{few}, so a smaller network learns more: {model.summary}")
                training = choose_training(choices, corpus, model, self._machine, pace)
            model = adapt_dropout(choices, model, corpus, training)
        settings = self._settings
        return RunConfig(
            versions=installed_versions(),
            asked=work_folder.given_settings(settings),
            data=text,
            from_model=None if settings.from_model is None else given_model(settings.from_model),
            teachers=tuple(map(given_model, settings.teacher or ())),
            weights=self._weights,
            alignments=self._alignments,
            model=model,
            training=training,
            generation=choose_generation(choices, None if given is None else given.generation),
            reasons=choices.reasons,
        )

    def first_checkpoint(self, config: RunConfig) -> Checkpoint | None:
        """The given weights, which are validated before the first update.

        So a run that gains nothing keeps the given model as its best. Once this checkpoint exists, the folder that the
        weights came from is not needed again.
        """
        if self._given is None:
            return None
        model, training = self._given.model, config.training
        if training.lora:
            seed = torch.Generator().manual_seed(training.seed)
            _with_adapters(model, training.lora, training.lora_alpha, seed)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        trained = {name: weights[name] for name, p in model.named_parameters() if p.requires_grad or not training.lora}
        return Checkpoint(RunState(validated_at=-1), weights, trained if training.average > 0 else {}, {})

    def report(self, config: RunConfig, data: PreparedText, log: RunLog) -> None:
        """Log the decisions, then faults of the text."""
        text, model, training = config.data, config.model, config.training
        log.say(
            f"{text.pairs:,} training pairs, {self._machine.name}, {load_kernels().reason}; "
            "decided (run.json has it all):"
        )
        if len(text.corpora) > 1:
            for corpus in text.corpora[:_CORPORA_SHOWN]:
                names = " + ".join(file.path for file in corpus.files)
                if text.directions:
                    names += f" ({corpus.source_language or '?'}-{corpus.target_language})"
                log.say(f"  {'corpus':<14} {names}: {corpus.pairs:,} pairs, each {corpus.weight:g} times an epoch")
            if (more := len(text.corpora) - _CORPORA_SHOWN) > 0:
                log.say(f"  {'corpus':<14} and {more:,} more files")
        fields = (
            *("batch_tokens", "updates", "optimizer", "schedule", "learning_rate"),
            *("warmup", "average", "precision", "threads"),
            *(("teacher_weight",) if config.teachers else ()),
            *(("alignment_weight",) if config.alignments else ()),
            *(("lora", "lora_alpha") if training.lora else ()),
        )
        shown: dict[str, object] = {
            "vocab_size": text.vocab_size,
            "preset": model.summary,
            **{name: getattr(model, name) for name in ("norm", "dropout") if name in type(model).model_fields},
            **{name: getattr(training, name) for name in fields},
            "held_out": text.held_out,
        }
        log_decisions(config.reasons, shown, log)
        log_quick_check(self._settings, config, data, self._folder, log.say)


def _joint_machine(processes: Processes, device: str | None) -> Machine:
    """The machine that all processes share, with the device that was requested, if any."""
    own = inspect_machine(device)
    if processes.size == 1:
        return own
    name = f"{processes.size} processes with {own.name} each"
    return replace(own, threads=own.threads * processes.launch.local_size, name=name)


def _check_tokenizers(given: Bundle, prepared: PreparedText, settings: TrainSettings) -> None:
    """Check that the text was prepared with the subwords of the given model.

    Raises:
        ConfigurationError: it was not.
    """
    for side in ("source", "target"):
        if getattr(given, f"{side}_tokenizer").digest != getattr(prepared, f"{side}_tokenizer").digest:
            raise ConfigurationError(
                f"{settings.data}: its {side} subwords are not those of the model {settings.from_model}; prepare the "
                f"text with them: multihead prepare --from-model {settings.from_model} ..."
            )


def _corpus_size(prepared: PreparedText) -> CorpusSize:
    """The size of an epoch, in which pairs of a low weight are seldom; those of a high weight are no further pairs."""
    target, pairs, tokens, start = prepared.train.target, 0.0, 0.0, 0
    for record in prepared.config.corpora:
        own = target.tokens(start, start + record.pairs) + record.pairs
        pairs += min(record.weight, 1.0) * record.pairs
        tokens, start = tokens + record.weight * own, start + record.pairs
    return CorpusSize(
        pairs=max(round(pairs), 1),
        target_tokens=round(tokens),
        unit="pairs an epoch" if round(pairs) < len(prepared.train) else "pairs",
        source_vocab=len(prepared.source_tokenizer),
        target_vocab=len(prepared.target_tokenizer),
        padding_id=prepared.target_tokenizer.pad_id,
        factors=prepared.source_tokenizer.factors,
        shared=prepared.config.shared_vocabulary,
    )


def _fit_to_time(choices: Choices, model: NetworkConfig, corpus: CorpusSize, training: TrainingConfig) -> NetworkConfig:
    """The network, or a smaller one where so few updates of it fit into the time that it would learn less."""
    usual = model
    for _ in range(narrowings(choices, model.architecture, corpus.pairs, training.updates)):
        smaller = narrower(model) if isinstance(model, TransformerConfig) else None
        model = smaller or model
    if model != usual:
        reason = f"learns more in this time than {training.updates:,} updates of width {usual.width} would"
        choices.reasons |= dict.fromkeys(("preset", *SIZES), reason)
    return model


def _known_languages(prepared: PreparedText, given: Bundle) -> dict[str, str]:
    """The languages that the files do not name but the given model does."""
    codes = (("source_language", given.source_language), ("target_language", given.target_language))
    return {name: code for name, code in codes if code is not None and getattr(prepared.config, name) is None}


# --------------------------------------------------------------------------- the pace


def new_network(model: NetworkConfig, training: TrainingConfig) -> Network:
    """A new network, with adapters if these are trained."""
    network = build_network(model)
    return _with_adapters(network, training.lora, training.lora_alpha) if training.lora else network


def _with_adapters(network: Network, rank: int, alpha: float, generator: torch.Generator | None = None) -> Network:
    from multihead.models.adapters import adapt

    adapt(network, rank, alpha, generator)
    return network


def without_adapters(network: Network, training: TrainingConfig) -> Network:
    """A plain network that computes the same; the network itself if it has no adapters."""
    if not training.lora:
        return network
    from multihead.models.adapters import merged

    return merged(network)


def build_network_for(model: NetworkConfig, training: TrainingConfig) -> Network:
    """A new network, drawn from PyTorch's current generator, on the device of its training."""
    network = new_network(model, training).to(training.device)
    if isinstance(network, Transformer):
        network.compiled, network.checkpointing = training.compile, training.gradient_checkpointing
    return network


def take_ahead(stream: Stream, processes: Processes, device: str) -> Ahead | None:
    """Where a thread takes the batches, a GPU or other processes do not wait for them; None if there are neither."""
    if processes.size == 1 and device == "cpu":
        return None
    from multihead.data.ahead import Ahead

    return Ahead(stream, processes.rank, processes.size, pin=device.startswith("cuda"))


def measure(
    model: NetworkConfig,
    trial: TrainingConfig,
    prepared: PreparedText,
    processes: Processes = SINGLE_PROCESS,
    limit: float = math.inf,
    asked: Combination | None = None,
) -> Pace:
    """Time updates of a discarded network on real batches of all lengths, in all processes.

    Args:
        model: the sizes of the network.
        trial: the settings of training.
        prepared: the text.
        processes: all of them take part.
        limit: seconds after which no more updates are timed; only the first process's counts.
        asked: how the processes combine gradients, if the user says so.
    """
    with torch.random.fork_rng():
        network = build_network_for(model, trial)
        average: Average[Network] = Average(network, trial.average, frozen=trial.lora > 0)
        combination, _ = processes.broadcast(combine(lambda: new_network(model, trial), trial, processes, asked))
        processes, optimizer = _combined(combination, processes, network, trial)
        stream = prepared.batches(trial, (0, 0))
        ahead = take_ahead(stream, processes, trial.device)
        try:
            return time_updates(
                Trial(network, optimizer, None if combination == "sharded" else average, trial, processes),
                stream.take if ahead is None else ahead.take,
                prepared.lines,
                limit,
            )
        finally:
            if ahead is not None:
                ahead.close()


def _combined(
    combination: Combination, processes: Processes, network: Network, trial: TrainingConfig
) -> tuple[Processes, Optimizer]:
    """The processes and the optimizer with which a network is trained."""
    if combination == "replicated":
        from multihead.training.replicated import Replicated

        return Replicated(processes, network), build_optimizer(network, trial)
    if combination == "sharded":
        from multihead.training.sharded import Sharded, ShardedMuon

        return Sharded(processes, network, trial), build_optimizer(network, trial, ShardedMuon)
    return processes, build_optimizer(network, trial)


def assist_measurement(settings: TrainSettings, folder: Path, context: RunContext) -> RunConfig:
    """Receive the first process's decisions; until they arrive, take part in its measurements of the pace."""
    message: Any
    while not isinstance(message := context.processes.broadcast(None), RunConfig):
        model, trial, data = message
        context.use_threads(context.processes.threads_per_process(trial.threads))
        text = open_training_text(folder, data, settings.data)
        measure(model, trial, text, context.processes, asked=settings.parallel)
    return message
