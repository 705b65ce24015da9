"""Rows of words and numbers, side by side in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from multihead.attention.drawing import display_width


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first to the left, all others to the right."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - display_width(cell)) if place == 0 else " " * (width - display_width(cell)) + cell
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
