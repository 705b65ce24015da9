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

F = TypeVar("F", bound=Callable[..., Any])


def flags_of(cls: type[Settings]) -> Callable[[F], F]:
    """A decorator that gives a command one flag for each field of ``cls``: ``vocab_size`` is ``--vocab-size``."""

    def decorate(function: F) -> F:
        for name, field in reversed(cls.model_fields.items()):
            kind = _kind(field.annotation)
            flag = name.replace("_", "-")
            spelling = f"--{flag}/--no-{flag}" if kind is click.BOOL else f"--{flag}"
            options: dict[str, Any] = {} if kind is click.BOOL else {"type": kind, "metavar": _metavar(name, kind)}
            function = click.option(spelling, name, default=None, help=field.description, **options)(function)
        return function

    return decorate


def _kind(annotation: Any) -> click.ParamType[Any]:
    """How click reads a field; ranges and durations are checked by the settings themselves."""
    kinds = [
        part
        for part in (typing.get_args(annotation) if _is_union(annotation) else (annotation,))
        if part is not type(None)
    ]
    kind = kinds[0]
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind))
    simple: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return simple.get(kind, click.STRING)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _metavar(name: str, kind: click.ParamType[Any]) -> str | None:
    if isinstance(kind, click.Choice):
        return None
    if name == "output":
        return "FOLDER"
    if name in ("source", "target", "valid_source", "valid_target"):
        return "FILE"
    return {"budget": "TIME", "preset": "NAME"}.get(name, "NUMBER" if kind in (click.INT, click.FLOAT) else "TEXT")


def with_file(cls: type[Settings], config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Settings of a TOML file, overridden by the flags that were given; both are checked.

    Raises:
        ConfigurationError: a key that does not exist, or a value that it cannot have; names where it stands.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    wishes = given if config is None else {**read_toml(config), **given}
    origins = [str(config)] if config is not None else []
    build(cls, wishes, " and ".join([*origins, "the command line"] if given else origins) or "the settings")
    return wishes


def check_search(beam: int | None, alpha: float | None) -> None:
    """Refuses what no search can do before a model is loaded for it.

    Raises:
        ConfigurationError: a beam below 1, a length penalty below 0 or not finite.
    """
    given = {name: value for name, value in (("beam", beam), ("alpha", alpha)) if value is not None}
    build(GenerationConfig, given, "the command line")
