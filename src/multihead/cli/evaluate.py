"""``multihead evaluate``: see `workflows.evaluate`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--source",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to translate; plain or compressed (gz, xz, zst).",
)
@click.option(
    "--target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Its translation, line by line.",
)
@click.option("--beam", type=int, metavar="NUMBER", help="Hypotheses of the beam search. [the model's own]")
@click.option("--alpha", type=float, metavar="NUMBER", help="Length penalty. [the model's own]")
@click.option("--min-length", type=int, metavar="NUMBER", help="Least tokens of a translation. [the model's own]")
@click.option(
    "--max-length",
    type=int,
    metavar="NUMBER",
    help="Most tokens of a translation, the end symbol counted. [the model's own]",
)
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also write the translations here.")
def evaluate(
    model: Path,
    source: Path,
    target: Path,
    beam: int | None,
    alpha: float | None,
    min_length: int | None,
    max_length: int | None,
    save: Path | None,
) -> None:
    """Translate --source with MODEL and score the result against --target: BLEU and chrF with signatures."""
    from multihead.cli.options import check_search
    from multihead.cli.process import own_the_process
    from multihead.cli.progress import counter
    from multihead.data.corpus import check_parallel
    from multihead.errors import ConfigurationError
    from multihead.files import write_text

    if save is not None and save.exists():
        raise ConfigurationError(f"{save}: exists already; nothing was overwritten. Choose another name")
    if save is not None and not save.parent.is_dir():
        raise ConfigurationError(f"{save}: there is no folder {save.parent} to write it into; make it first")
    check_search(beam, alpha, min_length, max_length)
    lines = check_parallel(source, target).lines
    own_the_process()
    from multihead.workflows.evaluate import evaluate as run

    with counter("translated", "sentences", lines) as count:
        result = run(
            model,
            source,
            target,
            beam=beam,
            alpha=alpha,
            min_length=min_length,
            max_length=max_length,
            progress=count,
        )
    if save is not None:
        write_text(save, "".join(line + "\n" for line in result.hypotheses))
    click.echo(str(result.scores))
    click.echo(
        f"{result.sentences:,} sentences in {result.seconds:.1f} s, {result.sentences / result.seconds:,.0f} a second"
    )
    if result.cut:
        click.echo(f"the length limit was reached in lines {', '.join(map(str, result.cut[:20]))}", err=True)
