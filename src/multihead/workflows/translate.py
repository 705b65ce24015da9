"""Text in, text out: the `Translator` that a program holds, and what keeps lines in order.

Searching is `multihead.decoding`'s; a sentence's batch never decides what becomes of it, only how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from multihead import bundle as bundles
from multihead.bundle import Bundle
from multihead.data.batching import batches_by_tokens, collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.stepper import Symbols
from multihead.errors import ConfigurationError, InputError
from multihead.models.transformer import AttentionWeights
from multihead.text.tokenizer import Tokenizer
from multihead.workflows.machine import require_device


@dataclass(frozen=True)
class Translation:
    """A translated sentence."""

    text: str
    score: float
    """log p(y | x) / |y|^alpha: comparable between translations of one sentence."""
    finished: bool
    """False where the length limit cut it; then the text is not whole."""


@dataclass(frozen=True)
class AttentionMap:
    """What a translation looked at."""

    source: list[str]
    """Subwords of the source, the end symbol included."""
    target: list[str]
    """Subwords of the translation, the end symbol included."""
    weights: AttentionWeights
    """Every layer's, each ``[1, heads, query, key]``; row t of ``cross`` wrote target subword t."""


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
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Translates sentences; as many come back, in order, and an empty one stays empty.

        Args:
            texts: a sentence each.
            beam: hypotheses of the beam search; 1 is greedy. The model's own setting by default.
            alpha: length penalty. The model's own by default.
            batch_tokens: padded source tokens times the beam in a batch: memory against speed.
            progress: is told how many more sentences are done, whenever some are.
        """
        found = self.translations(texts, beam=beam, alpha=alpha, batch_tokens=batch_tokens, progress=progress)
        return [translation.text for translation in found]

    @torch.no_grad()
    def translations(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """As `translate`, with scores and whether each is whole.

        Raises:
            InputError: one string instead of a list of them; a lone surrogate in one of them.
            ConfigurationError: a beam, penalty or budget that cannot be.
        """
        if isinstance(texts, str):
            raise InputError("expected a list of sentences, got one string; write translate([text])")
        self.bundle.model.eval()
        generation = self.bundle.generation
        beam = generation.beam if beam is None else beam
        alpha = generation.alpha if alpha is None else float(alpha)
        for name, value, least in (("beam", beam, 1), ("batch_tokens", batch_tokens, 1), ("alpha", alpha, 0)):
            if not least <= value < float("inf"):
                raise ConfigurationError(f"{name} must be a number of at least {least}, got {value}")
        results = [Translation("", 0.0, True)] * len(texts)
        work = [index for index, text in enumerate(texts) if text.strip()]
        if progress is not None and len(work) < len(texts):
            progress(len(texts) - len(work))
        encoded = self.bundle.source_tokenizer.encode_batch([texts[index] for index in work])
        lengths = [len(ids) + 1 for ids in encoded]
        for group in batches_by_tokens(lengths, max(batch_tokens // beam, 1)):
            hypotheses = self._search([encoded[i] for i in group], beam, alpha)
            decoded = self.bundle.target_tokenizer.decode_batch([list(h.tokens) for h in hypotheses])
            for i, hypothesis, text in zip(group, hypotheses, decoded, strict=True):
                results[work[i]] = Translation(text, hypothesis.score, hypothesis.finished)
            if progress is not None:
                progress(len(group))
        return results

    def _search(self, group: list[list[int]], beam: int, alpha: float) -> list[Hypothesis]:
        model, generation = self.bundle.model, self.bundle.generation
        device = model.output.weight.device
        source, lengths = collate_source(group, Tokenizer.pad_id, Tokenizer.eos_id)
        limits = [generation.limit(int(length)) for length in lengths]
        source, lengths = source.to(device), lengths.to(device)
        symbols = symbols_of(self.bundle.target_tokenizer)
        if beam == 1:
            greedy = greedy_search(model, source, lengths, symbols, max_lengths=limits)
            return [replace(h, score=h.log_probability / (len(h.tokens) + h.finished) ** alpha) for h in greedy]
        found = beam_search(model, source, lengths, symbols, max_lengths=limits, beam=beam, alpha=alpha)
        return [hypotheses[0] for hypotheses in found]

    @torch.no_grad()
    def attention(self, text: str, translation: str | None = None) -> AttentionMap:
        """Every head's weights while ``translation`` (by default: our own) is written for ``text``."""
        if not text.strip():
            raise InputError("an empty sentence has no attention to show")
        translation = self.translate([text])[0] if translation is None else translation
        source_tokenizer, target_tokenizer = self.bundle.source_tokenizer, self.bundle.target_tokenizer
        ids, written = source_tokenizer.encode(text), target_tokenizer.encode(translation)
        model = self.bundle.model.eval()
        device = model.output.weight.device
        source, lengths = collate_source([ids], Tokenizer.pad_id, Tokenizer.eos_id)
        target = torch.tensor([[Tokenizer.bos_id, *written]], device=device)
        output = model(source.to(device), lengths.to(device), target, need_weights=True)
        return AttentionMap(
            source_tokenizer.pieces([*ids, Tokenizer.eos_id]),
            target_tokenizer.pieces([*written, Tokenizer.eos_id]),
            output.weights,
        )


def symbols_of(tokenizer: Tokenizer) -> Symbols:
    """What a search must know of a vocabulary."""
    return Symbols(tokenizer.bos_id, tokenizer.eos_id, tokenizer.forbidden_in_output)


def in_chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of up to ``size`` lines: large enough to sort by length, small enough for any stream."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
