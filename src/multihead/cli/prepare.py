"""The command ``multihead prepare``: see `preparing.prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import FILE, Command, flags_of, merge_config_file
from multihead.planning.settings import PrepareSettings, TrainSettings


@click.command(cls=Command)
@click.option(
    "--config",
    **FILE,
    help="TOML file of these settings, or of `multihead train`, whose other settings are ignored.",
)
@flags_of(PrepareSettings)
def prepare(config: Path | None, **flags: Any) -> None:
    """Prepare text ahead of training: learn subwords and store token ids.

    `multihead train --data FOLDER` trains from the folder, any number of times and with any model and settings.
    """
    from multihead.cli.process import StopSignal, configure_process

    settings = merge_config_file(PrepareSettings, config, flags, within=TrainSettings)
    configure_process()
    stop = StopSignal()
    from multihead.preparing.prepare import prepare as run

    run(say=lambda line: click.echo(line, err=True), stop_signal=stop, **settings)
