"""``multihead report``: what a run has learned; see `runs.report.report`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.options import FILE


@click.command()
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
    "--budget", metavar="TIME", help="Time for trainings that estimate the gain of more data: 90s, 10m, 1h. [none]"
)
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
) -> None:
    """Say what RUN has learned: learning curves, the gain of more data, the most frequent errors.

    report.md in the folder is the card. With --budget, models are trained with parts of the text; the same command goes
    on with a report that was stopped.
    """
    from multihead.cli.process import start_run

    arguments = start_run()
    from multihead.runs.report.report import report as write

    found = write(
        run, output=output, source=source, target=target, against=against, budget=budget, started=began, **arguments
    )
    for line in found.summary():
        click.echo(line)
    click.echo(f"the report is in {output / 'report.md'}")
