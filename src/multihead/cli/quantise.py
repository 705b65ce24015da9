"""``multihead quantise``: see `translating.quantise`."""

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
        "multihead quantise run --output small",
        "multihead translate small --precision int8 < input.de > output.en",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The model folder to write."
)
@click.option(
    "--precision",
    type=click.Choice(["bfloat16", "int8"]),
    default="int8",
    show_default=True,
    help="Precision of the weights: bfloat16 is half, int8 a quarter of the size.",
)
@language_flags
def quantise(model: Path, output: Path, precision: Literal["bfloat16", "int8"], languages: Languages) -> None:
    """Write a model with rounded weights: a smaller file, for `translate --precision`."""
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.translating.quantise import quantise as run

    run(model, output=output, precision=precision, languages=languages, say=tell)
