"""The guard of translations: which of them look wrong, and, on request, a safer second search for those.

What is looked at, how it counts and how all of it becomes one score is in `guard_signs`. A translation whose suspicion
reaches the threshold is marked. With ``mode="retry"`` it is searched again, and the best by the same score stays:

    1. a wider beam, no three tokens twice, and no shorter than what would begin to be suspicious;
    2. if that is suspicious still, of 16 samples from tokens that are not improbable the one that the others agree
       with (`translating.consensus`)

and of equals what was there first. Neither is taken where it scores no better than the first translation. Where nothing
is asked for, nothing here runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multihead.decoding.sampling import Sharpening
from multihead.errors import InputError
from multihead.judging import guard_signs
from multihead.judging.analysis import analyze_pairs
from multihead.judging.guard_signs import MIN_ATTENTION, SIGNS, GuardMode, GuardSettings
from multihead.translating.consensus import consensus
from multihead.translating.search_settings import completed
from multihead.translating.searching import Phrases
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator

_TINY = 1e-300


@dataclass(frozen=True)
class GuardedTranslation:
    """A translation, and how far it can be trusted."""

    translation: Translation
    score: float
    """How suspicious it is, from 0 to 1."""
    reasons: tuple[str, ...]
    """The signs that are there, in words, the weightiest first."""
    marked: bool
    """Whether the score reaches the threshold."""
    signs: dict[str, float]
    """What was measured, by name (`guard_signs`); nothing of an empty line."""
    first: GuardedTranslation | None = None
    """What the search found first, where the sentence was searched again."""

    @property
    def remark(self) -> str | None:
        """What its reader should know, in a line; None where nothing was suspicious."""
        if self.first is None:
            return f"suspicious ({self.score:.2f}): {'; '.join(self.reasons)}" if self.marked else None
        found = f"suspicious ({self.first.score:.2f}): {'; '.join(self.first.reasons)}"
        if self.translation == self.first.translation:
            return f"{found}; searched again, and nothing better was found"
        return f"{found}; searched again ({self.score:.2f})"


def translate_guarded(
    translator: Translator,
    texts: Sequence[str],
    *,
    mode: GuardMode = "mark",
    settings: GuardSettings | None = None,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Phrases] | None = None,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[GuardedTranslation]:
    """Translates sentences, each with how far it can be trusted; as many come back, in order.

    Args:
        translator: the model; `Translator.searching` says how it searches.
        texts: a sentence each.
        mode: what to do about a suspicious one.
        settings: more of the guard; ``mode`` is then theirs.
        prefixes, phrases, batch_tokens, progress: as `Translator.translations` has them.

    Raises:
        InputError, ConfigurationError: as `Translator.translations`.
    """
    settings = settings or GuardSettings(mode=mode)
    asked: dict[str, Any] = {"prefixes": prefixes, "phrases": phrases, "batch_tokens": batch_tokens}
    found = translator.translations(texts, progress=progress, **asked)
    judged = assess(translator, texts, found, settings)
    if settings.mode == "mark":
        return judged
    return retry(translator, texts, judged, settings, prefixes=prefixes, phrases=phrases, batch_tokens=batch_tokens)


def assess(
    translator: Translator, texts: Sequence[str], translations: Sequence[Translation], settings: GuardSettings
) -> list[GuardedTranslation]:
    """How far translations can be trusted. None of them is searched again.

    Args:
        translator: the model that made them.
        texts: what was translated, one for each translation.
        translations: with their probabilities, as a `Translator` gives them.
        settings: of the guard; their mode does not matter.

    Raises:
        InputError: not one text a translation.
    """
    if len(texts) != len(translations):
        raise InputError(f"got {len(translations)} translations of {len(texts)} texts; expected one of each")
    measured: list[dict[str, float]] = [{} for _ in texts]
    work = [place for place, text in enumerate(texts) if text.strip()]
    read = translator.bundle.source_tokenizer.encode_batch([texts[place] for place in work])
    languages = translator.bundle.source_language, translator.bundle.target_language
    paraphrase = languages[0] is not None and languages[0] == languages[1]
    for place, ids in zip(work, read, strict=True):
        translation = translations[place]
        signs = guard_signs.text_signs(texts[place], translation.text)
        if paraphrase:
            del signs["copy"]
        signs["length"] = guard_signs.length(len(ids) + 1, translation.tokens, translator.lengths)
        signs["doubt"] = -translation.log_probability / max(translation.tokens, 1)
        measured[place] = signs
    if settings.closer:
        pairs = [texts[place] for place in work], [translations[place].text for place in work]
        for place, found in zip(work, analyze_pairs(translator, *pairs, alternatives=0), strict=True):
            measured[place]["surprise"] = -math.log(max(min(p.probability for p in found.pieces), _TINY))
            if found.weights is not None:
                measured[place]["coverage"] = _unseen(found.weights, len(found.source_words))
    return [_guarded(*each, settings) for each in zip(translations, measured, strict=True)]


def retry(
    translator: Translator,
    texts: Sequence[str],
    judged: Sequence[GuardedTranslation],
    settings: GuardSettings,
    *,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Phrases] | None = None,
    batch_tokens: int = 4096,
) -> list[GuardedTranslation]:
    """Searches those that are marked once more, more safely; the better ones by the same score stay."""
    results = list(judged)

    def attempt(
        search: Callable[..., list[Translation]], places: list[int], **demands: Sequence[Any] | None
    ) -> list[int]:
        """Takes what is better; the places of those that are still suspicious."""
        given = [texts[place] for place in places]
        own = {name: [all_of_them[place] for place in places] for name, all_of_them in demands.items() if all_of_them}
        found = assess(translator, given, search(given, batch_tokens=batch_tokens, **own), settings)
        for place, other in zip(places, found, strict=True):
            best = other if other.score < results[place].score else results[place]
            results[place] = replace(best, first=judged[place])
        return [place for place in places if results[place].marked]

    marked = [place for place, each in enumerate(judged) if each.marked]
    bound = [place for place in marked if phrases and phrases[place]]
    if bound:  # a phrase may repeat something itself, and samples know none
        attempt(_careful(translator, settings, 0).translations, bound, prefixes=prefixes, phrases=phrases)
    left = [place for place in marked if not (phrases and phrases[place])]
    careful = _careful(translator, settings, settings.no_repeat)
    if left:
        left = attempt(careful.translations, left, prefixes=prefixes)
    if left:

        def drawn(given: list[str], **asked: Any) -> list[Translation]:
            sharpening = Sharpening(epsilon=settings.epsilon)
            rows = careful.sample(given, settings.samples, seed=settings.seed, sharpening=sharpening, **asked)
            return [consensus(row) for row in rows]

        attempt(drawn, left, prefixes=prefixes)
    return results


def _careful(translator: Translator, settings: GuardSettings, no_repeat: int) -> Translator:
    """The second search: no shorter than where the length begins to be a sign; step by step, so in full precision.

    What the first one forbade stays forbidden: its own repetitions and least length count where they are stricter.
    """
    own, usual = completed(translator.search_settings()), translator.lengths
    least = usual.ratio * math.exp(-SIGNS["length"].ordinary * usual.spread)
    return translator.searching(
        beam=max(settings.beam, own.beam),
        groups=1,
        no_repeat=min(filter(None, (own.no_repeat, no_repeat)), default=0),
        min_factor=max(own.min_factor, least),
        precision="float32",
    )


def _guarded(translation: Translation, signs: dict[str, float], settings: GuardSettings) -> GuardedTranslation:
    score = guard_signs.suspicion(signs)
    return GuardedTranslation(translation, score, guard_signs.reasons(signs), score >= settings.threshold, signs)


def _unseen(weights: Sequence[Sequence[float]], words: int) -> float:
    """The share of the source's words that no word of a translation looked at; weights: [target word][source word]."""
    looks = [math.fsum(row[word] for row in weights) for word in range(words)]
    return sum(look < MIN_ATTENTION for look in looks) / max(words, 1)
