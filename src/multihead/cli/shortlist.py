"""``multihead shortlist``: see `translating.shortlist`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.help import tell
from multihead.cli.options import Command, language_flags
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead shortlist run",
        "multihead translate run --shortlist < input.de > output.en",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A run, or a folder of `multihead prepare`, with the text the model was trained on. [MODEL]",
)
@click.option(
    "--always",
    type=int,
    default=1024,
    show_default=True,
    metavar="NUMBER",
    help="How many of the most frequent target tokens are allowed in every translation.",
)
@click.option(
    "--candidates",
    type=int,
    default=40,
    show_default=True,
    metavar="NUMBER",
    help="How many target tokens each source token adds.",
)
@language_flags
def shortlist(model: Path, data: Path | None, always: int, candidates: int, languages: Languages) -> None:
    """Learn which target tokens a source can need, for `translate --shortlist`: faster, with nearly the same text."""
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.translating.shortlist import shortlist as run

    run(model, data=data, always=always, candidates=candidates, languages=languages, say=tell)
