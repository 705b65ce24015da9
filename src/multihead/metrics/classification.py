r"""Classification metrics: accuracy, F1, macro-F1, confusion matrix.

    precision_c = right_c / predicted_c,   recall_c = right_c / actual_c,   F1_c = 2 right_c / (predicted_c + actual_c)
    macro-F1 = mean of F1_c over the classes that occur, as a label or as a prediction

where right_c is the number of documents of class c that were predicted as c. Classes that do not occur are excluded
from the mean; a class that occurs and is never right has 0. Macro-F1 weighs rare classes like frequent ones, accuracy
does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.attention.drawing import format_table
from multihead.errors import InputError

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Classification:
    """The predictions for a set of documents.

    Attributes:
        labels: names of the classes.
        confusion: [actual, predicted]: number of documents.
    """

    labels: tuple[str, ...]
    confusion: Counts

    @property
    def documents(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(self.confusion.trace() / self.documents)

    @property
    def macro_f1(self) -> float:
        """The mean F1 over the classes that occur."""
        counted = self._right_predicted_actual()
        occurring = counted[1] + counted[2] > 0
        return float(self.f1[occurring].mean())

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """Precision of each class; 0 if it was never predicted."""
        right, predicted, _ = self._right_predicted_actual()
        return np.asarray(right / np.maximum(predicted, 1))

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """Recall of each class; 0 if no document has it."""
        right, _, actual = self._right_predicted_actual()
        return np.asarray(right / np.maximum(actual, 1))

    @property
    def f1(self) -> npt.NDArray[np.float64]:
        """F1 of each class; 0 if it does not occur."""
        right, predicted, actual = self._right_predicted_actual()
        return np.asarray(2 * right / np.maximum(predicted + actual, 1))

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "documents": self.documents,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }

    def __str__(self) -> str:
        """Both scores, a line per class, and the confusion matrix (rows: labels, columns: predictions)."""
        head = f"accuracy {self.accuracy:.2%}   macro-F1 {self.macro_f1:.2%}   {self.documents:,} documents"
        scores = zip(self.precision, self.recall, self.f1, self.confusion.sum(1), strict=True)
        each = [["", "precision", "recall", "F1", "documents"]]
        each += [
            [label, f"{precision:.1%}", f"{recall:.1%}", f"{f1:.1%}", f"{count:,}"]
            for label, (precision, recall, f1, count) in zip(self.labels, scores, strict=True)
        ]
        matrix = [["label \\ answer", *self.labels]]
        matrix += [
            [label, *(f"{count:,}" if count else "·" for count in row)]
            for label, row in zip(self.labels, self.confusion, strict=True)
        ]
        return "\n\n".join((head, format_table(each), format_table(matrix)))

    def _right_predicted_actual(self) -> tuple[Counts, Counts, Counts]:
        return self.confusion.diagonal(), self.confusion.sum(0), self.confusion.sum(1)


def score_predictions(actual: Sequence[int], predicted: Sequence[int], labels: Sequence[str]) -> Classification:
    """Count predictions.

    Args:
        actual: class of each document, as an index into ``labels``.
        predicted: predicted class of each document.
        labels: names of the classes.

    Raises:
        InputError: there are no documents, the numbers of labels and predictions differ, or a class does not exist.
    """
    if not actual or len(actual) != len(predicted):
        raise InputError(f"{len(actual)} labels and {len(predicted)} answers; expected equally many, at least one")
    outside = sorted({place for place in (*actual, *predicted) if not 0 <= place < len(labels)})
    if outside:
        raise InputError(f"there is no class {outside[0]}: expected 0 to {len(labels) - 1}")
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, (np.asarray(actual), np.asarray(predicted)), 1)
    return Classification(tuple(labels), confusion)
