"""Train a language model: ``multihead train --model decoder``.

A run is a folder:

    run.json            every decision with its reason: a `LanguageModelRunConfig`; written once
    run.copy.json       a copy of it, in case it is lost (`work_folder.restore`)
    data/               subwords and stored text (`runs.language_model.text`)
    log.txt, log.jsonl, timing.jsonl
    plan.jsonl          of a run with a budget: its decisions on the way, and the time spent (`training.budget`)
    checkpoints/        where the run resumes
    best/               the model folder of the best validation so far (`runs.language_model.model`)

What happens in which order is in `runs.run`; what users may set, in `runs.language_model.settings`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multihead import work_folder
from multihead.configuration import inspect_machine, require_device
from multihead.data.batching import CollatedStream
from multihead.data.order import Array, batches_by_tokens, usual_order
from multihead.data.texts import TextBatch, collate_windows
from multihead.metrics.perplexity import TextPerplexity
from multihead.models.decoder.config import DecoderConfig
from multihead.models.decoder.network import DecoderLM
from multihead.planning.choices import CorpusSize, Pace
from multihead.planning.settings import Choices, TrainSettings
from multihead.runs.language_model.model import LanguageModel
from multihead.runs.language_model.settings import LanguageModelRunConfig, Reading, choose_size, decide, parse
from multihead.runs.language_model.text import StoredText, open_text, store_text
from multihead.runs.pace import Trial, time_updates
from multihead.runs.run import (
    BatchSource,
    Judge,
    NewRun,
    RunKind,
    RunResult,
    execute,
    installed_versions,
    log_decisions,
    require_memory,
)
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext, Validation
from multihead.training.optimizer import Average, build_optimizer
from multihead.training.progress import ModelFlops, RunLog, measure_flops
from multihead.training.splitting import sequence_loss
from multihead.training.tensorboard import require_tensorboard


class LanguageModelResult(RunResult):
    """A finished run; its score is the negative loss of a token of the validation set."""

    def language_model(self) -> LanguageModel:
        return LanguageModel.load(self.folder)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    started: float | None = None,
    **settings: Any,
) -> LanguageModelResult:
    """Train a language model, or resume a run that was stopped.

    Args:
        say: called with each line of output.
        stop_signal: called between updates; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads that the run is frozen to: see `runs.translator.train.train`.
        started: when the budget begins, by `time.monotonic`; now if ``None``.
        **settings: fields of `TrainSettings` that are `SUPPORTED`; ``target`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call resumes the run.
    """
    given = parse(settings)
    folder = work_folder.require_output(given.output)
    context = RunContext(say, stop_signal, use_threads, started=time.monotonic() if started is None else started)
    return execute(LanguageModelRun(given, folder, context), LanguageModelResult)


class NewLanguageModelRun(NewRun[LanguageModelRunConfig, StoredText]):
    """A language model's run that begins."""

    def __init__(self, settings: TrainSettings, folder: Path, context: RunContext) -> None:
        self._settings, self._folder, self._context = settings, folder, context
        self._choices = Choices(settings)
        self._machine = inspect_machine(settings.device)
        require_device(self._machine.device, settings.precision)
        if settings.tensorboard:
            require_tensorboard()
        # Deciding for an imagined text finds most faulty settings before the work.
        imagined = CorpusSize(1000, 20_000, 1000, 1000, 0, unit="lines")
        imagining = Choices(settings)
        decide(imagining, imagined, choose_size(imagining), self._machine, lambda *_: Pace(1.0, 1000.0))

    def prepare(self) -> StoredText:
        self._text = store_text(self._settings, self._folder, self._choices, self._context)
        return open_text(self._folder)

    def decide(self, data: StoredText) -> LanguageModelRunConfig:
        text, vocab = self._text, len(data.tokenizer)
        corpus = CorpusSize(text.texts, text.tokens, vocab, vocab, data.tokenizer.pad_id, unit="lines")
        model, training = decide(self._choices, corpus, text.max_tokens, self._machine, partial(self._measure, data))
        return LanguageModelRunConfig(
            kind="language-model",
            versions=installed_versions(),
            asked=work_folder.given_settings(self._settings),
            text=text,
            model=model,
            training=training,
            reasons=self._choices.reasons,
        )

    def _measure(self, data: StoredText, model: DecoderConfig, trial: TrainingConfig) -> Pace:
        """Time updates of a network that is discarded."""
        require_memory(lambda: DecoderLM(model), trial, "sum", self._context.processes)
        self._context.say("measuring how fast this machine trains the model")
        self._context.use_threads(trial.threads)
        with torch.random.fork_rng():
            network = DecoderLM(model).to(trial.device)
            average = Average(network, trial.average)
            timed = Trial(network, build_optimizer(network, trial), average, trial)
            found = time_updates(timed, _stream(data, trial, (0, 0)).take, lambda rows: _lines(data, "the text", rows))
        return replace(found, spent=time.monotonic() - self._context.started)

    def report(self, config: LanguageModelRunConfig, data: StoredText, log: RunLog) -> None:
        del data
        text, training = config.text, config.training
        log.say(f"{text.texts:,} lines of {text.tokens:,} tokens, {self._machine.name}; decided (run.json has it all):")
        fields = ("batch_tokens", "updates", "optimizer", "learning_rate", "warmup", "average", "precision", "threads")
        shown: dict[str, object] = {
            **{name: getattr(text, name) for name in ("vocab_size", "max_tokens", "held_out")},
            "preset": config.model.summary,
            **{name: getattr(config.model, name) for name in ("positions", "dropout")},
            **{name: getattr(training, name) for name in fields},
        }
        log_decisions(config.reasons, shown, log)


class LanguageModelRun(RunKind[TrainSettings, LanguageModelRunConfig, StoredText, DecoderLM]):
    """A run that trains a language model."""

    config_class = LanguageModelRunConfig
    outcome = " with a validation perplexity of {:.2f} a token, is in"

    def outcome_of(self, config: LanguageModelRunConfig, score: float) -> str:
        """`outcome` with the perplexity of the best model."""
        del config
        return self.outcome.format(math.exp(min(-score, 100.0)))

    def begin(self) -> NewLanguageModelRun:
        return NewLanguageModelRun(self.settings, self.folder, self.context)

    def open(self, config: LanguageModelRunConfig) -> StoredText:
        del config
        return open_text(self.folder)

    def network(self, config: LanguageModelRunConfig) -> DecoderLM:
        return DecoderLM(config.model).to(config.training.device)

    def batches(self, config: LanguageModelRunConfig, data: StoredText, position: tuple[int, int]) -> BatchSource:
        return BatchSource(
            _stream(data, config.training, position), lambda rows: _lines(data, config.text.text.path, rows)
        )

    def judge(self, config: LanguageModelRunConfig, data: StoredText) -> LanguageModelJudge:
        return LanguageModelJudge(config, data)

    def flops(self, config: LanguageModelRunConfig, model: DecoderLM) -> ModelFlops:
        return measure_flops(model, model.output, config.training.device, config.training.precision)


def _stream(data: StoredText, training: TrainingConfig, position: tuple[int, int]) -> CollatedStream[TextBatch]:
    blocks = usual_order(len(data.train)) == "blocks"
    collate = partial(_collate, data)
    return CollatedStream(data.train, training.batch_tokens, training.seed, collate, position, blocks=blocks)


def _collate(data: StoredText, indices: Array) -> TextBatch:
    return collate_windows(data.train.source, indices, data.tokenizer.pad_id)


def _lines(data: StoredText, path: str, rows: Array) -> dict[str, list[int]]:
    """The lines of windows of the training text."""
    return {path: sorted(set(data.train.lines[rows].tolist()))}


class LanguageModelJudge(Judge[DecoderLM]):
    """Judges models by their loss on the validation set."""

    def __init__(self, config: LanguageModelRunConfig, data: StoredText) -> None:
        self.config, self.tokenizer = config, data.tokenizer
        store, text = data.valid.source, config.text
        groups = batches_by_tokens((store.lengths - 1).tolist(), 2 * config.training.batch_tokens)
        self._batches = [collate_windows(store, np.array(group), data.tokenizer.pad_id) for group in groups]
        self._sizes = {"texts": text.valid_texts, "characters": text.valid_characters, "bytes": text.valid_bytes}

    @torch.no_grad()
    def evaluate(self, model: DecoderLM) -> Validation:
        """The loss of a token, and perplexities."""
        nll, correct, tokens = 0.0, 0, 0
        for batch in self._batches:
            sums = sequence_loss(model, batch.to(self.config.training.device), 0.0)
            nll, correct, tokens = nll + sums.nll.item(), correct + int(sums.correct), tokens + batch.target_tokens
        found = TextPerplexity(-nll, tokens=tokens, **self._sizes)
        values = {**found.as_dict(), "accuracy": correct / tokens}
        summary = (
            f"loss {found.loss:.3f}  perplexity {found.per_token:.2f}  a character {found.per_character:.3f}  "
            f"accuracy {100 * correct / tokens:.1f}%"
        )
        return Validation(-found.loss, found.loss, values, summary)

    def save(self, model: DecoderLM, folder: Path, metrics: dict[str, Any]) -> None:
        text = self.config.text
        made_by = f"Trained by multihead {version('multihead')} on {text.texts:,} lines of {text.tokens:,} tokens."
        LanguageModel(model, self.tokenizer, Reading(max_tokens=text.max_tokens)).save(folder, metrics, made_by)
