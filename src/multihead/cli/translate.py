"""``multihead translate``: lines in, lines out, through standard input and output or from file to file.

See `workflows.lines` for what is written and `workflows.translate_file` for what happens when it is stopped.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.options import check_search
from multihead.cli.streams import NAME, decoded, write_lines
from multihead.data.compressed import open_text
from multihead.data.corpus import LineStream, TextScan
from multihead.errors import ConfigurationError, DataError, Interrupted

if TYPE_CHECKING:
    from multihead.workflows.lines import Rendering
    from multihead.workflows.translate import Translator


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read this instead of standard input; plain or compressed (gz, xz, zst).",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write here instead of to standard output; stopped, the same command goes on. Needs --input.",
)
@click.option(
    "--beam", type=int, metavar="NUMBER", help="Hypotheses of the beam search; 1 is greedy. [the model's own]"
)
@click.option("--alpha", type=float, metavar="NUMBER", help="Length penalty. [the model's own]")
@click.option(
    "--length-penalty",
    type=click.Choice(["power", "wu"]),
    help="Its form: |y|^alpha, or that of Wu et al. 2016. [power]",
)
@click.option(
    "--stopping",
    type=click.Choice(["exact", "ahead", "patience"]),
    help="When the search of a line stops: when nothing can change, when the best finished are ahead, or when "
    "--patience times the beam are finished. [exact]",
)
@click.option("--patience", type=float, metavar="NUMBER", help="For --stopping patience. [1]")
@click.option("--no-repeat", type=int, metavar="NUMBER", help="No sequence of so many tokens twice. [0: any]")
@click.option("--without", multiple=True, metavar="TEXT", help="A word or phrase not to be used; may be repeated.")
@click.option("--groups", type=int, metavar="NUMBER", help="Diverse beam search in so many groups. [1: not]")
@click.option("--diversity", type=float, metavar="NUMBER", help="How far groups keep away from each other. [0.5]")
@click.option("--min-length", type=int, metavar="NUMBER", help="Least tokens of a translation. [the model's own]")
@click.option(
    "--max-length",
    type=int,
    metavar="NUMBER",
    help="Most tokens of a translation, the end symbol counted. [the model's own]",
)
@click.option(
    "--n-best",
    type=int,
    metavar="NUMBER",
    help="Write so many translations of each line, as rows: line TAB score TAB text, best first.",
)
@click.option("--scores", is_flag=True, help="Write such a row for the best translation of each line.")
@click.option(
    "--batch-tokens",
    type=int,
    default=4096,
    show_default=True,
    metavar="NUMBER",
    help="Memory against speed.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    help="Of the matrix products; the last two are faster, and round. [float32]",
)
@click.option("--threads", type=int, metavar="NUMBER", help="Processor threads. [every core]")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
def translate(
    model: Path,
    source: Path | None,
    output: Path | None,
    beam: int | None,
    alpha: float | None,
    min_length: int | None,
    max_length: int | None,
    n_best: int | None,
    scores: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    **asked: Any,
) -> None:
    """Translate standard input, or a file, with MODEL (a run or model folder), a sentence a line.

    As many lines come out as go in, in order; an empty line stays empty.
    """
    from multihead.cli.process import own_the_process
    from multihead.workflows.growing_file import check_free

    check_search(beam, alpha, min_length, max_length)
    for name, value in (("batch-tokens", batch_tokens), ("threads", threads), ("n-best", n_best)):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name}: expected at least 1, got {value}")
    if output is not None and source is None:
        raise ConfigurationError(
            "--output needs --input: what comes through a pipe cannot be read again by who goes on. "
            "To write a file from standard input write '> FILE'"
        )
    if output is not None:
        check_free(output)
    own_the_process()
    import torch

    from multihead.kernels.native import decoding
    from multihead.workflows.lines import Rendering
    from multihead.workflows.translate import Translator
    from multihead.workflows.translate_file import check_input

    text = None if source is None else check_input(source)
    if threads is not None:
        torch.set_num_threads(threads)
    if device == "cpu":
        decoding(lambda line: click.echo(line, err=True))  # built once for this machine, in some seconds
    translator = Translator.load(model, device)
    wishes = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length, **asked}
    # A flag that may be repeated and was not given is empty.
    translator = translator.searching(**{name: value for name, value in wishes.items() if value not in (None, ())})
    search = translator.search_settings()
    rendering = Rendering(search, n_best, scores, batch_tokens)
    if text is None:
        _through_pipe(translator, rendering, sys.stdin.buffer)
    elif output is None:
        with open_text(text.path) as stream:
            _through_pipe(translator, rendering, stream, text)
    else:
        _to_file(translator, rendering, model, text, output)


def _through_pipe(
    translator: Translator, rendering: Rendering, stream: LineStream, text: TextScan | None = None
) -> None:
    """To standard output, window after window; up to the first line that is no text."""
    from multihead.cli.progress import counter
    from multihead.workflows.lines import translated

    fault: list[DataError] = []
    name, total = (NAME, None) if text is None else (text.path, text.lines)
    with counter("translated", "lines", total) as count:
        for window in translated(translator, decoded(stream, name, fault), rendering, progress=count):
            write_lines(window.rows)
            for remark in window.remarks:
                click.echo(remark, err=True)
    if fault:
        raise fault[0]


def _to_file(translator: Translator, rendering: Rendering, model: Path, text: TextScan, output: Path) -> None:
    """Into a file; stopped, it says from where the same command will go on."""
    from multihead.cli.progress import counter
    from multihead.workflows.growing_file import lines_done
    from multihead.workflows.translate_file import model_digest, translate_file

    def remark(line: str) -> None:
        click.echo(line, err=True)

    with counter("translated", "lines", text.lines) as count:
        try:
            translate_file(
                translator,
                model_digest(model),
                text,
                output,
                rendering,
                begin=count.begin,
                progress=count,
                remark=remark,
            )
        except KeyboardInterrupt:
            done = lines_done(output)
            message = f"stopped after line {done:,} of {text.lines:,}; the same command goes on from there"
            raise Interrupted(signal.SIGINT, message if done else "stopped before anything was done") from None
