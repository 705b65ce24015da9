"""``multihead report``: what a run has learned; see `runs.report.report`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.options import FILE, Command, language_flags, quiet_flag
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead report run -o report",
        "multihead report run -o report --budget 30m    # gain from more data, too",
    ),
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder to write: new, empty, or of a report that was stopped or is to be written again.",
)
@click.option("--source", **FILE, help="Text whose translations are examined. [the validation text of the run]")
@click.option("--target", **FILE, help="Its translation, line by line.")
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Another run, or a table of another program (.csv or .jsonl), whose curves are shown as well; repeatable.",
)
@click.option(
    "--budget", metavar="TIME", help="Time for trainings that estimate the gain from more data: 90s, 10m, 1h. [none]"
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the prepared text of RUN is, if it was moved.",
)
@language_flags
@quiet_flag
@click.pass_obj
def report(
    began: float | None,
    /,
    run: Path,
    output: Path,
    source: Path | None,
    target: Path | None,
    against: tuple[Path, ...],
    budget: str | None,
    data: Path | None,
    languages: Languages,
) -> None:
    """Report what RUN has learned: learning curves, the gain from more data, the most frequent errors.

    The report is report.md in the folder. With --budget, models are trained on parts of the text to estimate the gain;
    if stopped, the same command continues.
    """
    from multihead.cli.process import remark, start_run

    arguments = start_run() | {"say": remark}
    from multihead.runs.report.report import report as write

    found = write(
        run,
        output=output,
        source=source,
        target=target,
        languages=languages,
        against=against,
        budget=budget,
        data=data,
        started=began,
        **arguments,
    )
    for line in found.summary():
        click.echo(line)
    click.echo(f"the report is in {output / 'report.md'}")
