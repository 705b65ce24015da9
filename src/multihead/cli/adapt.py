"""``multihead adapt``: see `translating.adapt`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.help import tell
from multihead.cli.options import Command, language_flags
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead adapt base run/best/adapter.safetensors --output tuned",
        "multihead adapt base run --output tuned    # the adapter of its best model",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("adapter", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The model folder to write."
)
@language_flags
def adapt(model: Path, adapter: Path, output: Path, languages: Languages) -> None:
    """Merge ADAPTER, a file of `train --lora`, into MODEL, from which it was trained."""
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.translating.adapt import apply_adapter

    apply_adapter(model, adapter, output=output, languages=languages, say=tell)
