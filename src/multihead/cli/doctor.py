"""``multihead doctor``: see `diagnosis.doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from multihead.cli.options import Command, check_positive, flags_of, merge_config_file
from multihead.planning.settings import TrainSettings

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}


@click.command(cls=Command)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--test-source", **_FILE, help="Source sentences, or pairs, of a test set: is it in the training text?")
@click.option("--test-target", **_FILE, help="Their translations.")
@click.option("--quick", is_flag=True, help="What `multihead train` does by itself: the beginning of the text alone.")
@click.option("--json", "as_json", is_flag=True, help="Write the findings for programs.")
@click.option("--config", **_FILE, help="TOML file with any of the settings below.")
@flags_of(TrainSettings)
def doctor(
    run: Path | None,
    test_source: Path | None,
    test_target: Path | None,
    quick: bool,
    as_json: bool,
    config: Path | None,
    **flags: Any,
) -> int:
    """Look for what is wrong with text, subwords and model, before time is spent on them.

    RUN is a run folder, a model folder or a folder of `multihead prepare`. Without it the text is named as for
    `multihead train`: put doctor in the place of train, and leave the rest as it is; what does not bear on text and
    model has no effect. Nothing is written.

    Each finding has a severity, a code, a count, the first lines and what to do. Exit status: 0 nothing worse than a
    note, 3 a warning, 4 an error; 1 and 2 as for every command: it could not be looked.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    wishes = merge_config_file(TrainSettings, config, flags)
    threads = wishes.get("threads")
    check_positive(threads=threads)
    configure_process()
    import torch

    from multihead.diagnosis.doctor import doctor as look

    if threads is not None:
        torch.set_num_threads(threads)
    with counter("read", "pairs") as count:
        found = look(run, test_source=test_source, test_target=test_target, quick=quick, progress=count, **wishes)
    click.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else str(found))
    return found.status
