"""``multihead translate``: standard input to standard output, line by line; see `workflows.translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from multihead.cli.options import check_search
from multihead.cli.process import ReaderHasGone
from multihead.data.corpus import LineStream, decode_line, split_lines
from multihead.errors import ConfigurationError, DataError

_CHUNK = 2000
"""Lines read before they are translated: enough to sort by length, few enough for any stream."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--beam", type=int, metavar="NUMBER", help="Hypotheses of the beam search; 1 is greedy. [the model's own]"
)
@click.option("--alpha", type=float, metavar="NUMBER", help="Length penalty. [the model's own]")
@click.option(
    "--batch-tokens",
    type=int,
    default=4096,
    show_default=True,
    metavar="NUMBER",
    help="Memory against speed.",
)
@click.option("--threads", type=int, metavar="NUMBER", help="Processor threads. [every core]")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
def translate(
    model: Path, beam: int | None, alpha: float | None, batch_tokens: int, threads: int | None, device: str
) -> None:
    """Translate standard input with MODEL (a run or model folder), a sentence a line.

    As many lines come out as go in, in order; an empty line stays empty.
    """
    from multihead.cli.process import own_the_process
    from multihead.cli.progress import counter

    check_search(beam, alpha)
    for name, value in (("batch-tokens", batch_tokens), ("threads", threads)):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name}: expected at least 1, got {value}")
    own_the_process()
    import torch

    from multihead.workflows.translate import Translator, in_chunks

    if threads is not None:
        torch.set_num_threads(threads)
    translator = Translator.load(model, device)
    fault: list[DataError] = []
    done = 0
    with counter("translated", "sentences") as count:
        for chunk in in_chunks(_lines(sys.stdin.buffer, fault), _CHUNK):
            found = translator.translations(chunk, beam=beam, alpha=alpha, batch_tokens=batch_tokens, progress=count)
            _write([translation.text for translation in found])
            for number, translation in enumerate(found, start=done + 1):
                if not translation.finished:
                    click.echo(f"line {number}: the translation reached the length limit and may be cut", err=True)
            done += len(chunk)
    if fault:
        raise fault[0]


def _lines(stream: LineStream, fault: list[DataError]) -> Iterator[str]:
    """Decoded lines up to the first that cannot be: what came before it is still translated."""
    try:
        for number, raw in enumerate(split_lines(stream), start=1):
            yield decode_line(raw, "standard input", number)
    except DataError as error:
        fault.append(error)


def _write(lines: list[str]) -> None:
    """Writes lines to standard output, now."""
    from multihead.files import explained

    try:
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderHasGone from None
    except OSError:
        with explained(Path("standard output")):
            raise
