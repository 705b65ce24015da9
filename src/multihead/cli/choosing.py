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
from multihead.translating.request import USUAL, Metric, Sampling, Weights, usual_weights

F = TypeVar("F", bound=Callable[..., Any])


def choosing_flags(samples: str, weights: bool = True) -> Callable[[F], F]:
    """Decorator that adds the flags, for `cli.translate.ChoosingFlags`.

    Args:
        samples: what the command does with samples, for the help.
        weights: whether there is a flag ``--weights``.
    """
    flag = partial(click.option, cls=flag_under(CHOICE))
    given = flag(
        "--weights",
        metavar="TEXT",
        help="Weights of forward, reverse, judge, agreement and length, as multihead tune prints them. "
        f"[{USUAL}, of the models that are given]",
    )
    decorations: tuple[Callable[[Any], Any], ...] = (
        flags_of(Sampling, lambda name: samples if name == "sample" else default_of_samples(name), CHOICE),
        flag(
            "--mbr",
            type=click.Choice(get_args(Metric)),
            help="Choose among the samples, or the translations in the beam, the one that the others agree with most.",
        ),
        flag(
            "--reverse",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="A model of the opposite direction: choose among the samples, or the translations in the beam, also "
            "by the probability of the source given the translation. May be repeated.",
        ),
        flag(
            "--judge",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="Another model of the same direction, preferably from `train --right-to-left`: choose among the "
            "samples, or the translations in the beam, also by its probability of each. May be repeated.",
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
            help="A datastore of MODEL, made by `multihead datastore`: slower and often better.",
        ),
    )
    return decorated(function, decorations)


def parse_weights(text: str | None, reverse: Sequence[object], judge: Sequence[object]) -> Weights | None:
    """The weights by which a candidate is chosen, or the usual ones of the models that choose.

    Args:
        text: of the flag.
        reverse: the reverse models.
        judge: the other models of the same direction.

    Raises:
        ConfigurationError: an impossible text; a model that chooses without its weight, or a weight without the model.
    """
    weights = usual_weights(bool(reverse), bool(judge)) if text is None else Weights.parse(text)
    if weights is None:
        return None
    for name, weight, models in (("reverse", weights.reverse, reverse), ("judge", weights.judge, judge)):
        if bool(weight) != bool(models):
            raise ConfigurationError(
                f"--weights: {name} needs --{name}"
                if weight
                else f"--{name} does nothing without its weight: add {name}=NUMBER to --weights, or leave out --{name}"
            )
    return weights


def default_of_samples(name: str) -> str:
    """The value of a setting of samples without its flag, for the help."""
    default = Sampling.model_fields[name].default
    return "" if default is None or name == "sample" else f"[{default}]"
