"""Read documents with a label: ``label TAB text``, one per line.

Further tabs in the text separate paragraphs (`text.sentences`). A file is plain or compressed. The first bad line is an
error, named by file and line: leaving out documents silently would change what accuracy means. The labels are those of
the training file (`labels_of`); a file to evaluate on may have no others (`check_labels`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from multihead.configuration import nearest
from multihead.data.text_files import read_lines
from multihead.errors import DataError
from multihead.text.sentences import PARAGRAPH


class LabeledDocument(NamedTuple):
    """A document with its label and the line (from 1) on which it stands."""

    line: int
    label: str
    text: str
    """Paragraphs are separated by tabs."""


def read_labeled(path: str | Path) -> list[LabeledDocument]:
    """All documents of a file, in order.

    Raises:
        DataError: the file cannot be read, or a line is not a document with a label; names the first such line.
    """
    return [_parse(path, number, line) for number, line in enumerate(read_lines(path), start=1)]


def _parse(path: str | Path, number: int, line: str) -> LabeledDocument:
    if not line.strip():
        raise DataError("an empty line; expected label TAB text on every line: remove it", path, number)
    label, tab, text = line.partition("\t")
    if not tab:
        hint = "; a .csv is not read: save it with tabs between label and text" if ".csv" in Path(path).suffixes else ""
        raise DataError(f"no tab; expected label TAB text, got {_beginning(line)}{hint}", path, number)
    if label != label.strip() or not label.isprintable() or not label:
        what = f"got {label!r}" if label else "it is empty"
        raise DataError(
            f"not a label: {what}; expected visible characters, none of them white space at an end", path, number
        )
    for place, paragraph in enumerate(text.split(PARAGRAPH), start=1):
        if not paragraph.strip():
            what = "the text" if text == paragraph else f"paragraph {place} (tabs end paragraphs)"
            raise DataError(
                f"{what} is empty; write one, or remove the {'line' if what == 'the text' else 'tab'}", path, number
            )
    return LabeledDocument(number, label, text)


def _beginning(line: str) -> str:
    return repr(line if len(line) <= 40 else f"{line[:40]}...")


def labels_of(documents: Sequence[LabeledDocument], path: str | Path) -> tuple[str, ...]:
    """The labels that occur, sorted.

    Raises:
        DataError: there are fewer than two.
    """
    labels = tuple(sorted({document.label for document in documents}))
    if len(labels) < 2:
        raise DataError(f"every document has the label {labels[0]!r}; expected two labels at least", path)
    return labels


def check_labels(documents: Sequence[LabeledDocument], labels: Sequence[str], path: str | Path) -> None:
    """Check that all labels are known.

    Raises:
        DataError: a label is not one of ``labels``; names the first such line and the nearest label.
    """
    known = frozenset(labels)
    for document in documents:
        if document.label not in known:
            message = f"{document.label!r} is not a label that the model was trained with"
            raise DataError(f"{message}{nearest(document.label, list(labels))}", path, document.line)


def count_labels(documents: Sequence[LabeledDocument]) -> dict[str, int]:
    """Number of documents of each label, sorted by label."""
    return dict(sorted(Counter(document.label for document in documents).items()))
