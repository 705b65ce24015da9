"""Flags of commands that average models or choose among candidates.

`cli.translate` reads them, also for ``evaluate`` and ``tune``; `translating.choosing` defines the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from multihead.cli.options import CHOICE, decorated, flag_under, flags_of
from multihead.decoding.search import Mean
from multihead.errors import ConfigurationError
from multihead.translating.request import CHANNEL, Metric, Sampling, Weights

F = TypeVar("F", bound=Callable[..., Any])


def choosing_flags(weights: bool = True) -> Callable[[F], F]:
    """Decorator that adds the flags, for `cli.translate.ChoosingFlags`; without ``weights`` those are left out."""
    flag = partial(click.option, cls=flag_under(CHOICE))
    given = flag(
        "--weights",
        metavar="TEXT",
        help=f"Weights of forward, reverse, agreement and length, as multihead tune prints them. [{CHANNEL}]",
    )
    decorations: tuple[Callable[[Any], Any], ...] = (
        flags_of(Sampling, _without_the_flag, CHOICE),
        flag(
            "--mbr",
            type=click.Choice(get_args(Metric)),
            help="Of all samples, or of all translations in the beam, write the one that the others agree with most.",
        ),
        flag(
            "--reverse",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="A model of the opposite direction: of all samples, or of all translations in the beam, write the one "
            "that explains the source best, too. May be repeated.",
        ),
    )
    return lambda function: decorated(function, (*decorations, given) if weights else decorations)


def ensemble_flags(function: F) -> F:
    """Decorator that adds ``--with``, ``--mean`` and ``--datastore``, for `cli.translate.ChoosingFlags`."""
    flag = partial(click.option, cls=flag_under(CHOICE))
    decorations = (
        flag(
            "--with",
            "others",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="Another model with the same vocabulary; their predictions are averaged. May be repeated.",
        ),
        flag("--mean", type=click.Choice(get_args(Mean)), help="What is averaged, with --with. [probabilities]"),
        flag(
            "--datastore",
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="A text that MODEL remembers, by `multihead datastore`: slower and often better.",
        ),
    )
    return decorated(function, decorations)


def parse_weights(text: str | None, reverse: Sequence[object]) -> Weights | None:
    """The weights by which a candidate is chosen; those of a reverse model that were not given are `CHANNEL`.

    Args:
        text: of the flag.
        reverse: the reverse models.

    Raises:
        ConfigurationError: an impossible text; a reverse model without its weight, or a weight without the model.
    """
    weights = Weights.parse(text) if text is not None else CHANNEL if reverse else None
    if weights is not None and bool(weights.reverse) != bool(reverse):
        raise ConfigurationError(
            "--weights: reverse needs --reverse" if weights.reverse else "--reverse does nothing without its weight"
        )
    return weights


def _without_the_flag(name: str) -> str:
    default = Sampling.model_fields[name].default
    if name == "sample":
        return "One is written as a line, several as rows."
    return "" if default is None else f"[{default}]"
