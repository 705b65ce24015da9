"""The command ``multihead prepare``: see `preparing.prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.engines import engine_flag, parse_engine
from multihead.cli.options import FILE, Command, flags_of, merge_config_file, quiet_flag
from multihead.planning.settings import PrepareSettings, TrainSettings


@click.command(
    cls=Command,
    examples=(
        "multihead prepare --source train.de --target train.en --output prepared",
        "multihead train --data prepared --output run",
    ),
)
@click.option(
    "--config",
    **FILE,
    help="TOML file of these settings, or of `multihead train`, whose other settings are ignored.",
)
@quiet_flag
@flags_of(PrepareSettings)
@engine_flag
def prepare(config: Path | None, engine: str | None, **flags: Any) -> None:
    """Prepare text ahead of training: learn subwords and store token ids.

    `multihead train --data FOLDER` trains from the folder, any number of times and with other models and settings.
    """
    from multihead.cli.process import StopSignal, configure_process, speaker

    settings = merge_config_file(PrepareSettings, config, flags, within=TrainSettings)
    chosen = None if engine is None else parse_engine(engine, 1, "cpu")
    configure_process()
    stop = StopSignal()
    from multihead.preparing.prepare import prepare as run

    run(say=speaker(), stop_signal=stop, engine=chosen, **settings)
