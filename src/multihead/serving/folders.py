"""The models of the command line, checked before the server listens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from multihead.bundle import locate
from multihead.errors import ConfigurationError
from multihead.serving.loaded_model import estimate_bytes
from multihead.serving.models import ModelSource, Pair
from multihead.serving.settings import ServeSettings
from multihead.text.languages import Languages
from multihead.translating.translator import Translator


def find_models(
    folders: Mapping[tuple[str, str] | None, Path],
    search: Mapping[str, Any],
    device: str,
    settings: ServeSettings,
) -> list[ModelSource]:
    """The models in folders.

    Args:
        folders: by source and target language; a single one may have None.
        search: settings that replace those of the models.
        device: ``cpu`` or ``cuda``.
        settings: of the server.

    Raises:
        FormatError: a folder is not a model.
        ConfigurationError: a model is larger than the memory limit; a limit or pivot that does nothing.
    """
    found = []
    for languages, folder in folders.items():
        pair, limit = None if languages is None else Pair(*languages), settings.memory_bytes
        needed = estimate_bytes(locate(folder), search.get("precision", "float32"))
        source = ModelSource(partial(load, folder, pair, search, device), pair, needed)
        if limit is not None and needed > limit:
            size = f"{needed / 1e6:,.1f} MB"
            raise ConfigurationError(
                f"{folder}: needs about {size} of memory, more than --memory-limit {settings.memory_limit}"
            )
        found.append(source)
    if None in folders:
        for flag, value in (("--memory-limit", settings.memory_limit), ("--pivot", settings.pivot)):
            if value is not None:
                raise ConfigurationError(f"{flag} is for models given with their languages, as in de-en=FOLDER")
    return found


def load(folder: Path, pair: Pair | None, search: Mapping[str, Any], device: str) -> Translator:
    """Load a model and translate a word with it, so that a broken model is never served.

    Raises:
        MultiheadError: the folder is damaged, has other languages, or the model computes NaN.
    """
    translator = Translator.load(folder, device, None if pair is None else Languages(*pair)).searching(**search)
    translator.translate(["a"])
    return translator
