"""Boolean grids and tables as text, and grids as pictures.

Masks draw themselves with :class:`Drawable`; labels may be of any script. matplotlib is imported when a picture is
requested, and its objects are used directly, so no window opens and none of its settings change. Pictures of attention
*weights* are in :mod:`multihead.inspection.plots`.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.errors import MissingDependencyError, ShapeError, require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL = 0.32  # inches a side
_DARK, _LIGHT, _LINES = "#2f5d8a", "#f4f6f8", "#c9d2db"


def draw_grid(
    rows: Sequence[Sequence[bool]],
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
) -> str:
    """The grid as text, one line per row: ■ = True, · = False.

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
    """Columns in a terminal: two for wide characters (Chinese, emoji), none for marks and what only joins others."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pad(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def plot_grid(
    rows: Sequence[Sequence[bool]],
    axes: Axes | None = None,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
) -> Axes:
    """The grid as a picture: a dark cell = True, the first row on top. Arguments as in :func:`draw_grid`.

    Returns:
        ``axes``, or those of a new figure.

    Raises:
        MissingDependencyError: matplotlib is not installed, or no font on this machine has the labels' characters.
    """
    require_package("matplotlib.colors", "plot", "drawing a mask")
    from matplotlib.colors import ListedColormap

    height, width = len(rows), len(rows[0]) if rows else 0
    axes = _new_axes(height, width) if axes is None else axes
    if height and width:
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), aspect="equal")
        axes.pcolormesh(
            [column - 0.5 for column in range(width + 1)],
            [row - 0.5 for row in range(height + 1)],
            [[int(cell) for cell in row] for row in rows],
            cmap=ListedColormap([_LIGHT, _DARK]),
            vmin=0,
            vmax=1,
            edgecolors=_LINES,
            linewidth=0.8,
        )
    axes.xaxis.tick_top()
    axes.tick_params(which="both", length=0)
    axes.set_xticks(range(len(column_labels or ())), list(column_labels or ()))
    axes.set_yticks(range(len(row_labels or ())), list(row_labels or ()))
    _choose_font(axes, [*(row_labels or ()), *(column_labels or ())])
    return axes


def _new_axes(height: int, width: int) -> Axes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_CELL * width + 1.0, _CELL * height + 1.0), layout="constrained")
    FigureCanvasAgg(figure)  # registers itself with the figure: draws into memory, without a display
    return figure.add_subplot()


def _choose_font(axes: Axes, labels: Sequence[str]) -> None:
    """Set the tick labels in one font that has all of their characters."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.ft2font import FT2Font

    wanted = {ord(character) for label in labels for character in label}
    font = next((path for path in _fonts() if wanted <= FT2Font(str(path)).get_charmap().keys()), None)
    if font is None:
        raise MissingDependencyError("mplfonts", "zh", f"no font on this machine has all of {''.join(labels)!r}; that")
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set(fontproperties=FontProperties(fname=font), parse_math=False)


def _fonts() -> Iterator[Path]:
    """DejaVu Sans, which comes with matplotlib; the system's fonts; those of the optional package ``mplfonts``.

    Fonts of last resort are left out: they draw a box for every character.
    """
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    yield Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    named = (font.fname for font in fontManager.ttflist if "lastresort" not in font.name.lower().replace(" ", ""))
    yield from (path for name in named if (path := Path(name)).is_file())
    installed = find_spec("mplfonts")
    for folder in (installed.submodule_search_locations or ()) if installed else ():
        yield from sorted(Path(folder, "fonts").glob("*.[ot]tf"))


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first column aligned to the left, all others to the right."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - display_width(cell)) if place == 0 else " " * (width - display_width(cell)) + cell
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


class Drawable(ABC):
    """What can be written out as booleans for queries and keys: a mask."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int | None, int | None]:
        """The number of sentences and of heads that it was made for: 1 = any number; None = unknown."""

    @abstractmethod
    def dense(
        self, q_len: int, kv_len: int, device: torch.device | str | None = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        """The booleans; they broadcast to [batch, heads, q_len, kv_len]."""

    def show(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int = 0,
        head: int = 0,
        query_labels: Sequence[str] | None = None,
        key_labels: Sequence[str] | None = None,
    ) -> str:
        """A drawing with one line per query and one column per key: ■ may attend, · may not.

        Args:
            q_len: the number of queries.
            kv_len: the number of keys (default: as many as queries).
            batch: which sentence of the batch.
            head: which head.
            query_labels: tokens to write in front of the lines.
            key_labels: tokens to write above the columns.

        Raises:
            ShapeError: there is no such sentence or head, or the number of labels is wrong.
        """
        return draw_grid(self._grid(q_len, kv_len, batch, head, query_labels, key_labels), query_labels, key_labels)

    def plot(
        self,
        q_len: int,
        kv_len: int | None = None,
        ax: Axes | None = None,
        batch: int = 0,
        head: int = 0,
        query_labels: Sequence[str] | None = None,
        key_labels: Sequence[str] | None = None,
    ) -> Axes:
        """Plot what :meth:`show` shows: a dark cell = may attend. Needs matplotlib.

        Args:
            q_len: the number of queries.
            kv_len: the number of keys (default: as many as queries).
            ax: matplotlib's axes to draw into; None = a new figure, which ``axes.figure.savefig("mask.png")`` saves.
            batch: which sentence of the batch.
            head: which head.
            query_labels: tokens to write beside the rows.
            key_labels: tokens to write above the columns.

        Raises:
            ShapeError: there is no such sentence or head, or the number of labels is wrong.
            MissingDependencyError: matplotlib, or a font with the labels' characters, is not installed.
        """
        return plot_grid(self._grid(q_len, kv_len, batch, head, query_labels, key_labels), ax, query_labels, key_labels)

    def _grid(
        self,
        q_len: int,
        kv_len: int | None,
        batch: int,
        head: int,
        query_labels: Sequence[str] | None,
        key_labels: Sequence[str] | None,
    ) -> list[list[bool]]:
        keys = q_len if kv_len is None else kv_len
        for name, labels, count in (("query", query_labels, q_len), ("key", key_labels, keys)):
            if labels is not None and len(labels) != count:
                raise ShapeError(f"{len(labels)} {name} labels for {count} {name} positions: give one label each")
        known = self.sizes
        for name, index, size in (("batch", batch, known[0]), ("head", head, known[1])):
            if index < 0 or (size is not None and size > 1 and index >= size):
                raise ShapeError(f"{name}={index}, but the mask has only 0 to {(size or 1) - 1}")
        allowed = self.dense(q_len, keys, "cpu", batch=batch + 1, heads=head + 1)
        row = allowed[batch if allowed.shape[0] > 1 else 0, head if allowed.shape[1] > 1 else 0]
        return row.expand(q_len, keys).tolist()
