"""``multihead doctor``: check text, tokenizers and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from multihead.cli.options import Command, check_positive, flags_of, merge_config_file, quiet_flag
from multihead.planning.settings import TrainSettings

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}


@click.command(
    cls=Command,
    examples=(
        "multihead doctor --source train.de --target train.en",
        "multihead doctor --source pairs.tsv --test-source test.tsv",
        "multihead doctor run --json",
    ),
)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--test-source", **_FILE, help="Source sentences, or pairs, of a test set; leaks are reported.")
@click.option("--test-target", **_FILE, help="Their translations.")
@click.option("--quick", is_flag=True, help="Run only the check that `multihead train` runs: the start of the text.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--config", **_FILE, help="TOML file with any of the settings below.")
@quiet_flag
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
    """Check text, tokenizers and model for faults before training.

    RUN is a run folder, a model folder or a folder of `multihead prepare`. Without it, name the text as for `multihead
    train`: replace train by doctor and keep the other arguments. Settings that do not affect text or model are ignored.
    Nothing is written.

    Each finding has a severity, a code, a count, the first lines and a remedy. The exit status is 3 if the worst
    finding is a warning, 4 if it is an error, and otherwise 0; 1 and 2 mean, as for every command, that it failed.
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
