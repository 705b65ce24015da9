"""How probable a model finds given translations: forced decoding of whole files (`decoding.scoring`), and perplexity.

    log p(y | x) = sum_t log p(y_t | y_<t, x),    t = 1 ... |y|, where y_|y| is the end symbol
    perplexity = exp(- sum log p(y | x) / sum |y|),    both sums over the pairs

in natural logarithms. A translation is cut into tokens as the model's tokenizer does it; p(y | x) is the probability of
that one spelling of the text. (The same text in other pieces has a probability of its own, which a model that was
trained on one spelling leaves near 0.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.decoding.scoring import force
from multihead.judging.pairs import check_pairs, pair_batches
from multihead.models.network import Network
from multihead.text.tokenizer import Tokenizer
from multihead.translating.searching import symbols_of
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Scored:
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

    def add(self, scored: Sequence[Scored]) -> None:
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
) -> list[Scored]:
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
    found = forced(bundle.model, bundle.target_tokenizer, read, written, batch_tokens, progress)
    results = [Scored([], []) for _ in sources]
    for place, ids, values in zip(work, written, found, strict=True):
        results[place] = Scored(bundle.target_tokenizer.pieces([*ids, Tokenizer.eos_id]), values)
    return results


def forced(
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
