"""``multihead import``: save a model of another program as one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import language_flags
from multihead.text.languages import Languages


@click.command("import")
@click.argument("model")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new or empty folder."
)
@language_flags
@click.option(
    "--lines",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Source lines for the certificate. [random entries of the vocabulary]",
)
@click.option("--count", type=click.IntRange(min=1), default=200, show_default=True, help="Lines to compare.")
@click.option("--beam", type=click.IntRange(min=2), default=5, show_default=True, help="Beam of the comparison.")
@click.option("--certificate/--no-certificate", default=True, help="Compare both sides first. [yes]")
def import_model(model: str, output: Path, languages: Languages, **asked: Any) -> None:
    """Save MODEL, a folder of another program or a name on the hub of Hugging Face, as a model folder.

    Before that, both programs translate the same lines, and their results are compared: probabilities, translations and
    tokens. The result is certificate.json in the folder; if the programs do not agree, nothing is written. All other
    commands take the other program's folder, too.
    """
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.interop.importing import ImportOptions
    from multihead.interop.importing import import_model as run

    run(model, output, ImportOptions(languages=languages, **asked), say=lambda line: click.echo(line, err=True))
