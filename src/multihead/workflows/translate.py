"""Text in, text out: the `Translator` that a program holds, and what keeps sentences in order.

Searching is `multihead.decoding`'s; a sentence's batch never decides what becomes of it, only how fast. Streams and
files of lines are in `workflows.lines` and `workflows.translate_file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multihead import bundle as bundles
from multihead.bundle import Bundle
from multihead.configuration import build
from multihead.data.batching import batches_by_tokens, collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.sampling import Sharpening, sample
from multihead.decoding.stepper import Symbols
from multihead.engine.keeping import Engines
from multihead.engine.search import Engine
from multihead.errors import ConfigurationError, InputError
from multihead.models.config import GenerationConfig
from multihead.text.tokenizer import Tokenizer
from multihead.workflows.attention import AttentionMap
from multihead.workflows.machine import require_device
from multihead.workflows.search_settings import SearchSettings
from multihead.workflows.searching import (
    Demands,
    Phrases,
    check_room,
    demands,
    find,
    find_compiled,
    not_compiled,
    penalty_of,
    restrictions_of,
    scored,
)

Find = Callable[[list[int], list[list[int]]], list[list[Hypothesis]]]
"""(places of the texts, their tokens) -> the hypotheses of each."""


@dataclass(frozen=True)
class Translation:
    """A translated sentence."""

    text: str
    score: float
    """log p(y | x) / penalty(|y|): comparable between translations of one sentence."""
    finished: bool
    """False where the length limit cut it; then the text is not whole."""
    warning: str | None = None
    """What else its reader should know: the sentence is longer than the positions that the model tells apart."""


class Translator:
    """A model with its tokenizers: raw text to raw text.

    Args:
        bundle: as `multihead.bundle.load` gives it; `Translator.load` is the usual way.

    Example:
        ``Translator.load("run").translate(["Ein Hund rennt.", "Zwei Katzen."])``
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._searching: SearchSettings | None = None
        self._engines = Engines()

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Translator:
        """Reads a model folder, or a run folder's best model.

        Raises:
            FormatError: it is neither, or damaged.
            ConfigurationError: the device is not there.
        """
        require_device(device)
        return cls(bundles.load(Path(path), device))

    def searching(self, **settings: Any) -> Translator:
        """This translator, searching otherwise: any fields of `SearchSettings` in the place of its own.

        Example:
            ``translator.searching(no_repeat=3, without=["Hund"]).translate(texts)``

        Raises:
            ConfigurationError: a setting that there is not, or that cannot be.
        """
        other = Translator(self.bundle)
        other._engines = self._engines
        other._searching = build(SearchSettings, {**self._own().model_dump(), **settings}, "the search")
        return other

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
        settings = _whole(self.search_settings(None, None, min_length, max_length))
        _refuse_precision(settings, "samples are not drawn by compiled code")
        tokenizer = self.bundle.target_tokenizer
        wanted = demands(tokenizer, texts, prefixes, None)

        def drawn(places: list[int], group: list[list[int]]) -> list[list[Hypothesis]]:
            source, lengths = self._collate(group)
            found = sample(
                self.bundle.model,
                source,
                lengths,
                symbols_of(tokenizer),
                max_lengths=[settings.limit(int(length)) for length in lengths],
                min_lengths=settings.min_length,
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
        wanted, whole = demands(self.bundle.target_tokenizer, texts, prefixes, phrases), _whole(settings)
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
                results[work[i]] = [self._translation(h, lengths[i]) for h in hypotheses]
            if progress is not None and width is not None:
                progress(len(group))
        return results

    def _compiled(self, settings: SearchSettings, wanted: Demands) -> Engine | None:
        """The compiled search, where it has all that is asked for.

        Raises:
            ConfigurationError: it has not, and the precision is one that it alone has.
        """
        engine = not_compiled(settings, wanted) or self._engines.of(self.bundle.model, settings.precision)
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
        return find(self.bundle.model, source, lengths, symbols, settings, n, restrictions, wanted.phrases)

    @property
    def compiled(self) -> bool:
        """Whether its searches run as compiled code, where no single one asks for what that does not have."""
        return self._compiled(_whole(self._own()), Demands()) is not None

    def _collate(self, group: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded sources and their lengths, where the model is."""
        source, lengths = collate_source(group, Tokenizer.pad_id, Tokenizer.eos_id)
        device = self.bundle.model.output.weight.device
        return source.to(device), lengths.to(device)

    def _translation(self, hypothesis: Hypothesis, source_tokens: int) -> Translation:
        tokens = hypothesis.tokens
        warning = self._beyond_positions(source_tokens, len(tokens) + 1)
        text = self.bundle.target_tokenizer.decode(tokens)
        return Translation(text, hypothesis.score, hypothesis.finished, warning)

    def _beyond_positions(self, source_tokens: int, target_tokens: int) -> str | None:
        """What to say where a side has more tokens (the begin or end symbol counted) than positions were learned."""
        most = self.bundle.model.max_positions
        if most is None or max(source_tokens, target_tokens) <= most:
            return None
        side, tokens = ("source", source_tokens) if source_tokens > most else ("translation", target_tokens)
        return f"the {side} has {tokens} tokens, but the model learned {most} positions: beyond them it sees no order"

    @torch.no_grad()
    def attention(self, text: str, translation: str | None = None) -> AttentionMap:
        """Every head's weights while ``translation`` (by default: our own) is written for ``text``.

        Raises:
            InputError: an empty sentence; a lone surrogate.
        """
        if not text.strip():
            raise InputError("an empty sentence has no attention to show")
        source_tokenizer, target_tokenizer = self.bundle.source_tokenizer, self.bundle.target_tokenizer
        model = self.bundle.model.eval()
        ids = source_tokenizer.encode(text)
        if translation is None:
            settings = _whole(self._own())
            ((found,),) = self._search([ids], 1, settings, Demands(), self._compiled(settings, Demands()))
            written, translation = list(found.tokens), target_tokenizer.decode(found.tokens)
        else:
            written = target_tokenizer.encode(translation)
        device = model.output.weight.device
        source, lengths = collate_source([ids], Tokenizer.pad_id, Tokenizer.eos_id)
        target = torch.tensor([[Tokenizer.bos_id, *written]], device=device)
        output = model(source.to(device), lengths.to(device), target, need_weights=True)
        return AttentionMap(
            translation,
            source_tokenizer.pieces([*ids, Tokenizer.eos_id]),
            target_tokenizer.pieces([*written, Tokenizer.eos_id]),
            target_tokenizer.pieces([Tokenizer.bos_id, *written]),
            output.weights,
        )


def symbols_of(tokenizer: Tokenizer) -> Symbols:
    """What a search must know of a vocabulary."""
    return Symbols(tokenizer.bos_id, tokenizer.eos_id, tokenizer.forbidden_in_output)


def check_n_best(n: int, beam: int) -> None:
    """Refuses what no beam can hold.

    Raises:
        ConfigurationError: fewer than 1, or more than the beam.
    """
    if not 1 <= n <= beam:
        raise ConfigurationError(f"n_best: expected 1 to the beam, which is {beam}, got {n}; widen the beam")


def _whole(settings: GenerationConfig) -> SearchSettings:
    """With the settings that a model folder does not have."""
    return settings if isinstance(settings, SearchSettings) else SearchSettings(**settings.model_dump())


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
