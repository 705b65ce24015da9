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
from pathlib import Path
from typing import Any

import numpy as np
import torch

import multihead
from multihead import bundle as bundles
from multihead.bundle import Bundle
from multihead.configuration import build
from multihead.data.batching import BatchStream, batches_by_tokens, collate
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import explained, remove_unfinished, write_text
from multihead.metrics.scores import score
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig
from multihead.training.loss import sequence_loss
from multihead.training.optimizer import build_optimizer
from multihead.training.progress import RunLog
from multihead.training.step import train_step
from multihead.training.trainer import Surroundings, Trainer, Validation
from multihead.workflows.machine import inspect_machine
from multihead.workflows.planning import (
    Choices,
    Corpus,
    Pace,
    choose_generation,
    choose_model,
    choose_training,
)
from multihead.workflows.prepare import Prepared, prepare, reopen
from multihead.workflows.settings import RunConfig, TrainSettings
from multihead.workflows.translate import Translator

_MARKER = "preparing.txt"
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
    threads: Callable[[int], None] = torch.set_num_threads,
    **wishes: Any,
) -> Result:
    """Trains a translator, or goes on with one that was stopped.

    Args:
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        threads: is told how many threads the run is frozen to; results on another number differ in the last bits.
        **wishes: fields of `TrainSettings`: ``source``, ``target`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(TrainSettings, wishes, "the settings")
    if settings.output is None:
        raise ConfigurationError("the run folder is not named: output missing (--output FOLDER)")
    folder = settings.output
    config, prepared = _resume(settings, folder) or _begin(settings, folder, say, stop_signal, threads)
    threads(config.training.threads)
    with torch.random.fork_rng():
        return _train(config, prepared, folder, say, stop_signal)


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
    log.rewind(checkpoint.state.step if checkpoint else 0)
    trainer = Trainer(
        model,
        training,
        width=config.model.width,
        padding_id=Tokenizer.pad_id,
        folder=folder,
        log=log,
        checkpoint=checkpoint,
    )
    stream = _stream(prepared, training, trainer.state.position)
    if checkpoint is not None:
        log.say(f"going on after update {trainer.state.step} of {training.updates}")
    best = _Best(config, prepared, folder)
    around = Surroundings(stream.take, lambda: stream.position, best.evaluate, best.keep, stop_signal)
    state = trainer.run(around)
    assert state.best_score is not None
    log.say(
        f"done: {state.step} updates; the best model, of update {state.best_step} with a validation BLEU of "
        f"{state.best_score:.2f} (greedy), is in {folder / 'best'}"
    )
    return Result(folder, state.step, state.best_step, state.best_score)


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
        made_by = f"Trained by multihead {multihead.__version__} on {data.pairs:,} sentence pairs."
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
    threads: Callable[[int], None],
) -> tuple[RunConfig, Prepared]:
    """Prepares a new run and decides everything about it."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    choices, machine = Choices(settings), inspect_machine()
    write_text(folder / _MARKER, "A run is being prepared here; starting it again prepares it anew.\n")
    prepared = prepare(choices, folder, say)
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
        threads(settings.threads or machine.cores)
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
        versions={
            "multihead": multihead.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        asked=settings.model_dump(mode="json", exclude_none=True, exclude={"output"}),
        data=prepared.config,
        model=model,
        training=training,
        generation=choose_generation(choices),
        reasons=choices.reasons,
    )
    write_text(folder / "run.json", config.model_dump_json(indent=2) + "\n")
    (folder / _MARKER).unlink()
    _show(config, machine.name, RunLog(folder, say))
    return config, prepared


def _measure(model: TransformerConfig, trial: TrainingConfig, prepared: Prepared) -> Pace:
    """Times updates of a throw-away model on real batches, every kind of length among them."""
    with torch.random.fork_rng():
        network = Transformer(model).to(trial.device)
        optimizer, stream = build_optimizer(network, trial), _stream(prepared, trial, (0, 0))
        seconds, tokens = [], []
        for step in range(1, 13):
            batches = [stream.take().to(trial.device) for _ in range(trial.accumulate)]
            started = time.perf_counter()
            sums = train_step(network, optimizer, batches, trial, step, 1e-5, Tokenizer.pad_id)
            seconds.append(time.perf_counter() - started)
            tokens.append(sums.tokens)
    return Pace(statistics.fmean(sorted(seconds[3:])[:-1]), statistics.fmean(tokens))


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


def _resume(settings: TrainSettings, folder: Path) -> tuple[RunConfig, Prepared] | None:
    """The run that stands in ``folder``; ``None`` where there is none yet.

    Raises:
        ConfigurationError: the folder holds something else, or a run that was asked for differently.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder}: is a file; --output names a folder")
    if not folder.exists():
        return None
    path = folder / "run.json"
    if not path.exists():
        if any(folder.iterdir()) and not (folder / _MARKER).exists():
            raise ConfigurationError(
                f"{folder}: holds something that is not a run; nothing was touched. Choose a new folder"
            )
        return None
    try:
        config = RunConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: damaged or from another version: {str(error).splitlines()[0]}") from None
    asked = settings.model_dump(mode="json", exclude_none=True, exclude={"output"})
    differing = [name for name, value in asked.items() if config.asked.get(name) != value]
    if differing:
        changes = ", ".join(
            f"{name} was {config.asked.get(name, 'not given')}, now {asked[name]}" for name in differing
        )
        raise ConfigurationError(
            f"{folder}: holds a run with other settings ({changes}). To go on with it leave them as they were, "
            "or give --output alone; for a new run choose a new folder"
        )
    remove_unfinished(folder)
    return config, reopen(folder, config.data)
