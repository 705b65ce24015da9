"""Detect the language of a text, offline (extra `detect`).

    detect("Wo ist der Bahnhof?")                       [("de", 0.97), ("lb", 0.01), ...]
    detect("Das ist gut.", among=["de-AT", "en"])       [("de-AT", 0.999), ("en", 0.001)]

The classifier is py3langid's: naive Bayes over byte n-grams, with its model inside the package. It confuses close
languages (Norwegian and Danish, Croatian and Serbian), and a few letters say little; `among` helps with both. The
package is imported, and its model read (1.5 s), at the first call. Guessing the language of a corpus from its most
frequent words, without any package, is `diagnosis.heuristics`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from multihead.errors import InputError, require_package

_ENOUGH = 10_000
"""Characters that are read; more change nothing but the time."""
_ALIASES = {"nb": "no", "iw": "he", "in": "id", "ji": "yi", "fil": "tl"}
"""Codes under another name in the model."""


def detect(text: str, among: Sequence[str] | None = None) -> list[tuple[str, float]]:
    """The languages that a text may be in, with their probabilities, most likely first.

    Args:
        text: of any length; the first 10,000 characters are read.
        among: the codes to choose from, such as "de", "pt-BR" or "zh-Hans"; None for all of `detectable`. Only the
            language of a code counts, so of "zh-Hans" and "zh-Hant" the one that comes first is returned. Codes of
            unknown languages are never returned.

    Returns:
        Pairs of a code, as it stands in ``among``, and its probability in 0..1. They sum to 1 over the languages
        considered; probabilities of 0 are left out. Empty for a text without letters.

    Raises:
        MissingDependencyError: the extra is not installed.
        InputError: no language of ``among`` can be detected.
    """
    wanted = _wanted(None if among is None else tuple(among))
    if not wanted:
        raise InputError(f"none of the languages {', '.join(among or ())} can be detected; expected codes such as de")
    if not any(map(str.isalpha, text)):
        return []
    ranking = _identifier(frozenset(wanted)).rank(text[:_ENOUGH])
    return [(wanted[name], float(share)) for name, share in ranking if share > 0]


def detectable() -> frozenset[str]:
    """The codes of all languages that `detect` considers by default: those with a code of two letters (ISO 639-1).

    Raises:
        MissingDependencyError: the extra is not installed.
    """
    return frozenset(name for name in _known() if len(name) == 2)


@lru_cache(maxsize=64)
def _wanted(among: tuple[str, ...] | None) -> dict[str, str]:
    """The languages to choose from, by the model's name, and the code to return for each."""
    known, wanted = _known(), dict[str, str]()
    for code in sorted(detectable()) if among is None else among:
        name = _language(code)
        if name in known:
            wanted.setdefault(name, code)
    return wanted


def _language(code: str) -> str:
    """The model's name of the language of a code: "pt_BR" is "pt"."""
    name = code.replace("_", "-").partition("-")[0].lower()
    return _ALIASES.get(name, name)


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """The labels of the model that are languages."""
    return frozenset(_identifier(None).labels) - {"zxx"}


@lru_cache(maxsize=8)
def _identifier(names: frozenset[str] | None) -> Any:
    """The classifier of these languages. It is only read, so threads may share it."""
    if names is not None:
        restricted = copy.copy(_identifier(None))  # shares the arrays
        restricted.set_languages(sorted(names))
        return restricted
    require_package("py3langid.langid", "detect", "detecting languages")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
