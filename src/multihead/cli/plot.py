"""``multihead plot``: the curves of runs; see `runs.curves`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Draw it here: FILE ends in .png, .svg or .pdf.",
)
def plot(runs: tuple[Path, ...], output: Path) -> None:
    """Draw how one or several RUNs went: loss, validation score and learning rate over updates."""
    from multihead.runs.curves import plot as draw

    draw(runs, output)
