"""``multihead pointer``: pointer networks; see `runs.pointer`.

Numbers and points are given on the command line, or read from standard input, a problem a line, and answered line by
line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from multihead.cli.help import ExampleGroup, tell
from multihead.cli.options import FILE, Command, check_search, flags_of, merge_config_file, quiet_flag
from multihead.errors import ConfigurationError, DataError, InputError
from multihead.runs.pointer.settings import PROBLEM_NAMES, PointerSettings, ProblemName

if TYPE_CHECKING:
    from multihead.runs.pointer.model import Pointer, PointerAnswer

F = TypeVar("F", bound=Callable[..., Any])
Parse = Callable[[str], "list[float] | float"]

_PROBLEM = click.argument("problem", type=click.Choice(PROBLEM_NAMES))
_NUMBERS: dict[str, Any] = {"ignore_unknown_options": True}
"""Lets -3 be a number; `_refuse_options` refuses other words that begin with a dash."""
_MOST = 1000
"""Maximum number of inputs of a problem in ``evaluate``."""


@click.group(
    cls=ExampleGroup,
    examples=(
        "multihead pointer train sort",
        "multihead pointer sort 20 5 10",
        "multihead pointer evaluate sort --lengths 5-10,20",
    ),
)
def pointer() -> None:
    """Pointer networks: sort numbers, find convex hulls; answers are places in the input."""


@pointer.command(
    short_help="Train a network to sort, or to find convex hulls.",
    examples=(
        "multihead pointer train sort",
        "multihead pointer train hull --output my-hull",
    ),
    cls=Command,
)
@_PROBLEM
@click.option("--config", **FILE, help="TOML file with any of the settings below.")
@quiet_flag
@flags_of(PointerSettings)
def train(problem: ProblemName, config: Path | None, **flags: Any) -> None:
    """Train a network to sort numbers or to find convex hulls; the same command resumes a run that was stopped.

    Every update has new examples. Settings that are not given are chosen, printed and fixed for the run.
    """
    from multihead.cli.process import start_run

    settings = merge_config_file(PointerSettings, config, flags)
    arguments = start_run()
    from multihead.runs.pointer.train import train as run

    run(problem, **arguments, **settings)


_MODEL = click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A run or model folder. [pointer-sort or pointer-hull]",
)
_BEAM = click.option(
    "--beam",
    type=int,
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Width of the beam search; 1 is greedy search.",
)
_REPEATS = click.option("--repeats/--no-repeats", default=None, help="Whether a place may occur twice. [as trained]")


@pointer.command(
    short_help="Sort numbers.",
    examples=(
        "multihead pointer sort 20 5 10",
        "multihead pointer sort --beam 3 < lists.txt",
    ),
    context_settings=_NUMBERS,
)
@click.argument("numbers", nargs=-1, metavar="[NUMBER]...")
@_MODEL
@_BEAM
@_REPEATS
def sort(numbers: tuple[str, ...], model: Path | None, beam: int, repeats: bool | None) -> None:
    """Print the places of the NUMBERs, counted from 1, in descending order, or ascending if the model was trained so.

    Without numbers, lists are read from standard input, one per line.
    """
    _solve("sort", numbers, _parse_number, model, beam, repeats)


@pointer.command(
    short_help="Find the corners of a convex hull.",
    examples=(
        "multihead pointer hull 0,0 1,0 0.4,0.3 0,1",
        "multihead pointer hull < sets.txt",
    ),
    context_settings=_NUMBERS,
)
@click.argument("points", nargs=-1, metavar="[X,Y]...")
@_MODEL
@_BEAM
@_REPEATS
def hull(points: tuple[str, ...], model: Path | None, beam: int, repeats: bool | None) -> None:
    """Print which points are the corners of their convex hull, counter-clockwise from the first given.

    Points are counted from 1. A point is two numbers with a comma between them. Without points, sets are read from
    standard input, one per line.
    """
    _solve("hull", points, _parse_point, model, beam, repeats)


@pointer.command(
    short_help="Count the new problems that a network solves.",
    examples=(
        "multihead pointer evaluate sort",
        "multihead pointer evaluate hull --lengths 5-10,20 --count 200",
    ),
)
@_PROBLEM
@_MODEL
@click.option("--lengths", metavar="TEXT", help="Numbers of inputs: 5-10,20. [those of training, and some beyond]")
@click.option("--count", type=int, default=1000, show_default=True, metavar="NUMBER", help="Problems per length.")
@click.option(
    "--beam",
    type=int,
    default=3,
    show_default=True,
    metavar="NUMBER",
    help="Beam width to measure besides greedy search.",
)
@_REPEATS
@quiet_flag
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="NUMBER", default=1, show_default=True, help="Seed of the problems."
)
def evaluate(
    problem: ProblemName,
    model: Path | None,
    lengths: str | None,
    count: int,
    beam: int,
    repeats: bool | None,
    seed: int,
) -> None:
    """Measure how many new problems of each length a model gets exactly right.

    For hulls, also the share of the true hull's area that is covered, and how many answers are not polygons.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    check_search(beam, None)
    wanted = None if lengths is None else _parse_lengths(lengths)
    configure_process()
    from multihead.runs.pointer.evaluation import evaluate as run

    with counter("answered", "problems") as count_up:
        table = run(
            problem,
            model,
            lengths=wanted,
            count=count,
            beam=beam,
            repeats=repeats,
            seed=seed,
            progress=count_up,
        )
    click.echo(str(table))


# --------------------------------------------------------------------------- problems to answers


def _solve(
    problem: ProblemName, words: tuple[str, ...], parse: Parse, model: Path | None, beam: int, repeats: bool | None
) -> None:
    """Solve one problem, or every line of standard input."""
    from multihead.cli.process import configure_process

    check_search(beam, None)
    _refuse_options(words)
    rows = [[parse(word) for word in words]]
    configure_process()
    from multihead.runs.pointer.model import Pointer

    network = Pointer.of(problem, model)
    if words:
        (answer,) = network.answers(rows, beam=beam, repeats=repeats)
        _print_warnings(answer, "")
        click.echo(_format_answer(answer))
    else:
        _solve_lines(network, parse, beam, repeats)


def _solve_lines(network: Pointer, parse: Parse, beam: int, repeats: bool | None) -> None:
    """Solve lines as they arrive, up to the first invalid one."""
    from multihead.cli.streams import STDIN_NAME, ByteStream, read_arriving, write_lines

    faults: list[DataError] = []
    number = 0
    for lines in read_arriving(cast(ByteStream, sys.stdin.buffer), faults):
        answers: list[PointerAnswer] = []
        for place, line in enumerate(lines, start=number + 1):
            try:
                row = [parse(word) for word in line.split()]
                answers += network.answers([row], beam=beam, repeats=repeats)
            except InputError as error:
                faults.insert(0, DataError(str(error), STDIN_NAME, place))
                break
        write_lines([_format_answer(answer) for answer in answers])
        for place, answer in enumerate(answers, start=number + 1):
            _print_warnings(answer, f"line {place}: ")
        number += len(lines)
        if faults:
            raise faults[0]
    if faults:
        raise faults[0]


def _format_answer(answer: PointerAnswer) -> str:
    return " ".join(map(str, answer.places))


def _print_warnings(answer: PointerAnswer, where: str) -> None:
    """Write warnings about an answer to standard error."""
    if answer.warning is not None:
        tell(f"{where}{answer.warning}")
    if not answer.finished:
        tell(f"{where}the answer is incomplete: the network reached the length limit before it ended")


def _refuse_options(words: tuple[str, ...]) -> None:
    """Refuse a misspelled option, which would otherwise be read as a number."""
    for word in words:
        if re.match(r"-[-a-zA-Z]", word) and not re.match(r"-(inf|nan)", word, re.IGNORECASE):
            raise click.NoSuchOption(word.split("=")[0])


def _parse_number(word: str) -> float:
    """Parse a finite number.

    Raises:
        ConfigurationError: the word is not one.
    """
    try:
        number = float(word)
    except ValueError:
        raise ConfigurationError(
            f"'{word}' is not a number; write numbers such as 20, -3 or 2.5e3 with spaces between"
        ) from None
    if not math.isfinite(number):
        raise ConfigurationError(f"'{word}' is not a finite number; leave it out")
    return number


def _parse_point(word: str) -> list[float]:
    """Parse two numbers with a comma between them.

    Raises:
        ConfigurationError: the word is not that.
    """
    parts = word.split(",")
    if len(parts) != 2:
        raise ConfigurationError(f"'{word}' is not a point; write x,y without a space, and spaces between points")
    return [_parse_number(part) for part in parts]


def _parse_lengths(text: str) -> list[int]:
    """Parse ``5-10,20``.

    Raises:
        ConfigurationError: the text has another format.
    """
    lengths: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= _MOST:
            raise ConfigurationError(f"--lengths: got '{text}'; expected such as 5-10,20, from 1 to {_MOST}")
        lengths += range(first, last + 1)
    return lengths
