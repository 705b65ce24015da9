"""Two text files become a translator: looks at the files, decides, trains, keeps the best. All wiring stands here.

A run is a folder (contract 8 of the design; see ARCHITECTURE.md):

    run.json            everything decided, with reasons: a `RunConfig`; written once, before the first update
    data/               what training reads (`workflows.prepare`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on
    best/               the model folder of the best validation so far
    left-out.tsv        pairs that could not be used
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multihead import bundle as bundles
from multihead.bundle import Bundle
from multihead.configuration import build
from multihead.data.batching import BatchStream, batches_by_tokens, collate
from multihead.errors import ConfigurationError, Interrupted
from multihead.metrics.scores import score
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer
from multihead.training.checkpoint import RunState
from multihead.training.config import TrainingConfig
from multihead.training.loss import sequence_loss
from multihead.training.optimizer import Average, build_optimizer
from multihead.training.progress import RunLog
from multihead.training.step import train_step
from multihead.training.trainer import Surroundings, Trainer, Validation
from multihead.workflows import run_folder
from multihead.workflows.machine import inspect_machine, require_device
from multihead.workflows.planning import (
    Choices,
    Corpus,
    Pace,
    choose_generation,
    choose_model,
    choose_training,
    rehearse,
)
from multihead.workflows.prepare import Prepared, look_through, prepare, reopen
from multihead.workflows.settings import RunConfig, TrainSettings
from multihead.workflows.translate import Translator

_VALID_SENTENCES = 1000
"""Sentences decoded at each validation; the loss is of all."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    updates: int
    best_step: int
    best_score: float
    """BLEU of greedy search on the validation set."""

    def translator(self) -> Translator:
        """The best model."""
        return Translator.load(self.folder)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Result:
    """Trains a translator, or goes on with one that was stopped.

    Args:
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        use_threads: is told how many threads the run is frozen to. Commands set them for their process; a library
            call leaves them alone, and results on another number than the run began with differ in the last bits.
        **wishes: fields of `TrainSettings`: ``source``, ``target`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(TrainSettings, wishes, "the settings")
    if settings.output is None:
        raise ConfigurationError("the run folder is not named: output missing (--output FOLDER)")
    folder = settings.output
    config = run_folder.begun(folder)
    if config is None:
        config = _begin(settings, folder, say, stop_signal, use_threads)
    else:
        run_folder.check_same(folder, config, settings)
        run_folder.clear_up(folder)
    require_device(config.training.device)
    use_threads(config.training.threads)
    with torch.random.fork_rng():
        return _train(config, reopen(folder, config.data), folder, say, stop_signal)


def _train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
) -> Result:
    log = RunLog(folder, say)
    training = config.training
    torch.manual_seed(training.seed)
    model = Transformer(config.model).to(training.device)
    checkpoint = Trainer.newest_checkpoint(folder, log.say)
    trainer = Trainer(
        model,
        training,
        width=config.model.width,
        padding_id=Tokenizer.pad_id,
        folder=folder,
        log=log,
        checkpoint=checkpoint,
    )
    if trainer.finished:
        say(f"this run is finished: {_outcome(trainer.state, folder)}. For another one choose a new folder")
        return _result(trainer.state, folder)
    log.rewind(trainer.state.step)
    stream = _stream(prepared, training, trainer.state.position)
    if checkpoint is not None:
        log.say(f"going on after update {trainer.state.step} of {training.updates}")
        if config.versions != _versions():
            log.say(f"  begun with {config.versions}, now {_versions()}: the result may differ in its last digits")
    best = _Best(config, prepared, folder)
    around = Surroundings(stream.take, lambda: stream.position, best.evaluate, best.keep, stop_signal)
    state = trainer.run(around)
    log.say(f"done: {_outcome(state, folder)}")
    return _result(state, folder)


def _outcome(state: RunState, folder: Path) -> str:
    return (
        f"{state.step} updates; the best model, of update {state.best_step} with a validation BLEU of "
        f"{state.best_score:.2f} (greedy), is in {folder / 'best'}"
    )


def _result(state: RunState, folder: Path) -> Result:
    assert state.best_score is not None
    return Result(folder, state.step, state.best_step, state.best_score)


def _versions() -> dict[str, str]:
    return {"multihead": version("multihead"), "torch": torch.__version__, "python": platform.python_version()}


def _stream(prepared: Prepared, training: TrainingConfig, position: tuple[int, int]) -> BatchStream:
    return BatchStream(
        prepared.train,
        training.batch_tokens,
        training.seed,
        pad_id=Tokenizer.pad_id,
        bos_id=Tokenizer.bos_id,
        eos_id=Tokenizer.eos_id,
        position=position,
    )


class _Best:
    """Judges models on the validation set and keeps the best one."""

    def __init__(self, config: RunConfig, prepared: Prepared, folder: Path) -> None:
        self.config, self.prepared, self.folder = config, prepared, folder
        lengths = [
            int(a) + int(b) + 2
            for a, b in zip(prepared.valid.source.lengths, prepared.valid.target.lengths, strict=True)
        ]
        groups = batches_by_tokens(lengths, 2 * config.training.batch_tokens)
        ids = {"pad_id": Tokenizer.pad_id, "bos_id": Tokenizer.bos_id, "eos_id": Tokenizer.eos_id}
        self._batches = [collate(prepared.valid, np.array(group), **ids) for group in groups]

    def evaluate(self, model: Transformer) -> Validation:
        """Loss of all pairs; BLEU and chrF of greedy translations of the first ones."""
        nll, correct, tokens = self._loss(model)
        sources = self.prepared.valid_sources[:_VALID_SENTENCES]
        hypotheses = Translator(self._bundle(model)).translate(sources, beam=1, batch_tokens=8192)
        references = self.prepared.valid_targets[:_VALID_SENTENCES]
        scores = score(hypotheses, references, self.config.data.target_language)
        perplexity = float(torch.tensor(nll / tokens).clamp(max=100.0).exp())
        values = {
            "loss": nll / tokens,
            "perplexity": perplexity,
            "accuracy": correct / tokens,
            "sentences": len(sources),
            **scores.as_dict(),
            "sample": {"source": sources[0], "translation": hypotheses[0], "reference": references[0]},
        }
        summary = (
            f"loss {nll / tokens:.3f}  perplexity {perplexity:.2f}  accuracy {100 * correct / tokens:.1f}%  "
            f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}"
        )
        return Validation(scores.bleu, values, summary)

    @torch.no_grad()
    def _loss(self, model: Transformer) -> tuple[float, int, int]:
        nll, correct, tokens = 0.0, 0, 0
        for batch in self._batches:
            sums = sequence_loss(model, batch.to(self.config.training.device), Tokenizer.pad_id, 0.0)
            nll, correct, tokens = (
                nll + sums.nll.item(),
                correct + int(sums.correct.item()),
                tokens + batch.target_tokens,
            )
        return nll, correct, tokens

    def keep(self, model: Transformer, metrics: dict[str, Any]) -> None:
        """Writes run/best."""
        data = self.config.data
        made_by = f"Trained by multihead {version('multihead')} on {data.pairs:,} sentence pairs."
        shown = {name: value for name, value in metrics.items() if name != "sample"}
        bundles.save(self.folder / "best", self._bundle(model), shown, made_by)

    def _bundle(self, model: Transformer) -> Bundle:
        prepared, data = self.prepared, self.config.data
        return Bundle(
            model,
            prepared.source_tokenizer,
            prepared.target_tokenizer,
            self.config.generation,
            data.source_language,
            data.target_language,
        )


def _begin(
    settings: TrainSettings,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    use_threads: Callable[[int], None],
) -> RunConfig:
    """Prepares a new run and decides everything about it; leaves nothing behind where that cannot be done."""
    files, machine = look_through(settings), inspect_machine()
    require_device(settings.device or machine.device)
    rehearse(settings, files.train.lines, machine)
    with run_folder.preparing(folder):
        choices = Choices(settings)
        prepared = prepare(choices, files, folder, say)
        if (number := stop_signal()) is not None:
            raise Interrupted(number, "stopped while the data were prepared; the same command starts again")
        corpus = Corpus(
            pairs=len(prepared.train),
            target_tokens=int(prepared.train.target.lengths.sum()) + len(prepared.train),
            source_vocab=len(prepared.source_tokenizer),
            target_vocab=len(prepared.target_tokenizer),
            padding_id=Tokenizer.pad_id,
        )
        model = choose_model(choices, corpus, machine)

        def pace(batch_tokens: int, accumulate: int) -> Pace:
            say("measuring how fast this machine trains the model")
            precision = settings.precision or ("bfloat16" if machine.fast_bfloat16 else "float32")
            use_threads(settings.threads or machine.threads)
            trial = TrainingConfig(
                updates=1,
                batch_tokens=batch_tokens,
                accumulate=accumulate,
                precision=precision,
                device=settings.device or machine.device,
                average=0.99,
            )
            return _measure(model, trial, prepared)

        training = choose_training(choices, corpus, model, machine, pace)
        config = RunConfig(
            versions=_versions(),
            asked=run_folder.asked_for(settings),
            data=prepared.config,
            model=model,
            training=training,
            generation=choose_generation(choices),
            reasons=choices.reasons,
        )
        run_folder.write(folder, config)
    _show(config, machine.name, RunLog(folder, say))
    return config


def _measure(model: TransformerConfig, trial: TrainingConfig, prepared: Prepared) -> Pace:
    """Times updates of a throw-away model on real batches, every kind of length among them."""
    with torch.random.fork_rng():
        network = Transformer(model).to(trial.device)
        optimizer, stream = build_optimizer(network, trial), _stream(prepared, trial, (0, 0))
        average: Average[Transformer] = Average(network, trial.average)
        seconds, tokens = [], []
        for step in range(1, 16):
            started = time.perf_counter()
            batches = [stream.take().to(trial.device) for _ in range(trial.accumulate)]
            sums = train_step(network, optimizer, batches, trial, step, 1e-5, Tokenizer.pad_id)
            average.update(step)
            seconds.append(time.perf_counter() - started)
            tokens.append(sums.tokens)
    return Pace(statistics.median(seconds[3:]), statistics.fmean(tokens))  # the first ones warm up


def _show(config: RunConfig, machine: str, log: RunLog) -> None:
    """Says what was decided and why."""
    data, model, training = config.data, config.model, config.training
    log.say(f"{data.pairs:,} training pairs, {machine}; decided (run.json has it all):")
    shown = {
        "vocab_size": data.vocab_size,
        "preset": f"{model.encoder_layers}+{model.decoder_layers} layers, width {model.width}, "
        f"{model.heads} heads, inner {model.inner}",
        **{name: getattr(model, name) for name in ("norm", "dropout")},
        **{
            name: getattr(training, name)
            for name in (
                "batch_tokens",
                "updates",
                "schedule",
                "learning_rate",
                "warmup",
                "average",
                "precision",
                "threads",
            )
        },
        "held_out": data.held_out,
    }
    for name, value in shown.items():
        log.say(f"  {name:<14} {value}  ({config.reasons.get(name, 'the usual value')})")
