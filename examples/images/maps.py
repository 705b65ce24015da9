"""Plots of image attention maps: one row per image, one column per module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ShapeError
from multihead.inspection.fonts import Fonts
from multihead.inspection.plots import FAINT, check_path, render_figure, style_text, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDE = 0.6  # inches per panel
_COLORS = "Blues"


def image_maps(
    images: Float[Tensor, "batch 3 height width"],
    maps: Mapping[str, Float[Tensor, "_ c h w"]],
    path: str | Path,
    *,
    names: Sequence[str],
) -> None:
    """Plot images and their attention maps into a PNG, SVG or PDF file, written atomically.

    A spatial map is shown as the mean over its channels. A map without places is shown as one square per channel, in
    rows. The range of values, from white to dark, is printed below each column.

    Args:
        images: red, green and blue between 0 and 1.
        maps: `ImageAttention.gate` of these images, by the name of the module.
        path: the output file, ending in ``.png``, ``.svg`` or ``.pdf``, in an existing folder.
        names: names of the images, one per row.

    Raises:
        ShapeError: the numbers of images, maps and names differ or are zero.
        InputError: the path is not valid.
        MissingDependencyError: matplotlib, or a font for the names, is not installed.
        SurroundingsError: the file could not be written.
    """
    path = check_path(path)
    counts = {len(images), len(names), *(len(found) for found in maps.values())}
    if len(counts) != 1 or not len(images):
        raise ShapeError(
            f"{len(images)} images, {len(names)} names and maps of {[len(found) for found in maps.values()]} images: "
            "expected the same number of each, at least one"
        )
    fonts = Fonts([*names, *maps])
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((_SIDE * (1 + len(maps)), _SIDE * len(images)))
    FigureCanvasAgg(figure)  # attaches itself to the figure and draws in memory, without a display
    grid = figure.subplots(len(images), 1 + len(maps), squeeze=False, gridspec_kw={"hspace": 0.12, "wspace": 0.12})
    for axes, image, name in zip(grid[:, 0], images, names, strict=True):
        axes.imshow(image.detach().clamp(0, 1).permute(1, 2, 0).double().cpu().numpy(), interpolation="nearest")
        label = fonts.label(name)
        style_text(axes.set_ylabel(label.text), label.font, 6.0)
    for column, (name, found) in zip(grid.T[1:], maps.items(), strict=True):
        label = fonts.label(name)
        style_text(column[0].set_title(label.text), label.font, 6.0)
        drawn = [_flat(one) for one in found.detach().double().cpu()]
        least, most = (extreme(float(extreme(one[one.isfinite()])) for one in drawn) for extreme in (min, max))
        for axes, one in zip(column, drawn, strict=True):
            axes.imshow(one.numpy(), cmap=_COLORS, vmin=least, vmax=most, interpolation="nearest")
        style_text(column[-1].set_xlabel(f"{least:.2f} – {most:.2f}"), fonts.default, 5.0)
    for axes in grid.flat:
        _tidy(axes)
    write_picture(path, render_figure(figure, path.suffix.lower().removeprefix(".")))


def _flat(found: Tensor) -> Tensor:
    """The map [channels, height, width] of one image as a 2-D panel: its places, or else its channels."""
    if found.shape[1:] != (1, 1):
        return found.mean(0)
    columns = math.ceil(len(found) ** 0.5)
    rows = math.ceil(len(found) / columns)
    return F.pad(found[:, 0, 0], (0, rows * columns - len(found)), value=float("nan")).view(rows, columns)


def _tidy(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
