"""A boolean grid as text: ■ and ·, with tokens of any script as labels. Masks draw themselves with it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def draw_grid(
    rows: Sequence[Sequence[bool]],
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
) -> str:
    """One line a row and one column a cell: ■ = True, · = False.

    Args:
        rows: the grid; every row has the same number of cells.
        row_labels: written in front of the rows, as many as there are rows.
        column_labels: written above the columns, as many as there are columns.
    """
    columns = ([""] * len(rows[0]) if rows else []) if column_labels is None else list(column_labels)
    widths = [max(1, display_width(label)) for label in columns]
    labels = [""] * len(rows) if row_labels is None else list(row_labels)
    margin = 0 if row_labels is None else max(map(display_width, labels), default=0) + 1

    def line(label: str, cells: Sequence[str]) -> str:
        padded = [_pad(cell, width) for cell, width in zip(cells, widths, strict=True)]
        return (_pad(label, margin) + " ".join(padded)).rstrip()

    head = [] if column_labels is None else [line("", columns)]
    body = [line(label, ["■" if cell else "·" for cell in row]) for label, row in zip(labels, rows, strict=True)]
    return "\n".join(head + body)


def display_width(text: str) -> int:
    """Columns in a terminal: two for wide characters (Chinese, emoji), none for combining marks."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _pad(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))
