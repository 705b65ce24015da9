"""Mark suspicious translations, and search them again on request.

`judging.guard_signs` defines the signs of a wrong translation and the score that combines them. A translation whose
score reaches the threshold is marked. With ``mode="retry"`` it is searched again, and the candidate with the best score
is kept:

    1. a search with a wider beam, no repeated trigram, and a minimum length at which the length is not yet suspicious;
    2. if that is still suspicious, the consensus (`translating.consensus`) of 16 samples from the more probable tokens.

Ties are resolved in favor of the earlier candidate, so a retry never scores worse than the first translation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from multihead.errors import InputError
from multihead.judging import guard_signs
from multihead.judging.analysis import analyze_tokens
from multihead.judging.guard_signs import MIN_ATTENTION, SIGNS, GuardMode, GuardSettings
from multihead.text.context import own_text
from multihead.text.terms import AS, END, Terms
from multihead.translating.consensus import consensus
from multihead.translating.request import Phrases, Sampling, TranslationRequest
from multihead.translating.searching import Translation
from multihead.translating.translator import Translator

_TINY = 1e-300


@dataclass(frozen=True)
class GuardedTranslation:
    """A translation with its suspicion score."""

    translation: Translation
    score: float
    """Suspicion, from 0 to 1."""
    reasons: tuple[str, ...]
    """The signs present, in words, most important first."""
    marked: bool
    """Whether the score reaches the threshold."""
    signs: dict[str, float]
    """Measured values by the name of the sign (`guard_signs`); empty for an empty line."""
    first: GuardedTranslation | None = None
    """The first translation, if the sentence was searched again."""

    @property
    def remark(self) -> str | None:
        """A one-line remark for the reader; None if nothing was suspicious."""
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
    terms: Terms | None = None,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[GuardedTranslation]:
    """Translate sentences and assess each translation, in order.

    Args:
        translator: the translator; its own settings decide the first search (`Translator.searching`).
        texts: one sentence per item.
        mode: mark suspicious translations, or search them again.
        settings: further settings of the guard; they replace ``mode``.
        prefixes: see `Translator.translations`, as for the following.
        phrases: what each translation contains.
        terms: wanted translations, for a model that was trained with terms (`text.terms`).
        batch_tokens: the size of a batch.
        progress: called with the number of newly finished sentences.

    Raises:
        InputError, ConfigurationError: as `Translator.translations`; terms for a model that was trained without them.
    """
    settings = settings or GuardSettings(mode=mode)
    search = translator.search_settings()
    request = TranslationRequest(search, texts, prefixes, phrases, terms=terms, batch_tokens=batch_tokens)
    found = [translations[0] for translations in translator.run(request, progress)]
    judged = assess(translator, texts, found, settings, terms)
    return judged if settings.mode == "mark" else retry(translator, request, judged, settings)


def assess(
    translator: Translator,
    texts: Sequence[str],
    translations: Sequence[Translation],
    settings: GuardSettings,
    terms: Terms | None = None,
) -> list[GuardedTranslation]:
    """Assess translations, without searching any of them again.

    Args:
        translator: the translator that made them.
        texts: the source of each translation.
        translations: translations with probabilities, from a `Translator`.
        settings: settings of the guard; their mode is ignored.
        terms: those of the request for the translations.

    Raises:
        InputError: the numbers of texts and translations differ.
        ConfigurationError: terms for a model that was trained without them.
    """
    if len(texts) != len(translations):
        raise InputError(f"got {len(translations)} translations of {len(texts)} texts; expected one per text")
    measured: list[dict[str, float]] = [{} for _ in texts]
    work = [place for place, text in enumerate(texts) if text.strip()]
    bare = [texts[place] for place in work]
    read = translator.bundle.source_tokenizer.encode_batch(bare)
    languages = translator.bundle.source_language, translator.bundle.target_language
    context = translator.bundle.source_tokenizer.context
    paraphrase = languages[0] is not None and languages[0] == languages[1]
    for place, ids in zip(work, read, strict=True):
        translation = translations[place]
        signs = guard_signs.text_signs(own_text(texts[place]), translation.text)
        if paraphrase:
            del signs["copy"]
        if not context:  # beside which a length, and what was read, say little
            signs["length"] = guard_signs.length(len(ids) + 1, translation.tokens, translator.lengths)
        signs["doubt"] = -translation.log_probability / max(translation.tokens, 1)
        measured[place] = signs
    if settings.closer:
        if terms is not None:
            read = translator.bundle.source_tokenizer.encode_batch(translator.annotated(bare, terms))
        written = translator.bundle.target_tokenizer.answers([translations[place].text for place in work], bare)
        for place, found in zip(work, analyze_tokens(translator, read, written, 0), strict=True):
            measured[place]["surprise"] = -math.log(max(min(p.probability for p in found.pieces), _TINY))
            if found.weights is not None and not context:
                received = _attention_received(found.weights, found.source_words)
                measured[place]["coverage"] = sum(one < MIN_ATTENTION for one in received) / max(len(received), 1)
    return [_guarded(*each, settings) for each in zip(translations, measured, strict=True)]


def retry(
    translator: Translator,
    request: TranslationRequest,
    judged: Sequence[GuardedTranslation],
    settings: GuardSettings,
) -> list[GuardedTranslation]:
    """Search marked sentences again, more safely, and keep the candidate with the lowest suspicion.

    Args:
        translator: the model that made them.
        request: the texts with their constraints.
        judged: a translation of each text.
        settings: of the guard.
    """
    results = list(judged)

    def attempt(safer: Translator, places: list[int], sampling: Sampling | None = None) -> list[int]:
        """Search the sentences at ``places`` again; returns those that are still suspicious."""
        asked = TranslationRequest(
            safer.search_settings(), request.texts, request.prefixes, None if sampling else request.phrases,
            sampling=sampling, terms=request.terms, batch_tokens=request.batch_tokens,
        ).select(places)  # fmt: skip
        rows = safer.run(asked)
        translations = [row[0] if sampling is None else consensus(row) for row in rows]
        others = assess(translator, asked.texts, translations, settings, request.terms)
        for place, other in zip(places, others, strict=True):
            best = other if other.score < results[place].score else results[place]
            results[place] = replace(best, first=judged[place])
        return [place for place in places if results[place].marked]

    marked = [place for place, each in enumerate(judged) if each.marked]
    constrained = [place for place in marked if request.phrases and request.phrases[place]]
    if constrained:  # phrases may repeat tokens themselves, and sampling does not support them
        attempt(_safer(translator, settings, 0), constrained)
    left = [place for place in marked if place not in constrained]
    safer = _safer(translator, settings, settings.no_repeat)
    if left:
        left = attempt(safer, left)
    if left:
        attempt(safer, left, Sampling(sample=settings.samples, epsilon=settings.epsilon, seed=settings.seed))
    return results


def _safer(translator: Translator, settings: GuardSettings, no_repeat: int) -> Translator:
    """The second search, with a minimum length at which the length becomes a sign, in full precision.

    The limits of the first search (repetition, minimum length) still apply where they are stricter. A datastore is left
    out: it belongs to the compiled search, which cannot exclude repetitions.
    """
    own, usual = translator.search_settings(), translator.lengths
    least = usual.ratio * math.exp(-SIGNS["length"].ordinary * usual.spread)
    safer = translator.searching(
        beam=max(settings.beam, own.beam),
        groups=1,
        no_repeat=min(filter(None, (own.no_repeat, no_repeat)), default=0),
        min_factor=max(own.min_factor, least),
        precision="float32",
    )
    safer.datastore = None
    return safer


def _guarded(translation: Translation, signs: dict[str, float], settings: GuardSettings) -> GuardedTranslation:
    score = guard_signs.suspicion(signs)
    return GuardedTranslation(translation, score, guard_signs.reasons(signs), score >= settings.threshold, signs)


def _attention_received(weights: Sequence[Sequence[float]], words: Sequence[str]) -> list[float]:
    """The attention that each word of the source received in total.

    That of the lemma of a term counts for the last word of the term, since the model needs to look at one of them only.

    Args:
        weights: [target word][source word].
        words: of the source, with terms as `text.terms` annotates them.
    """
    received: list[float] = []
    lemma = False
    for place, word in enumerate(words):
        attention = math.fsum(row[place] for row in weights)
        if lemma:
            received[-1] += attention
        else:
            received.append(attention)
        if AS in word or END in word:
            lemma = word.rfind(AS) > word.rfind(END)
    return received
