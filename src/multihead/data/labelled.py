"""Reading documents that have a label: ``label TAB text``, one a line, every fault named by file and line.

The text may have further tabs: they end paragraphs (`text.sentences`). A file is plain or compressed. Nothing is passed
over: a document that was left out in silence would change what accuracy means, so the first bad line is an error.
Which labels there are is read from the training file (`labels_of`); a file that is measured on may have no others
(`check_labels`).
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


class Labelled(NamedTuple):
    """A document, its label and where it stands."""

    line: int
    """Counted from 1."""
    label: str
    text: str
    """With a tab between its paragraphs."""


def read_labelled(path: str | Path) -> list[Labelled]:
    """All documents of a file, in order.

    Raises:
        DataError: the file cannot be read, or a line is no document with a label: names the first such line.
    """
    return [_labelled(path, number, line) for number, line in enumerate(read_lines(path), start=1)]


def _labelled(path: str | Path, number: int, line: str) -> Labelled:
    """A line taken apart."""
    if not line.strip():
        raise DataError("an empty line; expected label TAB text on every line: remove it", path, number)
    label, tab, text = line.partition("\t")
    if not tab:
        raise DataError(f"no tab; expected label TAB text, got {_beginning(line)}", path, number)
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
    return Labelled(number, label, text)


def _beginning(line: str) -> str:
    return repr(line if len(line) <= 40 else f"{line[:40]}...")


def labels_of(documents: Sequence[Labelled], path: str | Path) -> tuple[str, ...]:
    """The labels that occur, sorted.

    Raises:
        DataError: there are fewer than two: nothing can be told apart.
    """
    labels = tuple(sorted({document.label for document in documents}))
    if len(labels) < 2:
        raise DataError(f"every document has the label {labels[0]!r}; expected two labels at least", path)
    return labels


def check_labels(documents: Sequence[Labelled], labels: Sequence[str], path: str | Path) -> None:
    """Refuses a label that is not one of ``labels``.

    Raises:
        DataError: names the first line with one, and the label that is nearest.
    """
    known = frozenset(labels)
    for document in documents:
        if document.label not in known:
            message = f"the label {document.label!r} is none that the model was trained with"
            raise DataError(f"{message}{nearest(document.label, list(labels))}", path, document.line)


def counts_of(documents: Sequence[Labelled]) -> dict[str, int]:
    """How many documents each label has, by label."""
    return dict(sorted(Counter(document.label for document in documents).items()))
