"""Train and evaluate a document classifier: ``multihead classify``.

A run is a folder:

    run.json            every decision with its reason: a `ClassifyRunConfig`; written once, before the first update
    run.copy.json       a copy of it, in case it is lost (`work_folder.restore`)
    data/               what training reads (`runs.classifier.data`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run resumes; of one that starts from a pre-trained encoder also where it started
    best/               the model folder of the best validation so far

The rules are in `runs.classifier.settings`, the classifier itself in `runs.classifier.model`, and what happens in which
order in `runs.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from multihead import work_folder
from multihead.configuration import build, inspect_machine, require_device
from multihead.data.labeled import check_labels, count_labels, read_labeled
from multihead.data.nested import DocumentStream, check_classes, lengths_read, read_documents
from multihead.data.order import batches_by_tokens
from multihead.data.store import ParallelStore
from multihead.files import write_errors
from multihead.metrics.classification import Classification, score_predictions
from multihead.model_folder import WEIGHTS, open_model
from multihead.models.classifier.config import BertClassifierConfig
from multihead.models.classifier.network import BertClassifier, Classifier, build_classifier
from multihead.planning.settings import GivenModel
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.classifier.data import LARGEST, learn_words, read_split, write_store
from multihead.runs.classifier.model import DocumentClassifier, collate_documents
from multihead.runs.classifier.settings import (
    ClassifyFacts,
    ClassifyRunConfig,
    ClassifySettings,
    choose_format,
    choose_network,
    decide,
)
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
from multihead.text.bert_words import BertWords, read_words
from multihead.training.checkpoint import Checkpoint, RunState
from multihead.training.context import RunContext, Validation
from multihead.training.progress import RunLog
from multihead.training.splitting import sequence_loss
from multihead.urls import absolute
from multihead.work_folder import open_work


class ClassifyResult(RunResult):
    """A finished run; its score is the accuracy on the validation set, in percent."""

    def classifier(self) -> DocumentClassifier:
        return DocumentClassifier.load(self.folder)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> ClassifyResult:
    """Train a classifier, or resume a run that was stopped.

    Args:
        say: called with each line of output.
        stop_signal: called between updates; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads that the run is frozen to: see `runs.translator.train.train`.
        **settings: fields of `ClassifySettings`; ``data`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call resumes the run.
    """
    given = build(ClassifySettings, settings, "the settings")
    folder = work_folder.require_output(given.output)
    return execute(ClassifyRun(given, folder, RunContext(say, stop_signal, use_threads)), ClassifyResult)


class StoredDocuments(NamedTuple):
    """What training reads."""

    words: BertWords
    train: ParallelStore
    valid: ParallelStore


class NewClassifyRun(NewRun[ClassifyRunConfig, StoredDocuments]):
    """A classifier's run that begins."""

    def __init__(self, settings: ClassifySettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        choose_network(settings)
        require_device(settings.device or "cpu")
        seed = 1 if settings.seed is None else settings.seed
        self._documents = read_split(settings, seed)
        self._given = None if settings.from_model is None else _load_given(settings.from_model, seed)
        self._origin = None if settings.from_model is None else _origin(settings.from_model)
        given, documents = self._given, self._documents
        self._words = learn_words(settings, documents.train) if given is None else given.words
        most = None if given is None else given.model.config.max_positions
        self._format = choose_format(settings, documents.labels, most)

    def prepare(self) -> StoredDocuments:
        data, documents, words = self._folder / "data", self._documents, self._words
        with write_errors(data):
            (data / "words").mkdir(parents=True)
        words.save(data / "words")
        train = write_store(data / "train", documents.train, self._format, words, documents.data.path)
        valid_path = documents.data.valid or documents.data.path
        return StoredDocuments(
            words, train, write_store(data / "valid", documents.valid, self._format, words, valid_path)
        )

    def decide(self, data: StoredDocuments) -> ClassifyRunConfig:
        given = None
        if self._given is not None and self._origin is not None:
            given = (self._origin, self._given.model.config)
        most = self._format.max_tokens if choose_network(self._settings) == "bert" else None
        facts = ClassifyFacts(
            data=self._documents.data,
            reading=self._format,
            vocab=len(data.words),
            padding_id=data.words.symbols.pad,
            tokens=int(_lengths(data.train, most).sum()),
            paragraphs=self._documents.paragraphs,
            threads=inspect_machine().threads,
            versions=installed_versions(),
            given=given,
        )
        return decide(self._settings, facts)

    def first_checkpoint(self, config: ClassifyRunConfig) -> Checkpoint | None:
        """The given encoder with a new layer on top."""
        if self._given is None:
            return None
        with torch.random.fork_rng():
            torch.manual_seed(config.training.seed)
            model = build_classifier(config.model)
        assert isinstance(model, BertClassifier)
        model.copy_encoder(self._given.model)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return Checkpoint(RunState(), weights, weights if config.training.average else {}, {})

    def report(self, config: ClassifyRunConfig, data: StoredDocuments, log: RunLog) -> None:
        counts, format_, training = config.data, config.reading, config.training
        log.say(
            f"{counts.documents:,} documents to learn from, {counts.held_out:,} to choose the best model by; labels:"
        )
        train, valid = count_labels(self._documents.train), count_labels(self._documents.valid)
        for label in format_.labels:
            log.say(f"  {label:<14} {train.get(label, 0):,} and {valid.get(label, 0):,}")
        if (most := _most(config)) is not None:
            cut = int((data.train.source.lengths > _lengths(data.train, most)).sum())
            if cut:
                log.say(f"  {cut:,} documents are longer than {format_.max_tokens} subwords; their rest is not read")
        log.say("decided (run.json has it all):")
        fields = ("batch_tokens", "updates", "learning_rate", "warmup", "average", "threads")
        shown = {
            "model": config.model.summary,
            "dropout": config.model.dropout,
            **{name: getattr(training, name) for name in fields},
        }
        log_decisions(config.reasons, shown, log)


def _load_given(folder: Path, seed: int) -> PretrainedBert:
    """The BERT that a run starts from; the seed of the run draws the parts that it lacks, such as the pooler."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return PretrainedBert.load(folder)


def _origin(folder: Path) -> GivenModel:
    """What run.json records of the BERT that a run starts from, which may be in Hugging Face's format."""
    with open_model(folder) as opened:
        return GivenModel(path=str(absolute(folder)), weights=opened.digest(WEIGHTS))


def _most(config: ClassifyRunConfig) -> int | None:
    """The tokens of a document that the network reads at most, special symbols included; None = all."""
    return config.reading.max_tokens if isinstance(config.model, BertClassifierConfig) else None


def _lengths(store: ParallelStore, most: int | None) -> npt.NDArray[np.integer[Any]]:
    """The number of subwords of each document that the network reads."""
    return store.source.lengths if most is None else lengths_read(store, most)


class ClassifyRun(RunKind[ClassifySettings, ClassifyRunConfig, StoredDocuments, Classifier]):
    """A run that trains a document classifier."""

    config_class = ClassifyRunConfig
    outcome = ", gets {:.2f}% of the validation set right and is in"

    def begin(self) -> NewClassifyRun:
        return NewClassifyRun(self.settings, self.folder)

    def open(self, config: ClassifyRunConfig) -> StoredDocuments:
        with open_work(self.folder) as opened:
            data = opened.part("data")
            words = read_words(data.part("words"))
            train, valid = (ParallelStore.open(data.part(name)) for name in ("train", "valid"))
            for name, store in (("train", train), ("valid", valid)):
                store.check_ids(len(words), LARGEST, data.path / name)
                check_classes(store, config.model.classes, data.path / name)
            return StoredDocuments(words, train, valid)

    def network(self, config: ClassifyRunConfig) -> Classifier:
        return build_classifier(config.model).to(config.training.device)

    def batches(self, config: ClassifyRunConfig, data: StoredDocuments, position: tuple[int, int]) -> BatchSource:
        collate, training = partial(collate_documents, config.model, data.words, config.reading), config.training
        stream = DocumentStream(data.train, training.batch_tokens, training.seed, collate, position, _most(config))
        return BatchSource(stream, lambda rows: {config.data.path: sorted(data.train.lines[rows].tolist())})

    def start_message(self, config: ClassifyRunConfig) -> str | None:
        return None if config.from_model is None else f"beginning with the encoder of {config.from_model.path}"

    def judge(self, config: ClassifyRunConfig, data: StoredDocuments) -> ClassifyJudge:
        return ClassifyJudge(config, data)


class ClassifyJudge(Judge[Classifier]):
    """Judges models by their accuracy on the validation set."""

    def __init__(self, config: ClassifyRunConfig, data: StoredDocuments) -> None:
        self.config, self.words, self.valid = config, data.words, data.valid
        lengths = _lengths(data.valid, _most(config))
        self._groups = batches_by_tokens(lengths.tolist(), 4 * config.training.batch_tokens)

    def evaluate(self, model: Classifier) -> Validation:
        """Accuracy in percent, macro-F1, and the loss per document."""
        classifier, nll, actual, predicted = self._classifier(model), 0.0, list[int](), list[int]()
        for group in self._groups:
            indices = np.array(group)
            batch = classifier.batch(read_documents(self.valid, indices), indices).to(self.config.training.device)
            predicted += classifier.predictions(batch)
            actual += batch.labels.tolist()
            nll += sequence_loss(model, batch, 0.0).nll.item()
        scores = score_predictions(actual, predicted, self.config.reading.labels)
        loss = nll / len(actual)
        values = {"loss": loss, **scores.as_dict()}
        summary = f"loss {loss:.4f}  accuracy {scores.accuracy:.2%}  macro-F1 {scores.macro_f1:.2%}"
        return Validation(100 * scores.accuracy, loss, values, summary)

    def save(self, model: Classifier, folder: Path, metrics: dict[str, Any]) -> None:
        self._classifier(model).save(folder, metrics)

    def _classifier(self, model: Classifier) -> DocumentClassifier:
        return DocumentClassifier(model, self.words, self.config.reading)


def evaluate(
    model: str | Path | DocumentClassifier, data: str | Path, *, progress: Callable[[int], None] = lambda _: None
) -> Classification:
    """Evaluate a classifier on labeled documents.

    Args:
        model: a run or model folder, or a loaded classifier.
        data: a file in the format of the training file.
        progress: called with the number of newly classified documents.

    Raises:
        DataError: a line is not a labeled document, or its label is unknown to the model.
        FormatError: the folder holds no classifier.
    """
    documents = read_labeled(data)
    classifier = model if isinstance(model, DocumentClassifier) else DocumentClassifier.load(model)
    labels = classifier.reading.labels
    check_labels(documents, labels, data)
    indices = {label: index for index, label in enumerate(labels)}
    answers = classifier.classify([document.text for document in documents], progress)
    return score_predictions(
        [indices[document.label] for document in documents], [indices[answer.label] for answer in answers], labels
    )
