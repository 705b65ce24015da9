"""Commands that read given translations, from two files or a pipe, and write a line for each pair: score and align."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.options import check_positive, machine_flags
from multihead.cli.streams import STDIN_NAME, decode_lines, write_lines
from multihead.data.corpus import ParallelScan, check_parallel
from multihead.data.text_files import LineStream, read_lines
from multihead.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

Change = Callable[[list[str], list[str], Callable[[int], None]], list[str]]
"""(sources, targets, what is told how many more are done) -> a line for each pair."""

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}


@dataclass(frozen=True)
class Asked:
    """What every such command is asked: the model, where the pairs are, and how to compute."""

    model: Path
    source: Path | None
    target: Path | None
    batch_tokens: int
    threads: int | None
    device: str


def pair_command(function: F) -> F:
    """A decorator that gives a command MODEL and the flags of `Asked`."""
    decorations = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option("--source", **_FILE, help="Sentences, one a line; plain or compressed (gz, xz, zst)."),
        click.option("--target", **_FILE, help="Their translations, line by line."),
        machine_flags,
    )
    for decoration in reversed(decorations):
        function = decoration(function)
    return function


def write_for_pairs(asked: Asked, verb: str, make: Callable[[Translator], Change]) -> None:
    """Writes what a `Change`, made for the model, makes of the pairs: as many lines as there are pairs, in order.

    Args:
        asked: what the command was.
        verb: what is done with pairs ("scored").
        make: is given the loaded model.

    Raises:
        ConfigurationError: one file of the two, numbers below 1.
        DataError: files that are not parallel text; a line that is no pair. What came before it in a pipe is written.
    """
    check_positive(batch_tokens=asked.batch_tokens, threads=asked.threads)
    if (asked.source is None) != (asked.target is None):
        missing = "--target" if asked.target is None else "--source"
        raise ConfigurationError(f"{missing} is missing: give both files, or none to read source TAB target lines")
    files = None
    if asked.source is not None and asked.target is not None:
        files = check_parallel(asked.source, asked.target)
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    configure_process()
    import torch

    from multihead.lines.translate_file import check_input
    from multihead.lines.windows import WINDOW
    from multihead.translating.translator import Translator

    for scan in files.files if files is not None else ():
        if scan.undecodable:
            check_input(scan.path)  # says which line, before anything is written
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    change = make(Translator.load(asked.model, asked.device))
    fault: list[DataError] = []
    pairs = typed(sys.stdin.buffer, fault) if files is None else _of_files(files)
    with counter(verb, "pairs", None if files is None else files.lines) as count:
        while window := list(islice(pairs, WINDOW)):
            lines = change([source for source, _ in window], [target for _, target in window], count)
            assert len(lines) == len(window)
            write_lines(lines)
    if fault:
        raise fault[0]


def typed(stream: LineStream, fault: list[DataError]) -> Iterator[tuple[str, str]]:
    """Pairs of lines ``source TAB target`` up to the first that is none: why goes to ``fault``.

    A line of white space without a TAB is a pair of empty sides.
    """
    for number, line in enumerate(decode_lines(stream, STDIN_NAME, fault), start=1):
        source, tab, target = line.partition("\t")
        if (not tab and line.strip()) or "\t" in target:
            message = f"expected source TAB target, got a line with {line.count(chr(9))} TABs"
            fault.append(
                DataError(f"{message}; sides that hold a TAB: give them as --source and --target", STDIN_NAME, number)
            )
            return
        yield source, target


def _of_files(files: ParallelScan) -> Iterator[tuple[str, str]]:
    number = 0
    sides = (read_lines(scan.path) for scan in files.files)
    for number, (source, target) in enumerate(zip(*sides, strict=False), start=1):  # noqa: B007
        yield source, target
    if number != files.lines:
        message = f"has changed: {files.lines:,} lines were counted, {number:,} are there now; start again"
        raise DataError(message, " or ".join(str(scan.path) for scan in files.files))
