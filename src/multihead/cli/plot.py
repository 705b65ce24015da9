"""``multihead plot``: draw the curves of runs; see `runs.curves`."""

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
    help="Output file, which ends in .png, .svg or .pdf.",
)
def plot(runs: tuple[Path, ...], output: Path) -> None:
    """Draw the loss, validation score and learning rate of one or more RUNs over updates."""
    from multihead.runs.curves import plot as draw

    draw(runs, output)
