"""Command-line flags from settings: the same fields, the same sentences, the same checks as in a TOML file."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from multihead.configuration import Settings, build, read_toml
from multihead.models.config import GenerationConfig
from multihead.workflows.sections import HEADINGS, section_of

F = TypeVar("F", bound=Callable[..., Any])

_FOLDERS = ("output", "data", "from_model")
_FILES = ("source", "target", "valid_source", "valid_target", "text", "valid_text")
_METAVARS = {"budget": "TIME", "preset": "NAME", "corpus": "FILES", **dict.fromkeys(_FOLDERS, "FOLDER")}
_METAVARS |= dict.fromkeys(_FILES, "FILE")


class Flag(click.Option):
    """A flag that knows under which heading it is explained."""

    heading = ""


class Command(click.Command):
    """A command whose ``--help`` has its flags under headings, those without one first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a list of flags for each heading."""
        for heading in ("", *HEADINGS):
            options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
            flags = [p for p in options if heading == (p.heading if isinstance(p, Flag) else "")]
            records = [record for record in (flag.get_help_record(ctx) for flag in flags) if record is not None]
            if records:
                with formatter.section(heading or "Options"):
                    formatter.write_dl(records)


def flags_of(cls: type[Settings], otherwise: Callable[[str], str] = lambda _: "") -> Callable[[F], F]:
    """A decorator that gives a command one flag for each field of ``cls``: ``vocab_size`` is ``--vocab-size``.

    A field that holds several values is a flag that can be repeated.

    Args:
        cls: the settings.
        otherwise: what to say, from a field's name, of what holds where its flag is not given.
    """

    def decorate(function: F) -> F:
        for name, field in reversed(cls.model_fields.items()):
            heading = section_of(cls, name)
            kind, several = _kind(field.annotation)
            flag = name.replace("_", "-")
            spelling = f"--{flag}/--no-{flag}" if kind is click.BOOL else f"--{flag}"
            options: dict[str, Any] = {} if kind is click.BOOL else {"type": kind, "metavar": _metavar(name, kind)}
            if several:
                options |= {"multiple": True, "callback": _none_for_none}
            text = " ".join(f"{field.description or ''} {otherwise(name)}".split())
            function = click.option(spelling, name, default=None, help=text, cls=_flag_under(heading), **options)(
                function
            )
        return function

    return decorate


def _flag_under(heading: str) -> type[Flag]:
    return type("Flag", (Flag,), {"heading": heading})


def _none_for_none(_context: click.Context, _flag: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """A flag that was never given says nothing, however often it might have been."""
    return values or None


def _kind(annotation: Any) -> tuple[click.ParamType[Any], bool]:
    """How click reads a field, and whether it holds several values; the settings themselves check ranges and more."""
    (kind,) = [part for part in _union(annotation) if part is not type(None)]
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is Ellipsis:
        return click.STRING, True
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind)), False
    simple: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return simple.get(kind, click.STRING), False


def _union(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _metavar(name: str, kind: click.ParamType[Any]) -> str | None:
    if isinstance(kind, click.Choice):
        return None
    return _METAVARS.get(name, "NUMBER" if kind in (click.INT, click.FLOAT) else "TEXT")


def with_file(
    cls: type[Settings], config: Path | None, flags: dict[str, Any], within: type[Settings] | None = None
) -> dict[str, Any]:
    """Settings of a TOML file, overridden by the flags that were given; both are checked.

    Args:
        cls: the settings.
        config: the file.
        flags: what was given on the command line; ``None`` where nothing was.
        within: larger settings, which the file may be of; their other fields are checked and left out.

    Raises:
        ConfigurationError: a key that does not exist, or a value that it cannot have; names where it stands.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    wishes = given if config is None else {**read_toml(config), **given}
    origins = [str(config)] if config is not None else []
    origin = " and ".join([*origins, "the command line"] if given else origins) or "the settings"
    build(within or cls, wishes, origin)
    wishes = {name: value for name, value in wishes.items() if name in cls.model_fields}
    build(cls, wishes, origin)
    return wishes


def check_search(
    beam: int | None, alpha: float | None, min_length: int | None = None, max_length: int | None = None
) -> None:
    """Refuses what no search can do before a model is loaded for it.

    Raises:
        ConfigurationError: a beam below 1, a length penalty below 0 or not finite, lengths that exclude each other.
    """
    wishes = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
    build(GenerationConfig, {name: value for name, value in wishes.items() if value is not None}, "the command line")
