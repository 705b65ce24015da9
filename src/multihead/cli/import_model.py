"""``multihead import``: save a model of another program as one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import Command, certificate_flags, language_flags, quiet_flag
from multihead.text.languages import Languages


@click.command(
    "import",
    cls=Command,
    examples=(
        "multihead import Helsinki-NLP/opus-mt-de-en -o model",
        "multihead import folder -o model --lines test.de",
    ),
)
@click.argument("model")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new or empty folder."
)
@quiet_flag
@language_flags
@certificate_flags("random entries of the vocabulary", "first")
def import_model(model: str, output: Path, languages: Languages, **asked: Any) -> None:
    """Save MODEL, a folder of another program or a name on the Hugging Face Hub, as a model folder.

    First, both programs translate the same lines, and probabilities, translations and tokens are compared. The result
    is certificate.json in the folder; if the programs do not agree, nothing is written. Importing is optional: all
    other commands accept the other program's folder, too.
    """
    from multihead.cli.process import configure_process, speaker

    configure_process()
    from multihead.interop.importing import ImportOptions
    from multihead.interop.importing import import_model as run

    run(model, output, ImportOptions(languages=languages, **asked), say=speaker())
