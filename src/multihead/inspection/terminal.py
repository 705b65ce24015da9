"""Attention weights as text, for a terminal: no picture, no package.

Pictures of the same are in `multihead.inspection.plots`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from multihead.attention.drawing import display_width
from multihead.errors import ShapeError


def attention_text(
    weights: Float[Tensor, "rows columns"], rows: Sequence[str], columns: Sequence[str], width: int = 80
) -> str:
    """A table of percentages: who looks in front of a row, what is looked at above a column; · is less than half of 1%.

    What is wider than the terminal goes on below.

    Args:
        weights: each row a distribution over the columns.
        rows: the subwords that look.
        columns: the subwords that are looked at.
        width: of the terminal, in letters.

    Raises:
        ShapeError: the labels are not as many as the weights.
    """
    if tuple(weights.shape) != (len(rows), len(columns)):
        raise ShapeError(f"weights {list(weights.shape)}, but {len(rows)} labels of rows and {len(columns)} of columns")
    margin = max(map(display_width, rows), default=0)
    cells = [[_percent(value) for value in row] for row in weights.tolist()]
    widths = [max(3, display_width(label)) for label in columns]
    parts: list[str] = []
    start = 0
    while start < len(columns):
        stop, used = start + 1, margin + 2 + widths[start]
        while stop < len(columns) and used + 1 + widths[stop] <= width:
            used += 1 + widths[stop]
            stop += 1
        part = slice(start, stop)
        lines = [("", columns[part]), *((label, row[part]) for label, row in zip(rows, cells, strict=True))]
        parts.append("\n".join(_line(label, margin, entries, widths[part]) for label, entries in lines))
        start = stop
    return "\n\n".join(parts)


def _line(label: str, margin: int, entries: Sequence[str], widths: Sequence[int]) -> str:
    placed = (" " * (width - display_width(entry)) + entry for entry, width in zip(entries, widths, strict=True))
    return f"{label}{' ' * (margin - display_width(label))}  {' '.join(placed)}".rstrip()


def _percent(weight: float) -> str:
    return f"{100 * weight:.0f}" if weight >= 0.005 else "·"
