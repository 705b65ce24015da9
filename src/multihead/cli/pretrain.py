"""The command ``multihead pretrain``: see `runs.bert.train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import FILE, Command, flags_of, merge_config_file, quiet_flag
from multihead.runs.bert.settings import PretrainSettings


@click.command(
    cls=Command,
    examples=(
        "multihead pretrain --text corpus.txt --output run",
        'multihead fill-mask run "A dog [MASK] in the grass."',
    ),
)
@click.option("--config", **FILE, help="TOML file with any of the settings below.")
@quiet_flag
@flags_of(PretrainSettings)
def pretrain(config: Path | None, **flags: Any) -> None:
    """Pre-train a BERT on plain text; the same command resumes a run that was stopped.

    Only --text and --output are needed. The text has one sentence per line and an empty line between documents. Every
    other setting is chosen from the size of the text and the machine, printed with the reason, and fixed for the run.
    """
    from multihead.cli.process import start_run

    settings = merge_config_file(PretrainSettings, config, flags)
    arguments = start_run()
    from multihead.runs.bert.train import pretrain as run

    run(**arguments, **settings)
