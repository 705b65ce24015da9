"""``multihead generate``: continue prompts with a language model.

Prompts are given on the command line, or read from standard input and answered line by line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cli.options import Command, check_positive, flags_of, machine_flags, require_flag
from multihead.configuration import build
from multihead.runs.language_model.generation import DRAWING, Generation


@click.command(
    cls=Command,
    examples=(
        'multihead generate run "A dog"',
        "multihead generate run --sample --top-p 0.9 < prompts.txt > texts.txt",
    ),
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@flags_of(Generation, heading="Search")
@machine_flags
def generate(
    model: Path, prompts: tuple[str, ...], batch_tokens: int, threads: int | None, device: str, **flags: Any
) -> None:
    """Continue each PROMPT with MODEL, a run or model folder of `multihead train --model decoder`.

    Without a PROMPT, lines are read from standard input. One line is written for each: the prompt and its continuation.
    For an empty line, the model writes a text from the beginning.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    how = build(Generation, given, "the command line")
    require_flag("--sample", how.sample, DRAWING & given.keys())
    check_positive(batch_tokens=batch_tokens, threads=threads)
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.cli.language_models import load
    from multihead.cli.streams import filter_lines, write_lines

    loaded = load(model, device, threads)
    how.search(loaded.reading.max_tokens)  # refuses lengths before anything is read

    def answer(lines: list[str], number: int) -> list[str]:
        keys = range(number - 1, number - 1 + len(lines))
        return loaded.generate(lines, how, keys=keys, batch_tokens=batch_tokens)

    if prompts:
        write_lines(answer([*prompts], 1))
    else:
        filter_lines(answer)
