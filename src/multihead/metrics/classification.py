r"""How often a classifier is right: accuracy, precision, recall and F1 of each class, their mean, the confusion matrix.

    precision_c = right_c / predicted_c,   recall_c = right_c / actual_c,   F1_c = 2 right_c / (predicted_c + actual_c)
    macro-F1 = the mean of F1_c over the classes that occur, as a label or as an answer

where right_c are the documents of class c that were taken for c. A class that does not occur has no share in the mean;
one that occurs and is never right has 0. Macro-F1 counts rare classes like frequent ones, accuracy does not.
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
    """What became of some documents.

    Attributes:
        labels: the classes.
        confusion: [actual, predicted]: how many documents of one class were taken for another.
    """

    labels: tuple[str, ...]
    confusion: Counts

    @property
    def documents(self) -> int:
        """How many there were."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return float(self.confusion.trace() / self.documents)

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 of the classes that occur."""
        counted = self._right_predicted_actual()
        occurring = counted[1] + counted[2] > 0
        return float(self.f1[occurring].mean())

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """Of each class; 0 where it was never predicted."""
        right, predicted, _ = self._right_predicted_actual()
        return np.asarray(right / np.maximum(predicted, 1))

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """Of each class; 0 where no document is of it."""
        right, _, actual = self._right_predicted_actual()
        return np.asarray(right / np.maximum(actual, 1))

    @property
    def f1(self) -> npt.NDArray[np.float64]:
        """Of each class; 0 where it does not occur."""
        right, predicted, actual = self._right_predicted_actual()
        return np.asarray(2 * right / np.maximum(predicted + actual, 1))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "documents": self.documents,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }

    def __str__(self) -> str:
        """Both scores; a line a class with its own; the matrix, a row for each label and a column for each answer."""
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
    """Counts.

    Args:
        actual: the class of each document, as a place in ``labels``.
        predicted: what it was taken for.
        labels: the classes.

    Raises:
        InputError: there are no documents, or not as many answers; a class that does not exist.
    """
    if not actual or len(actual) != len(predicted):
        raise InputError(f"{len(actual)} labels and {len(predicted)} answers; expected as many, one at least")
    outside = sorted({place for place in (*actual, *predicted) if not 0 <= place < len(labels)})
    if outside:
        raise InputError(f"there is no class {outside[0]}: expected 0 to {len(labels) - 1}")
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, (np.asarray(actual), np.asarray(predicted)), 1)
    return Classification(tuple(labels), confusion)
