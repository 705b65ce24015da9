"""Base class of settings: validation, error messages, TOML files.

A group of settings is a frozen pydantic model with a docstring under each field. `build` makes it from a TOML file,
command-line flags or JSON, so a misspelled key gives the same error everywhere, which names the nearest existing key.
The settings themselves are defined in the packages that use them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from multihead.errors import ConfigurationError


class Settings(BaseModel):
    """A frozen group of settings; unknown keys and numbers that JSON lacks (inf, nan) are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


SettingsType = TypeVar("SettingsType", bound=Settings)


def build(cls: type[SettingsType], values: Mapping[str, Any], origin: str) -> SettingsType:
    """``cls(**values)``, with error messages for users.

    Args:
        cls: the group of settings.
        values: its fields; missing ones get their defaults.
        origin: source of the values ("train.toml", "the command line"), for the message.

    Raises:
        ConfigurationError: an unknown key (the message names the nearest one), or an invalid value.
    """
    try:
        return cls(**values)
    except ValidationError as error:
        problems = "; ".join(_describe(cls, detail) for detail in error.errors())
        raise ConfigurationError(f"{origin}: {problems}") from None


def _describe(cls: type[Settings], detail: ErrorDetails) -> str:
    """Describe one error of pydantic's report."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"there is no setting '{key}'{nearest(key, list(cls.model_fields))}"
    got = "" if detail["type"] == "missing" else f", got {detail['input']!r}"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:  # a condition on several settings: the message names them
        return message
    return f"{key}: {message[:1].lower()}{message[1:]}{got}"


def nearest(word: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"``, or the list of known words if none is similar."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(sorted(known))}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigurationError: the file is missing, unreadable or not TOML.
    """
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not a TOML file: it is not UTF-8 text") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
