"""Draw curves over updates or time: stacked panels, one color per run.

`runs.curves` reads the values; the style is that of `inspection.plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multihead.errors import InputError
from multihead.inspection.fonts import Fonts, Label
from multihead.inspection.plots import FAINT, check_path, render_figure, style_text, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
)
_WIDTH, _HEIGHT = 7.0, 2.4  # of a panel, in inches


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    """Name of the run; lines with the same name have the same color."""
    points: Sequence[tuple[int | float, float]]
    """Places on the axis (updates, say) and values, in their order."""
    judged: bool = False
    """Whether it was measured at intervals on other data; drawn dashed, with a marker at each point."""


@dataclass(frozen=True)
class Panel:
    """Curves with a common scale."""

    title: str
    lines: Sequence[Line]
    axis: str = "update"
    """What the points are over; panels with the same axis have the same scale there."""


def draw_curves(panels: Sequence[Panel], path: str | Path) -> None:
    """Draw stacked panels into a PNG, SVG or PDF file, which is written completely or not at all.

    Args:
        panels: the panels; those without points are omitted.
        path: a file name that ends in ``.png``, ``.svg`` or ``.pdf``, in an existing folder.

    Raises:
        InputError: the file name is invalid, or there is nothing to draw.
        MissingDependencyError: matplotlib, or a font for the names, is not installed.
        SurroundingsError: the file could not be written.
    """
    path = check_path(path)
    shown = [panel for panel in panels if any(line.points for line in panel.lines)]
    if not shown:
        raise InputError("no curve has a point: nothing to draw")
    names = list(dict.fromkeys(line.name for panel in shown for line in panel.lines))
    fonts = Fonts(names)
    labels = {name: fonts.label(name) for name in names}
    colors = {name: _COLORS[place % len(_COLORS)] for place, name in enumerate(names)}
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH, _HEIGHT * len(shown)))
    FigureCanvasAgg(figure)  # registers itself with the figure, which is then drawn in memory without a display
    alike = len({panel.axis for panel in shown}) == 1
    first: dict[str, Axes] = {}
    space = {"hspace": 0.35 if alike else 0.6}
    grid = figure.subplots(len(shown), 1, sharex=alike, squeeze=False, gridspec_kw=space)
    for panel, axes in zip(shown, grid[:, 0], strict=True):
        if not alike and panel.axis in first:
            axes.sharex(first[panel.axis])
        first.setdefault(panel.axis, axes)
        _draw_panel(axes, panel, colors, fonts.default)
        if not alike or axes is grid[-1, 0]:
            style_text(axes.set_xlabel(panel.axis), fonts.default, 9.0)
    _draw_legend(grid[0, 0], [(labels[name], colors[name]) for name in names])
    write_picture(path, render_figure(figure, path.suffix.lower().removeprefix(".")))


def _draw_panel(axes: Axes, panel: Panel, colors: dict[str, str], font: Path) -> None:
    for line in panel.lines:
        steps, values = [step for step, _ in line.points], [value for _, value in line.points]
        look = {"linestyle": "--", "marker": "o", "markersize": 3.0} if line.judged else {"linestyle": "-"}
        axes.plot(steps, values, color=colors[line.name], linewidth=1.2, **look)
    style_text(axes.set_title(panel.title, loc="left"), font, 10.0)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        style_text(text, font, 8.0)


def _draw_legend(axes: Axes, entries: Sequence[tuple[Label, str]]) -> None:
    """Name the color of each run if there are several."""
    if len(entries) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color) for _, color in entries]
    legend = axes.legend(handles, [label.text for label, _ in entries], frameon=False, loc="upper right")
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        style_text(text, label.font, 8.0)
