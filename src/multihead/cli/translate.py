"""``multihead translate``: lines in, lines out, through standard input and output or from file to file.

See `workflows.rendering` for what is written and `workflows.translate_file` for what happens when it is stopped.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.asking import Asked, asking_flags
from multihead.cli.searching import check_counts, machine_flags, search_flags, translator_for, wishes_of
from multihead.cli.streams import NAME, decoded, write_lines
from multihead.data.compressed import open_text
from multihead.data.corpus import LineStream, TextScan
from multihead.errors import ConfigurationError, DataError, Interrupted

if TYPE_CHECKING:
    from multihead.workflows.rendering import Rendering
    from multihead.workflows.side_files import SideFiles
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
    "--resume",
    is_flag=True,
    help="Go on with what an earlier command has done of --output, and refuse to begin anew.",
)
@asking_flags
@search_flags
@machine_flags
def translate(
    model: Path,
    source: Path | None,
    output: Path | None,
    resume: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    **flags: Any,
) -> None:
    """Translate standard input, or a file, with MODEL (a run or model folder), a sentence a line.

    As many lines come out as go in, in order; an empty line stays empty.
    """
    from multihead.cli.process import own_the_process

    asked = Asked.of(flags)
    wishes = wishes_of(Asked.wishes(flags))
    check_counts(batch_tokens=batch_tokens, threads=threads, n_best=asked.n_best)
    _check_output(source, output, resume)
    own_the_process()
    from multihead.workflows.translate_file import check_input

    text, files = None if source is None else check_input(source), asked.files()
    if text is not None:
        files.check_lines(text)
    translator = asked.together(translator_for(model, wishes, threads, device), device)
    rendering = asked.rendering(translator, batch_tokens)
    if text is None:
        _through_pipe(translator, rendering, files, sys.stdin.buffer)
    elif output is None:
        with open_text(text.path) as stream:
            _through_pipe(translator, rendering, files, stream, text)
    else:
        _to_file(translator, rendering, files, asked.digest(model), text, output)


def _check_output(source: Path | None, output: Path | None, resume: bool) -> None:
    """Refuses an output that cannot be begun, or with ``resume`` gone on with."""
    from multihead.workflows.growing_file import check_begun, check_free

    if output is None:
        if resume:
            raise ConfigurationError("--resume needs --output: only a file can be gone on with")
        return
    if source is None:
        raise ConfigurationError(
            "--output needs --input: what comes through a pipe cannot be read again by who goes on. "
            "To write a file from standard input write '> FILE'"
        )
    check_free(output)
    if resume:
        check_begun(output)


def _through_pipe(
    translator: Translator, rendering: Rendering, files: SideFiles, stream: LineStream, text: TextScan | None = None
) -> None:
    """To standard output, window after window; up to the first line that is no text."""
    from multihead.cli.progress import counter
    from multihead.workflows.lines import translated

    fault: list[DataError] = []
    name, total = (NAME, None) if text is None else (text.path, text.lines)
    with counter("translated", "lines", total) as count:
        lines = decoded(stream, name, fault)
        try:
            for window in translated(translator, lines, rendering, files=files, progress=count):
                write_lines(window.rows)
                for remark in window.remarks:
                    click.echo(remark, err=True)
        except DataError as error:  # of a side file, for which the text ended too soon: at the line that is no text
            if not fault or (error.line or 0) < (fault[0].line or 0):
                raise
    if fault:
        raise fault[0]


def _to_file(
    translator: Translator, rendering: Rendering, files: SideFiles, model: str, text: TextScan, output: Path
) -> None:
    """Into a file; stopped, it says from where the same command will go on."""
    from multihead.cli.progress import counter
    from multihead.workflows.growing_file import lines_done
    from multihead.workflows.translate_file import translate_file

    def remark(line: str) -> None:
        click.echo(line, err=True)

    with counter("translated", "lines", text.lines) as count:
        try:
            translate_file(
                translator,
                model,
                text,
                output,
                rendering,
                files=files,
                begin=count.begin,
                progress=count,
                remark=remark,
            )
        except KeyboardInterrupt:
            done = lines_done(output)
            message = f"stopped after line {done:,} of {text.lines:,}; the same command goes on from there"
            raise Interrupted(signal.SIGINT, message if done else "stopped before anything was done") from None
