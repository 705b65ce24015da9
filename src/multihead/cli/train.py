"""The command ``multihead train``: see `runs.translator.train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import FILE, Command, flags_of, merge_config_file, quiet_flag, require_flag
from multihead.planning.settings import TrainSettings
from multihead.work_folder import kind_of


@click.command(
    cls=Command,
    examples=(
        "multihead train --source train.de --target train.en --output run",
        "multihead train --source pairs.tsv --budget 1h --output run",
        "multihead train --config settings.toml --output run",
        "multihead train --model decoder --target text.txt --output run",
        "multihead train --output run    # resume a run that was stopped",
    ),
)
@click.option("--config", **FILE, help="TOML file with any of the settings below.")
@click.option(
    "--best",
    is_flag=True,
    help="Train several translators, and students that learn from them; --budget is the total time.",
)
@click.option(
    "--monolingual",
    **FILE,
    help="With --best: text in the target language, one sentence per line, of which a reverse model makes pairs.",
)
@quiet_flag
@flags_of(TrainSettings)
@click.pass_obj
def train(began: float | None, /, config: Path | None, best: bool, monolingual: Path | None, **flags: Any) -> None:
    """Train a translator from two aligned text files; the same command resumes a run that was stopped.

    Only --source, --target and --output are needed: every other setting is chosen from the size of the corpus and the
    machine, printed with the reason, and fixed for the run. The text can also be a file of pairs, several corpora with
    weights, or a folder of `multihead prepare`. For several GPUs or processes, run torchrun --nproc-per-node N -m
    multihead train ... With --model decoder, a language model is trained on the lines of --target alone.
    """
    from multihead.cli.process import process_group, start_run

    settings = merge_config_file(TrainSettings, config, flags)
    output = settings.get("output")
    begun = None if output is None else kind_of(Path(output))
    if best or begun == "best":
        arguments = start_run(what="a run of --best")
        from multihead.runs.best.train import train_best

        train_best(started=began, monolingual=monolingual, **arguments, **settings)
        return
    require_flag("--best", best, ["monolingual"] if monolingual else [])
    if settings.get("model") == "decoder" or (begun == "language-model" and "model" not in settings):
        arguments = start_run(what="the training of a language model")
        from multihead.runs.language_model.train import train as train_language_model

        train_language_model(started=began, **arguments, **settings)
        return
    arguments = start_run(distributed=True)
    from multihead.runs.translator.train import train as run

    with process_group() as processes:
        run(processes=processes, started=began, **arguments, **settings)
