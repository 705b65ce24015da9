"""Draw attention weights as heat maps, or as text for a terminal.

A heat map as in figure 3 of Bahdanau et al., "Neural machine translation by jointly learning to align and translate"
(2015): source on top, target on the left, darker for larger weights, each row a distribution. Fonts are chosen by
`inspection.fonts`. matplotlib's objects are used directly: no window opens, and no state is shared with the caller.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attention.drawing import display_width
from multihead.errors import InputError, ShapeError
from multihead.files import atomic_file
from multihead.inspection.fonts import Fonts, Label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_DOTS_PER_INCH = 150
_CELL = 0.30  # side of a cell in inches, enough for labels of 10 points
_LONGEST_SIDE = 24.0  # inches of cells; more subwords make smaller cells, not a larger picture
_GAP = 0.45  # inches between panels
_COLORMAP = "Blues"
INK, FAINT = "#222222", "#d8dee6"
_FORMATS = (".png", ".svg", ".pdf")


def attention_map(
    weights: Float[Tensor, "*heads target source"],
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    path: str | Path,
    *,
    title: str | None = None,
) -> None:
    """Draw attention weights as one heat map into a PNG, SVG or PDF file, written completely or not at all.

    Args:
        weights: ``weights[..., i, j]`` is the attention of target subword i to source subword j; leading axes
            (heads, layers) are averaged.
        source_pieces: the source subwords, one per column.
        target_pieces: the target subwords, one per row.
        path: a file name that ends in ``.png``, ``.svg`` or ``.pdf``, in an existing folder.
        title: a line above the picture.

    Raises:
        ShapeError: the numbers of subwords do not match the weights, or there are no weights.
        InputError: the file name is invalid, or weights are negative or not finite.
        MissingDependencyError: matplotlib, or a font for the subwords, is not installed.
        SurroundingsError: the file could not be written.
    """
    path = _check_arguments(path, weights, source_pieces, target_pieces)
    mean = weights.detach().reshape(-1, *weights.shape[-2:]).mean(0, keepdim=True)
    write_picture(path, _draw(path.suffix, mean, source_pieces, target_pieces, title, columns=1))


def attention_panels(
    weights: Float[Tensor, "heads target source"],
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    path: str | Path,
    *,
    title: str | None = None,
) -> None:
    """Draw one heat map per head, side by side with a common color scale; otherwise as `attention_map`."""
    path = _check_arguments(path, weights, source_pieces, target_pieces)
    # As many columns as make the picture about square.
    columns = round(math.sqrt(len(weights) * len(target_pieces) / len(source_pieces)))
    columns = min(max(columns, 1), len(weights))
    write_picture(path, _draw(path.suffix, weights.detach(), source_pieces, target_pieces, title, columns, "head"))


def _check_arguments(
    path: str | Path, weights: Tensor, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> Path:
    """Check everything before drawing."""
    expected = (len(target_pieces), len(source_pieces))
    if tuple(weights.shape[-2:]) != expected:
        raise ShapeError(
            f"the weights are {tuple(weights.shape)}, but there are {expected[0]} target and {expected[1]} "
            f"source subwords: expected a shape that ends in {expected} (rows are the target's)"
        )
    if weights.numel() == 0:
        raise ShapeError(f"weights of shape {tuple(weights.shape)} are empty; expected at least one weight")
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise InputError(
            "attention weights to draw must be finite and at least 0; these hold NaN, infinity or negative "
            "numbers: were they taken before the softmax?"
        )
    return check_path(path)


def check_path(path: str | Path) -> Path:
    """Check the file name of a picture.

    Raises:
        InputError: the format is unknown, the file is a folder, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: a picture is PNG, SVG or PDF; give a file name that ends in .png, .svg or .pdf")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file to write the picture to")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")
    return path


def _draw(
    suffix: str,
    weights: Tensor,
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    title: str | None,
    columns: int,
    caption: str | None = None,
) -> bytes:
    """Draw panels in a grid, with labels above the first row and left of the first column."""
    fonts = Fonts([*source_pieces, *target_pieces, *(title or "").split()])
    sources, targets = map(fonts.label, source_pieces), map(fonts.label, target_pieces)
    above, left = list(sources), list(targets)
    rows = math.ceil(len(weights) / columns)
    cell = min(_CELL, _LONGEST_SIDE / max(columns * len(above), rows * len(left)))
    size = min(10.0, 0.55 * 72 * cell)  # in points, 72 per inch
    grid = _Grid(cell * len(above), cell * len(left), rows, columns)
    figure = grid.figure()
    # The darkest color is the largest weight: on a scale up to 1, the mean of many heads would be faint.
    highest = float(weights.max())
    for index, matrix in enumerate(weights):
        axes = grid.axes(figure, index)
        _draw_heat_map(axes, matrix, highest)
        _label_columns(axes, above if index < columns else [], size)
        _label_rows(axes, left if index % columns == 0 else [], size)
        if caption:
            style_text(axes.set_xlabel(f"{caption} {index + 1}"), fonts.default, size)
    _draw_color_key(grid.key_axes(figure), highest, fonts.default)
    if title:
        _draw_title(figure, fonts.runs(title))
    return render_figure(figure, suffix.lower().removeprefix("."))


def render_figure(figure: Figure, form: str) -> bytes:
    """The bytes of a picture, without dates and random ids, so that equal pictures are equal files."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    timeless: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "multihead", "svg.fonttype": "path", "pdf.compression": 6}):
        figure.savefig(
            buffer,
            format=form,
            dpi=_DOTS_PER_INCH,
            facecolor="white",
            bbox_inches="tight",
            pad_inches=0.15,
            metadata=timeless.get(form),
        )
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Grid:
    """Layout of panels of ``width`` by ``height`` inches; labels lie outside, and saving makes room for them."""

    width: float
    height: float
    rows: int
    columns: int

    @property
    def total_width(self) -> float:
        return self.columns * (self.width + _GAP) - _GAP

    @property
    def total_height(self) -> float:
        return self.rows * (self.height + _GAP) - _GAP

    def figure(self) -> Figure:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure((self.total_width, self.total_height), _DOTS_PER_INCH)
        FigureCanvasAgg(figure)  # registers itself with the figure, which is then drawn in memory without a display
        return figure

    def axes(self, figure: Figure, index: int) -> Axes:
        row, column = divmod(index, self.columns)
        top = self.total_height - row * (self.height + _GAP)
        return self._box(figure, column * (self.width + _GAP), top - self.height, self.width, self.height)

    def key_axes(self, figure: Figure) -> Axes:
        height = min(self.height, 1.8)
        return self._box(figure, self.total_width + 0.2, self.total_height - height, 0.12, height)

    def _box(self, figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
        across, up = self.total_width, self.total_height
        return figure.add_axes((left / across, bottom / up, width / across, height / up))


def _draw_heat_map(axes: Axes, matrix: Tensor, highest: float) -> None:
    values = matrix.cpu().to(torch.float64).numpy()  # in this order: MPS has no float64
    axes.imshow(
        values,
        cmap=_COLORMAP,
        vmin=0,
        vmax=highest or 1.0,
        aspect="auto",
        interpolation="nearest",  # with "none", viewers of SVG and PDF blur the cells
        origin="upper",
    )
    rows, columns = matrix.shape
    axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.5)
    _style_axes(axes)


def _style_axes(axes: Axes) -> None:
    axes.xaxis.tick_top()
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)


def _label_columns(axes: Axes, names: Sequence[Label], size: float) -> None:
    axes.set_xticks(range(len(names)), [name.text for name in names])
    for text, name in zip(axes.get_xticklabels(), names, strict=True):
        style_text(text, name.font, size)
        # Short labels, such as numbers, are not rotated.
        text.set(rotation=0 if _letters(name.text) <= 2 else 90, verticalalignment="bottom")


def _label_rows(axes: Axes, names: Sequence[Label], size: float) -> None:
    axes.set_yticks(range(len(names)), [name.text for name in names])
    for text, name in zip(axes.get_yticklabels(), names, strict=True):
        style_text(text, name.font, size)


def _letters(text: str) -> int:
    """Approximate width of a text in letters; a Chinese character counts as two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _draw_color_key(axes: Axes, highest: float, font: Path) -> None:
    """Draw the color scale: 0 at the bottom, the largest weight on top."""
    axes.imshow([[step / 255] for step in range(256)], cmap=_COLORMAP, aspect="auto", origin="lower")
    _style_axes(axes)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([0, 255], ["0", f"{highest:.2g}"])
    for text in axes.get_yticklabels():
        style_text(text, font, 8.0)


def _draw_title(figure: Figure, runs: Sequence[Label]) -> None:
    """Draw a line above everything drawn so far, aligned with the first panel."""
    from matplotlib.artist import Artist
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    boxes: list[Artist] = [TextArea(run.text, textprops=_text_properties(run.font, 12.0)) for run in runs]
    top = max(box.ymax for axes in figure.axes if (box := axes.get_tightbbox()))
    title = AnchoredOffsetbox(
        "lower left",
        child=HPacker(children=boxes, pad=0, sep=0, align="baseline"),
        pad=0,
        borderpad=0,
        frameon=False,
        bbox_to_anchor=(0, (top + 0.1 * _DOTS_PER_INCH) / figure.bbox.height),
        bbox_transform=figure.transFigure,
    )
    figure.add_artist(title)


def style_text(text: Text, font: Path, size: float) -> None:
    """Set the font, size and color of a text."""
    text.set(**_text_properties(font, size))


def _text_properties(font: Path, size: float) -> dict[str, Any]:
    """Text properties that disable formulas, whatever the caller's settings."""
    from matplotlib.font_manager import FontProperties

    properties = FontProperties(fname=font, size=size)
    return {"fontproperties": properties, "color": INK, "parse_math": False, "usetex": False}


def write_picture(path: Path, content: bytes) -> None:
    """Write a picture completely or not at all."""
    with atomic_file(path) as draft:
        draft.write_bytes(content)


def attention_text(
    weights: Float[Tensor, "rows columns"], rows: Sequence[str], columns: Sequence[str], width: int = 80
) -> str:
    """A table of percentages for a terminal; · stands for less than 0.5%.

    A table wider than the terminal is continued below.

    Args:
        weights: each row is a distribution over the columns.
        rows: labels of the rows, the attending subwords.
        columns: labels of the columns, the attended subwords.
        width: width of the terminal in characters.

    Raises:
        ShapeError: the numbers of labels do not match the weights.
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
        parts.append("\n".join(_format_row(label, margin, entries, widths[part]) for label, entries in lines))
        start = stop
    return "\n\n".join(parts)


def _format_row(label: str, margin: int, entries: Sequence[str], widths: Sequence[int]) -> str:
    placed = (" " * (width - display_width(entry)) + entry for entry, width in zip(entries, widths, strict=True))
    return f"{label}{' ' * (margin - display_width(label))}  {' '.join(placed)}".rstrip()


def _percent(weight: float) -> str:
    return f"{100 * weight:.0f}" if weight >= 0.005 else "·"
