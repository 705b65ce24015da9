"""Flags of commands that choose among candidates.

`translating.choosing` defines the choice. ``translate``, ``evaluate`` and ``tune`` share these flags.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from multihead.cli.options import decorated, flag_name, flags_of, require_flag
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.translating.request import CHANNEL, Metric, Sampling, TranslationRequest, Weights

if TYPE_CHECKING:
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

_IDLE = ("stopping", "patience", "groups", "diversity", "coverage")
"""Settings of a search that have no effect on samples."""


def choosing_flags(weights: bool = True) -> Callable[[F], F]:
    """Decorator that adds the flags, for `ChoosingFlags`; without ``weights`` those are left out."""
    given = click.option(
        "--weights",
        metavar="TEXT",
        help=f"Weights of forward, reverse, agreement and length, as multihead tune prints them. [{CHANNEL}]",
    )
    decorations: tuple[Callable[[Any], Any], ...] = (
        flags_of(Sampling, _without_the_flag),
        click.option(
            "--mbr",
            type=click.Choice(get_args(Metric)),
            help="Of all samples, or of all translations in the beam, write the one that the others agree with most.",
        ),
        click.option(
            "--reverse",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="A model of the opposite direction: of all samples, or of all translations in the beam, write the one "
            "that explains the source best, too. May be repeated.",
        ),
    )
    return lambda function: decorated(function, (*decorations, given) if weights else decorations)


@dataclass(frozen=True)
class ChoosingFlags:
    """The flags of `choosing_flags`."""

    sampling: Sampling | None
    mbr: Metric | None
    reverse: tuple[Path, ...]
    weights: Weights | None
    both: bool

    @classmethod
    def parse(cls, flags: Mapping[str, Any], tuning: bool = False) -> ChoosingFlags:
        """Parse the flags, of which ``beam`` decides whether there are hypotheses beside samples.

        Args:
            flags: all flags of the command.
            tuning: whether the weights are sought, so that there is a choice in any case.

        Raises:
            ConfigurationError: an impossible value; flags that exclude or need each other.
        """
        drawing = {name: flags[name] for name in Sampling.model_fields if flags[name] is not None}
        sampling = build(Sampling, drawing, "the command line") if "sample" in drawing else None
        require_flag("--sample", sampling is not None, drawing)
        mbr, reverse, text = flags["mbr"], tuple(flags["reverse"]), flags.get("weights")
        weights = None if text is None else Weights.parse(text)
        if weights is None and (reverse or tuning):
            weights = CHANNEL
        if not tuning and weights is not None and bool(weights.reverse) != bool(reverse):
            raise ConfigurationError(
                "--weights: reverse needs --reverse" if weights.reverse else "--reverse does nothing without its weight"
            )
        chooses = mbr is not None or weights is not None
        both = sampling is not None and chooses and flags["beam"] is not None
        if sampling is not None:
            names = (*(() if both else ("beam",)), *(() if both else _IDLE), "n_best", "phrases")
            idle = [name for name in names if flags.get(name) is not None]
            if idle:
                raise ConfigurationError(f"{flag_name(idle[0])} does nothing for samples: leave it out, or --sample")
        return cls(sampling, mbr, reverse, weights, both)

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of a `TranslationRequest`."""
        return {"sampling": self.sampling, "metric": self.mbr, "weights": self.weights, "both": self.both}

    def flags_of_choice(self, weights: Weights) -> str:
        """The flags that choose by these weights."""
        if not weights.reverse and not weights.agreement and not weights.length:
            return "leave out --mbr, --reverse and --weights"
        reverse = [f"--reverse {shlex.quote(str(path))}" for path in self.reverse if weights.reverse]
        metric = [] if self.mbr is None else [f"--mbr {self.mbr}"]
        return " ".join([*reverse, *metric, f"--weights {weights}"])

    def request(self, translator: Translator, batch_tokens: int) -> TranslationRequest:
        """The request of a command, without texts."""
        return TranslationRequest(translator.search_settings(), **self.asked, batch_tokens=batch_tokens)

    def join_reverse(self, translator: Translator, device: str) -> Translator:
        """The translator with its reverse model, if there is one.

        Raises:
            FormatError: a folder is not a model.
            ConfigurationError: the models do not fit together.
        """
        if not self.reverse:
            return translator
        from multihead.translating.translator import Translator

        first, *others = [Translator.load(path, device) for path in self.reverse]
        return translator.with_reverse(first.ensemble(others) if others else first)


def _without_the_flag(name: str) -> str:
    default = Sampling.model_fields[name].default
    if name == "sample":
        return "One is written as a line, several as rows."
    return "" if default is None else f"[{default}]"
