"""``multihead export``: write a model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.options import Command, certificate_flags, language_flags, quiet_flag
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.interop.exporting import FormatName

FORMATS = ("ctranslate2", "argos", "transformers", "onnx", "sentencepiece", "web")
"""`interop.exporting.FORMATS`, without importing torch."""


@click.command(
    cls=Command,
    examples=(
        "multihead export run --format ctranslate2 -o folder",
        "multihead export run --format onnx --quantization int8 -o folder",
        "multihead export run --format web -o site",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="The format; docs/interop.md says what each of them can represent.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new or empty folder."
)
@click.option(
    "--quantization",
    metavar="TYPE",
    help="Type of the weights, such as int8 or float16, if the format has it. [the format's own, mostly float32]",
)
@click.option(
    "--alpha",
    type=float,
    metavar="NUMBER",
    help="Length penalty of the exported search, as for translate. [the model's own]",
)
@click.option(
    "--length-penalty",
    type=click.Choice(["power", "wu"]),
    help="Its form: |y|^alpha, which every format has, or that of Wu et al. 2016, only for web. [the model's own]",
)
@quiet_flag
@certificate_flags("the validation text of the model's run", "after writing")
@language_flags
def export(model: Path, form: FormatName, output: Path, languages: Languages, **asked: Any) -> None:
    """Write MODEL (a run or model folder) in the format of another program.

    Afterwards, both programs translate the same lines, and probabilities, translations and tokens are compared. The
    result is certificate.json in the folder; if the programs do not agree, nothing is left in the folder.
    """
    from multihead.cli.process import configure_process, speaker

    configure_process()
    from multihead.interop.exporting import ExportOptions, export_model

    options = ExportOptions(languages=languages, **asked)
    export_model(model, form, output, options, say=speaker())
