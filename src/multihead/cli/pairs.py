"""Shared parts of `score` and `align`: one output line per pair."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.options import check_positive, decorated, language_flags, machine_flags, quiet_flag
from multihead.cli.streams import STDIN_NAME, decode_lines, write_lines
from multihead.data.corpus import ParallelScan, check_parallel
from multihead.data.text_files import LineStream, read_lines, refuse_undecodable
from multihead.errors import ConfigurationError, DataError
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

PairFunction = Callable[[list[str], list[str], Callable[[int], None]], list[str]]
"""Maps sources, targets and a progress function to one line per pair."""

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}


@dataclass(frozen=True)
class PairFlags:
    """The flags of these commands: model, files of pairs, and how to compute."""

    model: Path
    source: Path | None
    target: Path | None
    batch_tokens: int
    threads: int | None
    device: str
    languages: Languages


def pair_command(function: F) -> F:
    """Decorator that adds MODEL and the flags of `PairFlags`."""
    decorations = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option("--source", **_FILE, help="Sentences, one per line; plain or compressed (gz, xz, zst)."),
        click.option("--target", **_FILE, help="Their translations, line by line."),
        quiet_flag,
        machine_flags,
        language_flags,
    )
    return decorated(function, decorations)


def write_pair_lines(
    flags: PairFlags,
    verb: str,
    make: Callable[[Translator], PairFunction],
    computed: Callable[[Iterable[object]], bool] = any,
) -> None:
    """Write one line per pair, in order.

    Args:
        flags: flags of the command.
        verb: what is done to pairs, for the progress display ("scored").
        make: makes the function that computes the lines, from the loaded model.
        computed: whether a pair is computed, of which sides have text: `any` or `all`.

    Raises:
        ConfigurationError: one of two files is missing, or a number is below 1.
        DataError: the files are not parallel text, or a line of standard input is not a pair; earlier pairs are
            written first. A pair is too long; those of earlier windows are written.
    """
    check_positive(batch_tokens=flags.batch_tokens, threads=flags.threads)
    if (flags.source is None) != (flags.target is None):
        missing = "--target" if flags.target is None else "--source"
        raise ConfigurationError(f"{missing} is missing: give both files, or none to read source TAB target lines")
    files = None
    if flags.source is not None and flags.target is not None:
        files = check_parallel(flags.source, flags.target)
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    configure_process()
    import torch

    from multihead.lines.windows import WINDOW
    from multihead.translating.forced import LongPairError
    from multihead.translating.translator import Translator

    for scan in files.files if files is not None else ():
        refuse_undecodable(scan)  # names the line before anything is written
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    compute_lines = make(Translator.load(flags.model, flags.device, flags.languages))
    fault: list[DataError] = []
    pairs = parse_pairs(sys.stdin.buffer, fault) if files is None else _read_pairs(files)
    names: dict[str, str | Path] = {"source": STDIN_NAME, "target": STDIN_NAME}
    if files is not None:
        names = {"source": files.source.path, "target": files.target.path}
    done = 0
    with counter(verb, "pairs", None if files is None else files.lines) as count:
        while window := list(islice(pairs, WINDOW)):
            try:
                lines = compute_lines([source for source, _ in window], [target for _, target in window], count)
            except LongPairError as error:
                own = [number for number, pair in enumerate(window, done + 1) if computed(map(str.strip, pair))]
                raise DataError(error.reason, names[error.side], own[error.place]) from None
            assert len(lines) == len(window)
            write_lines(lines)
            done += len(window)
    if fault:
        raise fault[0]


def parse_pairs(stream: LineStream, fault: list[DataError]) -> Iterator[tuple[str, str]]:
    """Parse lines ``source TAB target`` up to the first invalid one, whose error is added to ``fault``.

    A line of white space without a TAB is a pair with two empty sides.
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


def _read_pairs(files: ParallelScan) -> Iterator[tuple[str, str]]:
    number = 0
    sides = (read_lines(scan.path) for scan in files.files)
    for number, (source, target) in enumerate(zip(*sides, strict=False), start=1):  # noqa: B007
        yield source, target
    if number != files.lines:
        message = f"has changed: {files.lines:,} lines were counted, {number:,} are there now; start again"
        raise DataError(message, " or ".join(str(scan.path) for scan in files.files))
