"""The command ``multihead average``: see `runs.average`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from multihead.cli.help import tell
from multihead.cli.options import Command, language_flags
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead average run --last 5 --output mean",
        "multihead average run-1 run-2 run-3 --output mean",
    ),
)
@click.argument("folders", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The model folder to write."
)
@click.option(
    "--last",
    type=int,
    metavar="NUMBER",
    help="Average this many of the newest checkpoints of each run, not its best model (`train --keep-checkpoints`).",
)
@click.option(
    "--weights",
    type=click.Choice(["trained", "average"]),
    help="With --last: which weights of a checkpoint to use, the trained ones or their moving average. [trained]",
)
@language_flags
def average(
    folders: tuple[Path, ...],
    output: Path,
    last: int | None,
    weights: Literal["trained", "average"] | None,
    languages: Languages,
) -> None:
    """Average the weights of models: the newest checkpoints of a run, or several runs or model folders."""
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.runs.average import average as run

    run(*folders, output=output, last=last, weights=weights, languages=languages, say=tell)
