"""Labelled documents become a classifier: a run begins or goes on.

A run is a folder, as a translator's is (`runs.translator.train`):

    run.json            everything decided, with reasons: a `ClassifyRun`; written once, before the first update
    data/               what training reads (`runs.classifier.data`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on; of one that began with a pre-trained encoder also where it began
    best/               the model folder of the best validation so far

What is chosen is in `runs.classifier.settings`, what classifies in `runs.classifier.model`, how good it is says
`runs.classifier.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from multihead import work_folder
from multihead.configuration import build
from multihead.data.labeled import count_labels
from multihead.data.nested import DocumentStream
from multihead.data.store import ParallelStore
from multihead.files import write_errors, write_text
from multihead.machine import inspect_machine, require_device
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import BertClassifierConfig
from multihead.models.classifier.network import BertClassifier, Classifier, build_classifier
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.classifier.data import Read, learn_words, read, write_store
from multihead.runs.classifier.evaluation import Best, evaluate
from multihead.runs.classifier.model import Answer, DocumentClassifier
from multihead.runs.classifier.settings import (
    RUN_VERSION,
    ClassifyRun,
    ClassifySettings,
    Facts,
    decide,
    network_of,
    reading_of,
)
from multihead.runs.run import given_model, versions
from multihead.text.bert_words import read_words
from multihead.training.checkpoint import Checkpoint, RunState, save
from multihead.training.progress import RunLog
from multihead.training.trainer import TrainerInputs

__all__ = ["Answer", "DocumentClassifier", "Result", "evaluate", "train"]
from multihead.runs.run import Finished, Kind, carry_out, show, train_to_the_end


class Result(Finished):
    """A finished run; its score is the accuracy on the validation set, in percent."""

    def classifier(self) -> DocumentClassifier:
        """The best model."""
        return DocumentClassifier.load(self.folder)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Result:
    """Trains a classifier, or goes on with one that was stopped.

    Args:
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        use_threads: is told how many threads the run is frozen to: see `runs.translator.train.train`.
        **wishes: fields of `ClassifySettings`: ``data`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(ClassifySettings, wishes, "the settings")
    folder = work_folder.require_output(settings.output)
    return carry_out(
        folder,
        Kind(work_folder.CLASSIFIER, ClassifyRun, RUN_VERSION),
        work_folder.given_settings(settings),
        begin=lambda: _begin(settings, folder, say),
        work=lambda config: _train(config, folder, say, stop_signal),
        use_threads=use_threads,
    )


def _begin(settings: ClassifySettings, folder: Path, say: Callable[[str], None]) -> ClassifyRun:
    """Reads the documents, decides everything, says so, and freezes it."""
    network_of(settings)
    require_device(settings.device or "cpu")
    machine, found = inspect_machine(), read(settings, 1 if settings.seed is None else settings.seed)
    given = described = None
    if settings.from_model is not None:
        given, described = PretrainedBert.load(settings.from_model), given_model(settings.from_model)
    words = learn_words(settings, found.train) if given is None else given.words
    reading = reading_of(settings, found.labels, None if given is None else given.model.config.max_positions)
    with work_folder.preparing(folder):
        data = folder / "data"
        with write_errors(data):
            (data / "words").mkdir(parents=True)
        words.save(data / "words")
        store = write_store(data / "train", found.train, reading, words, found.data.path)
        write_store(data / "valid", found.valid, reading, words, found.data.valid or found.data.path)
        facts = Facts(
            found.data,
            reading,
            len(words),
            words.symbols.pad,
            int(store.source.lengths.sum()),
            found.paragraphs,
            machine.threads,
            versions(),
            None if given is None or described is None else (described, given.model.config),
        )
        config = decide(settings, facts)
        if given is not None:
            _write_start(folder, config, given.model)
        write_text(folder / work_folder.RUN, config.model_dump_json(indent=2) + "\n")
    _show(config, found, store, RunLog(folder, say))
    return config


def _write_start(folder: Path, config: ClassifyRun, given: Bert) -> None:
    """The checkpoint of update 0: the given encoder with a new layer on top, and an optimiser that knows nothing."""
    with torch.random.fork_rng():
        model = _drawn(config)
    assert isinstance(model, BertClassifier)
    model.take_encoder(given)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save(
        folder / "checkpoints", Checkpoint(RunState(), weights, weights if config.training.average else {}, {}), keep=1
    )


def _drawn(config: ClassifyRun) -> Classifier:
    """The network with its first values, a function of the seed."""
    torch.manual_seed(config.training.seed)
    return build_classifier(config.model)


def _show(config: ClassifyRun, found: Read, store: ParallelStore, log: RunLog) -> None:
    """Says what was decided and why."""
    data, reading, training = config.data, config.reading, config.training
    log.say(f"{data.documents:,} documents to learn from, {data.held_out:,} to choose the best model by; labels:")
    learned, held = count_labels(found.train), count_labels(found.valid)
    for label in reading.labels:
        log.say(f"  {label:<14} {learned.get(label, 0):,} and {held.get(label, 0):,}")
    if isinstance(config.model, BertClassifierConfig):
        cut = int((store.source.lengths > reading.max_tokens - 3).sum())
        if cut:
            log.say(f"  {cut:,} documents are longer than {reading.max_tokens} subwords; their rest is not read")
    log.say("decided (run.json has it all):")
    shown = {
        "model": config.model.summary,
        **{name: getattr(config.model, name) for name in ("dropout",)},
        **{
            name: getattr(training, name)
            for name in ("batch_tokens", "updates", "learning_rate", "warmup", "average", "threads")
        },
    }
    show(config, shown, log)


def _train(
    config: ClassifyRun, folder: Path, say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> Result:
    training, data = config.training, folder / "data"
    words, learned, valid = read_words(data / "words"), *map(ParallelStore.open, (data / "train", data / "valid"))
    model = _drawn(config).to(training.device)
    batch = DocumentClassifier(model, words, config.reading).batch

    def around(state: RunState) -> TrainerInputs[Classifier]:
        stream = DocumentStream(learned, training.batch_tokens, training.seed, batch, state.position)
        best = Best(config, words, valid, folder)
        return TrainerInputs(
            stream.take,
            lambda: stream.position,
            best.evaluate,
            best.keep,
            stop_signal,
            source_lines=lambda rows: {config.data.path: sorted(learned.lines[rows].tolist())},
        )

    start = None if config.from_model is None else f"beginning with the encoder of {config.from_model.path}"
    merit = ", gets {:.2f}% of the validation set right and is in"
    done = train_to_the_end(model, config.model.width, config, folder, say, around, merit=merit, start=start)
    return Result(**vars(done))
