"""What ``evaluate`` and ``compare`` have in common: flags of the scores, and how remarks on texts are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from multihead.metrics.suspicion import Suspicion

F = TypeVar("F", bound=Callable[..., Any])

_LINES_NAMED = 20

FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}
NUMBER: Any = {"type": int, "metavar": "NUMBER"}


def scoring_flags(function: F) -> F:
    """A decorator that gives a command ``language``, ``tokenize``, ``resamples`` and ``as_json``."""
    decorations = (
        click.option(
            "--language",
            metavar="CODE",
            help="Of the translations; decides how words are told apart. [the model's, or what the name of --target "
            "ends in]",
        ),
        click.option(
            "--tokenize",
            type=click.Choice(["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"]),
            help="How BLEU tells words apart instead, by sacreBLEU's names.",
        ),
        click.option("--resamples", **NUMBER, help="Of the bootstrap, for the intervals. [1000]"),
        click.option("--json", "as_json", is_flag=True, help="Write the result for programs."),
    )
    for decoration in reversed(decorations):
        function = decoration(function)
    return function


def remark_on(name: str, remarks: Iterable[Suspicion]) -> None:
    """Writes to standard error what a text looks like, where that is not as people write."""
    from multihead.metrics.suspicion import ADVICE

    for remark in remarks:
        click.echo(f"{name} {remark}; {ADVICE}", err=True)


def remark_on_cut(name: str, lines: list[int]) -> None:
    """Writes to standard error which translations reached the length limit."""
    if lines:
        more = f" and {len(lines) - _LINES_NAMED:,} more" if len(lines) > _LINES_NAMED else ""
        named = ", ".join(map(str, lines[:_LINES_NAMED]))
        click.echo(f"{name}: the length limit was reached in lines {named}{more}", err=True)
