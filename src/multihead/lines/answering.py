"""Translations of texts as they were asked for: searched or drawn, chosen among, guarded.

What is asked is a `Rendering`; lines, and what is written of them, are the business of `lines.windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from multihead.decoding.sampling import Sharpening
from multihead.errors import ConfigurationError
from multihead.judging.guard import GuardedTranslation, assess, retry
from multihead.lines.rendering import Rendering
from multihead.translating.consensus import consensus
from multihead.translating.searching import Phrases
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Answer:
    """Of one text."""

    found: list[Translation]
    """One or more."""
    guarded: list[GuardedTranslation]
    """Each of them, where they are guarded."""


def answers(
    translator: Translator,
    texts: Sequence[str],
    asked: Rendering,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Phrases] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """One for each text, in order.

    Args:
        translator: searching as is asked.
        texts: a sentence each; an empty one has one translation, empty.
        asked: what for.
        prefixes, phrases, progress: as `Translator.translations` has them.

    Raises:
        InputError, ConfigurationError: as `Translator.translations`; phrases of samples.
    """
    found = _candidates(translator, texts, asked, prefixes, phrases, progress)
    if asked.metric is not None:
        language, drawn = translator.bundle.target_language, asked.sampling is not None
        found = [[consensus(row, asked.metric, drawn=drawn, language=language)] for row in found]
    if asked.guard is None:
        return [Answer(row, []) for row in found]
    given = [text for text, row in zip(texts, found, strict=True) for _ in row]
    judged = assess(translator, given, [translation for row in found for translation in row], asked.guard)
    if asked.guard.mode == "retry":
        demands: dict[str, Any] = {"prefixes": prefixes, "phrases": phrases, "batch_tokens": asked.batch_tokens}
        judged = retry(translator, texts, judged, asked.guard, **demands)
        found = [[each.translation] for each in judged]
    rest = iter(judged)
    return [Answer(row, [next(rest) for _ in row]) for row in found]


def _candidates(
    translator: Translator,
    texts: Sequence[str],
    asked: Rendering,
    prefixes: Sequence[str] | None,
    phrases: Sequence[Phrases] | None,
    progress: Callable[[int], None] | None,
) -> list[list[Translation]]:
    shared: dict[str, Any] = {"prefixes": prefixes, "batch_tokens": asked.batch_tokens, "progress": progress}
    if asked.sampling is None:
        return translator.n_best(texts, asked.candidates, phrases=phrases, **shared)
    if phrases is not None:
        raise ConfigurationError("phrases that must appear cannot be had with samples: leave one of them out")
    sharpening = Sharpening(**asked.sampling.limits)
    return translator.sample(texts, asked.sampling.sample, seed=asked.sampling.seed, sharpening=sharpening, **shared)
