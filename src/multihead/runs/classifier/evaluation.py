"""How good a classifier is: of a run's models on its validation set, and of a finished one on a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from multihead.data.labeled import check_labels, read_labeled
from multihead.data.nested import read_documents
from multihead.data.order import batches_by_tokens
from multihead.data.store import ParallelStore
from multihead.metrics.classification import Classification, score_predictions
from multihead.models.classifier.network import Classifier
from multihead.runs.classifier.model import DocumentClassifier
from multihead.runs.classifier.settings import ClassifyRun
from multihead.text.bert_words import BertWords
from multihead.training.loss import sequence_loss
from multihead.training.trainer import Validation


class Best:
    """Judges the models of a run on its validation set, and writes the best one to the folder ``best``.

    Args:
        config: the run.
        words: its vocabulary.
        valid: the validation set.
        folder: of the run.
    """

    def __init__(self, config: ClassifyRun, words: BertWords, valid: ParallelStore, folder: Path) -> None:
        self.config, self.words, self.valid, self.folder = config, words, valid, folder
        self._groups = batches_by_tokens(valid.source.lengths.tolist(), 4 * config.training.batch_tokens)

    def _holding(self, model: Classifier) -> DocumentClassifier:
        return DocumentClassifier(model, self.words, self.config.reading)

    def evaluate(self, model: Classifier) -> Validation:
        """Accuracy in percent; macro-F1, and the loss a document."""
        holding, nll, actual, predicted = self._holding(model), 0.0, list[int](), list[int]()
        for group in self._groups:
            places = np.array(group)
            batch = holding.batch(read_documents(self.valid, places), places).to(self.config.training.device)
            predicted += holding.predictions(batch)
            actual += batch.labels.tolist()
            nll += sequence_loss(model, batch, 0.0).nll.item()
        found = score_predictions(actual, predicted, self.config.reading.labels)
        loss = nll / len(actual)
        values = {"loss": loss, **found.as_dict()}
        summary = f"loss {loss:.4f}  accuracy {found.accuracy:.2%}  macro-F1 {found.macro_f1:.2%}"
        return Validation(100 * found.accuracy, loss, values, summary)

    def keep(self, model: Classifier, metrics: dict[str, Any]) -> None:
        """Writes the folder ``best`` of the run."""
        self._holding(model).save(self.folder / "best", metrics)


def evaluate(
    model: str | Path | DocumentClassifier, data: str | Path, *, progress: Callable[[int], None] = lambda _: None
) -> Classification:
    """Measures a classifier on labelled documents.

    Args:
        model: a run or model folder, or a loaded classifier.
        data: the file, as training reads it.
        progress: is told how many more documents are done.

    Raises:
        DataError: a line that is no labelled document, or has a label that the model does not know.
        FormatError: no model.
    """
    documents = read_labeled(data)
    classifier = model if isinstance(model, DocumentClassifier) else DocumentClassifier.load(model)
    labels = classifier.reading.labels
    check_labels(documents, labels, data)
    places = {label: place for place, label in enumerate(labels)}
    answers = classifier.classify([document.text for document in documents], progress)
    return score_predictions(
        [places[document.label] for document in documents], [places[answer.label] for answer in answers], labels
    )
