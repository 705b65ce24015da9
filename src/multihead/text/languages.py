"""The languages that a user asks a model for.

Codes are those of the model: ``de``, ``deu_Latn``, ``de_DE``. A model of one pair of languages needs none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Languages:
    """The language of each side; None leaves it to the model."""

    source: str | None = None
    target: str | None = None
