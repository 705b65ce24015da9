"""Text in, text out: the `Translator` that a program holds, and what keeps sentences in order.

Searching is `multihead.decoding`'s; a sentence's batch never decides what becomes of it, only how fast. Streams and
files of lines are in `workflows.lines` and `workflows.translate_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from multihead import bundle as bundles
from multihead.bundle import Bundle
from multihead.configuration import build
from multihead.data.batching import batches_by_tokens, collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.stepper import Symbols
from multihead.errors import ConfigurationError, InputError
from multihead.models.config import GenerationConfig
from multihead.text.tokenizer import Tokenizer
from multihead.workflows.attention import AttentionMap
from multihead.workflows.machine import require_device


@dataclass(frozen=True)
class Translation:
    """A translated sentence."""

    text: str
    score: float
    """log p(y | x) / |y|^alpha: comparable between translations of one sentence."""
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

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Translator:
        """Reads a model folder, or a run folder's best model.

        Raises:
            FormatError: it is neither, or damaged.
            ConfigurationError: the device is not there.
        """
        require_device(device)
        return cls(bundles.load(Path(path), device))

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
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
            batch_tokens: padded source tokens times the beam in a batch: memory against speed.
            progress: is told how many more sentences are done, whenever some are.
        """
        settings = self.search_settings(beam, alpha, min_length, max_length)
        return [found[0].text for found in self._translate(texts, 1, settings, batch_tokens, progress)]

    def translations(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """As `translate`, with scores and whether each is whole.

        Raises:
            InputError: one string instead of a list of them; a lone surrogate in one of them.
            ConfigurationError: a beam, penalty, length or budget that cannot be.
        """
        settings = self.search_settings(beam, alpha, min_length, max_length)
        return [found[0] for found in self._translate(texts, 1, settings, batch_tokens, progress)]

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
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
        return self._translate(texts, n, settings, batch_tokens, progress)

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
        return build(GenerationConfig, {**self.bundle.generation.model_dump(), **changes}, "the search")

    @torch.no_grad()
    def _translate(
        self,
        texts: Sequence[str],
        n: int,
        settings: GenerationConfig,
        batch_tokens: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Translation]]:
        if isinstance(texts, str):
            raise InputError("expected a list of sentences, got one string; write translate([text])")
        if batch_tokens < 1:
            raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
        check_n_best(n, settings.beam)
        self.bundle.model.eval()
        results = [[Translation("", 0.0, True)] for _ in texts]
        work = [index for index, text in enumerate(texts) if text.strip()]
        if progress is not None and len(work) < len(texts):
            progress(len(texts) - len(work))
        encoded = self.bundle.source_tokenizer.encode_batch([texts[index] for index in work])
        lengths = [len(ids) + 1 for ids in encoded]
        for group in batches_by_tokens(lengths, max(batch_tokens // settings.beam, 1)):
            found = self._search([encoded[i] for i in group], n, settings)
            for i, hypotheses in zip(group, found, strict=True):
                results[work[i]] = [self._translation(h, lengths[i]) for h in hypotheses]
            if progress is not None:
                progress(len(group))
        return results

    def _search(self, group: list[list[int]], n: int, settings: GenerationConfig) -> list[list[Hypothesis]]:
        model = self.bundle.model
        device = model.output.weight.device
        source, lengths = collate_source(group, Tokenizer.pad_id, Tokenizer.eos_id)
        limits = [settings.limit(int(length)) for length in lengths]
        source, lengths = source.to(device), lengths.to(device)
        symbols, alpha, least = symbols_of(self.bundle.target_tokenizer), settings.alpha, settings.min_length
        if settings.beam == 1:
            greedy = greedy_search(model, source, lengths, symbols, max_lengths=limits, min_lengths=least)
            return [[replace(h, score=h.log_probability / (len(h.tokens) + h.finished) ** alpha)] for h in greedy]
        return beam_search(
            model,
            source,
            lengths,
            symbols,
            max_lengths=limits,
            min_lengths=least,
            beam=settings.beam,
            alpha=alpha,
            n_best=n,
        )

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
            ((found,),) = self._search([ids], 1, self.search_settings())
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
