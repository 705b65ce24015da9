"""Given translations as batches: what scoring and aligning have in common. Nothing is searched here.

Texts are encoded as they are, empty ones too: a side without characters is its end symbol (source) or begin symbol
(target) alone. Which lines are worth it is for `judging.score` and `judging.align` to say.

How probable a model finds given translations: forced decoding of whole files (`decoding.scoring`), and perplexity.

    log p(y | x) = sum_t log p(y_t | y_<t, x),    t = 1 ... |y|, where y_|y| is the end symbol
    perplexity = exp(- sum log p(y | x) / sum |y|),    both sums over the pairs

in natural logarithms. A translation is cut into tokens as the model's tokenizer does it; p(y | x) is the probability of
that one spelling of the text. (The same text in other pieces has a probability of its own, which a model that was
trained on one spelling leaves near 0.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.data.order import batches_by_tokens
from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.decoding.scoring import force
from multihead.errors import ConfigurationError, InputError
from multihead.models.network import AttentionWeights, Network, Output
from multihead.text.tokenizer import Tokenizer
from multihead.translating.searching import symbols_of
from multihead.translating.translator import Translator


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs of nearly equal lengths, on the model's device."""

    places: list[int]
    """Which pairs these are."""
    source: Int[Tensor, "batch source"]
    """Ids and end symbol, padded on the right."""
    lengths: Int[Tensor, " batch"]
    """How many of them are real."""
    targets: list[list[int]]
    """Ids, without begin and end."""


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Refuses what are not pairs.

    Raises:
        InputError: a string in the place of a list of them; not one target a source.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise InputError("expected two lists of sentences, got one string; write [text]")
    if len(sources) != len(targets):
        raise InputError(f"got {len(targets)} targets for {len(sources)} sources; expected one target a source")


def pair_batches(
    model: Network, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_tokens: int
) -> Iterator[PairBatch]:
    """Pairs of ids in batches, the longest first: rows times the longer side's longest is at most ``batch_tokens``.

    Args:
        model: for whom; tells the device.
        sources: ids without begin and end.
        targets: likewise, one a source.
        batch_tokens: a pair longer than that is a batch of its own.

    Raises:
        ConfigurationError: a budget below 1.
    """
    if batch_tokens < 1:
        raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
    device = model.output.weight.device
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for places in batches_by_tokens(lengths, batch_tokens):
        source, real = collate_source([sources[place] for place in places], Tokenizer.pad_id, Tokenizer.eos_id)
        yield PairBatch(places, source.to(device), real.to(device), [targets[place] for place in places])


@torch.no_grad()
def teacher_forced(model: Network, batch: PairBatch) -> tuple[Float[Tensor, "batch target vocab"], AttentionWeights]:
    """Logits and all weights while the targets are written: position t is for target token t, the end symbol last."""
    ended, _ = collate_source(batch.targets, Tokenizer.pad_id, Tokenizer.eos_id)
    given = ended.roll(1, dims=1)
    given[:, 0] = Tokenizer.bos_id
    output: Output = model.eval()(batch.source, batch.lengths, given.to(batch.source.device), need_weights=True)
    return output.logits, output.weights or AttentionWeights((), (), ())


@dataclass(frozen=True)
class ScoredPair:
    """What a model thinks of one translation."""

    tokens: list[str]
    """Its tokens, to be read by people, the end symbol last; none of a pair that is empty on both sides."""
    log_probabilities: list[float]
    """log p(y_t | y_<t, x) of each."""

    @property
    def log_probability(self) -> float:
        """log p(y | x)."""
        return math.fsum(self.log_probabilities)

    def score(self, alpha: float, penalty: LengthPenalty = power) -> float:
        """log p(y | x) / penalty(|y|): what a search ranks by; 0 of a pair that is empty on both sides."""
        return self.log_probability / penalty(len(self.tokens), alpha) if self.tokens else 0.0


@dataclass
class Perplexity:
    """The perplexity of the pairs that were added."""

    log_probability: float = 0.0
    tokens: int = 0
    """End symbols counted."""

    def add(self, scored: Sequence[ScoredPair]) -> None:
        """Some more pairs; those that are empty on both sides add nothing."""
        self.log_probability += math.fsum(one.log_probability for one in scored)
        self.tokens += sum(len(one.tokens) for one in scored)

    @property
    def value(self) -> float:
        """exp of the mean negative log-probability of a token; NaN where there is none."""
        if not self.tokens:
            return math.nan
        mean = -self.log_probability / self.tokens
        return math.exp(mean) if mean < 700 else math.inf


def score(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[ScoredPair]:
    """The probability of each target, given its source; as many come back, in order.

    An empty side is read as it is: an empty target is its end symbol alone, an empty source likewise. Only a pair of
    nothing but white space on both sides has no tokens and the score 0, as `Translator.translations` has it.

    Args:
        translator: any model that can step.
        sources: a sentence each.
        targets: their translations.
        batch_tokens: padded tokens of the longer side in a batch: memory against speed.
        progress: is told how many more pairs are done, whenever some are.

    Raises:
        InputError: not one target a source; a lone surrogate.
        ConfigurationError: a budget below 1.
        MultiheadError: the model gave NaN.
    """
    check_pairs(sources, targets)
    work = [place for place, pair in enumerate(zip(sources, targets, strict=True)) if any(map(str.strip, pair))]
    if progress is not None and len(work) < len(sources):
        progress(len(sources) - len(work))
    bundle = translator.bundle
    read = bundle.source_tokenizer.encode_batch([sources[place] for place in work])
    written = bundle.target_tokenizer.encode_batch([targets[place] for place in work])
    found = forced_log_probabilities(bundle.model, bundle.target_tokenizer, read, written, batch_tokens, progress)
    results = [ScoredPair([], []) for _ in sources]
    for place, ids, values in zip(work, written, found, strict=True):
        results[place] = ScoredPair(bundle.target_tokenizer.pieces([*ids, Tokenizer.eos_id]), values)
    return results


def forced_log_probabilities(
    model: Network,
    tokenizer: Tokenizer,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[list[float]]:
    """As `decoding.scoring.force`, of ids, in batches of nearly equal lengths; arguments as `score`."""
    model.eval()
    symbols = symbols_of(tokenizer)
    results: list[list[float]] = [[] for _ in sources]
    for batch in pair_batches(model, sources, targets, batch_tokens):
        found = force(model, batch.source, batch.lengths, batch.targets, symbols)
        for place, values in zip(batch.places, found, strict=True):
            results[place] = values
        if progress is not None:
            progress(len(batch.places))
    return results
