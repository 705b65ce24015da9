"""Text in, text out: the `Translator` that a program holds, and what keeps sentences in order.

Searching is `multihead.decoding`'s; a sentence's batch never decides what becomes of it, only how fast. Streams and
files of lines are in `lines.windows` and `lines.translate_file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from multihead.bundle import Bundle, load_bundle
from multihead.configuration import build
from multihead.data.batching import collate_source
from multihead.data.order import batches_by_tokens
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.sampling import Sharpening, sample
from multihead.decoding.shortlist import Shortlist, Shortlisted
from multihead.decoding.stepper import Stepper
from multihead.engine.keeping import Engines
from multihead.engine.search import Engine
from multihead.errors import ConfigurationError, InputError
from multihead.machine import require_device
from multihead.models.config import GenerationConfig
from multihead.text.tokenizer import Tokenizer
from multihead.translating.attention import AttentionMap, attention_of
from multihead.translating.ensembling import ensemble_of
from multihead.translating.lengths import Lengths, lengths_of
from multihead.translating.search_settings import Mean, SearchSettings, completed
from multihead.translating.searching import (
    Demands,
    Phrases,
    check_n_best,
    check_room,
    demands,
    find,
    find_compiled,
    not_compiled,
    penalty_of,
    restrictions_of,
    scored,
    symbols_of,
)
from multihead.translating.shortlist import read as read_shortlist
from multihead.translating.translation import Translation, spelt

__all__ = ["Translation", "Translator"]

Find = Callable[[list[int], list[list[int]]], list[list[Hypothesis]]]
"""(places of the texts, their tokens) -> the hypotheses of each."""


class Translator:
    """A model with its tokenizers: raw text to raw text.

    Args:
        bundle: as `multihead.bundle.load_bundle` gives it; `Translator.load` is the usual way.
        folder: where it was read from, if it was; `lengths` looks there.

    Example:
        ``Translator.load("run").translate(["Ein Hund rennt.", "Zwei Katzen."])``
    """

    def __init__(self, bundle: Bundle, folder: Path | None = None) -> None:
        self.bundle = bundle
        self.folder = folder
        self._searching: SearchSettings | None = None
        self._engines = Engines()
        self._others: tuple[Bundle, ...] = ()
        self._together: Ensemble | None = None

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Translator:
        """Reads a model folder, or a run folder's best model.

        Raises:
            FormatError: it is neither, or damaged.
            ConfigurationError: the device is not there.
        """
        require_device(device)
        return cls(load_bundle(Path(path), device), Path(path))

    @cached_property
    def lengths(self) -> Lengths:
        """What is usual of the sentences that the model has learnt from, as far as its folder knows."""
        return lengths_of(self.folder)

    @cached_property
    def shortlist(self) -> Shortlist:
        """What `multihead shortlist` made for this model.

        Raises:
            ConfigurationError: nothing, or for another one.
            FormatError: it is damaged.
        """
        return read_shortlist(self.folder, self.bundle)

    def searching(self, **settings: Any) -> Translator:
        """This translator, searching otherwise: any fields of `SearchSettings` in the place of its own.

        Example:
            ``translator.searching(no_repeat=3, without=["Hund"]).translate(texts)``

        Raises:
            ConfigurationError: a setting that there is not, or that cannot be.
        """
        other = copy(self)
        other._searching = build(SearchSettings, {**self._own().model_dump(), **settings}, "the search")
        return other

    def ensemble(self, others: Sequence[Translator], mean: Mean = "probabilities") -> Translator:
        """This translator and others as one: what they predict is averaged at each step (`decoding.ensemble`).

        It searches as this one does. What needs attention, or the probability of a given translation, is this one's
        alone.

        Args:
            others: one or more with the same vocabularies; of any kind and size. An ensemble among them brings all its
                models, and each model counts as much as any other.
            mean: of what.

        Raises:
            ConfigurationError: another vocabulary, or another device; no other.
        """
        bundles = [*self._bundles, *(bundle for other in others for bundle in other._bundles)]
        together = copy(self)
        together._others = tuple(bundles[1:])
        together._together = ensemble_of(bundles, mean)
        return together

    @property
    def reach(self) -> int | None:
        """Positions that the model tells apart, of an ensemble the fewest; None: any number."""
        reaches = (bundle.model.max_positions for bundle in self._bundles)
        return min((reach for reach in reaches if reach is not None), default=None)

    @property
    def _bundles(self) -> list[Bundle]:
        return [self.bundle, *self._others]

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Translates sentences; as many come back, in order, and an empty one stays empty.

        Args:
            texts: a sentence each.
            beam: hypotheses of the beam search; 1 is greedy. This and the next three are the model's own by default.
            alpha: length penalty.
            min_length: the least tokens of a translation.
            max_length: the most tokens of a translation, its end symbol counted.
            prefixes: what each translation begins with; one a sentence, "" for nothing.
            phrases: what each translation contains: for each sentence words or phrases, or alternatives of one:
                ``[["dog", ("fast", "quick")], []]``.
            batch_tokens: padded source tokens times the beam in a batch: memory against speed. The compiled search,
                which has no padding, keeps its own count.
            progress: is told how many more sentences are done, whenever some are.
        """
        settings = self.search_settings(beam, alpha, min_length, max_length)
        found = self._beams(texts, 1, settings, prefixes, phrases, batch_tokens, progress)
        return [translations[0].text for translations in found]

    def translations(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """As `translate`, with scores and whether each is whole.

        Raises:
            InputError: one string instead of a list of them; a lone surrogate in one of them.
            ConfigurationError: a beam, penalty, length or budget that cannot be.
        """
        settings = self.search_settings(beam, alpha, min_length, max_length)
        found = self._beams(texts, 1, settings, prefixes, phrases, batch_tokens, progress)
        return [translations[0] for translations in found]

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """The ``n`` best translations that the beam holds of each sentence: finished ones first, then by score.

        They differ in their subwords; two can read the same. There are fewer where fewer were possible, and one, empty,
        of an empty sentence. Asking for more lets the search go on for longer: the first scores at least as high as
        what `translations` finds.

        Raises:
            InputError, ConfigurationError: as `translations`; more translations than the beam.
        """
        settings = self.search_settings(beam, alpha, min_length, max_length)
        return self._beams(texts, n, settings, prefixes, phrases, batch_tokens, progress)

    def sample(
        self,
        texts: Sequence[str],
        n: int = 1,
        *,
        seed: int = 0,
        sharpening: Sharpening | None = None,
        keys: Sequence[int] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """``n`` translations of each sentence, drawn from the model's distribution, in the order of drawing.

        A sentence's samples depend on the seed, its key and its text, not on the others or their order.

        Args:
            texts: a sentence each; an empty one has one translation, empty.
            n: how many of each.
            seed: of the random numbers.
            sharpening: temperature and truncation; by default none.
            keys: a number for each sentence; those of equal keys draw equal numbers. By default made of its text.
            min_length: the least tokens of a translation.
            max_length: the most tokens of a translation, its end symbol counted.
            prefixes: what each translation begins with; one a sentence, "" for nothing.
            batch_tokens: padded source tokens times ``n`` in a batch: memory against speed.
            progress: is told how many more sentences are done, whenever some are.

        Raises:
            InputError, ConfigurationError: as `translations`; not one key a sentence; no sample.
        """
        _refuse_one_string(texts)
        keys = [_key(text) for text in texts] if keys is None else keys
        if len(keys) != len(texts):
            raise InputError(f"keys: expected one for each of {len(texts)} texts, got {len(keys)}")
        if n < 1:
            raise ConfigurationError(f"expected at least 1 sample of each sentence, got {n}")
        settings = completed(self.search_settings(None, None, min_length, max_length))
        _refuse_precision(settings, "samples are not drawn by compiled code")
        tokenizer = self.bundle.target_tokenizer
        wanted = demands(tokenizer, texts, prefixes, None)

        def drawn(places: list[int], group: list[list[int]]) -> list[list[Hypothesis]]:
            source, lengths = self._collate(group)
            found = sample(
                self.stepper,
                source,
                lengths,
                symbols_of(tokenizer),
                max_lengths=[settings.limit(int(length)) for length in lengths],
                min_lengths=[settings.least(int(length)) for length in lengths],
                samples=n,
                seed=seed,
                keys=[keys[place] for place in places],
                sharpening=sharpening,
                restrictions=restrictions_of(settings, tokenizer, wanted.of(places)),
            )
            return [[scored(h, penalty_of(settings), settings.alpha) for h in hypotheses] for hypotheses in found]

        return self._translate(texts, drawn, n, settings, wanted, batch_tokens, progress)

    def search_settings(
        self,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
    ) -> GenerationConfig:
        """The model's own settings of the search, with these in their place where they are given.

        Raises:
            ConfigurationError: one that cannot be.
        """
        given = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
        changes = {name: value for name, value in given.items() if value is not None}
        own = self._own()
        if not changes:
            return own
        return build(type(own), {**own.model_dump(), **changes}, "the search")

    def _own(self) -> GenerationConfig:
        return self._searching or self.bundle.generation

    def _beams(
        self,
        texts: Sequence[str],
        n: int,
        settings: GenerationConfig,
        prefixes: Sequence[str] | None,
        phrases: Sequence[Phrases] | None,
        batch_tokens: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Translation]]:
        """The n best of each text by one of the beam searches."""
        _refuse_one_string(texts)
        check_n_best(n, settings.beam)
        wanted, whole = demands(self.bundle.target_tokenizer, texts, prefixes, phrases), completed(settings)
        engine = self._compiled(whole, wanted)

        def found(places: list[int], group: list[list[int]]) -> list[list[Hypothesis]]:
            return self._search(group, n, whole, wanted.of(places), engine, progress)

        width = settings.beam if engine is None else None
        return self._translate(texts, found, width, settings, wanted, batch_tokens, progress)

    @torch.no_grad()
    def _translate(
        self,
        texts: Sequence[str],
        search: Find,
        width: int | None,
        settings: GenerationConfig,
        wanted: Demands,
        batch_tokens: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Translation]]:
        """The texts in batches of so many tokens, of ``width`` rows each, through a search and back in order.

        Without a width they are one batch, of which the search itself tells the progress.
        """
        if batch_tokens < 1:
            raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
        self.bundle.model.eval()
        results = [[Translation("", 0.0, True)] for _ in texts]
        work = [index for index, text in enumerate(texts) if text.strip()]
        if progress is not None and len(work) < len(texts):
            progress(len(texts) - len(work))
        encoded = self.bundle.source_tokenizer.encode_batch([texts[index] for index in work])
        lengths = [len(ids) + 1 for ids in encoded]
        if wanted.prefixes or wanted.phrases:
            limits: list[int | None] = [None] * len(texts)
            for index, length in zip(work, lengths, strict=True):
                limits[index] = settings.limit(length)
            check_room(wanted, limits)
        whole = [list(range(len(work)))] if work else []
        for group in whole if width is None else batches_by_tokens(lengths, max(batch_tokens // width, 1)):
            found = search([work[i] for i in group], [encoded[i] for i in group])
            for i, hypotheses in zip(group, found, strict=True):
                results[work[i]] = [self.translation_of(h, lengths[i]) for h in hypotheses]
            if progress is not None and width is not None:
                progress(len(group))
        return results

    def _compiled(self, settings: SearchSettings, wanted: Demands) -> Engine | None:
        """The compiled search, where it has all that is asked for.

        Raises:
            ConfigurationError: it has not, and the precision is one that it alone has.
        """
        reason = not_compiled(settings, wanted) or ("ensembles are not compiled" if self._together else None)
        engine = reason or self._engines.of(
            self.bundle.model, settings.precision, self.shortlist if settings.shortlist else None
        )
        if isinstance(engine, Engine):
            return engine
        _refuse_precision(settings, engine)
        return None

    def _search(
        self,
        group: list[list[int]],
        n: int,
        settings: SearchSettings,
        wanted: Demands,
        engine: Engine | None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        tokenizer = self.bundle.target_tokenizer
        symbols = symbols_of(tokenizer)
        if engine is not None:
            sources = [[*ids, Tokenizer.eos_id] for ids in group]
            return find_compiled(engine, sources, symbols, settings, n, progress)
        source, lengths = self._collate(group)
        restrictions = restrictions_of(settings, tokenizer, wanted)
        return find(self.stepper, source, lengths, symbols, settings, n, restrictions, wanted.phrases)

    @property
    def stepper(self) -> Stepper[Any]:
        """What is searched: the model, or several as one, of the whole vocabulary or a shortlist."""
        found = self._engines.stepping(self.bundle.model) if self._together is None else self._together
        if not completed(self._own()).shortlist:
            return found
        return Shortlisted(found, self.shortlist, self.bundle.model.config.target_vocab)

    @property
    def compiled(self) -> bool:
        """Whether its searches run as compiled code, where no single one asks for what that does not have."""
        return self.engine is not None

    @property
    def engine(self) -> Engine | None:
        """The compiled search, for who wants to run it: where its settings ask for nothing that it does not have."""
        return self._compiled(completed(self._own()), Demands())

    def _collate(self, group: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded sources and their lengths, where the model is."""
        source, lengths = collate_source(group, Tokenizer.pad_id, Tokenizer.eos_id)
        device = self.bundle.model.output.weight.device
        return source.to(device), lengths.to(device)

    def translation_of(self, hypothesis: Hypothesis, source_tokens: int) -> Translation:
        """What a search found, as text; ``source_tokens``: of its sentence, the end symbol counted."""
        return spelt(hypothesis, self.bundle.target_tokenizer, source_tokens, self.reach)

    def attention(self, text: str, translation: str | None = None) -> AttentionMap:
        """Every head's weights while ``translation`` (by default: our own) is written for ``text``.

        Raises:
            InputError: an empty sentence; a lone surrogate.
        """
        if not text.strip():
            raise InputError("an empty sentence has no attention to show")
        ids = self.bundle.source_tokenizer.encode(text)
        if translation is not None:
            return self.attention_of(ids, self.bundle.target_tokenizer.encode(translation))
        settings = completed(self._own())
        self.bundle.model.eval()
        ((found,),) = self._search([ids], 1, settings, Demands(), self._compiled(settings, Demands()))
        return self.attention_of(ids, list(found.tokens))

    def attention_of(self, read: list[int], written: list[int]) -> AttentionMap:
        """As `attention`, of tokens without begin and end: as a search found them, however they spell the text."""
        return attention_of(self.bundle, read, written)


def _refuse_precision(settings: SearchSettings, reason: str) -> None:
    if settings.precision != "float32":
        raise ConfigurationError(f"precision {settings.precision} cannot be had here: {reason}; write float32")


def _refuse_one_string(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InputError("expected a list of sentences, got one string; write translate([text])")


def _key(text: str) -> int:
    """A number made of the text, the same in every process."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
