"""Flags of the commands that translate: how is searched, and on what it is computed; from them to a `Translator`.

The flags of the search are the fields of `workflows.search_settings.SearchSettings`, so that what can be asked of one
command can be asked of all. What a command reads and writes is its own business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.options import flags_of
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.models.config import GenerationConfig
from multihead.workflows.search_settings import SearchSettings

if TYPE_CHECKING:
    from multihead.workflows.translate import Translator

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER: Any = {"type": int, "metavar": "NUMBER"}


def search_flags(function: F) -> F:
    """A decorator that gives a command a flag for each field of `SearchSettings`; `wishes_of` says which were given."""
    return flags_of(SearchSettings, _without_the_flag)(function)


def machine_flags(function: F) -> F:
    """A decorator that gives a command ``batch_tokens``, ``threads`` and ``device``."""
    decorations = (
        click.option("--batch-tokens", **_NUMBER, default=4096, show_default=True, help="Memory against speed."),
        click.option("--threads", **_NUMBER, help="Processor threads. [every core]"),
        click.option(
            "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
        ),
    )
    for decoration in reversed(decorations):
        function = decoration(function)
    return function


def check_counts(**numbers: int | None) -> None:
    """Refuses numbers below 1; None was not given.

    Raises:
        ConfigurationError: one is; names its flag.
    """
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ConfigurationError(f"{flag_of(name)}: expected at least 1, got {value}")


def wishes_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the search that were given, checked as far as they can be before a model is loaded.

    Raises:
        ConfigurationError: one that no search can have, or that does nothing without another.
    """
    wishes = {name: value for name, value in asked.items() if value is not None}
    # Whether groups divide a beam that was not given is only known with the model's own.
    known = {name: value for name, value in wishes.items() if name != "groups" or "beam" in wishes}
    build(SearchSettings, known, "the command line")
    need("--groups, of 2 or more", wishes.get("groups", 1) > 1, {"diversity"} & wishes.keys())
    need("--stopping patience", wishes.get("stopping") == "patience", {"patience"} & wishes.keys())
    return wishes


def need(flag: str, there: bool, given: Iterable[str]) -> None:
    """Refuses flags, of these names, that do nothing without another.

    Raises:
        ConfigurationError: that one is not there; names the first.
    """
    for name in given:
        if not there:
            raise ConfigurationError(f"{flag_of(name)} needs {flag}")


def flag_of(name: str) -> str:
    """How a setting is written on the command line."""
    return f"--{name.replace('_', '-')}"


def translator_for(
    model: Path, wishes: Mapping[str, Any], threads: int | None = None, device: str = "cpu"
) -> Translator:
    """A model, searching as is wished; says so where the compiled search is built first.

    Raises:
        FormatError: no model.
        ConfigurationError: a device that is not there, wishes that the model's own settings exclude.
    """
    import torch

    from multihead.kernels.native import decoding
    from multihead.models.transformer import Transformer
    from multihead.workflows.translate import Translator

    if threads is not None:
        torch.set_num_threads(threads)
    translator = Translator.load(model, device)
    if device == "cpu" and isinstance(translator.bundle.model, Transformer):
        decoding(lambda line: click.echo(line, err=True))  # built once for this machine, in some seconds
    return translator.searching(**wishes)


def _without_the_flag(name: str) -> str:
    """What holds where a flag is not given."""
    if name in GenerationConfig.model_fields:
        return "[the model's own]"
    default = SearchSettings.model_fields[name].default
    return "" if default == () or default is False else f"[{default}]"
