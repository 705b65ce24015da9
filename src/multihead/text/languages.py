"""Languages that a user asks a model for, and a model's directions.

Codes are those of the model: ``de``, ``deu_Latn``, ``de_DE``. A model of one pair of languages needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Languages:
    """The language of each side; None leaves it to the model."""

    source: str | None = None
    target: str | None = None


class Direction(NamedTuple):
    """From which language a model translates into which."""

    source: str | None
    """None if the text that it learned from does not say."""
    target: str

    def __str__(self) -> str:
        return f"{self.source or '?'}-{self.target}"


def find_directions(directions: tuple[Direction, ...], asked: Languages) -> list[Direction]:
    """The directions of a model that fit the languages that the user asks for.

    Raises:
        ConfigurationError: none does; lists them.
    """
    found = [one for one in directions if _fits(asked.source, one.source) and _fits(asked.target, one.target)]
    if not found:
        wanted = " ".join(f"{side} {code}" for side, code in (("from", asked.source), ("to", asked.target)) if code)
        raise ConfigurationError(f"this model does not translate {wanted}; it translates {listed(directions)}")
    return found


def common_languages(directions: tuple[Direction, ...]) -> tuple[str | None, str | None]:
    """The source and the target language of all directions; None where they differ."""
    sources, targets = {direction.source for direction in directions}, {direction.target for direction in directions}
    return sources.pop() if len(sources) == 1 else None, targets.pop() if len(targets) == 1 else None


def listed(directions: tuple[Direction, ...]) -> str:
    """Directions for a message."""
    shown = ", ".join(map(str, directions[:24]))
    return shown + (f" and {len(directions) - 24} more" if len(directions) > 24 else "")


def _fits(wanted: str | None, own: str | None) -> bool:
    if wanted is None or own is None:
        return True
    return _normal(wanted) == _normal(own)


def _normal(code: str) -> str:
    return code.replace("_", "-").casefold()
