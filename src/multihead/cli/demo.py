"""The command ``multihead demo``: see `demo`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.options import Command
from multihead.data.toy.numbers import LOCALES

_LANGUAGE = click.Choice(sorted(LOCALES))


@click.command(
    cls=Command,
    examples=(
        "multihead demo",
        "multihead demo --source-language zh --target-language en",
    ),
)
@click.option("--source-language", type=_LANGUAGE, default="de", show_default=True, help="Language of the sources.")
@click.option("--target-language", type=_LANGUAGE, default="en", show_default=True, help="Language of the targets.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    metavar="FOLDER",
    help="Where to write: data, run and picture.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="Seed of data and training.",
)
def demo(source_language: str, target_language: str, output: Path, seed: int) -> None:
    """Train a translator of dates, times, quantities and money between two languages, in three minutes."""
    from multihead.cli.process import start_run

    arguments = start_run()
    from multihead.demo import demo as run

    run(
        output,
        source_language=source_language,
        target_language=target_language,
        seed=seed,
        **arguments,
    )
