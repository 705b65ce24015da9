"""Pictures of numbers over updates: panels below each other, a colour for each run, in the style of `inspection.plots`.

Where the numbers come from is for others to say (`runs.curves`).
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

_COLOURS = (
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
_WIDTH, _HEIGHT = 7.0, 2.4  # inches of a panel


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    """Of the run; lines of one name have one colour."""
    points: Sequence[tuple[int, float]]
    """Update and value, in the order of updates."""
    judged: bool = False
    """Measured now and then, on other data: drawn with a mark at each point."""


@dataclass(frozen=True)
class Panel:
    """Curves on one scale."""

    title: str
    lines: Sequence[Line]


def draw_curves(panels: Sequence[Panel], path: str | Path) -> None:
    """Draws panels below each other into a PNG, SVG or PDF file that is written whole or not at all.

    Args:
        panels: those without a point are left out.
        path: the file; its name ends in ``.png``, ``.svg`` or ``.pdf`` and its folder exists.

    Raises:
        InputError: the file cannot be one, or there is nothing to draw.
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
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH, _HEIGHT * len(shown)))
    FigureCanvasAgg(figure)  # puts itself in the figure: drawing into memory, on any machine
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.35})
    for panel, axes in zip(shown, grid[:, 0], strict=True):
        _draw(axes, panel, colours, fonts.default)
    style_text(grid[-1, 0].set_xlabel("update"), fonts.default, 9.0)
    _name(grid[0, 0], [(labels[name], colours[name]) for name in names])
    write_picture(path, render_figure(figure, path.suffix.lower().removeprefix(".")))


def _draw(axes: Axes, panel: Panel, colours: dict[str, str], font: Path) -> None:
    for line in panel.lines:
        steps, values = [step for step, _ in line.points], [value for _, value in line.points]
        look = {"linestyle": "--", "marker": "o", "markersize": 3.0} if line.judged else {"linestyle": "-"}
        axes.plot(steps, values, color=colours[line.name], linewidth=1.2, **look)
    style_text(axes.set_title(panel.title, loc="left"), font, 10.0)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        style_text(text, font, 8.0)


def _name(axes: Axes, entries: Sequence[tuple[Label, str]]) -> None:
    """Which colour is which run, where there are several."""
    if len(entries) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour) for _, colour in entries]
    legend = axes.legend(handles, [label.text for label, _ in entries], frameon=False, loc="upper right")
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        style_text(text, label.font, 8.0)
