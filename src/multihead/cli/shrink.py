"""The command ``multihead shrink``: see `runs.shrink`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.help import tell
from multihead.cli.options import Command, language_flags
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead shrink run --output half",
        "multihead train --data text --from-model half --teacher run --output small",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The model folder to write."
)
@click.option("--encoder-layers", type=int, metavar="NUMBER", help="Encoder layers to keep.")
@click.option("--decoder-layers", type=int, metavar="NUMBER", help="Decoder layers to keep.")
@click.option("--inner", type=int, metavar="NUMBER", help="Feed-forward units to keep in each layer.")
@language_flags
def shrink(model: Path, output: Path, languages: Languages, **sizes: int | None) -> None:
    """Write a smaller model with parts of MODEL, to be trained with MODEL as its teacher.

    If none of --encoder-layers, --decoder-layers and --inner is given, they are chosen to keep at most half of the
    parameters; otherwise, those that are not given keep their size.
    """
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.runs.shrink import shrink as run

    run(model, output=output, languages=languages, **sizes, say=tell)
