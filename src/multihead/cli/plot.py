"""``multihead plot``: draw the curves of runs; see `runs.curves`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.options import Command


@click.command(
    cls=Command,
    examples=(
        "multihead plot run -o curves.png",
        "multihead plot run other --over time -o curves.svg",
    ),
)
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--over",
    type=click.Choice(["updates", "time"]),
    default="updates",
    show_default=True,
    help="What the curves are drawn over.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Output file, which ends in .png, .svg or .pdf.",
)
def plot(runs: tuple[Path, ...], over: str, output: Path) -> None:
    """Draw the loss, validation score and learning rate of one or more RUNs.

    A RUN can also be a table of another program: .csv or .jsonl with name, updates, seconds, bleu, loss.
    """
    from multihead.runs.curves import plot as draw

    draw(runs, output, "step" if over == "updates" else "seconds")
