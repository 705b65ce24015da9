"""Settings of one corpus: its files, languages and weight.

A corpus is a table ``[[corpus]]`` of a TOML file or a flag ``--corpus "FILE [FILE] [weight=0.5]"``; both name the same
fields. No torch here: ``--help`` reads this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from multihead.configuration import MOST_FACTOR, Settings
from multihead.platforms import split_words

Files = Path | tuple[Path, ...]
"""A file, a pattern such as ``train-*.tsv``, a folder, or a list of these."""


def _split_commas(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


class CorpusSettings(Settings):
    """One of several corpora."""

    source: Files
    """Text in the source language, or a file of pairs; or a pattern, a folder or a list of such files."""
    target: Files | None = None
    """Its translation, line by line; omitted for a file of pairs."""
    weight: float = Field(default=1.0, gt=0, le=MOST_FACTOR)
    """How often each pair is seen in an epoch, on average."""
    source_language: str | None = None
    """Code of its source language (de); by default that of all corpora, else what the file or its name says."""
    target_language: str | None = None
    """Code of its target language, likewise."""
    both_ways: bool | None = None
    """Learn to translate it in both directions, with one model."""
    columns: Annotated[tuple[str, str] | None, BeforeValidator(_split_commas)] = None
    """Names of the columns or keys of source and target in a table, JSON lines or Parquet, or numbers from 1."""


_OPTIONS = tuple(name for name in CorpusSettings.model_fields if name not in ("source", "target"))
_EXPECTED = "FILE [FILE] [weight=NUMBER]"


def parse_corpus(value: object) -> object:
    """Parse "FILE", "FILE FILE" and "FILE FILE weight=0.5"; names with spaces are quoted as in a shell."""
    if not isinstance(value, str):
        return value
    try:
        words = split_words(value)
    except ValueError as error:
        raise ValueError(f"cannot be read ({error}); expected {_EXPECTED}") from None
    options: dict[str, str] = {}
    files = []
    for word in words:
        name, sign, text = word.partition("=")
        name = name.replace("-", "_")
        if not sign or name not in _OPTIONS:
            files.append(word)
        elif name in options:
            raise ValueError(f"{name} is given twice; expected {_EXPECTED}")
        else:
            options[name] = text
    if not 1 <= len(files) <= 2:
        others = ", ".join(f"{name}=..." for name in _OPTIONS if name != "weight")
        raise ValueError(f"expected {_EXPECTED}, names with spaces in quotes; further options: {others}")
    return dict(zip(("source", "target"), files, strict=False)) | options
